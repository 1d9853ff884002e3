"""Requests between the Python halves of shards, as infrastructure: they never wait behind data (M-21).

PEER_ASK     a: request number, b: operation, payload: MessagePack    asker -> peer
PEER_ANSWER  a: request number, b: status (0, or a condition)         peer -> asker
PEER_PART    a: request number; a piece of what comes next under that number from that process
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from shardpool.codecs import encode_msgpack
from shardpool.errors import ShardpoolError, number_of
from shardpool.workers.context import ShardContext, log
from shardpool.workers.faults import body_of
from shardpool.workers.kinds import Kind
from shardpool.workers.replies import OpenAsks

ASSEMBLED_BYTES_MAX = 256 << 20


class Operation(IntEnum):
    """What one shard asks of another."""

    CREATE = 1  # get or create an object that is placed here
    ALIVE = 2  # is there an object at that address?
    REPLACE = 3  # end a session: its identity came in again
    ARRIVE = 4  # take an actor over
    ROUTE = 5  # a session of here is bound to another address now
    PUBLISH = 6  # to the members of a Spot of here
    SETTLED = 7  # answer, so that the asker knows: nothing that its predecessor asked for is under way here
    PARDON = 8  # release a quarantined object


# (payload, asking shard) -> the answer's payload; plain or async
Serve = Callable[[bytes, int], Any]


class Peers:
    """This shard's requests to the others, and theirs to it."""

    def __init__(self, context: ShardContext, asks: OpenAsks) -> None:
        self._context = context
        self._asks = asks
        self._told = itertools.count(1)
        self._serve: dict[int, Serve] = {}
        self._parts: dict[tuple[int, int, int], bytearray] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # A record may take a quarter of its ring; half of that leaves room for others.
        self._piece = max(1024, context.settings.infra_bytes // 8)

    def __len__(self) -> int:
        """Requests of others that are not answered."""
        return len(self._tasks)

    def serve(self, operation: Operation, function: Serve) -> None:
        """Say who answers an operation."""
        self._serve[operation] = function

    async def ask(self, shard: int, operation: Operation, payload: bytes, deadline: float, described: str) -> bytes:
        """Ask a peer, or this shard itself.

        Raises: the peer's ShardpoolError; DeadlineExceeded; CapacityExceeded.
        """
        if shard == self._context.number:
            result = self._serve[operation](payload, shard)
            answer: bytes = await result if inspect.isawaitable(result) else result
            return answer
        ask = self._asks.begin(deadline, described)
        try:
            self._asks.aim(ask, shard)
            self._write(self._context.process_of_shard(shard), Kind.PEER_ASK, ask.number, operation, payload)
            return await ask.future
        finally:
            self._asks.abandon(ask)

    def tell(self, shard: int, operation: Operation, payload: bytes) -> None:
        """Tell a peer, without waiting for what comes of it."""
        if shard == self._context.number:
            self._run(shard, 0, operation, payload)
        else:
            number = next(self._told)
            self._write(self._context.process_of_shard(shard), Kind.PEER_ASK, number, operation, payload)

    def take(self, kind: int, process: int, number: int, b: int, payload: bytes) -> None:
        """One of the three records came from another shard's process."""
        if kind == Kind.PEER_PART:
            parts = self._parts.setdefault((process, number, b), bytearray())
            if len(parts) + len(payload) <= ASSEMBLED_BYTES_MAX:
                parts += payload
            return
        before = self._parts.pop((process, number, kind), None)
        if before is not None:
            payload = bytes(before) + payload
        if kind == Kind.PEER_ANSWER:
            self._asks.reply(number, b, payload)
        else:
            self._run(process - 1 - self._context.acceptors, number, b, payload)

    def _run(self, shard: int, number: int, operation: int, payload: bytes) -> None:
        serve = self._serve.get(operation)
        if serve is None:
            log.error("shard %d asks for operation %d, which is not known here", shard, operation)
            return
        task = self._context.loop.create_task(self._answer(serve, shard, number, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, serve: Serve, shard: int, number: int, payload: bytes) -> None:
        status = 0
        try:
            result = serve(payload, shard)
            answer = await result if inspect.isawaitable(result) else result
        except Exception as error:
            if not isinstance(error, ShardpoolError):
                log.error("a request of shard %d failed", shard, exc_info=error)
            status = number_of(error)
            answer = encode_msgpack(body_of(error))
        if shard != self._context.number and number:
            process = self._context.process_of_shard(shard)
            self._write(process, Kind.PEER_ANSWER, number, status, answer or b"")

    def _write(self, process: int, kind: Kind, number: int, b: int, payload: bytes) -> None:
        shard = self._context.shard
        while len(payload) > self._piece:
            piece, payload = payload[: self._piece], payload[self._piece :]
            shard.post_process(process, Kind.PEER_PART, number, kind, piece)
        shard.post_process(process, kind, number, b, payload)

    def forget(self, shard: int) -> None:
        """A shard's process died: the rest of what it had begun to say does not come."""
        process = self._context.process_of_shard(shard)
        for key in [key for key in self._parts if key[0] == process]:
            del self._parts[key]
