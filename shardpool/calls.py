"""Call objects: what `self.ask(...)`, `send`, `create`, `join` return. Each is used once.

await call             waits, the turn goes on holding its gate
await call.yielding()  gives the Spot's gate back while it waits: other turns run, re-read what you had read
call.defer()           join only: runs after the handler ended well
(nothing)              send and publish only: they leave by themselves and never wait
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from shardpool.codecs import encode_msgpack
from shardpool.errors import CapacityExceeded, InvalidOperation, TypeMismatch

if TYPE_CHECKING:
    from shardpool.directory import Entry
    from shardpool.objects import Seat, TurnObject

R = TypeVar("R")

JOIN_TIMEOUT = 5.0
JOINS_MAX = 64  # per handler
JOIN_BYTES_MAX = 1 << 20  # per request
JOIN_BYTES_TOTAL_MAX = 8 << 20  # per handler

Message = str | bytes | Struct | dict[str, Any]


class Creation(StrEnum):
    """How a create ended."""

    CREATED = "created"
    EXISTING = "existing"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class CreateOutcome:
    """What a create gives. reply: what `on_create` said with its Reject."""

    result: Creation
    reply: Any = None


class Delivery(Protocol):
    """A message on its way out of the shard."""

    async def wait(self) -> None:
        """Return when it was accepted; raise what kept it."""


class Runtime(Protocol):
    """What call objects need from the shard they run in. Every method is called on the shard's own thread."""

    shard: int

    def ask(
        self, seat: Seat, target: type[TurnObject], id: str, payload: bytes, timeout: float | None, yielding: bool
    ) -> Coroutine[Any, Any, bytes]:
        """Ask an object; the coroutine returns the reply's MessagePack."""

    def create(
        self, seat: Seat, target: type[TurnObject], id: str, request: bytes, timeout: float | None, yielding: bool
    ) -> Coroutine[Any, Any, CreateOutcome]:
        """Get or create an object."""

    def send(self, seat: Seat, target: type[TurnObject], id: str, payload: bytes) -> Delivery:
        """Submit a message to an object now, or as soon as its place is known."""

    def join(self, seat: Seat, target: type[TurnObject], id: str, request: bytes, timeout: float) -> None:
        """Register a Join in the running handler's scope."""

    def push(self, client: int, message: Any) -> Delivery:
        """Submit a message to a client."""

    def publish(self, clients: bytes, message: Any) -> Delivery:
        """Submit one message to many clients. Args: clients: u64 client addresses, native order."""

    def close_session(self, client: int, code: int, reason: str) -> None:
        """End a session's connection behind what was sent to it."""

    def close_object(self, seat: Seat) -> bool:
        """End an object after its running turn; False when it may not end."""

    def find(self, target: type[TurnObject], id: str) -> bool:
        """Whether an object of that id exists on the node."""

    def listing(self, target: type[TurnObject], after: str, limit: int) -> list[Entry]:
        """Objects of a type by id."""

    def advertise(self, seat: Seat, properties: dict[str, Any]) -> None:
        """Change what is listed with an object."""

    def check_yielding(self, seat: Seat, call: object) -> None:
        """Raise InvalidOperation where a gate cannot be given back (T-7)."""


class Call:
    """Base of the call objects: used once (T-5)."""

    __slots__ = ("_described", "_used")

    def __init__(self, described: object) -> None:
        # Any object that says it when asked: most call objects never need the words.
        self._described = described
        self._used = False

    def _use(self) -> None:
        if self._used:
            raise InvalidOperation(f"{self._described}: a call object is used once; make a new one")
        self._used = True

    def __repr__(self) -> str:
        return f"<{self._described}>"


class Wish(Call):
    """A call that does nothing until it is used; says so when it never is."""

    __slots__ = ()
    _forgotten = ""

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(f"{self._described} did nothing: {self._forgotten}", RuntimeWarning, stacklevel=2)


