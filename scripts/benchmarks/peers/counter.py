"""What every server under test does with a message: count it per session, put the count into the first eight bytes."""

import struct
from collections.abc import Callable

pack_count = struct.Struct("<Q").pack


class Counter:
    """One session: the count of its messages."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def message(self, data: bytes) -> bytes:
        self.n += 1
        return pack_count(self.n) + data[8:]


class LoopingCounter(Counter):
    """The same with some work: a Python loop of a thousand iterations per message."""

    __slots__ = ()

    def message(self, data: bytes) -> bytes:
        self.n += 1
        total = 0
        for i in range(1000):
            total += i
        return pack_count(self.n) + data[8:]


def session_type(loop: int) -> Callable[[], Counter]:
    """The session class for a command line's `--loop` (0 or 1000)."""
    return LoopingCounter if loop else Counter
