"""The shard alone, in one process: records lie ready in a link, the executor runs handlers and writes replies."""

import asyncio
import os
import time

from shardpool import _core

OBJECTS = 64
FRAMES_PER_BATCH = 16
BATCHES = 1
PAYLOAD = bytes(64)
ACCEPTOR, SHARD = 1, 2  # process indices; 0 is the supervisor
BUDGET_NS = 10_000_000


class Counter:
    """What a user writes, without its base class: an instance attribute counted, a reply."""

    def __init__(self) -> None:
        self.n = 0

    def message(self, data: bytes) -> bytes:
        self.n += 1
        return data


def unexpected(*arguments: object) -> None:
    raise AssertionError(f"a hook was called: {arguments}")


class Hooks:
    """The shard's Python half, of which this path must need nothing."""

    enter_task = leave_task = stub = None
    failed = adopt = reply = control = resumed = sealed = dropped = staticmethod(unexpected)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def poke(self) -> None:
        """run() is called all the time."""


def measure_drain(seconds: float) -> float:
    """Messages per second of the executor.

    Args: seconds: of measured drains; filling the link and reading the replies away are not in the time.
    Raises: AssertionError: a reply is missing, or the path is not the plain one.
    """
    geometry = _core.Geometry(1, 1)
    segments = [_core.create_segment(geometry, process) for process in range(3)]
    doorbells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
    try:
        return _drain(_core.Node(ACCEPTOR, segments, doorbells), _core.Node(SHARD, segments, doorbells), seconds)
    finally:
        for descriptor in (*segments, *doorbells):
            os.close(descriptor)


def _drain(acceptor: _core.Node, node: _core.Node, seconds: float) -> float:
    hooks = Hooks(asyncio.new_event_loop())
    shard = _core.Shard(node, 0, hooks)
    table = _core.Table(None, {bytes: (Counter.message, 0)}, None, bytes, bytes, lambda *_: None)
    shard.allocate(0, Counter(), table)  # slot 0 is the system object's
    addresses = [shard.allocate(1, Counter(), table, index + 1, index + 1) for index in range(OBJECTS)]
    fill = [(address, index + 1) for _ in range(BATCHES) for index, address in enumerate(addresses)]
    spent, messages = 0, 0
    while spent < seconds * 1e9:
        for address, client in fill:
            outcome = _core.publish_frames(acceptor, address, client, PAYLOAD, FRAMES_PER_BATCH, _core.FLAG_ASK)
            assert outcome == _core.ACCEPTED, outcome
        start = time.perf_counter_ns()
        while shard.run(BUDGET_NS):
            pass
        spent += time.perf_counter_ns() - start
        replies = _core.drain_links(acceptor)
        assert replies == len(fill) * FRAMES_PER_BATCH, replies
        messages += replies
    hooks.loop.close()
    return messages / (spent / 1e9)


if __name__ == "__main__":
    print(f"{measure_drain(1.0) / 1e6:.2f} M msg/s")
