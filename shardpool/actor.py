"""Actors: stateful objects with an id and a queue of their own, each in one Spot."""

from __future__ import annotations

from typing import Any

from shardpool.calls import Join, encode_value
from shardpool.decisions import JoinOutcome
from shardpool.errors import InvalidOperation
from shardpool.objects import TurnObject
from shardpool.session import SessionRef
from shardpool.spot import Spot


class Actor(TurnObject):
    """Base of the app's actors (`@app.actor`)."""

    __slots__ = ()

    @property
    def session(self) -> SessionRef:
        """The client's session that is bound to this actor. Raises: InvalidOperation: it was made without one."""
        session: SessionRef | None = self._placed().session
        if session is None:
            raise InvalidOperation(f"{self._seat.label} has no session: it was made by create(); ask has_session first")
        return session

    @property
    def has_session(self) -> bool:
        """Whether a client's session is bound to this actor."""
        return self._placed().session is not None

    @property
    def spot(self) -> Any:
        """The Spot it is in: on the same shard, and, if it is SpotWide, under the same gate."""
        return self._placed().spot

    def join(self, target: type[Spot], id: str, request: Any = None) -> Join:
        """Wish to join a Spot, made if it does not exist; nothing happens before `.defer()`.

        Args: request: given to `on_actor_join` of the Spot; anything encodable up to 1 MiB.
        Returns: the call object: `self.join(Room, id).defer()`.
        Called from: the actor's own turns.
        """
        described = f"join {target.__name__} {id!r}"
        return Join(self._placed(), target, id, encode_value(request, described), described)

    def close(self) -> bool:
        """End this actor after the running turn; its session's connection, if any, ends with it."""
        return self._placed().runtime.close_object(self._placed())

    def on_create(self, request: Any) -> Any:
        """Decide about this new actor before any message runs. Args: request: of create(); None for a session's actor.

        Returns: None or True to accept, False or Reject(reply).
        """

    def on_ready(self) -> Any:
        """It was accepted; its first messages follow."""

    def on_joined(self, outcome: JoinOutcome) -> Any:
        """A deferred Join ended; runs before the messages that waited."""

    def on_resume(self) -> Any:
        """Its session's client came back, over a new connection; what it had missed is on its way."""

    def on_disconnect(self, reason: str) -> Any:
        """Its session ended; called once, before it leaves its Spot and ends."""

    def on_close(self, reason: str) -> Any:
        """It ends; called once. Args: reason: "disconnected", "closed" or "shutdown"."""
