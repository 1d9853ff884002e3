"""Sessions from attach to their end: who may come in, the actor they get, one `on_disconnect` (P-7, P-11, T-39).

ATTACH to the system object    a session object in a slot of its own; ATTACH goes on to it
ATTACH to the session          on_connect, identity, a fresh actor, then BOUND or REFUSED to the acceptor
RESUMED to the session         on_resume, then RESUMED to the actor: its on_resume
DETACH to the session          on_disconnect, then DISCONNECT to the actor; both slots are given back
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from shardpool.actor import Actor
from shardpool.app import SecondLogin
from shardpool.calls import Runtime
from shardpool.codecs import UNREADABLE, encode_msgpack, unreadable, value_decoder
from shardpool.decisions import Accept, Hello, Refuse
from shardpool.errors import CLOSE_NAMES, CODES, Condition, Rejected, ShardpoolError
from shardpool.objects import Seat
from shardpool.session import Session, SessionRef
from shardpool.workers.context import Parcel, ShardContext, log, settled
from shardpool.workers.faults import Faults, escaped
from shardpool.workers.insist import Insistence
from shardpool.workers.kinds import Kind, Outcome, SlotKind, shard_of
from shardpool.workers.lives import NIL, Lives
from shardpool.workers.outbox import Outbox
from shardpool.workers.peers import Operation, Peers
from shardpool.workers.places import IDENTITY, Places, shared_identity
from shardpool.workers.tables import Tables
from shardpool.workers.travel import Rebind

CONNECT_TIMEOUT = 30.0  # for identity and actor; the hello itself is timed by the acceptor
REPLACE_PAUSE = 0.002
REASON_BYTES_MAX = 200

# Close codes of refusals whose condition has none: what the client is to make of them.
_REFUSED = {"Rejected": 4401, "CapacityExceeded": 4529}

_hello = msgspec.json.Decoder(Hello).decode


class Replace(Struct, frozen=True, array_like=True):
    """About the session at an address: is it there, and if so, shall it end?"""

    session: int
    end: bool


@dataclass(slots=True, eq=False)
class Ousting(Parcel):
    """A session that shall end for another: done when it has."""

    done: asyncio.Future[None]

    def lost(self) -> None:
        """It ended by itself."""
        if not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True, eq=False)
class SessionState:
    """One session of this home shard."""

    session: Session
    ref: SessionRef
    actor: int = 0  # address of the bound actor, wherever it lives
    ended: bool = False


_replace = value_decoder(Replace)
_rebind = value_decoder(Rebind)
_flag = value_decoder(bool)


class Sessions:
    """The sessions whose home is this shard."""

    def __init__(
        self,
        context: ShardContext,
        runtime: Runtime,
        tables: Tables,
        places: Places,
        peers: Peers,
        lives: Lives,
        outbox: Outbox,
        faults: Faults,
        insistence: Insistence,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._table = tables.of(context.blueprint.session)
        self._places = places
        self._peers = peers
        self._lives = lives
        self._outbox = outbox
        self._faults = faults
        self._insistence = insistence
        self._states: dict[int, SessionState] = {}  # by address of the session's slot
        # Ended, but their actor has not been told yet: it may be on its way to another shard.
        self._ending: dict[int, SessionState] = {}
        context.steps[Kind.ATTACH] = self._attach
        context.steps[Kind.DETACH] = self._detach
        context.steps[Kind.RESUMED] = self._resumed
        context.steps[Kind.REPLACED] = self._replaced
        context.steps[Kind.DISCONNECT] = self._disconnect
        peers.serve(Operation.REPLACE, lambda payload, _: self._serve_replace(_replace(payload)))
        peers.serve(Operation.ROUTE, lambda payload, _: self._rebind(_rebind(payload)))

    def __len__(self) -> int:
        return len(self._states)

    def _attach(self, target: Any, number: int, client: int, payload: bytes) -> Any:
        if isinstance(target, Session):
            return self._connect(target, payload)
        if self._context.draining:
            self.refuse_client(client, Condition.SHUTTING_DOWN.error("the pool is stopping"))
            return None
        session = self._context.blueprint.session.cls.__new__(self._context.blueprint.session.cls)
        assert isinstance(session, Session)
        seat = Seat(self._runtime, "Session", f"{number:016x}")
        seat.address = self._context.shard.allocate(SlotKind.SESSION, session, self._table, client, number)
        if not seat.address:
            self.refuse_client(client, Condition.SLOTS_FULL.error("no session slot is free; try again later"))
            return None
        session._seat = seat
        ref = seat.session = SessionRef(self._runtime, number, client, seat.address, None)
        self._states[seat.address] = SessionState(session, ref)
        self._context.shard.sessions = len(self._states)
        outcome = Outcome(self._context.shard.post(seat.address, Kind.ATTACH, number, client, payload))
        if outcome is not Outcome.ACCEPTED:
            self._drop(seat.address)
            self.refuse_client(client, Condition.CAPACITY.error(f"the shard takes no session now ({outcome.name})"))
        return None

    def remake(self, address: int, number: int, client: int, identity: str | None, actor: int) -> Session:
        """A fresh object for a predecessor's session that was bound. Raises: what the class's `__init__` raises."""
        session = self._context.blueprint.session.cls.__new__(self._context.blueprint.session.cls)
        assert isinstance(session, Session)
        seat = session._seat = Seat(self._runtime, "Session", f"{number:016x}")
        seat.address = address
        ref = seat.session = SessionRef(self._runtime, number, client, address, identity)
        session.__init__()  # type: ignore[misc]
        self._states[address] = SessionState(session, ref, actor)
        self._context.shard.sessions = len(self._states)
        return session

    def bound(self, client: int, actor: int, address: int) -> None:
        """Tell a client's acceptor where its messages go; an acceptor that knows it already takes no notice."""
        process = self._context.process_of_client(client)
        self._context.shard.post_process(process, Kind.BOUND, client, actor, address.to_bytes(8, "little"))

    async def _connect(self, session: Session, payload: bytes) -> None:
        state = self._states[session._seat.address]
        try:
            accept = await self._decide(state, payload)
            actor = await self._admit(state, accept)
        except ShardpoolError as error:
            self._end_refused(state, error)
            return
        except Exception as error:
            self._faults.report(session, "on_connect", error)
            self._end_refused(state, Condition.INTERNAL.error("the server failed to let you in"))
            return
        if state.ended:
            # Replaced or stopped while it was let in: its actor ends like any other's.
            self._insistence.post(lambda: actor._seat.address, Kind.DISCONNECT, payload=b"replaced")
            return
        state.actor = actor._seat.address
        client, address = state.ref.client, session._seat.address
        self._context.shard.set_route(address, state.actor)
        self.bound(client, state.actor, address)

    async def _decide(self, state: SessionState, payload: bytes) -> Accept:
        try:
            hello = _hello(payload) if payload else Hello()
        except UNREADABLE as error:
            raise Condition.PROTOCOL.error(f"the hello cannot be read: {unreadable(error)}") from None
        state.session.__init__()  # type: ignore[misc]
        try:
            answer = await settled(state.session.on_connect(hello))
        except Rejected as error:
            raise Condition.UNAUTHENTICATED.error(str(error)) from None
        match answer:
            case None | True:
                return Accept()
            case Accept():
                return answer
            case Refuse(reason):
                raise Condition.UNAUTHENTICATED.error(reason)
            case False:
                raise Condition.UNAUTHENTICATED.error(Refuse().reason)
        raise Condition.TYPE_MISMATCH.error(
            f"{type(state.session).__name__}.on_connect returned {answer!r}; return Accept(...), Refuse(reason) or None"
        )

    async def _admit(self, state: SessionState, accept: Accept) -> Actor:
        blueprint = self._context.blueprint
        policy = blueprint.app.second_login
        deadline = self._context.now() + CONNECT_TIMEOUT
        kind = blueprint.entry if accept.actor is None else blueprint.find(accept.actor)
        state.ref.identity = accept.identity
        sole = accept.identity is not None and policy is not SecondLogin.ALLOW
        if accept.identity is not None and sole:
            await self._claim_identity(state, accept.identity, policy, deadline)
        elif accept.identity is not None:
            # One of several with this identity; entered for a successor, as far as the directory has room.
            with contextlib.suppress(ShardpoolError):
                key = shared_identity(accept.identity, state.ref.id)
                self._places.check_name(IDENTITY, key)
                self._places.claim(IDENTITY, key, state.session._seat.address)
        id = accept.id or (accept.identity if sole and accept.identity else state.ref.id)
        actor = self._lives.make(kind, id, state.ref)
        assert isinstance(actor, Actor)
        try:
            await self._enter(actor, sole, deadline)
            verdict = await self._lives.first_turn(kind, actor, NIL)
        except BaseException:
            self._places.remove(kind.name, id, actor._seat.address)
            self._lives.discard(actor)
            raise
        if not verdict.accepted:
            self._places.remove(kind.name, id, actor._seat.address)
            self._lives.discard(actor)
            raise Condition.UNAUTHENTICATED.error(str(verdict.reply or f"{kind.name} {id!r} refused"))
        self._lives.begin(kind, actor)
        return actor

    async def _enter(self, actor: Actor, wait: bool, deadline: float) -> None:
        """Enter the actor's id; after a replaced login the old actor may need a moment to end."""
        seat = actor._seat
        while True:
            there = await self._places.claim_over_dead(seat.type_name, seat.id, seat.address, deadline)
            if there == seat.address:
                return
            if not wait or self._context.now() > deadline:
                raise Condition.ALREADY_EXISTS.error(f"{seat.label} exists already; accept with another id")
            await asyncio.sleep(REPLACE_PAUSE)

    async def _claim_identity(self, state: SessionState, identity: str, policy: SecondLogin, deadline: float) -> None:
        mine = state.session._seat.address
        described = f"second login of {identity!r}"
        while (there := self._places.claim(IDENTITY, identity, mine)) != mine:
            if self._context.now() > deadline:
                raise Condition.DEADLINE.error("the other session of this identity did not end in time")
            if there:
                question = encode_msgpack(Replace(there, policy is SecondLogin.REPLACE))
                alive = _flag(await self._peers.ask(shard_of(there), Operation.REPLACE, question, deadline, described))
                if alive and policy is SecondLogin.REFUSE:
                    raise Condition.UNAUTHENTICATED.error("this identity is logged in already")
                if not alive:
                    self._places.remove(IDENTITY, identity, there)
                    continue
            await asyncio.sleep(REPLACE_PAUSE)

    async def _serve_replace(self, question: Replace) -> bytes:
        state = self._states.get(question.session)
        if state is not None and question.end and not state.ended:
            ousting = Ousting(self._context.loop.create_future())
            number = self._context.parcels.put(ousting)
            self._insistence.post(lambda: question.session if not state.ended else 0, Kind.REPLACED, number)
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await ousting.done
        return encode_msgpack(state is not None)

    async def _replaced(self, session: Session, number: int, b: int, payload: bytes) -> None:
        ousting: Ousting | None = self._context.parcels.take(number)
        if ousting is None:
            return  # asked of a predecessor: whoever asked asks again
        state = self._states.get(session._seat.address)
        if state is not None and not state.ended:
            await self._faults.guarded(session, "on_replaced")
            self._context.shard.close_client(state.ref.client, 4409, b"the same identity came in again")
            await self._end(state, "replaced")
        ousting.lost()

    async def _resumed(self, target: Any, number: int, client: int, payload: bytes) -> None:
        """In the session's turn, then in its actor's, wherever that lives."""
        await self._faults.guarded(target, "on_resume")
        if not isinstance(target, Session):
            return
        state = self._states.get(target._seat.address)
        if state is not None and not state.ended:
            self._insistence.post(lambda: 0 if state.ended else state.actor, Kind.RESUMED, number)

    async def _detach(self, session: Session, code: int, b: int, payload: bytes) -> None:
        state = self._states.get(session._seat.address)
        if state is not None:
            await self._end(state, CLOSE_NAMES.get(code, str(code)))

    async def _end(self, state: SessionState, reason: str) -> None:
        """In the session's turn, or at the end of the shard."""
        if state.ended:
            return
        state.ended = True
        self._outbox.client_caught_up(state.ref.client)
        await self._faults.guarded(state.session, "on_disconnect", reason)
        address = state.session._seat.address
        self._ending[address] = state
        self._insistence.post(
            lambda: state.actor,
            Kind.DISCONNECT,
            payload=reason.encode(),
            done=lambda: self._ended(address),
        )
        self._drop(address)

    def _ended(self, address: int) -> None:
        self._ending.pop(address, None)

    def _end_refused(self, state: SessionState, error: ShardpoolError) -> None:
        if not state.ended:
            state.ended = True
            self.refuse_client(state.ref.client, error)
            self._drop(state.session._seat.address)

    def _drop(self, address: int) -> None:
        state = self._states.pop(address)
        self._context.shard.sessions = len(self._states)
        if state.ref.identity is not None:
            for key in (state.ref.identity, shared_identity(state.ref.identity, state.ref.id)):
                self._places.remove(IDENTITY, key, address)
        self._context.shard.release(address)

    def refuse_client(self, client: int, error: ShardpoolError) -> None:
        """Tell a client's acceptor that its session does not begin."""
        condition = CODES.get(error.code)
        close = None if condition is None else condition.row.close
        code = close or _REFUSED.get(error.kind, 4503)
        log.info("a session was refused with %d: %s", code, escaped(str(error)))
        reason = str(error).encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
        self._context.shard.post_process(self._context.process_of_client(client), Kind.REFUSED, client, code, reason)

    async def _disconnect(self, actor: Actor, a: int, b: int, payload: bytes) -> None:
        """In the actor's turn: its session is over, and so is it."""
        reason = payload.decode()
        ref: SessionRef | None = actor._seat.session
        if ref is not None:
            ref.client = 0
        actor._seat.spot.members.changed()
        await self._faults.guarded(actor, "on_disconnect", reason)
        await self._lives.end(actor, "disconnected")

    def _rebind(self, rebind: Rebind) -> bytes:
        state = self._states.get(rebind.session)
        if state is not None:
            self._context.shard.set_route(rebind.session, rebind.actor)
        else:
            state = self._ending.get(rebind.session)
        if state is not None:
            state.actor = rebind.actor
        return b""

    async def end_all(self, reason: str) -> None:
        """At the end of the shard: every session hears `on_disconnect`, its actor, too."""
        for state in list(self._states.values()):
            await self._end(state, reason)
