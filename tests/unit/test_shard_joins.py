"""Deferred Joins, Spots and moves between shards, on live shards."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from shardpool import Accept, Actor, App, JoinOutcome, Reject, Rejected, Session, Spot, every, on

sys.path.insert(0, str(Path(__file__).parent))
from shard_harness import AskFailed, Client, Pool, run


class Enter(Struct, tag="enter"):
    room: str
    fail: bool = False
    many: int = 0
    request: Any = None
    timeout: float = 5.0


class Ticket(Struct):
    seat: int


class Say(Struct, tag="say"):
    text: str


class Place(Struct, tag="place"):
    room: str


class Story(list[tuple[Any, ...]]):
    """What happened, in order."""


def make_app(story: Story, move: str = "preserve") -> App:
    app = App("test")

    @app.actor(move=move)
    class Player(Actor):
        said: list[str]

        def __init__(self) -> None:
            self.said = []
            self.joins = 0

        @on
        def enter(self, msg: Enter) -> None:
            for _ in range(msg.many or 1):
                self.join(Room, msg.room, msg.request).defer(msg.timeout)
            if msg.fail:
                raise Rejected("changed my mind")

        @on
        def two(self, msg: Say) -> None:
            for room in msg.text.split():
                self.join(Room, room).defer()

        @on
        def say_in(self, msg: Place) -> int:
            self.said.append(msg.room)
            return len(self.said)

        def on_joined(self, outcome: JoinOutcome) -> None:
            self.joins += 1
            error = None if outcome.error is None else outcome.error.code
            story.append(("joined", outcome.spot, outcome.accepted, outcome.reply, error))
            self.session.send({"joined": outcome.spot, "accepted": outcome.accepted, "error": error})

        @on
        def where(self) -> list[Any]:
            return [self.spot.id, self.shard, self.said, self.joins, self.id]

        @on
        async def awaited_join(self) -> None:
            await self.join(Room, "x")

        @on
        async def late_join(self) -> None:
            async def after() -> None:
                await asyncio.sleep(0.05)
                try:
                    self.join(Room, "late").defer()
                except Exception as error:
                    story.append(("late", type(error).__name__))

            self.task = asyncio.get_running_loop().create_task(after())

        @on
        async def ask_room(self) -> Any:
            return await self.ask(Room, self.spot.id, "count").yielding()

        @on
        async def ask_room_kept(self) -> Any:
            return await self.ask(Room, self.spot.id, "count")

        @on
        async def hold(self) -> str:
            await asyncio.sleep(0.05)
            return "held"

        @on
        def unmovable(self) -> None:
            self.thing = object()

        @on
        def close_room(self) -> bool:
            closed: bool = self.spot.close()
            return closed

        def on_disconnect(self, reason: str) -> None:
            story.append(("disconnect", self.spot.id))

    @app.spot
    class Room(Spot):
        @staticmethod
        def shard_of(id: str) -> int:
            return int(id[-1]) if id[-1].isdigit() else 0

        def __init__(self) -> None:
            self.asked = 0

        def on_create(self, request: Any) -> Any:
            story.append(("create", self.id))
            return Reject("never") if self.id.startswith("forbidden") else None

        async def on_actor_join(self, actor: Player, request: Any) -> Any:
            if self.id.startswith("slow"):
                await asyncio.sleep(0.2)
            if self.id.startswith("full"):
                return Reject({"full": True})
            if self.id.startswith("broken"):
                raise ValueError("secret")
            return None

        def on_actor_joined(self, actor: Player) -> None:
            story.append(("member", self.id, len(self.members)))

        def on_actor_leave(self, actor: Player) -> None:
            story.append(("leave", self.id, len(self.members)))
            if not len(self.members) and self.id.startswith("short"):
                self.close()

        def on_close(self, reason: str) -> None:
            story.append(("close", self.id, reason))

        @on
        def count(self) -> int:
            return len(self.members)

    return app


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": name, **fields}


async def enter(pool: Pool, client: Client, room: str, **fields: Any) -> Any:
    """Send enter, wait for its completion, return it."""
    client.pushed.clear()
    client.send(named("enter", room=room, **fields))
    await pool.until(lambda: len(client.pushed) == 1)
    return client.pushed[0]


@pytest.mark.parametrize("home", [0, 1])
def test_join_runs_behind_its_handler_and_before_the_messages_that_waited(home: int) -> None:
    """T-13, T-14, T-16, T-17: member, completion, then what was queued, in order; on the same and on another shard."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect(home=home)
        client.send(named("enter", room="room0"))
        for n in range(20):
            client.send(named("place", room=str(n)))
        await pool.until(lambda: ("joined", "room0", True, None, None) in story)
        assert await client.ask(named("where")) == [
            "room0",
            0,
            [str(n) for n in range(20)],
            1,
            f"{client.session:016x}",
        ]
        assert story == [("create", "room0"), ("member", "room0", 1), ("joined", "room0", True, None, None)]

    run(body, make_app(story), 2)


