"""What every object that runs turns has: an id, a place, and the calls it can make from its turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, overload

from msgspec import Struct

from shardpool.calls import Ask, Create, Message, Runtime, Send, encode_message, encode_value
from shardpool.codecs import Request, reply_type, value_decoder
from shardpool.directory import Entry
from shardpool.errors import InvalidOperation

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Seat:
    """An object's place in its shard, as the shard keeps it; user state stays out of it."""

    runtime: Runtime
    type_name: str
    id: str
    address: int = 0
    spot: Any = None  # actors: the Spot they are in
    session: Any = None  # actors: the SessionRef; sessions: themselves

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        """For messages and logs: `Player 'ann'`."""
        return f"{self.type_name} {self.id!r}"


class TurnObject:
    """Base of actors, Spots and sessions: runs one turn at a time, and keeps state between them."""

    # Slots for what is shardpool's, so that an object's __dict__ is the user's state and nothing else.
    __slots__ = ("__dict__", "__weakref__", "_seat")
    _seat: Seat

    @property
    def id(self) -> str:
        """Its id, unique among the objects of its type."""
        return self._placed().id

    @property
    def shard(self) -> int:
        """Number of the shard it lives on, from 0."""
        return self._placed().runtime.shard

    def send(self, target: type[TurnObject], id: str, message: Message) -> Send:
        """Send a message to an object by type and id; nothing comes back.

        Args: message: a Struct with a tag, or a handler's name.
        Returns: awaitable: waits up to `send_timeout` for room. Not awaited it never waits.
        Raises (when awaited): NotFound, DeadlineExceeded, CapacityExceeded, Unavailable.
        Called from: the object's own turns.
        """
        described = f"send to {target.__name__} {id!r}"
        seat = self._placed()
        return Send(seat.runtime.send(seat, target, id, encode_message(message, described)), described)

    @overload
    def ask(
        self, target: type[TurnObject], id: str, message: Request[R], *, timeout: float | None = None
    ) -> Ask[R]: ...
    @overload
    def ask(
        self, target: type[TurnObject], id: str, message: Message, *, reply: type[R], timeout: float | None = None
    ) -> Ask[R]: ...
    @overload
    def ask(self, target: type[TurnObject], id: str, message: Message, *, timeout: float | None = None) -> Ask[Any]: ...
    def ask(
        self,
        target: type[TurnObject],
        id: str,
        message: Message,
        *,
        reply: Any = None,
        timeout: float | None = None,
    ) -> Ask[Any]:
        """Ask an object by type and id; awaiting gives what its handler returned.

        Args: message: a Struct with a tag, or a handler's name. reply: type of the reply; default: what
              `Request[R]` says, else plain Python values. timeout: seconds, default `ask_timeout`.
        Raises (when awaited): the other's error, NotFound, DeadlineExceeded, CapacityExceeded, Unavailable;
              InvalidOperation when it would wait for itself.
        Called from: the object's own turns.
        """
        described = f"ask {target.__name__} {id!r}"
        payload = encode_message(message, described)
        if reply is None:
            reply = reply_type(type(message)) if isinstance(message, Struct) else Any
        return Ask(self._placed(), target, id, payload, timeout, value_decoder(reply), described)

    def create(self, target: type[TurnObject], id: str, request: Any = None, *, timeout: float | None = None) -> Create:
        """Get or create a Spot or actor by type and id; awaiting gives a CreateOutcome.

        Args: request: given to `on_create` of the new object; anything encodable.
        Raises (when awaited): NotConfigured, CapacityExceeded, DeadlineExceeded, Unavailable.
        Called from: the object's own turns.
        """
        described = f"create {target.__name__} {id!r}"
        return Create(self._placed(), target, id, encode_value(request, described), timeout, described)

    def exists(self, target: type[TurnObject], id: str) -> bool:
        """Whether an actor or Spot of that type and id is on the node now. Called from: any turn; never waits."""
        return self._placed().runtime.find(target, id)

    def listing(self, target: type[TurnObject], *, after: str = "", limit: int = 100) -> list[Entry]:
        """Actors or Spots of a type, with what they advertise: room lists, matchmaking.

        Args: after: the last id of the page before. limit: 1,000 at most.
        Returns: entries (id, shard, properties) in order of their ids. Called from: any turn; never waits.
        """
        return self._placed().runtime.listing(target, after, limit)

    def advertise(self, **properties: Any) -> None:
        """Publish properties of this actor or Spot, for listings.

        Args: properties: anything MessagePack has, 96 bytes encoded; they replace those of before.
        Raises: TypeMismatch. Called from: its own turns, after it was created.
        """
        seat = self._placed()
        seat.runtime.advertise(seat, properties)

    def on_recover(self) -> Any:
        """Its shard's process died, and this fresh object takes its place: the same id, session, Spot and members; the
        state of `__init__`. Of sessions, actors and Spots; runs before the messages that waited; may be async.
        """

    def _placed(self) -> Seat:
        try:
            return self._seat
        except AttributeError:
            raise InvalidOperation(
                f"this {type(self).__name__} was made by hand and lives on no shard; "
                "objects are made by the pool: by a session, join or create"
            ) from None
