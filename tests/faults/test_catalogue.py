"""Reports of other systems' faults, as tests of the whole kind: mailboxes, wake-ups, waiters, late replies.

Rows of a catalogue of real public reports; each test names the report that it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from torturing.pool import Pool, wait_for

from shardpool import control
from shardpool.client import Client, connect
from shardpool.errors import DeadlineExceeded

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("SHARDPOOL_LONG") == "1"
# What nobody may wait for. A lost wake-up waits for ever; this is only more than a busy machine needs.
WATCHDOG = 10.0

APP = """\
import asyncio
import random

from msgspec import Struct
from shardpool import Actor, App, DeadlineExceeded, Spot, on

app = App("catalogue")


class Echo(Struct, tag="echo"):
    number: int
    delay: float = 0.0


class Chain(Struct, tag="chain"):
    number: int
    room: str
    timeout: float


class Flood(Struct, tag="flood"):
    count: int


@app.actor
class Player(Actor):
    @on
    async def echo(self, msg: Echo) -> int:
        if msg.delay:
            await asyncio.sleep(msg.delay)
        return msg.number

    @on
    async def chain(self, msg: Chain) -> int:
        await self.create(Room, msg.room)
        try:
            ask = self.ask(Room, msg.room, Echo(msg.number, random.random() * 0.01), timeout=msg.timeout)
            return await ask
        except DeadlineExceeded:
            return -1

    @on
    def flood(self, msg: Flood) -> None:
        for number in range(msg.count):
            self.session.send({"type": "drop", "number": number})


@app.spot(mode="spotwide")
class Room(Spot):
    @on
    async def echo(self, msg: Echo) -> int:
        await asyncio.sleep(msg.delay)
        return msg.number
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    (tmp_path / "catalogue.py").write_text(APP)
    pool = Pool(tmp_path, 2, 2, {}, "catalogue:app", tmp_path)
    yield pool
    code = pool.stop()
    assert code == 0, pool.last_words()


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("SHARDPOOL_SEED") or random.randrange(1 << 32))
    print(f"SHARDPOOL_SEED={seed}")
    return random.Random(seed)


async def answered(client: Client, number: int) -> None:
    assert await client.ask({"type": "echo", "number": number}, timeout=WATCHDOG) == number


def test_no_wake_up_is_lost_between_two_that_sleep_all_the_time(pool: Pool) -> None:
    """M-12: tokio #2123, notify between check and sleep. One message at a time: both sides park before each."""

    async def play() -> None:
        async with connect(pool.addresses[0]) as one, connect(pool.addresses[1]) as two:
            for number in range(500_000 if LONG else 5_000):
                await answered(one if number % 3 else two, number)

    asyncio.run(play())


def test_a_control_socket_reports_what_came_while_nobody_looked(pool: Pool, chance: random.Random) -> None:
    """P-3: pyzmq #1075, an edge-triggered descriptor: events that were pending were never reported again."""
    with zmq.Context(1) as context:
        sockets = [context.socket(zmq.DEALER) for _ in range(8)]
        try:
            for each in sockets:
                each.set(zmq.LINGER, 0)
                each.connect(f"ipc://{pool.run_dir / 'admin.sock'}")
            for _ in range(2_000 if LONG else 150):
                asked = [chance.choice(sockets) for _ in range(chance.randint(1, 12))]
                for each in asked:
                    each.send(control.encode(control.StatusRequest()))
                    if chance.random() < 0.3:
                        time.sleep(chance.random() * 0.003)  # the other side has gone to sleep, or has not
                for each in asked:
                    assert each.poll(int(WATCHDOG * 1000), zmq.POLLIN), "an answer never came"
                    each.recv_multipart()
        finally:
            for each in sockets:
                each.close()


