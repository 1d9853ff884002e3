"""Deferred Joins (T-13 to T-17): registered in a handler, run behind it in the actor's own lifecycle turn.

handler        join(...).defer(): an Intent, and one JOIN record per turn into the actor's lifecycle lane
handler fails  the turn's Intents are dropped; the record finds none
JOIN turn      the actor's claim is kept; its gate is given back while the Spot decides in a turn of its own
accepted       leave the old Spot under its gate, change gates, take the new gate, on_joined, end of turn
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from shardpool.actor import Actor
from shardpool.app import ObjectType
from shardpool.calls import JOIN_BYTES_TOTAL_MAX, JOINS_MAX
from shardpool.decisions import JoinOutcome
from shardpool.errors import Condition, ShardpoolError
from shardpool.objects import Seat
from shardpool.spot import Spot
from shardpool.workers.context import Parcel, ShardContext
from shardpool.workers.faults import Faults, body_of
from shardpool.workers.gates import Gates
from shardpool.workers.insist import PAUSE_FIRST, PAUSE_MAX, Insistence
from shardpool.workers.kinds import Kind, Outcome
from shardpool.workers.lives import Lives
from shardpool.workers.moves import Arriving, Moves, Return
from shardpool.workers.places import Places
from shardpool.workers.travel import Intent, named, read_name
from shardpool.workers.turns import Turns
from shardpool.workers.verdicts import Verdict, decide, read_request


@dataclass(slots=True, eq=False)
class Knock(Parcel):
    """An actor before a Spot's door."""

    actor: Actor
    request: bytes
    future: asyncio.Future[Verdict]

    def lost(self) -> None:
        """The Spot ended before it came to this."""
        if not self.future.done():
            self.future.set_exception(Condition.STALE.error("the Spot has just ended; join again"))


@dataclass(frozen=True, slots=True)
class LastTurn:
    """The last turn that an actor began under a predecessor; cut: it had not ended."""

    turn: int
    cut: bool


