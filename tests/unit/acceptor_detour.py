"""A rig's acceptor as its own neighbour: sessions that another acceptor keeps, by way of real passages."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
from acceptor_rig import Rig

from shardpool.boot import Passage
from shardpool.workers.passages import Parcel, Passages


class Detour(Passages):
    """Two acceptors' passages, of which the other leads back here."""

    def __init__(self, room: bool = True) -> None:
        ways = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        super().__init__([Passage(into.detach(), out.detach()) for into, out in ways], 1)
        self.sent: list[Parcel] = []
        self.room = room

    def send(self, acceptor: int, parcel: Parcel, fd: int) -> bool:
        assert acceptor == 1
        self.sent.append(parcel)
        own = msgspec.structs.replace(parcel, session=parcel.session & (1 << 56) - 1)
        return self.room and super().send(acceptor, own, fd)


def elsewhere(welcome: dict[str, Any]) -> dict[str, Any]:
    """The same session, as if acceptor 1 kept it."""
    return welcome | {"session": f"{int(welcome['session'], 16) | 1 << 56:016x}"}


def detoured(rig: Rig, room: bool = True) -> Detour:
    detour = Detour(room)
    rig.passages = rig.clients._resumption._passages = detour
    assert detour.fd is not None
    rig.engine.watch(detour.fd)
    return detour
