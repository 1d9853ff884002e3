"""Spots: places with an address and state that actors join."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardpool.calls import Send
from shardpool.objects import TurnObject

if TYPE_CHECKING:
    from shardpool.actor import Actor


class Members:
    """The actors in a Spot, in the order they joined; iterate, count, or get one by id. Only the shard changes it."""

    __slots__ = ("_actors", "_clients")

    def __init__(self) -> None:
        self._actors: dict[int, Actor] = {}
        self._clients: bytes | None = b""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._actors.values()))

    def __len__(self) -> int:
        return len(self._actors)

    def __contains__(self, actor: object) -> bool:
        return any(member is actor for member in self._actors.values())

    def get(self, id: str) -> Any:
        """The member with this id, or None."""
        return next((actor for actor in self._actors.values() if actor.id == id), None)

    @property
    def clients(self) -> bytes:
        """Client addresses of the members' sessions, u64 in native order; kept until the members change."""
        if self._clients is None:
            sessions = (actor._seat.session for actor in self._actors.values())
            self._clients = array("Q", [s.client for s in sessions if s is not None and s.client]).tobytes()
        return self._clients

    def changed(self) -> None:
        """Shard only: a member's session did."""
        self._clients = None

    def add(self, actor: Actor) -> None:
        """Shard only."""
        self._actors[id(actor)] = actor
        self._clients = None

    def discard(self, actor: Actor) -> bool:
        """Shard only. Returns: whether it was a member."""
        self._clients = None
        return self._actors.pop(id(actor), None) is not None


class Spot(TurnObject):
    """Base of the app's Spots (`@app.spot`). SpotWide: its handlers, timers and members' handlers never overlap."""

    __slots__ = ("_members",)
    _members: Members

    @property
    def members(self) -> Members:
        """The actors that are here."""
        return self._members

    def publish(self, message: Any) -> Send:
        """Push one message to the clients of all members: encoded once, one record per acceptor.

        Args: message: anything the app's codec encodes; bytes for `raw`.
        Returns: awaitable; not awaited it never waits. One slow client delays no other.
        Called from: turns of the Spot and of its members.
        """
        return Send(self._placed().runtime.publish(self._members.clients, message), self._seat)

    def close(self) -> bool:
        """End this Spot after the running turn. Returns: False, and nothing changes, while it has members."""
        return self._placed().runtime.close_object(self._placed())

    def on_create(self, request: Any) -> Any:
        """Decide about this new Spot before any message runs.

        Returns: None or True to accept, False or Reject(reply).
        """

    def on_ready(self) -> Any:
        """It was accepted; its first messages follow."""

    def on_close(self, reason: str) -> Any:
        """It ends; called once. Args: reason: "closed" or "shutdown"."""

    def on_actor_join(self, actor: Any, request: Any) -> Any:
        """Decide about an actor that wants in; may be async.

        Returns: None or True to accept, False or Reject(reply).
        """

    def on_actor_joined(self, actor: Any) -> Any:
        """An actor is a member now."""

    def on_actor_leave(self, actor: Any) -> Any:
        """An actor is no member any more: it went to another Spot, or its session ended."""


class EntrySpot(Spot):
    """Where fresh actors are: one per shard, each actor with a gate of its own."""

    __slots__ = ()