class Ask(Wish, Generic[R]):
    """A request and its reply: `await ask`, or `await ask.yielding()`."""

    __slots__ = ("_arguments", "_decode", "_runtime", "_seat")
    _forgotten = "await it"

    def __init__(
        self,
        seat: Seat,
        target: type[TurnObject],
        id: str,
        payload: bytes,
        timeout: float | None,
        decode: Callable[[bytes], Any],
        described: str,
    ) -> None:
        super().__init__(described)
        self._runtime = seat.runtime
        self._seat = seat
        self._arguments = (target, id, payload, timeout)
        self._decode = decode

    def __await__(self) -> Generator[Any, Any, R]:
        self._use()
        return self._run(False).__await__()

    def yielding(self) -> Awaitable[R]:
        """Wait with the Spot's gate given back; what was read before must be read again after it.

        Raises: InvalidOperation: outside a turn, or in an object that shares no Spot's gate; nothing was submitted.
        """
        self._use()
        self._runtime.check_yielding(self._seat, self._described)
        return self._run(True)

    async def _run(self, yielding: bool) -> R:
        reply = await self._runtime.ask(self._seat, *self._arguments, yielding)
        value: R = self._decode(reply)
        return value


class Create(Wish):
    """Get or create an object: `await create`, or `await create.yielding()`."""

    __slots__ = ("_arguments", "_runtime", "_seat")
    _forgotten = "await it"

    def __init__(
        self, seat: Seat, target: type[TurnObject], id: str, request: bytes, timeout: float | None, described: str
    ) -> None:
        super().__init__(described)
        self._runtime = seat.runtime
        self._seat = seat
        self._arguments = (target, id, request, timeout)

    def __await__(self) -> Generator[Any, Any, CreateOutcome]:
        self._use()
        return self._runtime.create(self._seat, *self._arguments, False).__await__()

    def yielding(self) -> Awaitable[CreateOutcome]:
        """Wait with the Spot's gate given back; see Ask.yielding."""
        self._use()
        self._runtime.check_yielding(self._seat, self._described)
        return self._runtime.create(self._seat, *self._arguments, True)


class Send(Call):
    """A message that is on its way. Awaiting it waits up to `send_timeout` for room; not awaiting it never waits."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery, described: object) -> None:
        super().__init__(described)
        self._delivery = delivery

    def __await__(self) -> Generator[Any, Any, None]:
        self._use()
        return self._delivery.wait().__await__()


class Join(Wish):
    """A wish to join a Spot; only `defer()` submits it (T-13)."""

    __slots__ = ("_id", "_request", "_seat", "_target")
    _forgotten = "call .defer()"

    def __init__(self, seat: Seat, target: type[TurnObject], id: str, request: bytes, described: str) -> None:
        super().__init__(described)
        self._seat = seat
        self._target = target
        self._id = id
        self._request = request

    def __await__(self) -> Generator[Any, Any, None]:
        self._used = True
        raise InvalidOperation(
            f"{self._described} cannot be awaited: it runs after the handler ended well. "
            "Call .defer(); on_joined(outcome) tells how it went"
        )

    def defer(self, timeout: float = JOIN_TIMEOUT) -> None:
        """Register the Join: it runs when the handler has ended well, and `on_joined(outcome)` tells how it went.

        Args: timeout: seconds from now for all of it.
        Raises: InvalidOperation: used before, or outside the actor's own turn. CapacityExceeded: more than 64 Joins,
        1 MiB per request or 8 MiB together in one handler.
        """
        self._use()
        if not 0 < timeout < float("inf"):
            raise InvalidOperation(f"{self._described}: timeout={timeout!r} is no positive number of seconds")
        if len(self._request) > JOIN_BYTES_MAX:
            raise CapacityExceeded(f"{self._described}: a request of {len(self._request):,} bytes; the limit is 1 MiB")
        self._seat.runtime.join(self._seat, self._target, self._id, self._request, timeout)


def encode_message(message: Message, described: str) -> bytes:
    """A message between objects as MessagePack.

    Args: message: a Struct with a tag, a handler's name, bytes, or a dict with "type".
    Raises: TypeMismatch: it is none of these, or cannot be encoded.
    """
    if isinstance(message, str):
        return encode_msgpack({"type": message})
    if isinstance(message, Struct) and message.__struct_config__.tag is None:
        name = type(message).__name__
        raise TypeMismatch(
            f"{described}: {name} has no name on the wire; write `class {name}(Struct, tag={name.lower()!r})`"
        )
    if not isinstance(message, (Struct, bytes)) and not (isinstance(message, dict) and "type" in message):
        raise TypeMismatch(
            f"{described}: {type(message).__name__} is no message; send a Struct with a tag, "
            'the name of a handler, bytes, or a dict with "type"'
        )
    return encode_value(message, described)


def encode_value(value: Any, described: str) -> bytes:
    """A value as MessagePack. Raises: TypeMismatch: with what cannot be encoded."""
    try:
        return encode_msgpack(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeMismatch(f"{described}: it cannot be encoded: {error}") from None
