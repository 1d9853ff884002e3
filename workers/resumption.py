"""Clients that come back: their sessions' tokens are checked, their sockets change places (P-6, P-11).

A resume is noted when its hello is read and done between two batches of events, so that no event of a batch names a
socket by a place that it has left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from shardpool import wire
from shardpool._core import Acceptor
from shardpool.workers.minting import Token, acceptor_of
from shardpool.workers.passages import Parcel, Passages
from shardpool.workers.relays import Relays

ELSEWHERE_REASON = "the session is kept by another acceptor: connect again, and resume there"
REFUSED_REASON = "the session is over or kept no longer, or the token is not its own: connect without resume"


class Resumed(IntEnum):
    """What the engine made of a resume; the client is told no more than whether it worked."""

    RESUMED = 0
    GONE = 1
    REFUSED = 2
    TOO_OLD = 3


@dataclass(frozen=True, slots=True)
class Comeback:
    """A hello that wants a session back."""

    client: int
    session: int
    token: Token
    received: int

    @classmethod
    def read(cls, client: int, resume: wire.Resume) -> Comeback | None:
        """What the hello says, None if it cannot be that of any session."""
        token = Token.read(resume.token)
        try:
            session = int(resume.session, 16)
        except ValueError:
            return None
        if token is None or not 0 < session < 1 << 63 or not 0 <= resume.received <= wire.NUMBER_LIMIT:
            return None
        return cls(client, session, token, resume.received)


class Resumption:
    """The comebacks of one acceptor.

    Args:
        acceptor: its number.
        passages, relays: the ways to the others.
        welcome: the W frame for a session, its new token, and how many of its client's messages were taken.
        moved: told that two clients' sockets changed places.
    """

    def __init__(
        self,
        engine: Acceptor,
        acceptor: int,
        passages: Passages,
        relays: Relays,
        welcome: Callable[[int, Token, int], bytes],
        moved: Callable[[int, int], None],
    ) -> None:
        self._engine = engine
        self._acceptor = acceptor
        self._passages = passages
        self._relays = relays
        self._welcome = welcome
        self._moved = moved
        self._noted: list[Comeback] = []

    def note(self, client: int, resume: wire.Resume) -> None:
        """A client's hello wants its session back."""
        comeback = Comeback.read(client, resume)
        if comeback is None:
            self.refuse(client)
        else:
            self._noted.append(comeback)

    def receive(self) -> None:
        """Clients that other acceptors send here."""
        for parcel, fd in self._passages.receive():
            client = self._engine.take_socket(fd, parcel.transport, parcel.framing, parcel.came, parcel.unsent)
            if client:
                self._noted.append(Comeback(client, parcel.session, Token(parcel.token), parcel.received))
            else:
                os.close(fd)  # no room: the client hears of it by the end of its connection, and comes again

    def settle(self) -> None:
        """Between two batches of events: do what was noted."""
        if self._noted:
            noted, self._noted = self._noted, []
            for comeback in noted:
                acceptor = acceptor_of(comeback.session)
                if acceptor == self._acceptor:
                    self._resume(comeback)
                elif acceptor >= len(self._passages):
                    self.refuse(comeback.client)
                elif not self._hand_over(comeback):
                    self._engine.end(comeback.client, 4503, ELSEWHERE_REASON.encode())

    def _hand_over(self, comeback: Comeback) -> bool:
        """Give the client to the acceptor that keeps its session: its socket, or, with TLS, one end of a relay."""
        parts = self._engine.socket_of(comeback.client)
        if parts is not None:
            fd, transport, framing, came, unsent = parts
            if not self._send(comeback, fd, transport, framing, came, unsent):
                return False
            self._engine.let_go(comeback.client)
            return True
        relay = self._relays.begin(comeback.client)
        if relay is None:
            return False
        with relay[3] as far:
            return self._send(comeback, far.fileno(), *relay[:3], b"")

    def _send(self, comeback: Comeback, fd: int, transport: int, framing: int, came: bytes, unsent: bytes) -> bool:
        parcel = Parcel(transport, framing, comeback.session, comeback.token.value, comeback.received, came, unsent)
        return self._passages.send(acceptor_of(comeback.session), parcel, fd)

    def refuse(self, client: int) -> None:
        """The same words for every reason: who guesses learns nothing."""
        self._engine.end(client, wire.RESUME_REFUSED, REFUSED_REASON.encode())

    def _resume(self, comeback: Comeback) -> None:
        fresh = Token.new()
        outcome, place = self._engine.resume(
            comeback.client,
            comeback.session,
            comeback.received,
            comeback.token.digest,
            fresh.digest,
            self._welcome(comeback.session, fresh, self._engine.taken(comeback.session)),
        )
        if outcome == Resumed.RESUMED:
            self._moved(comeback.client, place)
        else:
            self.refuse(comeback.client)