def test_cancelled_waiters_leave_nothing_locked(pool: Pool, chance: random.Random) -> None:
    """T-10, M-10, M-11: cpython #90155, a cancelled waiter took the wake-up with it. At clients and between objects."""

    async def cancel_some(client: Client, number: int) -> None:
        asks = [
            asyncio.create_task(client.ask({"type": "echo", "number": number + i, "delay": 0.002}))
            for i in range(chance.randint(1, 6))
        ]
        chain = {"type": "chain", "number": number, "room": f"r{number % 4}", "timeout": 0.001 + chance.random() * 0.01}
        asks.append(asyncio.create_task(client.ask(chain)))
        await asyncio.sleep(chance.random() * 0.004)
        for ask in asks:
            if chance.random() < 0.5:
                ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)

    async def play() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(pool.addresses[i % 2])) for i in range(8)]
            for number in range(5_000 if LONG else 60):
                await asyncio.gather(*(cancel_some(client, number * 10) for client in clients))
            for number, client in enumerate(clients):
                await answered(client, number)
                chain = {"type": "chain", "number": number, "room": f"r{number % 4}", "timeout": WATCHDOG}
                assert await client.ask(chain) == number, "a room's gate or lane is still taken"
                assert client.statistics().open_asks == 0

    asyncio.run(play())
    wait_for(lambda: not pool.left(), WATCHDOG, "every permit and session is back")


def test_nobody_waits_for_what_a_killed_shard_held(tmp_path: Path) -> None:
    """M-15, M-16: cpython #96062, a child killed with the queue's lock: nobody could ever read again."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "scripts" / "torture"), "--victims", "shards"]
    command += ["--json", str(figures), "--period", "100" if LONG else "250", "--clients", "40"]
    command += ["--seconds", "300" if LONG else "12", "--messages", "600000" if LONG else "12000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout
    assert json.loads(figures.read_text())["longest_ask_ms"] < WATCHDOG * 1000


def test_a_client_that_never_reads_costs_nobody_else(pool: Pool) -> None:
    """P-9, M-3: skynet #794, a 16-bit count of bytes in flight overflowed after 65,535 small sends to a slow peer."""
    host, _, port = pool.addresses[0].partition("://")[2].rpartition(":")

    async def play() -> None:
        with socket.create_connection((host, int(port))) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for body in (b'H{"v":1}', *(b'S{"type":"flood","count":1000}' for _ in range(200))):
                deaf.sendall(struct.pack(">I", len(body)) + body)
            async with connect(pool.addresses[1]) as other:
                deadline = time.monotonic() + 60
                number = 0
                while not any(row["counters"]["closed"] for row in pool.processes() if row["role"] == "acceptor"):
                    await answered(other, number)
                    number += 1
                    assert time.monotonic() < deadline, "the deaf client is still there"
                for number in range(100):
                    await answered(other, number)

    asyncio.run(play())
    assert all(row["restarts"] == 0 for row in pool.processes())


def test_a_late_reply_is_nobody_elses(pool: Pool, chance: random.Random) -> None:
    """T-10, O-12: redis-py #2665, a cancelled call left its reply in the pipe, and the next caller got it."""
    wrong: list[str] = []
    late = 0

    async def ask(client: Client, number: int) -> None:
        delay = chance.random() * 0.01
        patience = 0.001 + chance.random() * 0.01 if chance.random() < 0.3 else WATCHDOG
        try:
            found = await client.ask({"type": "echo", "number": number, "delay": delay}, timeout=patience)
            if found != number:
                wrong.append(f"{number} got {found}")
            chain = {"type": "chain", "number": number, "room": f"r{number % 8}", "timeout": patience}
            found = await client.ask(chain, timeout=WATCHDOG)
            if found not in (number, -1):
                wrong.append(f"between objects: {number} got {found}")
        except DeadlineExceeded:
            pass

    async def play() -> None:
        nonlocal late
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(pool.addresses[i % 2])) for i in range(16)]
            for number in range(10_000 if LONG else 50):
                await asyncio.gather(*(ask(client, number * 100 + i) for i, client in enumerate(clients * 2)))
            late = sum(client.statistics().late for client in clients)

    asyncio.run(play())
    assert not wrong, wrong[:5]
    assert late > 0, "no reply was late: nothing was tested"
