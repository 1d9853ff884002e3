"""From one acceptor to another: a client that wants its session back, with its socket (SCM_RIGHTS).

The supervisor made a socket pair for each acceptor and keeps both ends: what was sent to an acceptor that is dead waits
for its successor.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from shardpool.boot import Passage

_PARCEL_BYTES = 1 << 18


class Parcel(Struct, frozen=True, array_like=True):
    """A connection that said hello, and what it said."""

    transport: int
    framing: int
    session: int
    token: bytes
    received: int
    came: bytes  # read, and behind the hello
    unsent: bytes  # not written yet, and before whatever follows


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parcel).decode


class Passages:
    """The ways to all acceptors, and the end of one's own.

    Args: passages: of the boot record, by acceptor; empty: there is one acceptor only. own: its number.
    """

    def __init__(self, passages: list[Passage] | None = None, own: int = 0) -> None:
        passages = passages or []
        self._into = [socket.socket(fileno=each.into) for each in passages]
        self._out = socket.socket(fileno=passages[own].out) if passages else None
        for each in (*self._into, *([self._out] if self._out else ())):
            each.setblocking(False)

    def __len__(self) -> int:
        return len(self._into)

    @property
    def fd(self) -> int | None:
        """Readable when a parcel waits."""
        return None if self._out is None else self._out.fileno()

    def close(self) -> None:
        """Give the descriptors back."""
        for each in (*self._into, *([self._out] if self._out else ())):
            each.close()

    def send(self, acceptor: int, parcel: Parcel, fd: int) -> bool:
        """Send a copy of the descriptor. Returns: False when there is no room on the way there."""
        try:
            socket.send_fds(self._into[acceptor], [_encode(parcel)], [fd])
        except OSError:  # full, too long, or too many descriptors are on their way
            return False
        return True

    def receive(self) -> Iterator[tuple[Parcel, int]]:
        """What waits, each with a descriptor that is the caller's."""
        while self._out is not None:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._out, _PARCEL_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return
            if not data:
                return
            for fd in descriptors:
                yield _decode(data), fd
