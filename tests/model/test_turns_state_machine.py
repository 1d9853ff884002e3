"""Random histories of an app in the test kit, held against what the contract promises.

Clients come, send, ask, make their actors join rooms on other shards, and go, while handlers wait, give the gate
back, fail, and send to each other. A journal that the handlers write says which turns overlapped and what was handled;
the model is what each sender sent, in its order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct

from shardpool import Actor, App, InternalFailure, JoinOutcome, Spot, every, on
from shardpool.testing import Client, Kit

ROOMS = ("a", "b", "c", "d", "full")
PAUSES = (0.0, 0.001, 0.03)
STEPS = (0.0, 0.001, 0.01, 0.1)
PLAYERS_MAX = 6


class Planned(Exception):
    """What handlers raise because they were told to."""


class Numbered(Struct):
    """A message and its place among all that its sender sent to this object."""

    sender: str
    number: int


class Note(Numbered, tag="note"):
    """Write it down."""


class Pause(Numbered, tag="pause"):
    """Keep the turn for a while."""

    seconds: float


class Consult(Numbered, tag="consult"):
    """Ask the own room with the gate given back."""


class Hop(Numbered, tag="hop"):
    """Join some rooms, one after another."""

    rooms: list[str]


class FailedHop(Numbered, tag="failed_hop"):
    """Register a Join, then raise."""

    room: str


class Tell(Numbered, tag="tell"):
    """Send notes to somebody else, or to oneself."""

    target: str
    notes: int


@dataclass(frozen=True, eq=False)
class Begun:
    """A stretch of a handler that has not ended."""

    what: str
    shard: int

    def __str__(self) -> str:
        return self.what


@dataclass
class Journal:
    """What happened, over all shards."""

    turns: dict[tuple[str, str], Begun] = field(default_factory=dict)  # gate -> who has it
    claims: dict[str, Begun] = field(default_factory=dict)  # actor -> the handler that is not over
    handled: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))  # (sender, target)
    told: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    joined: dict[str, list[JoinOutcome]] = field(default_factory=lambda: defaultdict(list))
    wished: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    inside: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # room -> members by callbacks
    stays: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # actor -> shards it sent from
    faults: list[str] = field(default_factory=list)

    def stay_of(self, actor: Player) -> str:
        """Its name as a sender: order is promised for what it sends from one shard, until it moves."""
        stays = self.stays[actor.id]
        if not stays or stays[-1] != actor.shard:
            stays.append(actor.shard)
        return f"{actor.id}, stay {len(stays)}"

    @contextmanager
    def gate(self, owner: Any, what: str) -> Iterator[None]:
        """The stretch in which a handler has its gate."""
        room = owner if isinstance(owner, Spot) else owner.spot
        gate = ("room", room.id) if isinstance(room, Room) else ("own", owner.id)
        who = Begun(f"{what} of {type(owner).__name__} {owner.id}", owner.shard)
        if gate in self.turns:
            self.faults.append(f"{who} runs while {self.turns[gate]} has the gate {gate}")
        self.turns[gate] = who
        try:
            yield
        finally:
            if self.turns.get(gate) is who:
                del self.turns[gate]

    @contextmanager
    def turn(self, actor: Player, message: Numbered) -> Iterator[None]:
        """A handler of an actor, from its beginning to its end."""
        what = Begun(f"{type(message).__name__} {message.number} of {message.sender}", actor.shard)
        if actor.id in self.claims:
            self.faults.append(f"{what} begins in {actor.id} while {self.claims[actor.id]} is not over")
        self.claims[actor.id] = what
        actor.taken.append((message.sender, message.number))
        self.handled[message.sender, actor.id].append(message.number)
        try:
            yield
        finally:
            if self.claims.get(actor.id) is what:
                del self.claims[actor.id]

    def died(self, shard: int) -> None:
        """What had begun there goes on nowhere."""
        self.turns = {gate: begun for gate, begun in self.turns.items() if begun.shard != shard}
        self.claims = {actor: begun for actor, begun in self.claims.items() if begun.shard != shard}


class JournalOfRun:
    """The journal of the example that runs now; handlers reach it by name."""

    now = Journal()


app = App("machine")


@app.actor
class Player(Actor):
    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    @on
    def note(self, message: Note) -> int:
        with JournalOfRun.now.turn(self, message), JournalOfRun.now.gate(self, "note"):
            return message.number

    @on
    async def pause(self, message: Pause) -> int:
        with JournalOfRun.now.turn(self, message), JournalOfRun.now.gate(self, "pause"):
            await asyncio.sleep(message.seconds)
            return message.number

    @on
    async def consult(self, message: Consult) -> int:
        with JournalOfRun.now.turn(self, message):
            if not isinstance(self.spot, Room):
                return message.number
            with JournalOfRun.now.gate(self, "consult"):
                call = self.ask(Room, self.spot.id, "ponder")
            await call.yielding()
            with JournalOfRun.now.gate(self, "consult, resumed"):
                return message.number

    @on
    def hop(self, message: Hop) -> int:
        with JournalOfRun.now.turn(self, message), JournalOfRun.now.gate(self, "hop"):
            for room in message.rooms:
                JournalOfRun.now.wished[self.id].append(room)
                self.join(Room, room).defer(timeout=1000.0)
            return message.number

    @on
    def failed_hop(self, message: FailedHop) -> int:
        with JournalOfRun.now.turn(self, message), JournalOfRun.now.gate(self, "failed hop"):
            self.join(Room, message.room).defer()
            raise Planned

    @on
    def tell(self, message: Tell) -> int:
        with JournalOfRun.now.turn(self, message), JournalOfRun.now.gate(self, "tell"):
            if not self.exists(Player, message.target):
                return message.number
            told, sender = JournalOfRun.now.told, JournalOfRun.now.stay_of(self)
            for _ in range(message.notes):
                note = Note(sender, told[sender, message.target])
                told[sender, message.target] += 1
                self.send(Player, message.target, note)
            return message.number

    def on_joined(self, outcome: JoinOutcome) -> None:
        with JournalOfRun.now.gate(self, "on_joined"):
            JournalOfRun.now.joined[self.id].append(outcome)


@app.spot
class Room(Spot):
    @every(0.02)
    def tick(self) -> None:
        with JournalOfRun.now.gate(self, "tick"):
            pass

    @on
    async def ponder(self) -> None:
        with JournalOfRun.now.gate(self, "ponder"):
            await asyncio.sleep(0.002)

    async def on_actor_join(self, actor: Player, request: Any) -> bool:
        with JournalOfRun.now.gate(self, "on_actor_join"):
            await asyncio.sleep(0.007 if self.id == "b" else 0)
            return self.id != "full"

    def on_actor_joined(self, actor: Player) -> None:
        JournalOfRun.now.inside[self.id].append(actor.id)

    def on_actor_leave(self, actor: Player) -> None:
        JournalOfRun.now.inside[self.id].remove(actor.id)


@dataclass
class Known:
    """A client, and what the model knows of it."""

    client: Client
    id: str
    sent: int = 0
    answers: list[Any] = field(default_factory=list)
    left: bool = False

    @property
    def gone(self) -> bool:
        """Whether it left, or was told that its session did not survive."""
        return self.left or self.client.closed is not None


class Turns(RuleBasedStateMachine):
    """Histories of up to some players in some rooms."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = JournalOfRun.now = Journal()
        self.players: list[Known] = []
        self.kit: Kit
        self.shards = 0

    @initialize(seed=st.integers(0, 2**32 - 1), shards=st.integers(1, 3), lag=st.sampled_from((0.0, 0.005)))
    def begin(self, seed: int, shards: int, lag: float) -> None:
        self.shards = shards
        self.kit = Kit(app, shards=shards, seed=seed, lag=lag)
        self.kit.__enter__()

    @precondition(lambda self: len(self.players) < PLAYERS_MAX)
    @rule()
    def connect(self) -> None:
        client = self.kit.connect()
        # Without an identity an actor's id is its session's, as the welcome shows it to the client.
        self.players.append(Known(client, f"{client.session:016x}"))

    def _send(self, who: int, make: Any, ask: bool, **more: Any) -> None:
        here = [player for player in self.players if not player.gone]
        if not here:
            return
        player = here[who % len(here)]
        message = make(player.id + "/client", player.sent, **more)
        player.sent += 1
        if ask:
            player.answers.append((message, player.client.ask(message)))
        else:
            player.client.send(message)

    @rule(who=st.integers(0, 5), ask=st.booleans())
    def note(self, who: int, ask: bool) -> None:
        self._send(who, Note, ask)

    @rule(who=st.integers(0, 5), ask=st.booleans(), seconds=st.sampled_from(PAUSES))
    def pause(self, who: int, ask: bool, seconds: float) -> None:
        self._send(who, Pause, ask, seconds=seconds)

    @rule(who=st.integers(0, 5), ask=st.booleans())
    def consult(self, who: int, ask: bool) -> None:
        self._send(who, Consult, ask)

    @rule(who=st.integers(0, 5), ask=st.booleans(), rooms=st.lists(st.sampled_from(ROOMS), min_size=1, max_size=3))
    def hop(self, who: int, ask: bool, rooms: list[str]) -> None:
        self._send(who, Hop, ask, rooms=rooms)

    @rule(who=st.integers(0, 5), room=st.sampled_from(ROOMS), notes=st.integers(2, 8))
    def hop_with_a_queue(self, who: int, room: str, notes: int) -> None:
        self._send(who, Hop, False, rooms=[room])
        for _ in range(notes):
            self._send(who, Note, False)

    @rule(who=st.integers(0, 5), ask=st.booleans(), room=st.sampled_from(ROOMS))
    def failed_hop(self, who: int, ask: bool, room: str) -> None:
        self._send(who, FailedHop, ask, room=room)

    @precondition(lambda self: self.players)
    @rule(who=st.integers(0, 5), whom=st.integers(0, 5), ask=st.booleans(), notes=st.integers(1, 4))
    def tell(self, who: int, whom: int, ask: bool, notes: int) -> None:
        self._send(who, Tell, ask, target=self.players[whom % len(self.players)].id, notes=notes)

    @rule(who=st.integers(0, 5))
    def disconnect(self, who: int) -> None:
        here = [player for player in self.players if not player.gone]
        if here:
            here[who % len(here)].left = True
            here[who % len(here)].client.disconnect()

    @rule(seconds=st.sampled_from(STEPS))
    def advance(self, seconds: float) -> None:
        self.kit.advance(seconds)

    @invariant()
    def no_two_turns_overlapped(self) -> None:
        assert not self.journal.faults, "\n".join((*self.journal.faults, self.kit.replay))

    @rule()
    def settle(self) -> None:
        self.kit.settle()
        try:
            self._check()
        except AssertionError as error:
            error.add_note(self.kit.replay)
            raise

    def _check(self) -> None:
        """What must be so when nothing is under way."""
        self.no_two_turns_overlapped()
        unplanned = [error for error in self.kit.raised if not isinstance(error, Planned)]
        assert not unplanned, unplanned
        assert not self.journal.turns
        assert not self.journal.claims
        self._check_closings()
        here = {player.id: player for player in self.players if not player.gone}
        living = {actor.id: actor for actor in self.kit.living(Player)}
        assert len(self.kit.living(Player)) == len(living)
        assert sorted(living) == self.kit.ids(Player)
        self._check_living(set(living), set(here))
        for player in self.players:
            self._check_handled(player)
        for player in here.values():
            self._check_actor(player, living[player.id])
        for room in self.kit.living(Room):
            members = sorted(member.id for member in room.members)
            assert members == sorted(id for id, actor in living.items() if actor.spot is room)
            self._check_callbacks(room, members)

    def _check_living(self, living: set[str], here: set[str]) -> None:
        assert living == here

    def _check_closings(self) -> None:
        assert all(player.client.closed is None for player in self.players)

    def _check_callbacks(self, room: Room, members: list[str]) -> None:
        assert members == sorted(self.journal.inside[room.id])

    def _check_handled(self, player: Known) -> None:
        """T-3: what each sender sent was handled once, in its order; all of it, while the object lived."""
        for (sender, target), numbers in self.journal.handled.items():
            if target == player.id:
                assert numbers == list(range(len(numbers))), (sender, target, numbers)
        sent = {player.id + "/client": player.sent}
        sent |= {sender: count for (sender, target), count in self.journal.told.items() if target == player.id}
        for sender, count in sent.items():
            handled = len(self.journal.handled[sender, player.id])
            assert handled == count or (player.gone and handled < count), (sender, player.id, handled, count)

    def _check_actor(self, player: Known, actor: Player) -> None:
        """T-14, T-16: it is where its last accepted Join led, with the state that its messages made."""
        wished, joined = self.journal.wished[player.id], self.journal.joined[player.id]
        assert [outcome.spot for outcome in joined] == wished
        assert [outcome.accepted for outcome in joined] == [room != "full" for room in wished], joined
        accepted = [outcome.spot for outcome in joined if outcome.accepted]
        assert (actor.spot.id if isinstance(actor.spot, Room) else None) == (accepted[-1] if accepted else None)
        handled = {key: numbers for key, numbers in self.journal.handled.items() if key[1] == player.id and numbers}
        taken: dict[tuple[str, str], list[int]] = defaultdict(list)
        for sender, number in actor.taken:
            taken[sender, player.id].append(number)
        assert taken == handled
        for message, answer in player.answers:
            assert answer.done, message
            if isinstance(message, FailedHop):
                with pytest.raises(InternalFailure):
                    answer.get()
            else:
                assert answer.get() == message.number

    def teardown(self) -> None:
        if not hasattr(self, "kit"):
            return
        try:
            self.settle()
        finally:
            self.kit.__exit__(None, None, None)


