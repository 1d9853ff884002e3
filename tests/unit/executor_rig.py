"""A node of one acceptor and some shards inside one process: real segments, real executors, no sockets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from shardpool import _core

CLIENT = 1 << 32  # acceptor 0, generation 1, connection 0
SLICE_NS = 1_000_000_000


class Stub:
    """Stands in for a task during a coroutine's first step."""


class Hooks:
    """Records what the executor told Python."""

    loop: Any = None
    enter_task: Callable[..., None] | None = None
    leave_task: Callable[..., None] | None = None
    stub: type[Stub] | None = None

    def __init__(self) -> None:
        self.replies: list[tuple[int, int, bytes]] = []
        self.failures: list[BaseException] = []
        self.controls: list[tuple[int, int, int, int, bytes]] = []
        self.suspended: list[tuple[int, int, Any]] = []
        self.moved: list[tuple[int, list[tuple[int, int, int, int, bytes]]]] = []
        self.unrun: list[tuple[int, int, int, int, bytes]] = []
        self.resumptions: list[int] = []
        self.pokes = 0

    def poke(self) -> None:
        self.pokes += 1

    def failed(self, address: int, kind: int, exc: BaseException, payload: bytes) -> bytes:
        self.failures.append(exc)
        return b"failed"

    def adopt(self, address: int, turn: int, coro: Any, yielded: object, stub: object, context: object) -> None:
        self.suspended.append((address, turn, coro))

    def reply(self, call_id: int, status: int, payload: bytes) -> None:
        self.replies.append((call_id, status, payload))

    def control(self, kind: int, process: int, a: int, b: int, payload: bytes) -> None:
        self.controls.append((kind, process, a, b, payload))

    def resumed(self, address: int) -> None:
        self.resumptions.append(address)

    def dropped(self, address: int, records: list[tuple[int, int, int, int, bytes]]) -> None:
        self.unrun += records

    def sealed(self, address: int, records: list[tuple[int, int, int, int, bytes]]) -> None:
        self.moved.append((address, records))

    def finish_all(self, shard: _core.Shard, result: object = b"late") -> None:
        """Run every suspended handler to its end and end its turn with this result."""
        suspended, self.suspended = self.suspended, []
        for address, turn, coro in suspended:
            with contextlib.suppress(StopIteration):
                coro.send(None)
            shard.finish(address, turn, result, None)


class Recorder:
    """An object whose turns append what they got."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def message(self, data: bytes) -> bytes:
        self.seen.append(data)
        return data

    async def later(self, data: bytes) -> bytes:
        self.seen.append(data)
        return data

    def lifecycle(self, kind: int, a: int, b: int, payload: bytes) -> None:
        self.seen.append((kind, a, b, payload))


def table(handler: Callable[..., Any] = Recorder.message, flags: int = 0) -> _core.Table:
    return _core.Table(None, {bytes: (handler, flags)}, None, bytes, bytes, Recorder.lifecycle)


ASYNC = table(Recorder.later, _core.HANDLER_ASYNC)


class Rig:
    """The node; `acceptor` publishes as an acceptor would, `shards[k]` runs."""

    def __init__(self, shards: int = 1, **geometry: int) -> None:
        self.geometry = _core.Geometry(1, shards, **geometry)
        processes = 2 + shards
        self.segments = [_core.create_segment(self.geometry, process) for process in range(processes)]
        self.doorbells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(processes)]
        self.acceptor = self.node(1)
        self.hooks = [Hooks() for _ in range(shards)]
        self.nodes = [self.node(2 + number) for number in range(shards)]
        self.shards = [_core.Shard(self.nodes[k], k, self.hooks[k]) for k in range(shards)]

    def node(self, process: int) -> _core.Node:
        return _core.Node(process, self.segments, self.doorbells)

    def close(self) -> None:
        for descriptor in self.segments + self.doorbells:
            os.close(descriptor)

    def publish(self, address: int, payload: bytes, count: int = 1, flags: int | None = None) -> int:
        flags = _core.FLAG_ASK if flags is None else flags
        return _core.publish_frames(self.acceptor, address, CLIENT, payload, count, flags)

    def run(self, shard: int = 0) -> None:
        """Runs the shard until nothing is ready."""
        while self.shards[shard].run(SLICE_NS):
            pass

    def sent(self) -> list[tuple[int, bytes]]:
        """(kind, payload) of everything sent to the acceptor since the last call."""
        return [(record[0], record[5]) for record in _core.drain_links(self.acceptor, True)]
