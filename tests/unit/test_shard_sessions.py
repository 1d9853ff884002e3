"""Sessions on live shards: who may come in, second logins, one end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from shardpool import Accept, Actor, App, Hello, Refuse, Reject, Rejected, Session, on

sys.path.insert(0, str(Path(__file__).parent))
from shard_harness import Pool, run

from shardpool.workers.kinds import Kind


class Story(list[tuple[Any, ...]]):
    """What happened, in order."""


def make_app(story: Story, second_login: str = "replace") -> App:
    app = App("test", second_login=second_login)

    @app.actor
    class Player(Actor):
        def on_resume(self) -> None:
            story.append(("actor", self.id, "resumed"))

        def on_disconnect(self, reason: str) -> None:
            story.append(("actor", self.id, reason))

        @on
        def who(self) -> list[Any]:
            return [self.id, self.session.identity, type(self).__name__]

        @on
        def bye(self) -> None:
            self.session.close("enough", 4700)

    @app.actor
    class Admin(Player):
        def on_create(self, request: Any) -> Any:
            return Reject("no admins today") if self.id == "bad-admin" else None

    @app.session
    class Door(Session):
        async def on_connect(self, hello: Hello) -> Any:
            await asyncio.sleep(0)
            match hello.auth:
                case None:
                    return None
                case "out":
                    return Refuse("wrong ticket")
                case "raise":
                    raise Rejected("rejected by raising")
                case "bug":
                    raise ValueError("a bug")
                case "odd":
                    return 42
                case {"admin": name}:
                    return Accept(identity=name, actor=Admin)
                case str(name):
                    return Accept(identity=name)
            return False

        def on_replaced(self) -> None:
            story.append(("replaced", self.identity))

        def on_resume(self) -> None:
            story.append(("session", self.identity, "resumed"))

        async def on_disconnect(self, reason: str) -> None:
            story.append(("session", self.identity, reason))

    return app


def test_default_handler_gives_everyone_an_entry_actor() -> None:
    """P-7: bound to a fresh actor whose id is the session's."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        assert await client.ask({"type": "who"}) == [f"{client.session:016x}", None, "Player"]

    run(body, make_app(Story()))


def test_accept_names_identity_and_actor() -> None:
    """P-7, T-39: the actor's id is the identity."""

    async def body(pool: Pool) -> None:
        assert await (await pool.connect("ann")).ask({"type": "who"}) == ["ann", "ann", "Player"]
        assert await (await pool.connect({"admin": "root"})).ask({"type": "who"}) == ["root", "root", "Admin"]

    run(body, make_app(Story()), 2)


@pytest.mark.parametrize(
    ("auth", "code", "reason"),
    [
        ("out", 4401, "wrong ticket"),
        ("raise", 4401, "rejected by raising"),
        ([1], 4401, "not authenticated"),
        ("bug", 4500, "failed to let you in"),
        ("odd", 4503, "on_connect returned 42"),
        ({"admin": "bad-admin"}, 4401, "no admins today"),
    ],
)
def test_refusals_have_code_and_reason_and_leave_nothing(auth: Any, code: int, reason: str) -> None:
    """P-7, P-30: refused, raising, returning nonsense, actor refused; slots are given back."""

    async def body(pool: Pool) -> None:
        client = await pool.connect(auth)
        assert client.refused is not None
        assert client.refused[0] == code
        assert reason in client.refused[1]
        await pool.until(lambda: pool.live[0].node.counters(2)["objects"] == 1)
        assert not pool.entries()

    run(body, make_app(Story()))


