"""The test kit: what a test decides, what the seed decides, and that nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from shardpool import (
    Actor,
    App,
    DeadlineExceeded,
    InvalidOperation,
    JoinOutcome,
    NotFound,
    Refuse,
    Session,
    Spot,
    Unavailable,
    every,
    on,
)
from shardpool.testing import SEED_VARIABLE, Endless, Kit, NotSettled

app = App("kit")


class Enter(Struct, tag="enter"):
    room: str
    name: str


class Say(Struct, tag="say"):
    text: str


class Nap(Struct, tag="nap"):
    seconds: float


class Loop(Struct, tag="loop"):
    """Send it on, for ever."""


class Wait(Struct, tag="wait"):
    """Ask a room that takes its time."""

    timeout: float


@app.session
class Door(Session):
    def on_connect(self, hello: Any) -> Any:
        return Refuse("not you") if hello.auth == {"name": "mallory"} else None


@app.actor
class Player(Actor):
    def __init__(self) -> None:
        self.name = ""

    @on
    def enter(self, message: Enter) -> None:
        self.name = message.name
        self.join(Room, message.room).defer()

    def on_joined(self, outcome: JoinOutcome) -> None:
        self.session.send({"joined": outcome.spot, "accepted": outcome.accepted})

    @on
    def say(self, message: Say) -> None:
        self.spot.said.append((self.name, message.text))
        self.spot.publish({"text": message.text})

    @on
    async def nap(self, message: Nap) -> float:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(message.seconds)
        return asyncio.get_running_loop().time() - started

    @on
    async def impatient(self) -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(3600)
        except TimeoutError:
            return "gave up"
        return "waited"

    @on
    async def wait(self, message: Wait) -> Any:
        return await self.ask(Room, "hall", Nap(10.0), timeout=message.timeout)

    @on
    async def spin(self) -> None:
        while True:
            await asyncio.sleep(0)

    @on
    def fail(self) -> None:
        raise ValueError("a mistake")

    @on
    def loop(self, message: Loop) -> None:
        self.send(Room, "hall", message)

    @on
    async def blocking(self) -> int:
        return await asyncio.to_thread(sum, (1, 2))


@app.spot
class Room(Spot):
    def __init__(self) -> None:
        self.ticks = 0
        self.said: list[tuple[str, str]] = []

    @every(0.05)
    def tick(self) -> None:
        self.ticks += 1

    @on
    async def nap(self, message: Nap) -> str:
        await asyncio.sleep(message.seconds)
        return "rested"

    @on
    def loop(self, message: Loop) -> None:
        self.send(Room, self.id, message)


def chat(seed: int | None) -> Kit:
    """Two players in one room, who say three things each; the room may be on another shard."""
    with Kit(app, shards=2, seed=seed) as kit:
        clients = [kit.connect({"name": name}) for name in ("ann", "bob", "cid")]
        for client, name in zip(clients, ("ann", "bob", "cid"), strict=True):
            client.send(Enter("hall", name))
            for number in range(3):
                client.send(Say(f"{name}{number}"))
        kit.settle()
        kit.said = list(kit.spot(Room, "hall").said)  # type: ignore[attr-defined]
        kit.messages = [client.received for client in clients]  # type: ignore[attr-defined]
    return kit


def test_app_runs_in_the_test_without_a_server() -> None:
    """O-10: clients come in, join a room over shards, and hear each other; the test looks at the objects."""
    with Kit(app, shards=2) as kit:
        ann, bob = kit.connect({"name": "ann"}), kit.connect({"name": "bob"})
        ann.send(Enter("hall", "ann"))
        bob.send(Enter("hall", "bob"))
        kit.settle()
        ann.send(Say("hello"))
        kit.run()
        assert ann.received == [{"joined": "hall", "accepted": True}, {"text": "hello"}]
        assert bob.received == ann.received
        assert [player.name for player in sorted(kit.living(Player), key=lambda one: one.name)] == ["ann", "bob"]
        assert len(kit.spot(Room, "hall").members) == 2
        with pytest.raises(NotFound, match=r"no Room 'attic'; there are hall"):
            kit.spot(Room, "attic")


def test_seed_decides_everything() -> None:
    """O-10: twenty runs with one seed take the same steps; other seeds lead to other orders of what players said."""
    fingerprints = {chat(7).fingerprint for _ in range(20)}
    assert len(fingerprints) == 1
    orders = {tuple(chat(seed).said) for seed in range(20)}  # type: ignore[attr-defined]
    assert len(orders) > 5
    for order in orders:
        for name in ("ann", "bob", "cid"):
            assert [text for who, text in order if who == name] == [f"{name}{number}" for number in range(3)]


def test_failure_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-10: a failing test names its seed and the line that runs it again; the variable sets the seed."""
    with pytest.raises(AssertionError) as failed, Kit(app, seed=11):
        raise AssertionError("no")
    (note,) = failed.value.__notes__
    assert f"{SEED_VARIABLE}=11 pytest 'tests/unit/test_testing_kit.py::" in note
    monkeypatch.setenv(SEED_VARIABLE, "12")
    assert Kit(app).seed == 12


