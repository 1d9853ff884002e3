"""Sessions: one client's logical connection, as the app's session handler and as its actor see it."""

from __future__ import annotations

from typing import Any

from shardpool.calls import Runtime, Send
from shardpool.decisions import Accept, Hello, Refuse
from shardpool.objects import TurnObject


class SessionRef:
    """An actor's way to its client."""

    __slots__ = ("_runtime", "client", "identity", "number", "seat_address")

    def __init__(self, runtime: Runtime, number: int, client: int, seat_address: int, identity: str | None) -> None:
        self._runtime = runtime
        self.number = number  # the 64-bit session id
        self.client = client  # address of the connection, 0 once it is gone
        self.seat_address = seat_address  # of the session's own slot
        self.identity = identity

    def __str__(self) -> str:
        return f"session {self.id}"

    @property
    def id(self) -> str:
        """The session's id, 16 hex digits, as the client's welcome has it."""
        return f"{self.number:016x}"

    @property
    def connected(self) -> bool:
        """Whether a client is there."""
        return self.client != 0

    def send(self, message: Any) -> Send:
        """Push a message to the client.

        Args: message: anything the app's codec encodes; bytes for `raw`.
        Returns: awaitable: waits up to `send_timeout` while the client is behind. Not awaited it never waits.
        Raises: TypeMismatch at once when it cannot be encoded.
        """
        return Send(self._runtime.push(self.client, message), self)

    def close(self, reason: str = "", code: int = 1000) -> None:
        """End the session, after what was sent to it. Args: code: 1000, or 4600 to 4999 for the app's own."""
        self._runtime.close_session(self.client, code, reason)


class Session(TurnObject):
    """Base of the app's session handler (`@app.session`): one object per session, in turns of its own."""

    __slots__ = ()

    @property
    def identity(self) -> str | None:
        """Who it is, once `on_connect` said so."""
        identity: str | None = self._placed().session.identity
        return identity

    def push(self, message: Any) -> Send:
        """Push a message to the client, as SessionRef.send."""
        pushed: Send = self._placed().session.send(message)
        return pushed

    def close(self, reason: str = "", code: int = 1000) -> None:
        """End the session, as SessionRef.close."""
        self._placed().session.close(reason, code)

    def on_connect(self, hello: Hello) -> Any:
        """Let the client in or not, before any of its messages is read. May be async.

        Returns: None to accept, Accept(identity, actor, id), or Refuse(reason); raising Rejected refuses, too.
        """
        return None

    def on_replaced(self) -> Any:
        """The same identity came in again and takes over; the client is told 4409. May be async."""

    def on_resume(self) -> Any:
        """The client came back, over a new connection. May be async; the actor's own `on_resume` follows."""

    def on_disconnect(self, reason: str) -> Any:
        """The session ends; called exactly once, before the actor's own `on_disconnect`. May be async."""


__all__ = ["Accept", "Hello", "Refuse", "Session", "SessionRef"]