def test_disconnect_runs_once_session_then_actor_and_gives_all_back() -> None:
    """P-11, T-39, T-40: exactly once, in order; a second detach changes nothing."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann")
        pool.post(client.slot, 5, 4410)
        pool.post(client.slot, 5, 1000)
        await pool.until(lambda: pool.live[0].node.counters(2)["objects"] == 1)
        assert story == [("session", "ann", "idle"), ("actor", "ann", "idle")]
        assert not pool.entries()
        assert len(pool.live[0].runtime.sessions) == 0

    run(body, make_app(story))


def test_a_client_that_comes_back_is_heard_of_by_session_and_actor() -> None:
    """P-11, T-39: on_resume runs in the session's turn, then in its actor's; nothing else changes."""
    story = Story()

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann")
        pool.post(client.slot, 16, 1)
        await pool.until(lambda: len(story) == 2)
        assert story == [("session", "ann", "resumed"), ("actor", "ann", "resumed")]
        assert await client.ask({"type": "who"}) == ["ann", "ann", "Player"]
        pool.post(client.slot, 5, 1000)
        pool.post(client.slot, 16, 1)
        await pool.until(lambda: pool.live[0].node.counters(2)["objects"] == 1)
        assert len(story) == 4

    run(body, make_app(story))


@pytest.mark.parametrize("shards", [1, 2])
def test_second_login_replaces_the_first(shards: int) -> None:
    """T-39, P-12: the first hears on_replaced, is closed with 4409, and its actor ends before the new one begins."""
    story = Story()

    async def body(pool: Pool) -> None:
        first = await pool.connect("ann", home=0)
        second = await pool.connect("ann", home=shards - 1)
        assert second.refused is None
        assert await second.ask({"type": "who"}) == ["ann", "ann", "Player"]
        await pool.until(lambda: first.closed is not None)
        assert first.closed is not None
        assert first.closed[0] == 4409
        assert story == [("replaced", "ann"), ("session", "ann", "replaced"), ("actor", "ann", "replaced")]
        third = await pool.connect("ann", home=0)
        assert await third.ask({"type": "who"}) == ["ann", "ann", "Player"]

    run(body, make_app(story), shards)


@pytest.mark.parametrize("shards", [1, 2])
def test_second_login_while_the_first_leaves_does_not_wait_for_what_will_not_come(shards: int) -> None:
    """T-39, P-11: the first session ends by itself before it hears that it is to be replaced."""
    story = Story()
    app = make_app(story)
    left = asyncio.Event()

    async def body(pool: Pool) -> None:
        first = await pool.connect("ann", home=0)
        door = pool.live[0].core.target(first.slot)

        async def on_resume() -> None:
            await left.wait()

        door.on_resume = on_resume
        pool.post(first.slot, Kind.RESUMED)
        pool.post(first.slot, Kind.DETACH, 1000)
        await pool.until(lambda: len(pool.live[0].core.queued(first.slot)) == 2)
        connecting = asyncio.ensure_future(pool.connect("ann", home=shards - 1))
        await pool.until(lambda: len(pool.live[0].core.queued(first.slot)) == 3)  # REPLACED behind it
        left.set()
        second = await asyncio.wait_for(connecting, 10)
        assert second.refused is None
        assert await second.ask({"type": "who"}) == ["ann", "ann", "Player"]

    run(body, app, shards)


@pytest.mark.parametrize("shards", [1, 2])
def test_second_login_can_be_refused(shards: int) -> None:
    """T-39: policy refuse; free again after the first has gone."""
    story = Story()

    async def body(pool: Pool) -> None:
        first = await pool.connect("ann", home=0)
        second = await pool.connect("ann", home=shards - 1)
        assert second.refused == (4401, "this identity is logged in already")
        first.disconnect()
        await pool.until(lambda: ("actor", "ann", "normal") in story)
        third = await pool.connect("ann", home=shards - 1)
        assert third.refused is None

    run(body, make_app(story, "refuse"), shards)


def test_second_login_can_be_allowed() -> None:
    """T-39: policy allow; each session has an actor of its own."""

    async def body(pool: Pool) -> None:
        first, second = await pool.connect("ann"), await pool.connect("ann")
        one, two = await first.ask({"type": "who"}), await second.ask({"type": "who"})
        assert one[1] == two[1] == "ann"
        assert one[0] != two[0]

    run(body, make_app(Story(), "allow"))


def test_app_closes_a_session_with_its_own_code() -> None:
    """P-11: behind what was sent, with the reason."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        client.send({"type": "bye"})
        await pool.until(lambda: client.closed == (4700, "enough"))

    run(body, make_app(Story()))


def test_many_sessions_come_and_go_without_a_trace() -> None:
    """P-6, T-25: slots, entries, turns and parcels are given back."""

    async def body(pool: Pool) -> None:
        for _ in range(3):
            clients = [await pool.connect(f"user{n}", home=n % 2) for n in range(40)]
            for client in clients:
                client.disconnect()
            await pool.until(lambda: all(live.node.counters(live.node.process)["objects"] == 1 for live in pool.live))
        await pool.until(lambda: not pool.entries())
        for live in pool.live:
            assert not live.context.parcels._held
            assert len(live.runtime.turns) == len(live.runtime.insistence) == len(live.runtime.asks) == 0
            assert len(live.runtime.lives.entry.members) == 0

    run(body, make_app(Story()), 2)


def test_draining_shard_lets_nobody_in() -> None:
    """P-17: told that the pool is stopping."""

    async def body(pool: Pool) -> None:
        pool.live[0].context.draining = True
        client = await pool.connect()
        assert client.refused is not None
        assert client.refused[0] == 1001

    run(body, make_app(Story()))


def test_no_slot_left() -> None:
    """P-12, M-3: refused with a code; the sessions that are in go on."""

    async def body(pool: Pool) -> None:
        first = await pool.connect()
        original = pool.live[0].core.allocate
        taken = []
        while address := original(3, object(), pool.live[0].runtime.sessions._table):
            taken.append(address)
        client = await pool.connect()
        assert client.refused is not None
        assert client.refused[0] == 4529
        assert (await first.ask({"type": "who"}))[2] == "Player"

    run(body, make_app(Story()))
