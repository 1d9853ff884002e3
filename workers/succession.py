"""What a restarted shard makes of its predecessor's objects (M-16, P-15): their slots, queues, names and sessions
survived in shared memory, their state did not.

slot          address, session, client, route, the Spot an actor is in, the record that had begun
directory     type and id of actors and Spots, identities of sessions
anew          the objects, by __init__; timers; `on_recover` is the first turn of those that have it

What was being made, moved or ended when the process died gets one clear end: see `_actor` and `_session`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from shardpool._core import QUARANTINE_DEATHS
from shardpool.actor import Actor
from shardpool.app import ObjectType
from shardpool.codecs import encode_json
from shardpool.delivery import AT_MOST_ONCE
from shardpool.errors import Condition
from shardpool.objects import TurnObject
from shardpool.session import SessionRef
from shardpool.spot import Spot
from shardpool.workers.begun import Begun, Fate, Interrupted
from shardpool.workers.context import ShardContext, log
from shardpool.workers.faults import Faults, body_of
from shardpool.workers.insist import Insistence
from shardpool.workers.joins import Joins, LastTurn
from shardpool.workers.kinds import Kind, Life, SlotKind, shard_of
from shardpool.workers.letters import Letters
from shardpool.workers.lives import Lives
from shardpool.workers.moves import Moves
from shardpool.workers.places import IDENTITY, Places, identity_of, shared_identity
from shardpool.workers.quarantine import Quarantine
from shardpool.workers.routes import led_away
from shardpool.workers.sessions import Sessions
from shardpool.workers.tables import Tables


class SystemObject:
    """The tenant of slot 0: records that are for the shard and no object of it yet."""

    def __repr__(self) -> str:
        return "the system object"


@dataclass(frozen=True, slots=True)
class Left:
    """One object of the predecessor, as its slot has it."""

    address: int
    kind: int
    session: int
    client: int
    route: int
    begun: tuple[int, int, int, int, bytes] | None
    spot: int
    life: int
    sealed: bool
    deaths: int
    attempts: int
    turn: int


@dataclass(slots=True)
class Tally:
    """What became of everything, for the log."""

    kept: int = 0
    cut: int = 0
    ended: int = 0


class Succession:
    """Takes the segment over, before the shard's first turn."""

    def __init__(
        self,
        context: ShardContext,
        tables: Tables,
        places: Places,
        lives: Lives,
        sessions: Sessions,
        joins: Joins,
        moves: Moves,
        faults: Faults,
        insistence: Insistence,
        letters: Letters,
        quarantine: Quarantine,
    ) -> None:
        self._context = context
        self._tables = tables
        self._places = places
        self._lives = lives
        self._sessions = sessions
        self._joins = joins
        self._moves = moves
        self._faults = faults
        self._insistence = insistence
        self._quarantine = quarantine
        self._begun = Begun(context, letters)
        self._names: dict[int, tuple[str, str]] = {}  # by address
        self._identities: dict[int, str] = {}  # by address of the session
        self._spots: dict[int, Spot] = {}
        self._tally = Tally()
        self._moved: set[int] = set()  # addresses of actors that live elsewhere, while their sessions lead there yet
        self._tasks: set[asyncio.Task[None]] = set()
        context.steps[Kind.RECOVER] = self._recover

    def take_over(self) -> None:
        """Restore what can be, end what cannot. Called from: the start of the shard, before anything is allocated."""
        left = [Left(*item) for item in self._context.shard.adopt()]
        self._system(next((one for one in left if one.kind == SlotKind.SYSTEM), None))
        if len(left) > 1:
            self._read_directory()
        for kind, take in (
            (SlotKind.SPOT, self._spot),
            (SlotKind.ACTOR, self._actor),
            (SlotKind.SESSION, self._session),
            (SlotKind.OPERATION, self._operation),
        ):
            for one in left:
                if one.kind == kind:
                    take(one)
        self._names, self._identities, self._spots = {}, {}, {}
        if left:
            log.warning(
                "took over from its predecessor: %d sessions, actors and Spots go on, %d of them were in a turn; "
                "%d were being made or ended",
                self._tally.kept,
                self._tally.cut,
                self._tally.ended,
            )

    def _system(self, left: Left | None) -> None:
        system = SystemObject()
        if left is None:
            # Slot 0 goes to the first: acceptors post attaches to it without asking.
            self._context.shard.allocate(SlotKind.SYSTEM, system, self._tables.system())
            return
        if left.begun is not None and left.begun[0] == Kind.ATTACH:
            self._refuse(left.begun[3])
        owner = Interrupted(("system", ""), left.address, left.turn, 0, AT_MOST_ONCE, False)
        fate = Fate.DROP if left.begun is None else self._begun.settle(owner, left.begun)
        self._context.shard.restore(left.address, system, self._tables.system(), fate is Fate.DROP)

    def _read_directory(self) -> None:
        for type_name, id, address in self._places.everything():
            if type_name == IDENTITY:
                self._identities[address] = identity_of(id)
            elif shard_of(address) == self._context.number:
                self._names[address] = (type_name, id)

    def _spot(self, left: Left) -> None:
        found = self._registered(left, Spot)
        made = self._remake(left, found, None, None) if found is not None and left.life == Life.OPEN else None
        if found is None or made is None:
            self._end(left)
            return
        assert isinstance(made, Spot)
        self._spots[left.address] = made
        self._open(left, found, made)

    def _actor(self, left: Left) -> None:
        """Entered in the directory it lives here, sealed or not; else it was being made, had moved, or had ended."""
        found = self._registered(left, Actor)
        route = self._context.shard.route_of(left.route) if left.route else None
        unbound = left.route != 0 and route == 0
        if found is None or unbound or left.life == Life.ENDING:
            self._end(left)
            return
        session = None
        if left.route:
            identity = self._identities.get(left.route)
            session = SessionRef(self._lives.runtime, left.session, left.client, left.route, identity)
        made = self._remake(left, found, self._spots.get(left.spot), session)
        if made is None:
            self._end(left)
            return
        self._joins.inherit(left.address, LastTurn(left.turn, left.begun is not None))
        self._open(left, found, made)
        if made._seat.spot is not self._lives.entry:
            self._context.shard.share_gate(left.address, left.spot)
        if left.sealed:
            self._moves.undecided(left.address)
        else:
            self._context.shard.set_life(left.address, Life.OPEN)
            self._moves.claim_route(made._seat)
        if session is not None and shard_of(left.route) != self._context.number:
            # For an answer: whether the client is behind, which the predecessor knew.
            self._sessions.bound(left.client, left.address, left.route)
        if left.route and route is None:
            self._context.place(left.address, Kind.DISCONNECT, payload=b"unavailable")

    def _session(self, left: Left) -> None:
        """Bound it lives on; else its client is refused and tries again."""
        identity = self._identities.get(left.address)
        if left.life != Life.ENDING and left.route and left.deaths < QUARANTINE_DEATHS:
            try:
                made = self._sessions.remake(left.address, left.session, left.client, identity, left.route)
            except Exception as error:
                log.error("session %016x cannot be made anew", left.session, exc_info=error)
            else:
                self._open(left, self._context.blueprint.session, made)
                # The predecessor may have died before it could say so; and a client that is behind is told of.
                self._sessions.bound(left.client, left.route, left.address)
                here = shard_of(left.route) == self._context.number and left.route not in self._moved
                if here and self._context.shard.target(left.route) is None:
                    self._close(left.client)
                return
        if left.route:
            self._insistence.post(lambda: left.route, Kind.DISCONNECT, payload=b"unavailable")
            self._close(left.client)
        elif left.life != Life.ENDING:
            self._refuse(left.client)
        if identity is not None:
            for key in (identity, shared_identity(identity, f"{left.session:016x}")):
                self._places.remove(IDENTITY, key, left.address)
        self._tally.ended += 1
        self._context.shard.release(left.address)

    def _operation(self, left: Left) -> None:
        """A trusted program waits for an answer that nobody will give."""
        error = Condition.UNAVAILABLE.error("the shard died while it handled this; it may have taken effect")
        self._context.shard.error_client(left.client, left.session, encode_json(body_of(error)))
        self._context.shard.release(left.address)

    def _registered(self, left: Left, base: type[TurnObject]) -> ObjectType | None:
        name = self._names.get(left.address)
        kind = None if name is None else self._context.blueprint.types.get(name[0])
        return kind if kind is not None and issubclass(kind.cls, base) else None

    def _remake(self, left: Left, kind: ObjectType, spot: Spot | None, session: SessionRef | None) -> TurnObject | None:
        id = self._names[left.address][1]
        try:
            return self._lives.remake(kind, id, left.address, spot, session)
        except Exception as error:
            log.error("%s %r cannot be made anew after its shard's death: it ends", kind.name, id, exc_info=error)
            return None

    def _open(self, left: Left, kind: ObjectType, made: TurnObject) -> None:
        self._tally.kept += 1
        self._tally.cut += left.begun is not None
        # A Join that had begun to move its actor has left the record of its end in the lane.
        leaving = left.life == Life.LEAVING and left.begun is not None and left.begun[0] == Kind.JOIN
        parked = left.deaths >= QUARANTINE_DEATHS
        fate = Fate.DROP
        if left.begun is not None and not leaving:
            name = (kind.name, made._seat.id)
            owner = Interrupted(name, left.address, left.turn, left.attempts, kind.delivery, parked)
            fate = self._begun.settle(owner, left.begun)
        if parked:
            self._context.shard.restore(left.address, made, self._quarantine.table, fate is Fate.DROP)
            self._quarantine.park(kind, made, left.turn, self._context.shard.queued(left.address))
            return
        recovers = type(made).on_recover is not TurnObject.on_recover
        restored = self._context.shard.restore(left.address, made, self._tables.of(kind), fate is Fate.DROP, recovers)
        if not restored:
            log.error("%s: no memory for on_recover, which did not run; raise arena_bytes", made._seat.label)
        if isinstance(made, (Actor, Spot)):
            self._lives.begin(kind, made)

    def _end(self, left: Left) -> None:
        """Nobody needs it any more. Copies of records that live on elsewhere are nobody's loss."""
        self._tally.ended += 1
        name = self._names.get(left.address)
        if name is not None:
            self._places.remove(*name, left.address)
        elif left.life in (Life.LEAVING, Life.ARRIVING):
            self._faults.spare(left.address)
            if left.life == Life.LEAVING and left.route:
                self._moved.add(left.address)
                task = self._context.loop.create_task(self._let_go(left))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
        self._context.shard.release(left.address)

    async def _let_go(self, left: Left) -> None:
        """The actor has moved: its slot stays sealed, so that its session's records wait, until they lead there."""
        if not await led_away(self._context, left.route, left.address):
            self._close(left.client)
        self._moved.discard(left.address)
        self._context.shard.release(left.address)

    def _refuse(self, client: int) -> None:
        error = Condition.UNAVAILABLE.error("the shard died while it let you in; try again")
        self._sessions.refuse_client(client, error)

    def _close(self, client: int) -> None:
        close = Condition.UNAVAILABLE.row.close
        assert close is not None
        self._context.shard.close_client(client, close, b"the session did not survive its shard")

    def _recover(self, target: Any, a: int, b: int, payload: bytes) -> Any:
        return self._faults.guarded(target, "on_recover")
