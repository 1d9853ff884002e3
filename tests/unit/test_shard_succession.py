"""A shard that is started again on its predecessor's segment."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from shardpool import Accept, Actor, App, Session, Spot, every, on
from shardpool._core import FLAG_ASK
from shardpool.codecs import encode_msgpack
from shardpool.workers.kinds import Kind, Outcome

sys.path.insert(0, str(Path(__file__).parent))
from shard_harness import AskFailed, Client, Pool, run, system_object


class Enter(Struct, tag="enter"):
    room: str


class Note(Struct, tag="note"):
    number: int


class Forward(Struct, tag="forward"):
    to: str


class World:
    """What the app's objects did, over all incarnations of their shards, and what holds them up."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.notes: dict[str, list[int]] = {}
        self.door: asyncio.Event | None = None  # who asks for `wait` waits for it
        self.joining: asyncio.Event | None = None


def make_app(world: World, second_login: str = "replace") -> App:
    app = App("test", second_login=second_login)

    @app.actor
    class Player(Actor):
        def __init__(self) -> None:
            self.fresh = True

        def on_recover(self) -> None:
            where = self.spot.id if isinstance(self.spot, Room) else "entry"
            world.story.append(f"{self.id} recovers in {where}")

        @on
        def enter(self, msg: Enter) -> None:
            self.join(Room, msg.room).defer()

        def on_joined(self, outcome: Any) -> None:
            self.session.send([outcome.spot, outcome.accepted])

        def on_disconnect(self, reason: str) -> None:
            world.story.append(f"{self.id} {reason}")

        @on
        def note(self, msg: Note) -> int:
            world.notes.setdefault(self.id, []).append(msg.number)
            return msg.number

        @on
        async def wait(self) -> str:
            assert world.door is not None
            await world.door.wait()
            return "waited"

        @on
        async def forward(self, msg: Forward) -> Any:
            return await self.ask(Player, msg.to, "wait", timeout=60)

        @on
        def who(self) -> list[Any]:
            room = self.spot.id if isinstance(self.spot, Room) else None
            mates = [member.id for member in self.spot.members] if room else []
            return [self.id, self.session.identity, self.shard, room, sorted(mates)]

    @app.spot
    class Room(Spot):
        ticks = 0

        @staticmethod
        def shard_of(id: str) -> int:
            return int(id[-1])

        def on_recover(self) -> None:
            world.story.append(f"{self.id} recovers with {sorted(member.id for member in self.members)}")

        async def on_actor_join(self, actor: Any, request: Any) -> None:
            if world.joining is not None:
                await world.joining.wait()

        @every(0.005)
        def tick(self) -> None:
            self.ticks += 1

        @on
        def count(self) -> int:
            return self.ticks

    @app.session
    class Door(Session):
        def on_connect(self, hello: Any) -> Accept:
            world.story.append(f"{hello.auth} connects")
            return Accept(identity=hello.auth)

        def on_recover(self) -> None:
            world.story.append(f"session of {self.identity} recovers")

        def on_disconnect(self, reason: str) -> None:
            world.story.append(f"session of {self.identity} {reason}")

    return app


async def enter(pool: Pool, client: Client, room: str) -> None:
    before = len(client.pushed)
    client.send({"type": "enter", "room": room})
    await pool.until(lambda: client.pushed[before:] == [[room, True]])


