"""Clients that send as fast as they can, and what can be known afterwards of each of their messages."""

from __future__ import annotations

import asyncio
import os
import struct
from collections import defaultdict
from pathlib import Path

from served_pool import ServedPool

from shardpool._core import Node
from shardpool.client import Client, connect
from shardpool.errors import ShardpoolError

CLIENTS = 16
PIPELINED = 32
ACCEPTORS, SHARDS = 2, 2
NOTE = struct.Struct("=II")

APP = """\
import asyncio
import os
import struct
from msgspec import Struct
from shardpool import Actor, App, on

app = App("faults")
notes = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class Told(Struct, tag="told"):
    client: int
    number: int


class Asked(Struct, tag="asked"):
    client: int
    number: int


class Slow(Struct, tag="slow"):
    client: int
    number: int


@app.actor
class Player(Actor):
    @on
    def told(self, msg: Told) -> None:
        os.write(notes, struct.pack("=II", msg.client, msg.number))

    @on
    def asked(self, msg: Asked) -> int:
        os.write(notes, struct.pack("=II", msg.client, msg.number))
        return msg.number

    @on
    async def slow(self, msg: Slow) -> int:
        await asyncio.sleep(0.002)
        os.write(notes, struct.pack("=II", msg.client, msg.number))
        return msg.number
"""


class Memory:
    """A pool's shared memory, mapped by an onlooker: it tells what was counted when the last process has ended."""

    def __init__(self, pool: ServedPool) -> None:
        directory = Path(f"/proc/{pool.process.pid}/fd")
        found = [int(each.name) for each in directory.iterdir() if _target(each).startswith("/memfd:shardpool ")]
        self._segments = [os.open(directory / str(fd), os.O_RDWR) for fd in sorted(found)]
        assert len(self._segments) == 1 + ACCEPTORS + SHARDS
        self._doorbells = [os.eventfd(0) for _ in self._segments]
        self._node = Node(0, self._segments, self._doorbells)

    def published(self) -> int:
        """Messages of clients that acceptors took in."""
        return sum(self._node.counters(1 + index)["messages_in"] for index in range(ACCEPTORS))

    def run(self) -> int:
        """Messages of clients whose turn a shard began."""
        return sum(self._node.counters(1 + ACCEPTORS + index)["messages_in"] for index in range(SHARDS))

    def close(self) -> None:
        for fd in (*self._segments, *self._doorbells):
            os.close(fd)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


class Load:
    """Clients, each with numbered messages; every third is only told, every ninth makes its turn wait."""

    def __init__(self) -> None:
        self.answered: dict[int, set[int]] = defaultdict(set)
        self.wrong: list[str] = []

    async def run(self, address: str) -> None:
        await asyncio.gather(*(self._play(address, client) for client in range(CLIENTS)))

    async def _play(self, address: str, number: int) -> None:
        try:
            async with connect(address, timeout=10, reconnect=False) as client:
                slots = asyncio.Semaphore(PIPELINED)
                asks = set()
                message = 0
                while client.closed is None:
                    await slots.acquire()
                    message += 1
                    if message % 3 == 0:
                        slots.release()
                        await client.send({"type": "told", "client": number, "number": message})
                        continue
                    ask = asyncio.ensure_future(self._ask(client, number, message))
                    asks.add(ask)
                    ask.add_done_callback(lambda done: (asks.discard(done), slots.release()))
                    await asyncio.sleep(0)  # the ask is written before the next message
                await asyncio.gather(*asks)
        except ShardpoolError:
            return  # the pool has gone

    async def _ask(self, client: Client, number: int, message: int) -> None:
        kind = "slow" if message % 9 == 1 else "asked"
        try:
            answer = await client.ask({"type": kind, "client": number, "number": message}, timeout=30)
        except ShardpoolError:
            return
        if answer != message:
            self.wrong.append(f"client {number} got {answer} for {message}")
        self.answered[number].add(message)

    def judge(self, pool: ServedPool, memory: Memory) -> None:
        """Of a pool that has ended: every message that was taken in was run once, in order, and was answered."""
        done: dict[int, list[int]] = defaultdict(list)
        for client, message in NOTE.iter_unpack((pool.directory / "notes").read_bytes()):
            done[client].append(message)
        assert len(done) == CLIENTS
        for client, messages in done.items():
            assert messages == list(range(1, len(messages) + 1)), f"client {client}: {messages[-20:]}"
            assert self.answered[client] == {each for each in messages if each % 3}, f"client {client}"
        assert self.wrong == []
        assert memory.published() == sum(len(messages) for messages in done.values())
        (pool.directory / "notes").unlink()
