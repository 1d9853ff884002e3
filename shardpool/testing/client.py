"""A session's client as a test has it: what it sends waits at the acceptor's place until the dice let it through."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from shardpool import _core
from shardpool.codecs import Codec, client_encoder, decode_msgpack
from shardpool.errors import ErrorBody, ShardpoolError, TypeMismatch
from shardpool.testing.parts import Memory
from shardpool.workers.kinds import Outcome

CLOSE_LOST = 1006

Message = str | bytes | Struct | dict[str, Any]


class Closing(NamedTuple):
    """How the server closed the connection, or refused it."""

    code: int
    reason: str


class Waiting(Protocol):
    """Whoever can let an app go on until something has happened."""

    def until(self, condition: Callable[[], bool], seconds: float, described: str) -> None:
        """Let time pass until then. Raises: NotSettled: it did not happen in that virtual time."""


class Answer:
    """The reply of an ask, once it is there."""

    def __init__(self, waiting: Waiting, described: str, seconds: float) -> None:
        self._waiting = waiting
        self._described = described
        self._seconds = seconds
        self._value: Any = None
        self._error: BaseException | None = None
        self.done = False

    def get(self) -> Any:
        """Let the app go on, and time pass, until the reply is there.

        Returns: what the handler returned, as a client reads it.
        Raises: the ShardpoolError that came instead; NotSettled: neither came in time.
        """
        self._waiting.until(lambda: self.done, self._seconds, self._described)
        if self._error is not None:
            raise self._error
        return self._value

    def succeed(self, value: Any) -> None:
        """Kit only."""
        self._value, self.done = value, True

    def fail(self, error: BaseException) -> None:
        """Kit only."""
        self._error, self.done = error, True


@dataclass(frozen=True, slots=True)
class Frame:
    """A message on its way. number: of the ask, 0: it is none."""

    body: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Attach:
    """The hello."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Detach:
    """The end of the connection."""

    code: int


class Client:
    """One session, from the client's side. Made by `Kit.connect`.

    received: messages in order of arrival, decoded; errors: what came for no ask; closed: how the server ended it.
    """

    def __init__(
        self, memory: Memory, waiting: Waiting, codec: Codec, index: int, home: int, session: int, hello: bytes
    ) -> None:
        self.name = f"client-{index}"
        self.address = 1 << 32 | index
        self.session = session
        self.received: list[Any] = []
        self.errors: list[ShardpoolError] = []
        self.closed: Closing | None = None
        self._memory = memory
        self._waiting = waiting
        self._codec = codec
        self._home = home
        self._queue: deque[Frame | Attach | Detach] = deque([Attach(hello)])
        self._asks: dict[int, Answer] = {}
        self._asked = 0
        self._actor = 0
        self._slot = 0
        self._gone = False
        self.held = False  # refused for now; tried again after a shard did something

    @property
    def connected(self) -> bool:
        """Whether the server let it in, and neither side has ended it."""
        return self._actor != 0 and self.closed is None and not self._gone

    def send(self, message: Message) -> None:
        """Send a message to the session's actor.

        Args: message: a Struct, a handler's name, a dict with "type", or bytes, which go as they are.
        """
        self._queue.append(Frame(self._body(message), 0))

    def ask(self, message: Message, *, seconds: float = 60.0) -> Answer:
        """Ask the session's actor. Returns: the place of the reply; it is under way from here on."""
        self._asked += 1
        answer = Answer(self._waiting, f"a reply to {message!r}", seconds)
        self._asks[self._asked] = answer
        self._queue.append(Frame(self._body(message), self._asked))
        return answer

    def disconnect(self, code: int = CLOSE_LOST) -> None:
        """End the connection, behind what was sent; nothing is received any more, and the session is not resumed."""
        if not self._gone:
            self._gone = True
            self._queue.append(Detach(code))

    @property
    def ready(self) -> bool:
        """Whether its connection has something that may go on now."""
        return bool(self._queue) and not self.held and (self._actor != 0 or isinstance(self._queue[0], Attach))

    @property
    def unsent(self) -> int:
        """How much of what it sent no shard has accepted yet."""
        return len(self._queue)

    def step(self) -> str:
        """Kit only: the acceptor handles the first thing that it sent."""
        match self._queue[0]:
            case Attach(body):
                system = self._home << 56 | 1 << 32
                outcome = self._memory.post(system, _core.KIND_ATTACH, self.session, self.address, body)
            case Detach(code):
                outcome = self._memory.post(self._slot, _core.KIND_DETACH, code, self.address)
            case Frame(body, number):
                outcome = self._publish(body, number)
        described = f"{type(self._queue[0]).__name__} {Outcome(outcome).name}"
        if outcome in (Outcome.ACCEPTED, Outcome.SHUTTING_DOWN) or self._ended(outcome):
            self._queue.popleft()
        else:
            self.held = not self._rerouted()
        return described

    def _publish(self, body: bytes, number: int) -> int:
        flags = _core.FLAG_ASK if number else 0
        return _core.publish_frames(self._memory.acceptor, self._actor, self.address, body, 1, flags, number)

    def _ended(self, outcome: int) -> bool:
        return outcome == Outcome.STALE and isinstance(self._queue[0], Detach)

    def _rerouted(self) -> bool:
        """After a refusal: read the route again, as acceptors do; True: the actor is elsewhere by now."""
        route = self._memory.acceptor.slot(self._slot)["route"] if self._slot else 0
        if route in (0, self._actor):
            return False
        self._actor = route
        return True

    def bound(self, actor: int, slot: bytes) -> None:
        """Kit only: the session is there."""
        self._actor, self._slot = actor, int.from_bytes(slot, "little")

    def end(self, code: int, reason: str) -> None:
        """Kit only: the server closed the connection."""
        if self.closed is not None:
            return
        self.closed = Closing(code, reason)
        already = any(isinstance(item, Detach) for item in self._queue)
        self._queue.clear()
        if self._slot and (already or not self._gone):
            self._queue.append(Detach(code))
        self._gone = True

    def take(self, body: bytes) -> None:
        """Kit only: a message came."""
        if not self._gone:
            self.received.append(self._decoded(body))

    def answer(self, number: int, body: bytes) -> None:
        """Kit only: a reply came."""
        asked = self._asks.pop(number, None)
        if asked is not None:
            asked.succeed(self._decoded(body))

    def fail(self, number: int, body: bytes) -> None:
        """Kit only: an error came."""
        error = ErrorBody(**json.loads(body)).error()
        asked = self._asks.pop(number, None)
        if asked is not None:
            asked.fail(error)
        else:
            self.errors.append(error)

    def _body(self, message: Message) -> bytes:
        if isinstance(message, bytes):
            return message
        encode = client_encoder(self._codec)
        if encode is None:
            raise TypeMismatch(f"{message!r}: the app's codec is raw; send bytes")
        return encode({"type": message} if isinstance(message, str) else message)

    def _decoded(self, body: bytes) -> Any:
        match self._codec:
            case Codec.JSON:
                return json.loads(body)
            case Codec.MSGPACK:
                return decode_msgpack(body)
            case Codec.RAW:
                return body