class Joins:
    """The Joins of a shard's actors."""

    def __init__(
        self,
        context: ShardContext,
        turns: Turns,
        gates: Gates,
        lives: Lives,
        places: Places,
        moves: Moves,
        faults: Faults,
        insistence: Insistence,
    ) -> None:
        self._context = context
        self._turns = turns
        self._gates = gates
        self._lives = lives
        self._places = places
        self._moves = moves
        self._faults = faults
        self._insistence = insistence
        self._intents: dict[int, list[Intent]] = {}  # by actor, in order of registration
        self._leftover: dict[int, LastTurn] = {}  # by actor that outlived its shard
        context.steps[Kind.JOIN] = self._run
        context.steps[Kind.DECIDE] = self._decide
        context.steps[Kind.ARRIVE] = self._arrive
        context.steps[Kind.JOINED] = self._joined
        context.steps[Kind.LEFT] = self._left
        lives.on_end.append(self.forget)

    def __len__(self) -> int:
        """Actors with Joins that have not run."""
        return len(self._intents)

    def register(self, seat: Seat, kind: ObjectType, id: str, request: bytes, timeout: float) -> None:
        """`defer()`: put down an intent for the running handler.

        Raises: InvalidOperation: outside the actor's turn. CapacityExceeded: a limit.
        """
        described = f"join {kind.name} {id!r}"
        turn = self._turns.check_open(seat, described)
        mine = self._intents.setdefault(seat.address, [])
        of_turn = [intent for intent in mine if intent.turn == turn]
        if len(of_turn) >= JOINS_MAX:
            raise Condition.CAPACITY.error(f"{described}: {JOINS_MAX} Joins in one handler is the most")
        if sum(len(intent.request) for intent in of_turn) + len(request) > JOIN_BYTES_TOTAL_MAX:
            raise Condition.CAPACITY.error(f"{described}: the requests of one handler may have 8 MiB together")
        # One record each: the first runs them all, the others are for a successor, which finds no intents.
        if not self._context.place(seat.address, Kind.JOIN, turn, named(kind.name, id)):
            raise Condition.CAPACITY.error(f"{described}: this shard has no memory for it; raise arena_bytes")
        mine.append(Intent(turn, kind.name, id, request, self._context.now() + timeout))

    def drop(self, address: int) -> None:
        """The object's turn failed: what it registered does not run (T-14)."""
        mine = self._intents.get(address)
        if mine:
            turn = self._turns.number_of(address)
            self._keep(address, [intent for intent in mine if intent.turn != turn])

    def forget(self, address: int) -> None:
        """The actor ended."""
        self._intents.pop(address, None)
        self._leftover.pop(address, None)

    def inherit(self, address: int, last: LastTurn) -> None:
        """The actor's last turn under a predecessor: Joins registered in it or before have lost their intents."""
        self._leftover[address] = last

    def _keep(self, address: int, intents: list[Intent]) -> None:
        if intents:
            self._intents[address] = intents
        else:
            self._intents.pop(address, None)

    async def _run(self, actor: Actor, turn: int, b: int, payload: bytes) -> None:
        address = actor._seat.address
        mine = self._intents.get(address, [])
        self._keep(address, [intent for intent in mine if intent.turn != turn])
        last = self._leftover.get(address)
        if last is not None and turn <= last.turn:
            if turn != last.turn or not last.cut:  # a handler that was cut off has registered nothing (T-14)
                await self._cut_short(actor, payload)
            return
        await self._run_each(actor, [intent for intent in mine if intent.turn == turn])

    async def _cut_short(self, actor: Actor, payload: bytes) -> None:
        """A Join of a predecessor ends here; it had succeeded if the actor is in that Spot."""
        type_name, id = read_name(payload)
        spot: Spot = actor._seat.spot
        if spot is not self._lives.entry and (spot._seat.type_name, spot._seat.id) == (type_name, id):
            outcome = JoinOutcome(id, True)
        else:
            why = f"join {type_name} {id!r}: its shard died before the Join was decided; join again"
            outcome = JoinOutcome(id, False, error=Condition.UNAVAILABLE.error(why))
        await self._faults.guarded(actor, "on_joined", outcome)

    async def _run_each(self, actor: Actor, intents: list[Intent]) -> None:
        for index, intent in enumerate(intents):
            if self._places.home(intent.type, intent.id) != self._context.number:
                # The rest of the Joins travel with the actor, or come back with it.
                self._moves.depart(actor, intent, intents[index + 1 :])
                return
            outcome = await self._join_here(actor, intent)
            await self._faults.guarded(actor, "on_joined", outcome)

    async def _join_here(self, actor: Actor, intent: Intent) -> JoinOutcome:
        seat = actor._seat
        old: Spot = seat.spot
        self._context.shard.release_gate(seat.address)
        try:
            async with asyncio.timeout(max(0.0, intent.deadline - self._context.now())):
                spot = await self._spot(intent)
                verdict = await self._knock(actor, spot, intent.request)
        except TimeoutError:
            late = Condition.DEADLINE.error(f"join {intent.type} {intent.id!r}: no decision in time")
            return await self._stay(seat, JoinOutcome(intent.id, False, error=late))
        except _Refused as refused:
            return await self._stay(seat, JoinOutcome(intent.id, False, refused.reply))
        except ShardpoolError as error:
            return await self._stay(seat, JoinOutcome(intent.id, False, error=error))
        if not verdict.accepted:
            return await self._stay(seat, JoinOutcome(intent.id, False, verdict.reply))
        await self._turns.regain(seat.address)  # of the old Spot: it hears of the leave under its own gate
        if old is not spot and old.members.discard(actor) and old is not self._lives.entry:
            await self._faults.guarded(old, "on_actor_leave", actor)
        await self._enter_gate(seat, spot)
        return JoinOutcome(intent.id, True, verdict.reply)

    async def _stay(self, seat: Seat, outcome: JoinOutcome) -> JoinOutcome:
        await self._turns.regain(seat.address)
        return outcome

    async def _enter_gate(self, seat: Seat, spot: Spot) -> None:
        shard = self._context.shard
        shard.release_gate(seat.address)
        shard.share_gate(seat.address, spot._seat.address)
        await self._turns.regain(seat.address)

    async def _spot(self, intent: Intent) -> Spot:
        kind = self._context.blueprint.types.get(intent.type)
        if kind is None or not issubclass(kind.cls, Spot):
            raise Condition.NOT_CONFIGURED.error(f"join {intent.type} {intent.id!r}: the app has no such Spot type")
        answer = await self._lives.get_or_create(kind, intent.id, intent.request)
        if not answer.address:
            raise _Refused(answer.reply)
        spot = self._context.shard.target(answer.address)
        if not isinstance(spot, Spot):
            raise Condition.STALE.error(f"join {intent.type} {intent.id!r}: it has just ended")
        return spot

    async def _knock(self, actor: Actor, spot: Spot, request: bytes) -> Verdict:
        """Have the Spot decide in a turn of its own; accepted, the actor is a member when this returns."""
        if actor in spot.members:
            return Verdict(True)
        knock = Knock(actor, request, self._context.loop.create_future())
        number = self._context.parcels.put(knock)
        try:
            outcome = await self._queue_up(spot, number)
            if outcome is not Outcome.ACCEPTED:
                self._context.parcels.take(number)
                raise Condition.CAPACITY.error(
                    f"{spot._seat.label} takes nobody in now ({outcome.name.lower()}); try again"
                )
            return await knock.future
        except asyncio.CancelledError:
            self._context.parcels.take(number)
            # The deadline and the Spot's word in the same moment: what the Spot did stands.
            if knock.future.done() and not knock.future.cancelled() and knock.future.exception() is None:
                return knock.future.result()
            raise

    async def _queue_up(self, spot: Spot, number: int) -> Outcome:
        """Post the knock; again while the lifecycle lane is full: many may come in at once."""
        pause = PAUSE_FIRST
        while True:
            outcome = Outcome(self._context.shard.post(spot._seat.address, Kind.DECIDE, number))
            if outcome not in (Outcome.LANE_FULL, Outcome.LINK_FULL):
                return outcome
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)

    async def _decide(self, spot: Spot, number: int, b: int, payload: bytes) -> None:
        knock: Knock | None = self._context.parcels.take(number)
        if knock is None or knock.future.done():
            return  # it waited too long and went away
        try:
            request = read_request(type(spot), "on_actor_join", 2, knock.request)
            verdict = await decide(spot, "on_actor_join", knock.actor, request)
        except Exception as error:
            self._faults.report(spot, "on_actor_join", error)
            if not knock.future.done():
                knock.future.set_exception(body_of(error).error())
            return
        if knock.future.done():
            return
        if verdict.accepted:
            spot.members.add(knock.actor)
            knock.actor._seat.spot = spot
            self._context.shard.set_spot(knock.actor._seat.address, spot._seat.address)
        knock.future.set_result(verdict)
        if verdict.accepted:
            await self._faults.guarded(spot, "on_actor_joined", knock.actor)

    async def _left(self, spot: Spot, number: int, b: int, payload: bytes) -> None:
        """A member was taken over by another shard."""
        await self._faults.guarded(spot, "on_actor_leave", self._context.parcels.take(number))

    async def _arrive(self, actor: Actor, number: int, b: int, payload: bytes) -> None:
        """First turn of an actor that came from another shard: the Spot here decides whether it stays."""
        arriving: Arriving | None = self._context.parcels.take(number)
        if arriving is None:
            return
        seat = actor._seat
        self._context.shard.release_gate(seat.address)
        try:
            async with asyncio.timeout(max(0.0, arriving.intent.deadline - self._context.now())):
                spot = await self._spot(arriving.intent)
                verdict = await self._knock(actor, spot, arriving.intent.request)
            if verdict.accepted:
                await self._moves.open(actor, arriving)
        except _Refused as refused:
            verdict = Verdict(False, refused.reply)
        except (ShardpoolError, TimeoutError) as error:
            verdict = Verdict(False)
            if isinstance(error, TimeoutError):
                error = Condition.DEADLINE.error(
                    f"join {arriving.intent.type} {arriving.intent.id!r}: no decision in time"
                )
            arriving.failed(error)
        if not verdict.accepted:
            await self._turns.regain(seat.address)
            self._faults.spare(seat.address)  # what it brought along is run where it came from
            self._lives.discard(actor)
            arriving.refused(verdict.reply)
            return
        await self._enter_gate(seat, spot)
        arriving.accepted(seat.address)
        self._lives.entry.members.discard(actor)
        await self._faults.guarded(actor, "on_joined", JoinOutcome(arriving.intent.id, True, verdict.reply))
        await self._run_each(actor, arriving.rest)

    async def _joined(self, actor: Actor, number: int, b: int, payload: bytes) -> None:
        """A Join to another shard failed or was refused: the actor goes on here."""
        back: Return | None = self._context.parcels.take(number)
        if back is None or back.outcome is None:
            await self._cut_short(actor, payload)
            return
        await self._faults.guarded(actor, "on_joined", back.outcome)
        await self._run_each(actor, back.rest)


class _Refused(Exception):
    """The Spot refused to be made."""

    def __init__(self, reply: Any) -> None:
        super().__init__()
        self.reply = reply