def test_sessions_actors_and_spots_go_on_under_their_addresses() -> None:
    """P-15, M-16: the same names, sessions, identities and members; nobody is closed, on_connect does not run again."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        here = await pool.connect("here", home=0)
        member = await pool.connect("member", home=0)
        guest = await pool.connect("guest", home=1)  # its session is on the other shard
        away = await pool.connect("away", home=0)  # its actor is on the other shard
        for client, room in ((member, "room0"), (guest, "room0"), (away, "room1")):
            await enter(pool, client, room)
        routes = [pool.route(client) for client in pool.clients.values()]
        connects = len(world.story)
        pool.restart(0, app)
        assert await here.ask({"type": "who"}) == ["here", "here", 0, None, []]
        assert await member.ask({"type": "who"}) == ["member", "member", 0, "room0", ["guest", "member"]]
        assert await guest.ask({"type": "who"}) == ["guest", "guest", 0, "room0", ["guest", "member"]]
        assert await away.ask({"type": "who"}) == ["away", "away", 1, "room1", ["away"]]
        assert [pool.route(client) for client in pool.clients.values()] == routes
        assert all(client.closed is None and not client.errors for client in pool.clients.values())
        assert sorted(world.story[connects:]) == [
            "guest recovers in room0",
            "here recovers in entry",
            "member recovers in room0",
            "room0 recovers with ['guest', 'member']",
            "session of away recovers",
            "session of here recovers",
            "session of member recovers",
        ]
        spots = [line for line in world.story[connects:] if "room0" in line]
        assert spots[0].startswith("room0 recovers"), "a Spot recovers before its members"
        # Ends work as ever, for those, too, whose session or actor is on the other shard.
        for client in pool.clients.values():
            client.disconnect()
        await pool.until(lambda: pool.entries() == [])
        ended = [line for line in world.story if line.endswith("normal")]
        assert sorted(ended) == sorted(
            [f"{n} normal" for n in ("here", "member", "guest", "away")]
            + [f"session of {n} normal" for n in ("here", "member", "guest", "away")]
        )

    run(body, app, 2)


def test_queued_messages_run_once_and_in_order_over_many_deaths() -> None:
    """M-16, P-15: what waited is run by the successor, behind on_recover; nothing is lost, doubled or reordered."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        clients = [await pool.connect(f"user{n}", home=0) for n in range(5)]
        for round in range(6):
            pool.die(0)
            for number in range(10):
                for client in clients:
                    assert client.send({"type": "note", "number": 10 * round + number}) == 0
            pool.succeed(0, app)
        await pool.until(lambda: sum(map(len, world.notes.values())) == 300)
        assert world.notes == {f"user{n}": list(range(60)) for n in range(5)}

    run(body, app, 1)


def test_what_a_shard_had_sent_arrives_after_its_death() -> None:
    """P-15, P-29: pushes, publishes and replies that were written lie in links that outlive it."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        await enter(pool, client, "room0")
        shard = pool.live[0].context.shard
        shard.push(client.address, b'"pushed"')
        shard.publish([client.address], b'"published"')
        shard.reply_client(client.address, 5, b'"replied"')
        pool.die(0)
        await pool.until(lambda: client.pushed[1:] == ["pushed", "published"] and client.replies == {5: "replied"})

    run(body, app, 1)


def test_sends_to_a_dead_shard_run_once_by_its_successor() -> None:
    """P-15, M-16: while it has no process, and what waited in its links when it died."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        await pool.connect("asked", home=0)
        sender = await pool.connect("sender", home=1)
        actor = pool.live[1].context.shard.target(sender.actor)
        assert isinstance(actor, Actor)
        for number in range(40):
            if number == 20:
                pool.die(0)
            actor.send(type(actor), "asked", Note(number))
        pool.succeed(0, app)
        await pool.until(lambda: len(world.notes.get("asked", [])) == 40)
        assert world.notes == {"asked": list(range(40))}

    run(body, app, 2)


def test_timers_start_again() -> None:
    """P-15, T-33: a Spot that outlives its shard ticks on."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        await enter(pool, client, "room0")
        for _ in range(3):
            pool.restart(0, app)
            room = pool.live[0].context.shard.target(pool.live[0].context.directory.find("Room", "room0"))
            await pool.until(lambda room=room: room.ticks > 3)  # type: ignore[misc, union-attr]

    run(body, app, 1)


def test_cut_off_message_is_not_run_again_and_its_asker_is_told() -> None:
    """M-16: at-most-once: E `unavailable` for the open ask; the messages behind it run."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        world.door = asyncio.Event()
        client = await pool.connect("ann", home=0)
        client.send({"type": "wait"}, flags=FLAG_ASK)
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        client.send({"type": "note", "number": 7})
        pool.restart(0, app)
        await pool.until(lambda: bool(client.errors) and world.notes == {"ann": [7]})
        ((request, body),) = client.errors
        assert (request, body["code"], body["kind"]) == (1, "unavailable", "Unavailable")
        assert client.replies == {}

    run(body, app, 1)


