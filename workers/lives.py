"""The life of actors and Spots: making them, their first decision, their end (T-39, T-40)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from shardpool.actor import Actor
from shardpool.app import ObjectType
from shardpool.calls import CreateOutcome, Creation, Runtime
from shardpool.codecs import encode_msgpack, value_decoder
from shardpool.errors import Condition, ShardpoolError
from shardpool.objects import Seat, TurnObject
from shardpool.session import SessionRef
from shardpool.spot import EntrySpot, Members, Spot
from shardpool.workers.context import Parcel, ShardContext
from shardpool.workers.faults import Faults
from shardpool.workers.insist import Insistence
from shardpool.workers.kinds import Kind, SlotKind
from shardpool.workers.peers import Operation, Peers
from shardpool.workers.places import Places
from shardpool.workers.tables import Tables
from shardpool.workers.timers import Timers
from shardpool.workers.verdicts import Verdict, decide, read_request

NIL = encode_msgpack(None)


class CreateRequest(Struct, frozen=True, array_like=True):
    """Get or create an object whose home is here."""

    type: str
    id: str
    request: bytes


class CreateAnswer(Struct, frozen=True, array_like=True):
    """How it went; address 0: rejected."""

    result: Creation
    address: int
    reply: Any = None


@dataclass(slots=True, eq=False)
class Newborn(Parcel):
    """An object that must decide about itself first."""

    kind: ObjectType
    request: bytes
    future: asyncio.Future[Verdict]

    def lost(self) -> None:
        """It ended before it could."""
        if not self.future.done():
            self.future.set_exception(Condition.STALE.error(f"{self.kind.name}: it ended before its first turn"))


_request = value_decoder(CreateRequest)
_answer = value_decoder(CreateAnswer)


class Lives:
    """Makes and ends the actors and Spots of a shard."""

    def __init__(
        self,
        context: ShardContext,
        runtime: Runtime,
        tables: Tables,
        places: Places,
        peers: Peers,
        timers: Timers,
        faults: Faults,
        insistence: Insistence,
    ) -> None:
        self._context = context
        self.runtime = runtime
        self._tables = tables
        self._places = places
        self._peers = peers
        self._timers = timers
        self._faults = faults
        self._insistence = insistence
        self._creating: dict[tuple[str, str], asyncio.Task[CreateAnswer]] = {}
        self.spots: dict[int, Spot] = {}  # for the end of the shard: on_close
        self.on_end: list[Callable[[int], None]] = []  # told the address of each object that ends
        self.entry = self._make_entry()
        context.steps[Kind.CREATE] = self._decide
        context.steps[Kind.CLOSE] = self._close
        peers.serve(Operation.CREATE, lambda payload, _: self._serve_create(_request(payload)))

    def __len__(self) -> int:
        """Objects that are being made."""
        return len(self._creating)

    def _make_entry(self) -> EntrySpot:
        entry = EntrySpot()
        entry._seat = Seat(self.runtime, "EntrySpot", f"entry-{self._context.number}", spot=entry)
        entry._members = Members()
        return entry

    def make(self, kind: ObjectType, id: str, session: SessionRef | None = None) -> TurnObject:
        """A new object in a slot of its own; nobody can find it yet. An actor of it is in the entry Spot.

        Raises: CapacityExceeded: no slot. What the class's `__init__` raises.
        """
        self._places.check_id(kind, id)
        made = self._blank(kind, id, session)
        seat = made._seat
        slot_kind = SlotKind.SPOT if isinstance(made, Spot) else SlotKind.ACTOR
        client, number = (session.client, session.number) if session is not None else (0, 0)
        seat.address = self._context.shard.allocate(slot_kind, made, self._tables.of(kind), client, number)
        if not seat.address:
            raise Condition.SLOTS_FULL.error(f"{seat.label}: this shard has no slot left; raise slots")
        if session is not None:
            self._context.shard.set_route(seat.address, session.seat_address)
        seat.spot = made if isinstance(made, Spot) else self.entry
        try:
            made.__init__()  # type: ignore[misc]
        except BaseException:
            self._context.shard.release(seat.address)
            raise
        if isinstance(made, Actor):
            self.entry.members.add(made)
        return made

    def remake(
        self, kind: ObjectType, id: str, address: int, spot: Spot | None, session: SessionRef | None
    ) -> TurnObject:
        """A fresh object for the slot of a predecessor's. Args: spot: an actor's; None: the entry Spot.

        Raises: what the class's `__init__` raises.
        """
        made = self._blank(kind, id, session)
        made._seat.address = address
        made._seat.spot = made if isinstance(made, Spot) else spot or self.entry
        made.__init__()  # type: ignore[misc]
        if isinstance(made, Actor):
            made._seat.spot.members.add(made)
        return made

    def _blank(self, kind: ObjectType, id: str, session: SessionRef | None) -> TurnObject:
        made = kind.cls.__new__(kind.cls)
        made._seat = Seat(self.runtime, kind.name, id, session=session)
        if isinstance(made, Spot):
            made._members = Members()
        return made

    def actors(self) -> list[Actor]:
        """All actors of this shard, each once: one that arrives is in two Spots for a moment."""
        spots = (self.entry, *self.spots.values())
        return list({id(actor): actor for spot in spots for actor in spot.members}.values())

    def discard(self, made: TurnObject) -> None:
        """End an object that nobody could find."""
        if isinstance(made, Actor):
            made._seat.spot.members.discard(made)
            self.entry.members.discard(made)  # it is there, too, while it arrives
        self._context.shard.release(made._seat.address)

    def begin(self, kind: ObjectType, made: TurnObject) -> None:
        """The object is open: its timers run."""
        if isinstance(made, Spot):
            self.spots[made._seat.address] = made
        self._timers.start(made._seat, kind.dispatch.timers)

    async def create(self, kind: ObjectType, id: str, request: bytes, deadline: float) -> CreateAnswer:
        """Get or create, wherever the id's home is."""
        self._places.check_id(kind, id)
        payload = encode_msgpack(CreateRequest(kind.name, id, request))
        home = self._places.home(kind.name, id)
        described = f"create {kind.name} {id!r}"
        answer: CreateAnswer = _answer(await self._peers.ask(home, Operation.CREATE, payload, deadline, described))
        return answer

    async def _serve_create(self, request: CreateRequest) -> bytes:
        kind = self._context.blueprint.types.get(request.type)
        if kind is None:
            raise Condition.NOT_CONFIGURED.error(f"the app has no type {request.type!r}")
        return encode_msgpack(await self.get_or_create(kind, request.id, request.request))

    async def get_or_create(self, kind: ObjectType, id: str, request: bytes) -> CreateAnswer:
        """Get or create an object whose home is here; of two at once, one factory runs."""
        key = (kind.name, id)
        there = self._places.find(*key)
        if there:
            return CreateAnswer(Creation.EXISTING, there)
        running = self._creating.get(key)
        if running is not None:
            answer = await asyncio.shield(running)
            return answer if answer.result is Creation.REJECTED else CreateAnswer(Creation.EXISTING, answer.address)
        if self._context.draining:
            raise Condition.SHUTTING_DOWN.error(f"create {kind.name} {id!r}: the pool is stopping")
        if not has_say(kind.cls):
            return self._enter(kind, self.make(kind, id))
        # A task of its own: whoever asked may stop waiting, what was begun is brought to its end.
        task = self._context.loop.create_task(self._create(kind, id, request))
        self._creating[key] = task
        task.add_done_callback(lambda _: self._creating.pop(key))
        return await asyncio.shield(task)

    async def _create(self, kind: ObjectType, id: str, request: bytes) -> CreateAnswer:
        made = self.make(kind, id)
        verdict = await self.first_turn(kind, made, request)
        if verdict.accepted:
            return self._enter(kind, made)
        self.discard(made)
        return CreateAnswer(Creation.REJECTED, 0, verdict.reply)

    def _enter(self, kind: ObjectType, made: TurnObject) -> CreateAnswer:
        address = made._seat.address
        there = self._places.claim(kind.name, made._seat.id, address)
        if there != address:
            self.discard(made)
            if not there:
                raise Condition.UNAVAILABLE.error(f"create {made._seat.label}: it is being made elsewhere; try again")
            return CreateAnswer(Creation.EXISTING, there)
        self.begin(kind, made)
        return CreateAnswer(Creation.CREATED, address)

    async def first_turn(self, kind: ObjectType, made: TurnObject, request: bytes) -> Verdict:
        """Have a new object decide about itself, in its first turn, if its class has a say."""
        if not has_say(kind.cls):
            return Verdict(True)
        newborn = Newborn(kind, request, self._context.loop.create_future())
        number = self._context.parcels.put(newborn)
        self._insistence.post(lambda: made._seat.address, Kind.CREATE, number)
        return await newborn.future

    async def _decide(self, made: Any, number: int, b: int, payload: bytes) -> None:
        newborn: Newborn | None = self._context.parcels.take(number)
        if newborn is None or newborn.future.done():
            return
        try:
            request = read_request(type(made), "on_create", 1, newborn.request)
            verdict = await decide(made, "on_create", request)
        except Exception as error:
            self._faults.report(made, "on_create", error)
            verdict_error = error if isinstance(error, ShardpoolError) else _failed(made._seat)
            if not newborn.future.done():
                newborn.future.set_exception(verdict_error)
            return
        if verdict.accepted:
            await self._faults.guarded(made, "on_ready")
        if not newborn.future.done():
            newborn.future.set_result(verdict)

    def close(self, seat: Seat, target: Any) -> bool:
        """End an object after its turn; False for a Spot with members."""
        if not seat.address or (isinstance(target, Spot) and len(target.members)):
            return False
        return self._context.place(seat.address, Kind.CLOSE, payload=b"closed")

    async def _close(self, target: Any, a: int, b: int, payload: bytes) -> None:
        if isinstance(target, Spot) and len(target.members):
            return  # an actor came in before the end: it goes on
        session = target._seat.session if isinstance(target, Actor) else None
        if session is not None and session.client:
            self._context.shard.close_client(session.client, 1000, b"")
        await self.end(target, payload.decode())

    async def end(self, target: Any, reason: str) -> None:
        """In the object's own turn: it leaves its Spot, hears `on_close`, and is gone after the turn."""
        seat: Seat = target._seat
        self._timers.stop(seat.address)
        if isinstance(target, Actor):
            await self.leave(target)
        await self._faults.guarded(target, "on_close", reason)
        self._gone(seat)

    def _gone(self, seat: Seat) -> None:
        self._places.remove(seat.type_name, seat.id, seat.address)
        self.spots.pop(seat.address, None)
        for told in self.on_end:
            told(seat.address)
        self._context.shard.release(seat.address)

    async def end_quietly(self, target: Any) -> None:
        """As `end`, without a word of the object's own code."""
        seat: Seat = target._seat
        if isinstance(target, Actor):
            if seat.session is not None:
                seat.session.client = 0
            await self.leave(target)
        self._gone(seat)

    async def leave(self, actor: Actor) -> None:
        """In the actor's turn, so under the gate of the Spot it is in."""
        spot: Spot = actor._seat.spot
        if spot.members.discard(actor) and not isinstance(spot, EntrySpot):
            await self._faults.guarded(spot, "on_actor_leave", actor)

    async def close_all(self, reason: str) -> None:
        """At the end of the shard: every Spot hears `on_close`."""
        spots, self.spots = list(self.spots.values()), {}
        for spot in spots:
            self._timers.stop(spot._seat.address)
            await self._faults.guarded(spot, "on_close", reason)


def has_say(cls: type[TurnObject]) -> bool:
    """Whether a class decides about its new objects; most do not, and need no turn for it."""
    for base in (Actor, Spot):
        if issubclass(cls, base):
            return cls.on_create is not base.on_create or cls.on_ready is not base.on_ready
    return False


def outcome_of(answer: CreateAnswer) -> CreateOutcome:
    """What user code gets of it."""
    return CreateOutcome(answer.result, answer.reply)


def _failed(seat: Seat) -> ShardpoolError:
    return Condition.HANDLER_RAISED.error(f"{seat.label}: on_create failed; the operator's log says why")