def test_time_passes_only_when_the_test_says_so() -> None:
    """O-10, T-33: sleeps, timeouts and timers follow the virtual clock, exactly, and take no real time."""
    began = time.monotonic()
    with Kit(app) as kit:
        ann = kit.connect()
        ann.send(Enter("hall", "ann"))
        kit.settle()
        nap, started = ann.ask(Nap(1000.0), seconds=2000.0), kit.now
        kit.run()
        assert not nap.done
        ticks = kit.spot(Room, "hall").ticks
        kit.advance(10.0)
        assert not nap.done
        # its player naps under the room's gate: the ticks wait, and are not made up for
        assert kit.spot(Room, "hall").ticks == ticks
        assert nap.get() == pytest.approx(1000.0)
        assert kit.now - started == pytest.approx(1000.0)
        kit.advance(1.0)
        assert kit.spot(Room, "hall").ticks == pytest.approx(ticks + 21, abs=1)
        assert ann.ask("impatient").get() == "gave up"
    assert time.monotonic() - began < 30


def test_ask_times_out_by_the_virtual_clock() -> None:
    """O-10, T-10: the deadline of an ask ends it; one that has the time gets its reply."""
    with Kit(app, shards=2) as kit:
        kit.create(Room, "hall").get()
        ann, bob = kit.connect(), kit.connect()
        late, early = ann.ask(Wait(timeout=9.0)), bob.ask(Wait(timeout=30.0))
        with pytest.raises(DeadlineExceeded):
            late.get()
        assert early.get() == "rested"


def test_circle_of_sends_is_reported() -> None:
    """O-10: an app that never comes to rest ends the run, and the error names who was busy and the seed."""
    with Kit(app, steps=3000, seed=3) as kit:
        kit.create(Room, "hall").get()
        kit.connect().send(Loop())
        with pytest.raises(Endless, match=r"3,000 steps.*Room 'hall'") as endless:
            kit.run()
    assert f"{SEED_VARIABLE}=3" in str(endless.value)


def test_handler_that_spins_is_reported() -> None:
    """O-10: so is a handler which goes round its loop without waiting for anything."""
    with Kit(app, steps=3000) as kit:
        kit.connect().ask("spin")
        with pytest.raises(Endless, match=r"Player\.spin"):
            kit.run()


def test_what_handlers_raise_can_be_looked_at() -> None:
    """O-10, T-27: an exception reaches the asker as an error and the test as itself."""
    with Kit(app) as kit:
        ann = kit.connect()
        with pytest.raises(Exception, match="the handler failed"):
            ann.ask("fail").get()
        (raised,) = kit.raised
        assert isinstance(raised, ValueError)
        assert ann.ask("blocking").get() == 3


def test_clients_come_and_go() -> None:
    """O-10, P-11: refused clients, clients that leave, and their actors' end."""
    with Kit(app, shards=2) as kit:
        mallory, ann = kit.connect({"name": "mallory"}), kit.connect({"name": "ann"})
        kit.run()
        assert mallory.closed is not None
        assert (mallory.closed.code, mallory.closed.reason) == (4401, "not you")
        assert ann.connected
        assert len(kit.living(Player)) == 1
        ann.disconnect()
        kit.settle()
        assert kit.living(Player) == []


def test_what_never_comes_is_said() -> None:
    """O-10: waiting for what cannot come ends with what the app is waiting for."""
    with Kit(app) as kit:
        nap = kit.connect().ask(Nap(100.0), seconds=10.0)
        with pytest.raises(NotSettled, match=r"within 10 s of virtual time; shard-0: 1 suspended turns"):
            nap.get()


def test_start_hooks_run_on_every_shard() -> None:
    """O-10, T-39: on_start before the first turn of each shard, on_stop at the end; either may wait."""
    hooked = App("hooked")
    hooked.actor(Player)
    hooked.spot(Room)
    calls: list[tuple[str, int]] = []

    @hooked.on_start
    async def start(shard: int) -> None:
        await asyncio.sleep(1)
        calls.append(("start", shard))

    @hooked.on_stop
    def stop(shard: int) -> None:
        calls.append(("stop", shard))

    with Kit(hooked, shards=2):
        assert sorted(calls) == [("start", 0), ("start", 1)]
    assert sorted(calls)[2:] == [("stop", 0), ("stop", 1)]


def test_kits_give_their_memory_back() -> None:
    """O-10: thousands of kits fit into one test run: segments are unmapped although objects refer to each other."""

    def mapped() -> int:
        gc.collect()
        return sum("memfd" in line for line in Path("/proc/self/maps").read_text().splitlines())

    before = mapped()
    for seed in range(5):
        chat(seed)
    assert mapped() <= before
    with pytest.raises(InvalidOperation, match="inside of its with statement"):
        chat(0).spot(Room, "hall")


def test_killed_shard_is_taken_over() -> None:
    """O-10, P-4: a shard dies in the middle of a handler; its asker is told, the next message meets a fresh object."""
    for seed in range(10):
        with Kit(app, shards=2, seed=seed) as kit:
            ann, bob = kit.connect(home=0), kit.connect(home=1)
            ann.send(Enter("hall", "ann"))
            bob.send(Enter("hall", "bob"))
            kit.settle()
            cut, queued = ann.ask(Nap(1.0)), ann.ask("blocking")
            kit.advance(0.5)
            kit.kill(kit.spot(Room, "hall").shard)
            with pytest.raises(Unavailable):
                cut.get()
            assert queued.get() == 3
            room = kit.spot(Room, "hall")
            assert (room.said, len(room.members)) == ([], 2)
            assert [player.name for player in kit.living(Player)] == ["", ""]


def test_run_stops_in_the_middle() -> None:
    """O-10: some steps only, and then the rest."""
    with Kit(app) as kit:
        ann = kit.connect()
        assert not kit.run(steps=1)
        assert not ann.connected
        assert kit.run()
        assert ann.connected