@pytest.mark.parametrize("home", [0, 1])
def test_join_of_a_handler_that_failed_does_not_run(home: int) -> None:
    """T-14: every barrier of that handler is dropped."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect(home=home)
        with pytest.raises(AskFailed):
            await client.ask(named("enter", room="room0", fail=True))
        assert (await client.ask(named("where")))[0] == f"entry-{home}"
        assert story == []

    run(body, make_app(story), 2)


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize(
    ("room", "reply", "error"),
    [("full0", {"full": True}, None), ("forbidden0", "never", None), ("broken0", None, "handler_raised")],
)
def test_refused_joins_change_nothing(home: int, room: str, reply: Any, error: str | None) -> None:
    """T-15, T-16: rejected with the Spot's reply, or failed; the source goes on with everything in place."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect(home=home)
        client.send(named("enter", room=room))
        for n in range(5):
            client.send(named("place", room=str(n)))
        await pool.until(lambda: len(client.pushed) == 1)
        assert story[-1] == ("joined", room, False, reply, error)
        where = await client.ask(named("where"))
        assert where[:3] == [f"entry-{home}", home, ["0", "1", "2", "3", "4"]]
        assert (await enter(pool, client, "room0"))["accepted"]

    run(body, make_app(story), 2)


@pytest.mark.parametrize("home", [0, 1])
def test_join_has_a_deadline(home: int) -> None:
    """T-15: counted from defer(); a Spot that decides too late takes nobody in."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect(home=home)
        assert (await enter(pool, client, "slow0", timeout=0.05))["error"] == "deadline"
        await asyncio.sleep(0.3)
        assert (await client.ask(named("where")))[0] == f"entry-{home}"
        assert not any(entry[0] == "member" for entry in story)

    run(body, make_app(story), 2)


def test_moving_on_leaves_the_old_spot_first_in_order() -> None:
    """T-17: leave is told to the old Spot, in its own turn, whichever shards the two are on."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        for room in ("room0", "other0", "room1", "other1", "room0"):
            assert (await enter(pool, client, room))["accepted"]
        await pool.until(lambda: sum(entry[0] == "leave" for entry in story) == 4)
        left = [entry[1] for entry in story if entry[0] == "leave"]
        assert sorted(left) == ["other0", "other1", "room0", "room1"]
        assert all(entry[2] == 0 for entry in story if entry[0] == "leave")
        assert await client.ask(named("where")) == ["room0", 0, [], 5, f"{client.session:016x}"]
        client.disconnect()
        await pool.until(lambda: story[-1] == ("leave", "room0", 0))
        assert story[-2] == ("disconnect", "room0")

    run(body, make_app(story), 2)