def test_who_asked_a_dead_shard_gets_unavailable_at_once() -> None:
    """P-15, T-10: not after the deadline of 60 s; before the successor is there."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        world.door = asyncio.Event()
        await pool.connect("asked", home=0)
        asking = await pool.connect("asking", home=1)
        asking.send({"type": "forward", "to": "asked"}, flags=FLAG_ASK)
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        pool.die(0)
        await pool.until(lambda: bool(asking.errors))
        assert asking.errors[0][1]["code"] == "unavailable"
        assert "shard 0 died" in asking.errors[0][1]["message"]
        pool.succeed(0, app)
        assert (await asking.ask({"type": "who"}))[0] == "asking"

    run(body, app, 2)


def test_ask_of_a_shard_that_hands_over_is_answered_by_its_successor() -> None:
    """P-18, T-10: it had not begun: a rolling restart is no death for who asked."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        await pool.connect("asked", home=0)
        asking = await pool.connect("asking", home=1)
        pool.live[0].stop()
        asking.send({"type": "forward", "to": "asked"}, flags=FLAG_ASK)
        await pool.until(lambda: len(pool.live[1].runtime.asks) == 1)
        pool.live[0].core.hand_over()
        pool.die(0)
        world.door = asyncio.Event()
        world.door.set()
        pool.succeed(0, app)
        await pool.until(lambda: asking.replies == {1: "waited"})
        # Its successor's death is one: the record that says so is about the process before it.
        world.door = asyncio.Event()
        asking.send({"type": "forward", "to": "asked"}, flags=FLAG_ASK)
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        pool.restart(0, app)
        await pool.until(lambda: [error[1]["code"] for error in asking.errors] == ["unavailable"])

    run(body, app, 2)


def test_completions_of_a_dead_shards_asks_are_dropped_and_counted() -> None:
    """P-15, T-10: the successor neither takes them for its own nor stumbles over them."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        world.door = asyncio.Event()
        await pool.connect("asked", home=0)
        asking = await pool.connect("asking", home=1)
        asking.send({"type": "forward", "to": "asked"}, flags=FLAG_ASK)
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        pool.restart(1, app)
        world.door.set()
        await pool.until(lambda: pool.live[1].context.counts.late_replies == 1)
        assert [error[1]["code"] for error in asking.errors] == ["unavailable"]
        assert (await asking.ask({"type": "who"}))[0] == "asking"

    run(body, app, 2)


def test_session_that_was_being_let_in_is_refused_once() -> None:
    """P-7, P-15: its client gets 4503 and tries again; no slot, id or identity is left of it."""
    world = World()
    app = make_app(world)
    stuck = asyncio.Event

    async def body(pool: Pool) -> None:
        door = app.compile().session.cls
        release = stuck()

        async def on_connect(self: Any, hello: Any) -> Accept:
            await release.wait()
            return Accept(identity=hello.auth)

        plain = door.on_connect  # type: ignore[attr-defined]
        door.on_connect = on_connect  # type: ignore[attr-defined]
        connecting = asyncio.ensure_future(pool.connect("ann", home=0))
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        door.on_connect = plain  # type: ignore[attr-defined]
        pool.restart(0, app)
        client = await connecting
        assert client.refused is not None
        assert client.refused[0] == 4503
        again = await pool.connect("ann", home=0)
        assert again.refused is None
        again.disconnect()
        await pool.until(lambda: pool.entries() == [] and pool.objects(0) == 1)

    run(body, app, 1)


@pytest.mark.parametrize("dies", [0, 1])
def test_join_that_a_death_cut_short_ends_with_an_outcome(dies: int) -> None:
    """T-15, T-16, P-15: on_joined hears that it failed; exactly one live actor is there and answers."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        world.joining = asyncio.Event()
        client = await pool.connect("ann", home=0)
        client.send({"type": "enter", "room": "room1"})  # a move from shard 0 to shard 1
        await pool.until(lambda: len(pool.live[1].runtime.turns) > 0)
        pool.restart(dies, app)
        world.joining.set()
        await pool.until(lambda: client.send({"type": "note", "number": 1}) == 0)
        await pool.until(lambda: len(client.pushed) == 1 and world.notes == {"ann": [1]})
        assert client.pushed == [["room1", False]]
        assert await client.ask({"type": "who"}) == ["ann", "ann", 0, None, []]
        await pool.until(lambda: len(pool.live[1].runtime.turns) == 0)
        await enter(pool, client, "room1")
        assert await client.ask({"type": "who"}) == ["ann", "ann", 1, "room1", ["ann"]]
        client.disconnect()
        await pool.until(lambda: pool.entries() == [])

    run(body, app, 2)


def test_identity_that_several_sessions_share_is_kept_by_each() -> None:
    """P-15, T-39: second_login="allow"; no entry is left of them at the end."""
    world = World()
    app = make_app(world, "allow")

    async def body(pool: Pool) -> None:
        clients = [await pool.connect("ann", home=0) for _ in range(3)]
        long = await pool.connect("x" * 120, home=0)  # longer than the directory takes
        pool.restart(0, app)
        assert (await long.ask({"type": "who"}))[1] is None
        long.disconnect()
        for client in clients:
            assert (await client.ask({"type": "who"}))[1] == "ann"
            client.disconnect()
        await pool.until(lambda: pool.entries() == [] and pool.objects(0) == 1)

    run(body, app, 1)


