"""Moving an actor to another shard, for a Join whose Spot lives there (T-16). Only this module knows how.

    source   seal; when settled: state, records, session and the rest of the Joins go to the target; wait
    target   a new object with that state; the Spot there decides in its turn
             accepted: records into the new lanes, directory entry old -> new, the session's route, then the answer
    source   accepted: the slot is given up; else: unseal, everything is in place, on_joined says why

Nothing is lost or doubled: until the answer, the sealed source has it all; the target's copy of the records is placed
only when it is certain that the source gives them up. What others send meanwhile is refused as sealed and held by
its senders.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from shardpool.actor import Actor
from shardpool.app import Move, ObjectType
from shardpool.calls import Runtime
from shardpool.codecs import encode_msgpack, value_decoder
from shardpool.decisions import JoinOutcome
from shardpool.errors import Condition, ErrorBody, ShardpoolError
from shardpool.session import SessionRef
from shardpool.workers.context import ShardContext, log
from shardpool.workers.faults import Faults, body_of
from shardpool.workers.insist import Insistence
from shardpool.workers.kinds import Kind, shard_of
from shardpool.workers.lives import Lives
from shardpool.workers.peers import Operation, Peers
from shardpool.workers.places import Places
from shardpool.workers.state import capture, restore
from shardpool.workers.timers import Timers

# Beyond the Join's deadline: what the target may take to open, and how long the source waits for its word. The source
# must not go on while the target still might.
OPEN_GRACE = 4.0
ANSWER_GRACE = 10.0

Record = tuple[int, int, int, int, bytes]  # kind, flags, a, b, payload


class Intent(Struct, frozen=True, array_like=True):
    """A registered Join."""

    turn: int
    type: str
    id: str
    request: bytes
    deadline: float  # monotonic, the same clock on every shard of the host


class SessionState(Struct, frozen=True, array_like=True):
    """What a SessionRef needs at its new place."""

    number: int
    client: int
    seat_address: int
    identity: str | None


class Arrival(Struct, frozen=True, array_like=True):
    """An actor on its way."""

    type: str
    id: str
    source: int
    state: bytes
    session: SessionState | None
    intent: Intent
    rest: list[Intent]
    records: list[Record]


class Answer(Struct, frozen=True, array_like=True):
    """The target's word. address 0: it does not take the actor."""

    address: int
    reply: Any = None
    error: ErrorBody | None = None


class Rebind(Struct, frozen=True, array_like=True):
    """To the session's home shard: its actor lives there now."""

    session: int
    actor: int


@dataclass(slots=True, eq=False)
class Departure:
    """An actor that leaves, at the source."""

    actor: Actor
    intent: Intent
    rest: list[Intent]
    state: bytes


@dataclass(slots=True, eq=False)
class Arriving:
    """An actor that comes, at the target."""

    source: int
    intent: Intent
    rest: list[Intent]
    records: list[Record]
    answer: asyncio.Future[Answer]
    error: ShardpoolError | None = field(default=None)

    def accepted(self, address: int) -> None:
        """It stays."""
        if not self.answer.done():
            self.answer.set_result(Answer(address))

    def failed(self, error: ShardpoolError) -> None:
        """Why it will be refused."""
        self.error = error

    def refused(self, reply: Any) -> None:
        """It goes back."""
        if not self.answer.done():
            self.answer.set_result(Answer(0, reply, None if self.error is None else body_of(self.error)))


_arrival = value_decoder(Arrival)
_answer = value_decoder(Answer)