def test_several_joins_of_one_handler_run_in_order_over_shards() -> None:
    """T-13: registered joins travel with the actor."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        client.send(named("say", text="a0 b1 full0 c0 full1"))
        await pool.until(lambda: len(client.pushed) == 5)
        assert [entry[1:3] for entry in story if entry[0] == "joined"] == [
            ("a0", True),
            ("b1", True),
            ("full0", False),
            ("c0", True),
            ("full1", False),
        ]
        assert (await client.ask(named("where")))[:2] == ["c0", 0]

    run(body, make_app(story), 2)


def test_registration_limits_and_scope() -> None:
    """T-13, T-15: 64 Joins, 1 MiB a request, in an open turn, never awaited."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        codes = []
        for message in (named("enter", room="room0", many=65), named("awaited_join")):
            with pytest.raises(AskFailed) as caught:
                await client.ask(message)
            codes.append(caught.value.code)
        assert codes == ["capacity", "invalid_operation"]
        with pytest.raises(AskFailed) as caught:
            await client.ask(named("enter", room=""))
        assert caught.value.code == "type_mismatch"
        await client.ask(named("late_join"))
        await pool.until(lambda: ("late", "InvalidOperation") in story)

    run(body, make_app(story))


def test_never_moving_actor_is_refused_and_recreated_one_starts_fresh() -> None:
    """T-15: move = never | recreate | preserve."""

    async def never(pool: Pool) -> None:
        client = await pool.connect()
        assert (await enter(pool, client, "room1"))["error"] == "rejected"
        assert (await enter(pool, client, "room0"))["accepted"]

    run(never, make_app(Story(), "never"), 2)

    async def recreate(pool: Pool) -> None:
        client = await pool.connect()
        await client.ask(named("place", room="x"))
        assert (await enter(pool, client, "room1"))["accepted"]
        assert (await client.ask(named("where")))[:3] == ["room1", 1, []]

    run(recreate, make_app(Story(), "recreate"), 2)


def test_value_that_cannot_travel_fails_the_join_with_its_name() -> None:
    """T-38: the attribute's name, and the actor stays."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        await client.ask(named("unmovable"))
        assert (await enter(pool, client, "room1"))["error"] == "type_mismatch"
        assert (await client.ask(named("where")))[0] == "entry-0"

    run(body, make_app(story), 2)


def test_members_share_the_spots_gate_and_yielding_gives_it_back() -> None:
    """T-2, T-3, T-5, T-11: one gate; awaiting the Spot with the turn kept is refused, with yielding() it works."""

    async def body(pool: Pool) -> None:
        one, two = await pool.connect(), await pool.connect()
        await enter(pool, one, "room0")
        await enter(pool, two, "room0")
        assert await one.ask(named("ask_room")) == 2
        with pytest.raises(AskFailed) as caught:
            await one.ask(named("ask_room_kept"))
        assert caught.value.code == "invalid_operation"
        pool.records.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(one.ask(named("hold")))
            await asyncio.sleep(0.01)
            tasks.create_task(two.ask(named("where")))
        assert [record.a for record in pool.records if record.kind == 41] == [one.address, two.address]

    run(body, make_app(Story()))


def test_spot_closes_when_empty_and_only_then() -> None:
    """T-40: close with members returns false; on_close once; the id is free again."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        await enter(pool, client, "short0")
        assert await client.ask(named("close_room")) is False
        await enter(pool, client, "room0")
        await pool.until(lambda: ("close", "short0", "closed") in story)
        await pool.until(lambda: not pool.live[0].runtime.places.find("Room", "short0"))
        await enter(pool, client, "short0")
        assert [entry for entry in story if entry[0] == "create"] == [
            ("create", "short0"),
            ("create", "room0"),
            ("create", "short0"),
        ]

    run(body, make_app(story))


