"""Moving an actor to another shard, for a Join whose Spot lives there (T-16). Only this module knows how.

    source   seal; when settled: state, records, session and the rest of the Joins go to the target; wait
    target   a new object with that state; the Spot there decides in its turn
             accepted: records into the new lanes, directory entry old -> new, the session's route, then the answer
    source   accepted: the slot is given up; else: unseal, everything is in place, on_joined says why

The directory's compare-and-swap is the decision: before it the actor is the source's, which has it all in its sealed
slot; behind it the target's, whose copy of the records is placed by then. What others send meanwhile is refused as
sealed and held by its senders.

Deaths  of the target: the source looks at the directory, and goes on or gives its slot up; what the dead one had not
        read its successor refuses (Arrival.target_life). Of the source: its successor opens the actor again if the
        directory says so, after the target has answered that nothing of the dead one's is under way (source_life).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from shardpool.actor import Actor
from shardpool.app import Move, ObjectType
from shardpool.calls import Runtime
from shardpool.codecs import encode_msgpack, value_decoder
from shardpool.decisions import JoinOutcome
from shardpool.errors import Condition, ShardpoolError, Unavailable
from shardpool.objects import Seat
from shardpool.session import SessionRef
from shardpool.workers.context import Parcel, ShardContext, log
from shardpool.workers.faults import Faults, body_of
from shardpool.workers.insist import Insistence
from shardpool.workers.kinds import Kind, Life, shard_of
from shardpool.workers.lives import Lives
from shardpool.workers.peers import Operation, Peers
from shardpool.workers.places import Places
from shardpool.workers.routes import led_away
from shardpool.workers.state import capture, restore
from shardpool.workers.timers import Timers
from shardpool.workers.travel import Answer, Arrival, Intent, Rebind, Record, SessionState, named, read_name

# Beyond the Join's deadline: what the target may take to open, and the source, which must not go on meanwhile, to wait.
OPEN_GRACE = 4.0
ANSWER_GRACE = 10.0
ROUTE_PAUSE = 0.01


@dataclass(slots=True, eq=False)
class Return:
    """How a Join ended for an actor that stays: what its JOINED record finds."""

    outcome: JoinOutcome | None  # None: not yet
    rest: list[Intent]


@dataclass(slots=True, eq=False)
class Departure:
    """An actor that leaves, at the source."""

    actor: Actor
    intent: Intent
    rest: list[Intent]
    state: bytes
    number: int  # in the JOINED record that waits in the actor's lane
    back: Return


@dataclass(slots=True, eq=False)
class Arriving(Parcel):
    """An actor that comes, at the target."""

    source: int
    intent: Intent
    rest: list[Intent]
    records: list[Record]
    source_life: int
    answer: asyncio.Future[Answer]
    error: ShardpoolError | None = field(default=None)

    def accepted(self, address: int) -> None:
        """It stays."""
        if not self.answer.done():
            self.answer.set_result(Answer(address))

    def lost(self) -> None:
        """It ended before its first turn."""
        self.error = Condition.STALE.error("the arriving actor ended")
        self.refused(None)

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
        self._undecided: set[int] = set()  # sealed by a predecessor
        self._tasks: set[asyncio.Task[None]] = set()
        peers.serve(Operation.ARRIVE, lambda payload, _: self._take_over(_arrival(payload)))
        peers.serve(Operation.SETTLED, lambda payload, _: b"")

    def __len__(self) -> int:
        """Actors on their way to another shard."""
        return len(self._tasks)

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
            number = self._context.parcels.put(Return(failed, rest))
            self._context.place(seat.address, Kind.JOINED, number, named(intent.type, intent.id))
            return
        # Placed before it is known how the Join ends, so that it ends under a successor, too; it stays behind.
        back = Return(None, rest)
        number = self._context.parcels.put(back)
        self._context.place(seat.address, Kind.JOINED, number, named(intent.type, intent.id))
        self._leaving[seat.address] = Departure(actor, intent, rest, state, number, back)
        self._context.shard.seal(seat.address)

    def sealed(self, address: int, records: list[Record]) -> None:
        """Executor's hook: the object has settled, and this is what it had not run."""
        departure = self._leaving.pop(address, None)
        if departure is not None:
            work = self._transfer(departure, records)
        elif address in self._undecided:
            self._undecided.discard(address)
            work = self._settle(address, records)
        else:
            log.error("object %x was sealed, but by nobody here: it goes on", address)
            self._context.shard.unseal(address)
            return
        task = self._context.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _transfer(self, departure: Departure, records: list[Record]) -> None:
        seat, intent = departure.actor._seat, departure.intent
        session = seat.session
        home = self._places.home(intent.type, intent.id)
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
            [record for record in records if _travels(record, intent)],
            self._context.incarnation(self._context.number),
            self._context.incarnation(home),
        )
        described = f"move {seat.label} to {intent.type} {intent.id!r} on shard {home}"
        try:
            deadline = max(intent.deadline, self._context.now()) + ANSWER_GRACE
            answer: Answer = _answer(
                await self._peers.ask(home, Operation.ARRIVE, encode_msgpack(arrival), deadline, described)
            )
        except ShardpoolError as error:
            # Without the target's word the directory has it: it was asked of a process that can do no more about it.
            if self._places.find(seat.type_name, seat.id) != seat.address:
                await self._led_away(seat)
                self._gone(departure.actor, departure.number)
            else:
                self._stay(departure, JoinOutcome(intent.id, False, error=error))
            return
        if answer.address:
            self._gone(departure.actor, departure.number)
        else:
            why = None if answer.error is None else answer.error.error()
            self._stay(departure, JoinOutcome(intent.id, False, answer.reply, why))

    def _stay(self, departure: Departure, outcome: JoinOutcome) -> None:
        # Its JOINED record waits in the lifecycle lane, so the completion runs before the messages that waited.
        departure.back.outcome = outcome
        self.claim_route(departure.actor._seat)
        self._context.shard.unseal(departure.actor._seat.address)

    def undecided(self, address: int) -> None:
        """A predecessor's actor, sealed for a move; what becomes of it is decided once it has settled."""
        self._undecided.add(address)

    async def _settle(self, address: int, records: list[Record]) -> None:
        """The actor of a predecessor lives here, unless the directory says otherwise and cannot change its mind."""
        actor = self._context.shard.target(address)
        assert isinstance(actor, Actor)
        seat = actor._seat
        targets = {self._places.home(*read_name(payload)) for kind, _, _, _, payload in records if kind == Kind.JOINED}
        for target in targets - {self._context.number}:
            while True:
                deadline = self._context.now() + self._context.settings.ask_timeout
                try:
                    await self._peers.ask(target, Operation.SETTLED, b"", deadline, f"move of {seat.label}")
                    break
                except ShardpoolError as error:
                    if isinstance(error, Unavailable):
                        break  # it died as well
                    log.warning("%s stays sealed: shard %d does not answer: %s", seat.label, target, error)
        if self._places.find(seat.type_name, seat.id) == address:
            self.claim_route(seat)
            self._context.shard.unseal(address)
        else:
            await self._led_away(seat)
            self._gone(actor, 0)

    async def _led_away(self, seat: Seat) -> None:
        """The target died before it could say that the session leads there."""
        if seat.session is not None:
            await led_away(self._context, seat.session.seat_address, seat.address)

    def claim_route(self, seat: Seat) -> None:
        """Have an actor's session lead to it, if it does not."""
        session = seat.session
        if session is None:
            return
        route = self._context.shard.route_of(session.seat_address)
        if route not in (None, seat.address):
            rebind = encode_msgpack(Rebind(session.seat_address, seat.address))
            self._peers.tell(shard_of(session.seat_address), Operation.ROUTE, rebind)

    def _gone(self, actor: Actor, number: int) -> None:
        self._context.parcels.take(number)
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
        if arrival.target_life not in self._context.lives_answered_for():
            raise Condition.UNAVAILABLE.error("this was asked of a process that has died")
        actor = self._rebuild(kind, arrival)
        arriving = Arriving(
            arrival.source,
            arrival.intent,
            arrival.rest,
            arrival.records,
            arrival.source_life,
            self._context.loop.create_future(),
        )
        number = self._context.parcels.put(arriving)
        name = named(arrival.intent.type, arrival.intent.id)
        self._insistence.post(lambda: actor._seat.address, Kind.ARRIVE, number, name)
        return encode_msgpack(await arriving.answer)

    def _rebuild(self, kind: ObjectType, arrival: Arrival) -> Actor:
        state, session = arrival.session, None
        if state is not None:
            session = SessionRef(self._runtime, state.number, state.client, state.seat_address, state.identity)
        actor = self._lives.make(kind, arrival.id, session)
        assert isinstance(actor, Actor)
        self._context.shard.set_life(actor._seat.address, Life.ARRIVING)
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
        # From the look to the exchange nothing is awaited: after SETTLED was answered none of a dead source's opens.
        source_lives = arriving.source_life == self._context.incarnation(shard_of(arriving.source))
        if self._context.now() > deadline or not source_lives or not self._move_entry(seat, arriving.source):
            seat.spot.members.discard(actor)
            raise Condition.UNAVAILABLE.error(f"{seat.label}: the shard it comes from gave it up")
        session = seat.session
        if session is not None:
            await self._redirect(seat, session, deadline)
        self._lives.begin(self._context.blueprint.find(type(actor)), actor)

    async def _redirect(self, seat: Seat, session: SessionRef, deadline: float) -> None:
        """Have the session lead here before the source gives up its slot: from then on acceptors look here."""
        rebind = encode_msgpack(Rebind(session.seat_address, seat.address))
        home = shard_of(session.seat_address)
        while self._context.now() < deadline:
            try:
                await self._peers.ask(home, Operation.ROUTE, rebind, deadline, f"route of {seat.label}")
                return
            except ShardpoolError as error:
                log.info("%s: %s", seat.label, error)
                await asyncio.sleep(ROUTE_PAUSE)
        # No way back: the source, or its successor, may have looked at the directory already.
        self._peers.tell(home, Operation.ROUTE, rebind)

    def _move_entry(self, seat: Seat, source: int) -> bool:
        moved = self._places.move(seat.type_name, seat.id, source, seat.address)
        if moved:
            self._context.shard.set_life(seat.address, Life.OPEN)
        return moved


def _travels(record: Record, intent: Intent) -> bool:
    """Ticks stay behind, the timers start anew at the target; so does what belongs to the Join under way."""
    kind, _, a, _, _ = record
    return kind not in (Kind.TIMER, Kind.JOINED, Kind.RECOVER) and not (kind == Kind.JOIN and a == intent.turn)