class Moves:
    """Both ends of a move."""

    def __init__(
        self,
        context: ShardContext,
        runtime: Runtime,
        peers: Peers,
        places: Places,
        lives: Lives,
        timers: Timers,
        faults: Faults,
        insistence: Insistence,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._peers = peers
        self._places = places
        self._lives = lives
        self._timers = timers
        self._faults = faults
        self._insistence = insistence
        self._leaving: dict[int, Departure] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        peers.serve(Operation.ARRIVE, lambda payload, _: self._take_over(_arrival(payload)))

    def depart(self, actor: Actor, intent: Intent, rest: list[Intent]) -> None:
        """In the actor's turn: begin the move; it is sealed when the turn ends."""
        seat = actor._seat
        kind = self._context.blueprint.find(type(actor))
        try:
            if kind.move is Move.NEVER:
                raise Condition.REJECTED.error(
                    f"{seat.label} stays on its shard (move='never'), but {intent.type} {intent.id!r} is on another"
                )
            state = capture(actor) if kind.move is Move.PRESERVE else b""
        except Exception as error:
            if not isinstance(error, ShardpoolError):
                self._faults.report(actor, "capture", error)
            failed = JoinOutcome(intent.id, False, error=body_of(error).error())
            number = self._context.parcels.put((failed, rest))
            self._context.place(seat.address, Kind.JOINED, number)
            return
        self._leaving[seat.address] = Departure(actor, intent, rest, state)
        self._context.shard.seal(seat.address)

    def sealed(self, address: int, records: list[Record]) -> None:
        """Executor's hook: the object has settled, and this is what it had not run."""
        departure = self._leaving.pop(address, None)
        if departure is None:
            log.error("object %x was sealed, but by nobody here: it goes on", address)
            self._context.shard.unseal(address)
            return
        task = self._context.loop.create_task(self._transfer(departure, records))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _transfer(self, departure: Departure, records: list[Record]) -> None:
        seat, intent = departure.actor._seat, departure.intent
        # Ticks stay behind: the timers start anew at the target.
        kept = [record for record in records if record[0] != Kind.TIMER]
        session = seat.session
        arrival = Arrival(
            seat.type_name,
            seat.id,
            seat.address,
            departure.state,
            None
            if session is None
            else SessionState(session.number, session.client, session.seat_address, session.identity),
            intent,
            departure.rest,
            kept,
        )
        home = self._places.home(intent.type, intent.id)
        described = f"move {seat.label} to {intent.type} {intent.id!r} on shard {home}"
        try:
            deadline = max(intent.deadline, self._context.now()) + ANSWER_GRACE
            answer: Answer = _answer(
                await self._peers.ask(home, Operation.ARRIVE, encode_msgpack(arrival), deadline, described)
            )
        except ShardpoolError as error:
            self._stay(departure, JoinOutcome(intent.id, False, error=error))
            return
        if answer.address:
            self._gone(departure)
        else:
            why = None if answer.error is None else answer.error.error()
            self._stay(departure, JoinOutcome(intent.id, False, answer.reply, why))

    def _stay(self, departure: Departure, outcome: JoinOutcome) -> None:
        address = departure.actor._seat.address
        number = self._context.parcels.put((outcome, departure.rest))
        # Lifecycle goes first, so the completion runs before the messages that waited.
        self._context.place(address, Kind.JOINED, number)
        self._context.shard.unseal(address)

    def _gone(self, departure: Departure) -> None:
        actor = departure.actor
        seat = actor._seat
        self._timers.stop(seat.address)
        spot = seat.spot
        if spot.members.discard(actor) and spot is not self._lives.entry:
            self._insistence.post(lambda: spot._seat.address, Kind.LEFT, self._context.parcels.put(actor))
        self._context.shard.vacate(seat.address)

    async def _take_over(self, arrival: Arrival) -> bytes:
        kind = self._context.blueprint.types.get(arrival.type)
        if kind is None or not issubclass(kind.cls, Actor):
            raise Condition.NOT_CONFIGURED.error(f"the app has no actor type {arrival.type!r}")
        actor = self._rebuild(kind, arrival)
        arriving = Arriving(
            arrival.source, arrival.intent, arrival.rest, arrival.records, self._context.loop.create_future()
        )
        number = self._context.parcels.put(arriving)
        self._insistence.post(lambda: actor._seat.address, Kind.ARRIVE, number)
        return encode_msgpack(await arriving.answer)

    def _rebuild(self, kind: ObjectType, arrival: Arrival) -> Actor:
        session = None
        if arrival.session is not None:
            state = arrival.session
            session = SessionRef(self._runtime, state.number, state.client, state.seat_address, state.identity)
        actor = self._lives.make(kind, arrival.id, session)
        assert isinstance(actor, Actor)
        if arrival.state:
            try:
                restore(actor, arrival.state)
            except Exception as error:
                self._faults.report(actor, "restore", error)
                self._lives.discard(actor)
                raise Condition.TYPE_MISMATCH.error(f"{kind.name} {arrival.id!r} cannot be restored: {error}") from None
        return actor

    async def open(self, actor: Actor, arriving: Arriving) -> None:
        """In the actor's first turn here, once its Spot accepted it: from here on it lives here."""
        seat = actor._seat
        if not self._context.shard.place(seat.address, arriving.records):
            seat.spot.members.discard(actor)
            raise Condition.CAPACITY.error(f"{seat.label}: this shard has no room for its queue; raise arena_bytes")
        deadline = arriving.intent.deadline + OPEN_GRACE
        self._places.move(seat.type_name, seat.id, arriving.source, seat.address)
        session = seat.session
        if session is not None:
            # Before the source gives up its slot: from then on acceptors look here.
            rebind = encode_msgpack(Rebind(session.seat_address, seat.address))
            home = shard_of(session.seat_address)
            try:
                await self._peers.ask(home, Operation.ROUTE, rebind, deadline, f"route of {seat.label}")
            except ShardpoolError:
                self._places.move(seat.type_name, seat.id, seat.address, arriving.source)
                raise
        self._lives.begin(self._context.blueprint.find(type(actor)), actor)
