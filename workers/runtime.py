"""The parts of a shard, wired: what user objects call (shardpool.calls.Runtime), and what the executor calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shardpool.calls import CreateOutcome, Delivery
from shardpool.dead_letters import DeadLetterFile
from shardpool.directory import Entry
from shardpool.errors import Condition, TypeMismatch
from shardpool.objects import Seat, TurnObject
from shardpool.workers.asking import Asking
from shardpool.workers.context import ShardContext, log
from shardpool.workers.deaths import Deaths
from shardpool.workers.faults import Faults
from shardpool.workers.gates import Gates
from shardpool.workers.insist import Insistence
from shardpool.workers.joins import Joins
from shardpool.workers.kinds import Kind
from shardpool.workers.letters import Letters
from shardpool.workers.lives import Lives, outcome_of
from shardpool.workers.moves import Moves
from shardpool.workers.operations import Operations
from shardpool.workers.outbox import Outbox
from shardpool.workers.peers import Peers
from shardpool.workers.places import Places
from shardpool.workers.quarantine import Quarantine
from shardpool.workers.replies import OpenAsks
from shardpool.workers.sessions import Sessions
from shardpool.workers.succession import Succession
from shardpool.workers.tables import MakeTable, Tables
from shardpool.workers.timers import Timers
from shardpool.workers.travel import Record
from shardpool.workers.turns import Turns


class ShardRuntime:
    """All parts of one shard's Python half.

    Args: make_table: `shardpool._core.Table`. dead_letters: None: they are counted only.
    """

    def __init__(
        self, context: ShardContext, make_table: MakeTable, dead_letters: DeadLetterFile | None = None
    ) -> None:
        self.context = context
        self.shard = context.number
        tables = Tables(context, make_table)
        self._encode = context.blueprint.entry.dispatch.encode
        letters = Letters(context, dead_letters)
        self.faults = Faults(context, letters)
        self.asks = OpenAsks(context)
        self.turns = Turns(context)
        self.gates = Gates(context)
        self.insistence = Insistence(context)
        self.peers = Peers(context, self.asks)
        self.places = Places(context, self.peers)
        self.timers = Timers(context)
        self.outbox = Outbox(context, self.places, self.gates)
        self.asking = Asking(context, self.places, self.asks, self.gates, self.turns)
        self.lives = Lives(context, self, tables, self.places, self.peers, self.timers, self.faults, self.insistence)
        self.moves = Moves(
            context, self, self.peers, self.places, self.lives, self.timers, self.faults, self.insistence
        )
        self.joins = Joins(
            context, self.turns, self.gates, self.lives, self.places, self.moves, self.faults, self.insistence
        )
        self.sessions = Sessions(
            context,
            self,
            tables,
            self.places,
            self.peers,
            self.lives,
            self.outbox,
            self.faults,
            self.insistence,
        )
        self.deaths = Deaths(context, self.asks, self.peers, self.lives)
        self._succession = Succession(
            context,
            tables,
            self.places,
            self.lives,
            self.sessions,
            self.joins,
            self.moves,
            self.faults,
            self.insistence,
            letters,
            Quarantine(context, tables, self.lives, self.peers, self.faults, letters),
        )
        self.operations = Operations(context, tables, self.places, self.peers, self.asking, self.outbox)

    @property
    def busy(self) -> bool:
        """Whether something is under way that only this process can bring to its end."""
        parts = (
            self.turns,
            self.insistence,
            self.asks,
            self.joins,
            self.moves,
            self.lives,
            self.peers,
            self.outbox,
            self.operations,
        )
        return any(len(part) for part in parts)

    def take_over(self) -> None:
        """Begin, with what a predecessor has left; behind the app's `on_start`, before the first turn."""
        self._succession.take_over()

    def ask(
        self, seat: Seat, target: type[TurnObject], id: str, payload: bytes, timeout: float | None, yielding: bool
    ) -> Coroutine[Any, Any, bytes]:
        """See Runtime."""
        kind = self.context.blueprint.find(target)
        return self.asking.ask(seat, kind, id, payload, self._deadline(timeout), yielding)

    async def create(
        self, seat: Seat, target: type[TurnObject], id: str, request: bytes, timeout: float | None, yielding: bool
    ) -> CreateOutcome:
        """See Runtime."""
        kind = self.context.blueprint.find(target)
        deadline = self._deadline(timeout)
        if yielding:
            self.context.shard.release_gate(seat.address)
        try:
            async with asyncio.timeout(deadline - self.context.now()):
                return outcome_of(await self.lives.create(kind, id, request, deadline))
        except TimeoutError:
            raise Condition.DEADLINE.error(f"create {kind.name} {id!r}: it was not decided in time") from None
        finally:
            if yielding:
                await self.turns.regain(seat.address)

    def send(self, seat: Seat, target: type[TurnObject], id: str, payload: bytes) -> Delivery:
        """See Runtime."""
        kind = self.context.blueprint.find(target)
        self.places.check_id(kind, id)
        return self.outbox.send(seat, kind, id, payload)

    def join(self, seat: Seat, target: type[TurnObject], id: str, request: bytes, timeout: float) -> None:
        """See Runtime."""
        kind = self.context.blueprint.find(target)
        self.places.check_id(kind, id)
        self.joins.register(seat, kind, id, request, timeout)

    def push(self, client: int, message: Any) -> Delivery:
        """See Runtime."""
        return self.outbox.push(client, self._body(message))

    def publish(self, clients: bytes, message: Any) -> Delivery:
        """See Runtime."""
        return self.outbox.publish(clients, self._body(message))

    def close_session(self, client: int, code: int, reason: str) -> None:
        """See Runtime."""
        if code != 1000 and not 4600 <= code <= 4999:
            raise TypeMismatch(f"close(code={code!r}): an app's codes are 1000 and 4600 to 4999")
        if client:
            self.context.shard.close_client(client, code, reason.encode()[:123].decode(errors="ignore").encode())

    def close_object(self, seat: Seat) -> bool:
        """See Runtime."""
        return self.lives.close(seat, self.context.shard.target(seat.address))

    def find(self, target: type[TurnObject], id: str) -> bool:
        """See Runtime."""
        return self.places.find(self.context.blueprint.find(target).name, id) != 0

    def listing(self, target: type[TurnObject], after: str, limit: int) -> list[Entry]:
        """See Runtime."""
        return self.places.list(self.context.blueprint.find(target).name, after, limit)

    def advertise(self, seat: Seat, properties: dict[str, Any]) -> None:
        """See Runtime."""
        self.places.describe(seat.type_name, seat.id, seat.address, properties)

    def check_yielding(self, seat: Seat, call: object) -> None:
        """See Runtime."""
        self.turns.check_own_coroutine(seat, call)
        self.gates.check_yielding(seat, call)

    def _deadline(self, timeout: float | None) -> float:
        if timeout is None:
            timeout = self.context.settings.ask_timeout
        elif not 0 < timeout < float("inf"):
            raise Condition.INVALID_OPERATION.error(f"timeout={timeout!r} is no positive number of seconds")
        return self.context.now() + timeout

    def _body(self, message: Any) -> bytes:
        if self._encode is None:
            if not isinstance(message, bytes):
                raise TypeMismatch(f"the app's codec is raw: send bytes, not {type(message).__name__}")
            return message
        try:
            return self._encode(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeMismatch(f"this message cannot be encoded: {error}") from None


class Hooks:
    """What the executor calls. It exists before the runtime does, since the executor is made with it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poke: Callable[[], None],
        enter_task: Callable[[Any, Any], None] | None,
        leave_task: Callable[[Any, Any], None] | None,
        stub: Callable[[], Any] | None,
    ) -> None:
        self.loop = loop
        self.poke = poke
        self.enter_task = enter_task
        self.leave_task = leave_task
        self.stub = stub
        self.runtime: ShardRuntime | None = None

    @property
    def _wired(self) -> ShardRuntime:
        assert self.runtime is not None, "the executor runs before its runtime is there"
        return self.runtime

    def failed(self, address: int, kind: int, exc: BaseException, payload: bytes) -> bytes:
        """A turn failed; its Joins are dropped."""
        self._wired.joins.drop(address)
        return self._wired.faults.failed(address, kind, exc, payload)

    def adopt(
        self, address: int, turn: int, coro: Coroutine[Any, Any, Any], yielded: Any, stub: Any, context: Any
    ) -> None:
        """A turn suspended."""
        self._wired.turns.adopt(address, turn, coro, yielded, stub, context)

    def reply(self, call_id: int, status: int, payload: bytes) -> None:
        """An ask of this shard is answered."""
        self._wired.asks.reply(call_id, status, payload)

    def control(self, kind: int, process: int, a: int, b: int, payload: bytes) -> None:
        """An infrastructure record for the shard itself."""
        runtime = self._wired
        match kind:
            case Kind.PEER_PART | Kind.PEER_ASK | Kind.PEER_ANSWER:
                runtime.peers.take(kind, process, a, b, payload)
            case Kind.XOFF:
                runtime.outbox.client_is_behind(a)
            case Kind.XON:
                runtime.outbox.client_caught_up(a)
            case _:
                log.error("process %d sent an infrastructure record of kind %d: ignored", process, kind)

    def resumed(self, address: int) -> None:
        """A gate that was asked for is held."""
        self._wired.turns.resumed(address)

    def sealed(self, address: int, records: list[Record]) -> None:
        """A sealed object has settled."""
        self._wired.moves.sealed(address, records)

    def dropped(self, address: int, records: list[Record]) -> None:
        """An object ended with these records unrun."""
        self._wired.faults.unrun(address, records)