class TurnsAndDeaths(Turns):
    """The same, while shards die in the middle of it and others take over; delivery is at most once."""

    @rule(shard=st.integers(0, 2), steps=st.integers(0, 40))
    def kill(self, shard: int, steps: int) -> None:
        self.kit.run(steps)
        number = shard % self.shards
        self.kit.kill(number)
        self.journal.died(number)

    def _check_living(self, living: set[str], here: set[str]) -> None:
        """Open: an actor may be left behind if its session's home died while it was on its way to a third shard and the
        new home, which had closed the session by then, acknowledged the new route."""
        closed = {player.id for player in self.players if not player.left and player.gone}
        assert here <= living <= here | closed

    def _check_closings(self) -> None:
        """P-4: a session ends only if it was being made, or its actor was between two shards."""
        assert all(player.client.closed.code == 4503 for player in self.players if player.client.closed is not None)

    def _check_callbacks(self, room: Room, members: list[str]) -> None:
        """What was cut off is told by on_recover, not by the callbacks that it cut off."""

    def _check_handled(self, player: Known) -> None:
        """T-3, P-4: in order and once; what clients sent is missing nowhere, what a dead shard still held may be."""
        for (sender, target), numbers in self.journal.handled.items():
            if target == player.id:
                assert numbers == sorted(set(numbers)), (sender, target, numbers)
        handled = self.journal.handled[player.id + "/client", player.id]
        assert handled == list(range(len(handled))), handled
        assert player.gone or len(handled) == player.sent, (player.id, handled, player.sent)

    def _check_actor(self, player: Known, actor: Player) -> None:
        """P-4, T-10: each ask has its end, whatever became of the handler."""
        for message, answer in player.answers:
            assert answer.done, message


def _run(machine: type[Turns], examples: int) -> None:
    # Not shrunk: that takes minutes, more than a test may; the history that is printed has 40 steps at most.
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    limits = settings(max_examples=examples, stateful_step_count=40, deadline=None, phases=phases)
    run_state_machine_as_test(machine, settings=limits)


def test_random_histories_keep_the_contract() -> None:
    """T-2, T-3, T-6, T-14, T-16: no two turns on one gate, one handler of an actor at a time, every sender's messages
    once and in order, Joins only of handlers that ended well, and one live actor with its state wherever they lead."""
    _run(Turns, 60)


def test_random_histories_with_deaths_keep_the_contract() -> None:
    """T-2, T-3, T-16, P-4: whenever shards die, turns do not overlap, what clients sent is handled once and in order or
    was cut off, every ask has an end, and each client has one live actor, which is a member where it says it is."""
    _run(TurnsAndDeaths, 30)