def test_trusted_program_whose_request_was_open_gets_unavailable() -> None:
    """P-15, P-27: not after its timeout: an open request has a slot, which the successor finds."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        world.door = asyncio.Event()
        client = await pool.connect("ann", home=0)
        request = {"op": "ask", "type": "Player", "id": "ann", "message": {"type": "wait"}, "timeout": 60}
        pool.post(system_object(0), Kind.OPERATION, client.address, 77, encode_msgpack(request))
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        assert pool.objects(0) == 4
        pool.restart(0, app)
        await pool.until(lambda: len(client.errors) == 1)
        assert (client.errors[0][0], client.errors[0][1]["code"]) == (77, "unavailable")
        await pool.until(lambda: pool.objects(0) == 3)

    run(body, app, 1)


def test_session_whose_actor_has_moved_goes_on_although_its_home_died_before_it_heard_of_that() -> None:
    """P-15, T-16: messages wait until the session leads to the actor's new place; the client stays connected."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        moves = pool.live[1].runtime.moves
        redirect, moved, told = moves._redirect, asyncio.Event(), asyncio.Event()

        async def hold(*arguments: Any) -> None:
            moved.set()
            await told.wait()
            await redirect(*arguments)

        moves._redirect = hold  # type: ignore[method-assign]
        client.send({"type": "enter", "room": "room1"})
        await pool.until(moved.is_set)
        pool.restart(0, app)
        assert client.send({"type": "note", "number": 1}) == Outcome.SEALED
        told.set()
        await pool.until(lambda: client.send({"type": "note", "number": 1}) == 0)
        assert await client.ask({"type": "who"}) == ["ann", "ann", 1, "room1", ["ann"]]
        assert world.notes == {"ann": [1]}
        assert client.closed is None
        assert client.errors == []
        client.disconnect()
        await pool.until(lambda: pool.entries() == [] and pool.objects(0) == 1)

    run(body, app, 2)


def test_messages_wait_while_a_target_that_died_has_yet_to_say_that_it_took_the_actor() -> None:
    """P-15, T-16: the source gives its slot up only once the session leads to the new one."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        source = pool.live[0].runtime
        moved = asyncio.Event()

        async def hold(*arguments: Any) -> None:
            moved.set()
            await asyncio.Event().wait()

        pool.live[1].runtime.moves._redirect = hold  # type: ignore[method-assign]
        client.send({"type": "enter", "room": "room1"})
        await pool.until(moved.is_set)
        pool.die(1)
        await pool.until(lambda: len(source.asks) == 0)
        await asyncio.sleep(0)  # the move is told
        assert client.send({"type": "note", "number": 1}) == Outcome.SEALED
        pool.succeed(1, app)
        await pool.until(lambda: client.send({"type": "note", "number": 1}) == 0)
        assert (await client.ask({"type": "who"}))[:3] == ["ann", "ann", 1]
        assert client.closed is None
        await pool.until(lambda: pool.objects(0) == 2)  # its system object, the session

    run(body, app, 2)


def test_records_of_an_actor_whose_move_its_home_gave_up_are_answered_once() -> None:
    """M-16, T-16: by the successor of the shard it stays on; where it was to go nobody is told that it ended."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        world.joining = asyncio.Event()
        client = await pool.connect("ann", home=0)
        client.send({"type": "enter", "room": "room1"})
        client.send({"type": "note", "number": 7}, flags=FLAG_ASK)
        await pool.until(lambda: len(pool.live[1].runtime.turns) > 0)
        pool.restart(0, app)
        world.joining.set()
        await pool.until(lambda: 1 in client.replies)
        await pool.until(lambda: client.pushed == [["room1", False]] and len(pool.live[1].runtime.turns) == 0)
        assert client.errors == []
        assert world.notes == {"ann": [7]}

    run(body, app, 2)


def test_join_on_the_same_shard_is_cut_short_alike() -> None:
    """T-15, P-15: the Spot had not decided: the actor stays where it was and hears it."""
    world = World()
    app = make_app(world)

    async def body(pool: Pool) -> None:
        world.joining = asyncio.Event()
        client = await pool.connect("ann", home=0)
        client.send({"type": "enter", "room": "room0"})
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 2)
        pool.restart(0, app)
        await pool.until(lambda: client.pushed == [["room0", False]])
        world.joining = None
        await enter(pool, client, "room0")
        with pytest.raises(AskFailed):
            await client.ask({"type": "unknown"})

    run(body, app, 1)