@pytest.mark.parametrize("home", [0, 1])
def test_join_of_a_spot_that_closes_first_fails_at_once(home: int) -> None:
    """T-15, T-39: not after its deadline; the actor goes on where it is, and nothing stays of the attempt."""
    story = Story()

    async def body(pool: Pool) -> None:
        inside, outside = await pool.connect(home=0), await pool.connect(home=home)
        assert (await enter(pool, inside, "short0"))["accepted"]
        room = pool.live[0].core.target(pool.live[0].runtime.places.find("Room", "short0"))
        closing, closed = asyncio.Event(), asyncio.Event()

        async def on_close(reason: str) -> None:
            closing.set()
            await closed.wait()

        room.on_close = on_close
        inside.disconnect()  # the last one: it closes
        await pool.until(closing.is_set)
        outside.send(named("enter", room="short0", timeout=60.0))
        await pool.until(lambda: len(pool.live[0].core.queued(room._seat.address)) == 2)
        closed.set()
        await pool.until(lambda: len(outside.pushed) == 1)
        assert outside.pushed == [{"joined": "short0", "accepted": False, "error": "stale"}]
        assert (await outside.ask(named("where")))[1] == home
        outside.disconnect()
        await pool.until(lambda: pool.entries() == [])
        assert [len(shard.runtime.lives.actors()) for shard in pool.live] == [0] * len(pool.live)

    run(body, make_app(story), 2)


def test_actor_that_was_refused_elsewhere_is_forgotten_there() -> None:
    """T-16, P-15: another shard's death finds no trace of it, and its close is nobody's."""
    app = make_app(Story())

    async def body(pool: Pool) -> None:
        client = await pool.connect(home=0)
        target = pool.live[1]
        real = target.runtime.moves._move_entry
        came: list[Any] = []

        def refuse(seat: Any, source: int) -> bool:
            came.append(target.core.target(seat.address))
            return False

        target.runtime.moves._move_entry = refuse  # type: ignore[method-assign]
        assert not (await enter(pool, client, "room1"))["accepted"]
        assert target.runtime.lives.actors() == []
        assert came[0].close() is False
        target.runtime.moves._move_entry = real  # type: ignore[method-assign]
        assert (await enter(pool, client, "room1"))["accepted"]
        pool.restart(0, app)
        assert (await client.ask(named("where")))[:2] == ["room1", 1]

    run(body, app, 2)


def test_publish_reaches_members_with_one_record() -> None:
    """P-10: encoded once, one record per acceptor, members only."""
    app = App("test")

    @app.actor
    class Player(Actor):
        @on
        def enter(self, msg: Place) -> None:
            self.join(Room, msg.room).defer()

    @app.spot
    class Room(Spot):
        @every(0.01)
        def tick(self) -> None:
            if len(self.members) == 3:
                self.publish({"n": len(self.members)})

    async def body(pool: Pool) -> None:
        clients = [await pool.connect(home=n % 2) for n in range(4)]
        for client in clients[:3]:
            client.send({"type": "place", "room": "r"})
        await pool.until(lambda: all(len(client.pushed) >= 2 for client in clients[:3]))
        assert clients[3].pushed == []
        published = [record for record in pool.records if record.kind == 43]
        assert all(int.from_bytes(record.payload[:4], "little") == 3 for record in published)

    run(body, app, 2)


class Hit(Struct, tag="hit"):
    n: int


class HitOther(Struct, tag="hit_other"):
    n: int


