"""The ledger of a torture run: a file that every process maps, and that no death of one takes anything from.

Each cell has one writer at a time: a message is run by one shard, sent and answered by one driver. A cell is one byte,
so that a process killed while it writes leaves either the old or the new value, never half of one.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

_HEAD = struct.Struct("<8sQQ")
_MAGIC = b"sp-oath1"
PIDS = 1 << 16


class Told(IntFlag):
    """What the sender of a message knows."""

    SENT = 1
    ANSWERED = 2
    REPORTED = 4  # an error said that it was interrupted or could not be delivered
    REFUSED = 8  # an error said that it was not accepted
    CUT = 16  # the connection ended, and nobody can say
    SILENT = 32  # no answer within the deadline
    WRONG = 64  # an answer that is another message's, or spoilt


class Seen(IntFlag):
    """What the handler noticed."""

    TORN = 1
    REORDERED = 2
    HOP_TORN = 4
    HOP_REORDERED = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of a run: messages in all, and streams, each with an order of its own."""

    messages: int
    streams: int


class Ledger:
    """The mapped file. Index of a message: its number in the whole run."""

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        magic, messages, streams = _HEAD.unpack_from(self._map)
        if magic != _MAGIC:
            raise SystemExit(f"{path} is no ledger of a torture run")
        self.sizes = Sizes(messages, streams)
        at = mmap.PAGESIZE
        view = memoryview(self._map)
        columns = []
        for _ in range(6):
            columns.append(view[at : at + messages])
            at += messages
        self.run, self.seen, self.hop_sent, self.hop_run, self.told, self.pushed = columns
        at = -(-at // 8) * 8
        self.last = view[at : at + 8 * streams].cast("Q")
        at += 8 * streams
        self.last_hop = view[at : at + 8 * streams].cast("Q")
        at += 8 * streams
        self.taken = view[at : at + 4 * PIDS].cast("I")

    def take(self, pid: int) -> None:
        """A shard's process took one more message."""
        self.taken[pid % PIDS] += 1

    def tell(self, message: int, what: Told) -> None:
        """Note what the sender learned."""
        self.told[message] |= what

    def close(self) -> None:
        """Unmap; no column may be used after it."""
        for column in (self.run, self.seen, self.hop_sent, self.hop_run, self.told, self.pushed):
            column.release()
        for wide in (self.last, self.last_hop, self.taken):
            wide.release()


def create(path: Path, sizes: Sizes) -> None:
    """Make an empty ledger."""
    size = mmap.PAGESIZE + 6 * sizes.messages + 8 + 16 * sizes.streams + 4 * PIDS
    with open(path, "wb") as file:
        file.truncate(size)
        file.write(_HEAD.pack(_MAGIC, sizes.messages, sizes.streams))


def checksum(message: int, stream: int, padding: str) -> int:
    """Over all that a message carries."""
    return zlib.crc32(f"{message} {stream} {padding}".encode())