def test_sends_and_asks_find_an_actor_that_moved() -> None:
    """P-26, T-16: by id, wherever it lives now; nothing lost, doubled or reordered while it moves."""
    app = App("test")

    @app.actor
    class Player(Actor):
        def __init__(self) -> None:
            self.got: list[int] = []

        @on
        def enter(self, msg: Place) -> None:
            self.join(Room, msg.room).defer()

        def on_joined(self, outcome: JoinOutcome) -> None:
            self.session.send(outcome.accepted)

        @on
        def hit(self, msg: Hit) -> list[int]:
            self.got.append(msg.n)
            return self.got

        @on
        async def hit_other(self, msg: HitOther) -> None:
            await self.send(Player, "mover", Hit(msg.n))

        @on
        async def ask_other(self) -> Any:
            return await self.ask(Player, "mover", Hit(-1))

    @app.session
    class Door(Session):
        def on_connect(self, hello: Any) -> Any:
            return Accept(identity=hello.auth)

    @app.spot
    class Room(Spot):
        @staticmethod
        def shard_of(id: str) -> int:
            return int(id[-1])

    async def body(pool: Pool) -> None:
        mover, sender = await pool.connect("mover"), await pool.connect("sender", home=1)
        moves = 0
        for n in range(200):
            sender.send(named("hit_other", n=n))
            if (
                n % 10 == 0
                and len(mover.pushed) == moves
                and mover.send(named("place", room=f"room{n // 10 % 3}")) == 0
            ):
                moves += 1
            await asyncio.sleep(0)
            pool.look()
        assert moves > 5
        await pool.until(lambda: len(mover.pushed) == moves)
        assert mover.pushed == [True] * moves
        assert await sender.ask(named("ask_other")) == [*range(200), -1]

    run(body, app, 3)


@pytest.mark.parametrize("seed", range(4))
def test_sessions_that_join_and_leave_at_random_leave_nothing_behind(seed: int) -> None:
    """T-16, T-25, P-11: joins over three shards, cut off at any moment: one disconnect each, nothing kept."""
    story = Story()
    chance = random.Random(seed)

    async def life(pool: Pool, home: int) -> None:
        client = await pool.connect(home=home)
        for _ in range(chance.randrange(5)):
            room = chance.choice(["room0", "room1", "room2", "full1", "short2", "broken0"])
            client.send(named("enter", room=room))
            client.send(named("place", room=room))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.004)
        client.disconnect()

    async def body(pool: Pool) -> None:
        async with asyncio.TaskGroup() as tasks:
            for n in range(90):
                tasks.create_task(life(pool, n % 3))
        await pool.until(lambda: sum(entry[0] == "disconnect" for entry in story) == 90)

        def quiet() -> bool:
            return all(
                live.node.counters(live.node.process)["objects"] == 1 + len(live.runtime.lives.spots)
                and not len(live.runtime.turns)
                and not len(live.runtime.insistence)
                and not len(live.runtime.asks)
                for live in pool.live
            )

        await pool.until(quiet)
        await asyncio.sleep(0.02)
        assert sum(entry[0] == "disconnect" for entry in story) == 90
        for live in pool.live:
            assert not pool.entries("Player")
            assert not live.context.parcels._held
            assert not live.runtime.joins._intents
            assert not live.runtime.moves._leaving
            assert len(live.runtime.lives.entry.members) == 0
            assert all(len(spot.members) == 0 for spot in live.runtime.lives.spots.values())
            assert live.node.counters(live.node.process)["permits_used"] == 0

    run(body, make_app(story), 3)


def test_more_come_in_at_once_than_the_lifecycle_lane_takes() -> None:
    """T-14, T-15, T-18: a Join waits for its place within its deadline; nobody is refused for want of a queue."""
    app = App("test")
    outcomes: list[bool] = []

    @app.actor
    class Guest(Actor):
        def on_ready(self) -> None:
            self.join(Hall, "hall").defer()

        def on_joined(self, outcome: JoinOutcome) -> None:
            outcomes.append(outcome.accepted)

    doors = asyncio.Event()

    @app.spot
    class Hall(Spot):
        async def on_actor_join(self, actor: Actor, request: Any) -> bool:
            await doors.wait()
            return True

    async def body(pool: Pool) -> None:
        for _ in range(3):
            await asyncio.gather(*(pool.connect() for _ in range(100)))
        doors.set()
        await pool.until(lambda: len(outcomes) == 300)
        assert all(outcomes)

    run(body, app)
