"""Messages that a shard's death cut off: both policies, dead letters, quarantine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from shardpool import Actor, App, AtLeastOnce, AtMostOnce, Spot, on
from shardpool._core import FLAG_ASK
from shardpool.codecs import decode_msgpack, encode_msgpack
from shardpool.dead_letters import DeadLetter, Kind, Reason, read
from shardpool.errors import TypeMismatch
from shardpool.workers.peers import Operation

sys.path.insert(0, str(Path(__file__).parent))
from shard_harness import AskFailed, Client, Pool, run


class Work(Struct, tag="work"):
    number: int


class World:
    """What was begun, over all deaths."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.recovered = 0
        self.stuck = True


def make_app(world: World, delivery: Any) -> App:
    app = App("test")

    @app.actor(delivery=delivery)
    class Player(Actor):
        def on_recover(self) -> None:
            world.recovered += 1

        @on
        async def work(self, msg: Work) -> int:
            world.begun.append(msg.number)
            while world.stuck and msg.number == 0:
                await asyncio.sleep(3600)
            return msg.number

        @on
        def fine(self) -> str:
            return "fine"

    @app.spot
    class Room(Spot):
        pass

    return app


def letters(pool: Pool) -> list[DeadLetter]:
    return read(pool.letters)


async def cut_off(pool: Pool, client: Client, app: App, *, deaths: int, world: World) -> None:
    """Kill the shard in the turn of message 0 again and again."""
    for _ in range(deaths):
        before = len(world.begun)
        await pool.until(lambda before=before: len(pool.live[0].runtime.turns) == 1)  # type: ignore[misc]
        pool.restart(0, app)
        del before
    await asyncio.sleep(0)


def test_at_most_once_is_kept_as_a_dead_letter(tmp_path: Path) -> None:
    """M-16: not run again; the letter says what, whose, why and how often; the client's ask ends."""
    world = World()
    app = make_app(world, AtMostOnce())

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        client.send({"type": "work", "number": 0}, flags=FLAG_ASK)
        client.send({"type": "work", "number": 1})
        await cut_off(pool, client, app, deaths=1, world=world)
        await pool.until(lambda: world.begun == [0, 1] and bool(client.errors))
        assert client.errors[0][1]["code"] == "unavailable"
        (one,) = letters(pool)
        assert (one.type, one.object, one.kind, one.reason, one.attempts) == (
            "Player",
            f"{client.session:016x}",
            Kind.ASK,
            Reason.SHARD_DIED,
            1,
        )
        assert (one.codec, one.payload) == ("json", b'{"type": "work", "number": 0}')
        assert pool.live[0].context.counts.dead_letters == 1

    run(body, app, 1, letters=tmp_path / "letters")


def test_at_least_once_runs_again_in_its_place_and_then_no_more(tmp_path: Path) -> None:
    """M-16: N attempts over as many deaths, before the messages behind it; then a dead letter that counts them."""
    world = World()
    app = make_app(world, AtLeastOnce(3))

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        client.send({"type": "work", "number": 0}, flags=FLAG_ASK)
        client.send({"type": "work", "number": 1})
        await cut_off(pool, client, app, deaths=2, world=world)
        await pool.until(lambda: world.begun == [0, 0, 0])
        assert letters(pool) == []
        assert client.errors == []
        await cut_off(pool, client, app, deaths=1, world=world)
        await pool.until(lambda: world.begun == [0, 0, 0, 1] and bool(client.errors))
        assert [one.attempts for one in letters(pool)] == [3]

    run(body, app, 1, letters=tmp_path / "letters")


def test_at_least_once_that_succeeds_answers_its_asker(tmp_path: Path) -> None:
    """M-16: the second attempt's reply is the ask's."""
    world = World()
    app = make_app(world, AtLeastOnce(2))

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        client.send({"type": "work", "number": 0}, flags=FLAG_ASK)
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        world.stuck = False
        pool.restart(0, app)
        await pool.until(lambda: client.replies == {1: 0})
        assert (world.begun, letters(pool)) == ([0, 0], [])

    run(body, app, 1, letters=tmp_path / "letters")


def test_letter_is_not_doubled_by_a_death_before_its_mark_was_cleared(tmp_path: Path) -> None:
    """M-16: the next successor finds the same mark and writes the same id."""
    world = World()
    app = make_app(world, AtMostOnce())

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        client.send({"type": "work", "number": 0})
        await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
        pool.die(0)
        pool.die_before_restoring(0, app)
        pool.succeed(0, app)
        await pool.until(lambda: len(client.errors) == 1)
        assert await client.ask({"type": "fine"}) == "fine"
        assert len(letters(pool)) == 1
        assert len(pool.letters.read_text().splitlines()) == 3, "the header and the same letter twice"

    run(body, app, 1, letters=tmp_path / "letters")


def test_what_an_ended_object_had_not_run_is_kept(tmp_path: Path) -> None:
    """M-16: its client left first; with the reason."""
    world = World()
    app = make_app(world, AtMostOnce())

    async def body(pool: Pool) -> None:
        client = await pool.connect("ann", home=0)
        for number in (5, 6):
            client.send({"type": "work", "number": number})
        client.disconnect()
        await pool.until(lambda: pool.objects(0) == 1)
        kept = letters(pool)
        assert {one.reason for one in kept} <= {Reason.OBJECT_ENDED}
        assert len(kept) + len(world.begun) == 2
        assert len({one.id for one in kept}) == len(kept)

    run(body, app, 1, letters=tmp_path / "letters")


def test_object_that_kills_its_shard_twice_is_quarantined_until_it_is_released(tmp_path: Path) -> None:
    """P-23, M-16: its messages are kept and refused with Unavailable, over further deaths; the shard serves on."""
    world = World()
    app = make_app(world, AtLeastOnce(5))

    async def body(pool: Pool) -> None:
        bad = await pool.connect("bad", home=0)
        good = await pool.connect("good", home=0)
        bad.send({"type": "work", "number": 0}, flags=FLAG_ASK)
        for number in (1, 2):
            bad.send({"type": "work", "number": number})
        for _ in range(2):
            await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
            pool.blame(0, bad)
            pool.restart(0, app)
        await pool.until(lambda: len(bad.errors) == 3)
        assert {error[1]["code"] for error in bad.errors} == {"unavailable"}
        assert "quarantined" in bad.errors[1][1]["message"]
        kept = letters(pool)
        assert [(one.reason, one.attempts) for one in kept] == [
            (Reason.QUARANTINED, 2),
            (Reason.QUARANTINED, 0),
            (Reason.QUARANTINED, 0),
        ]
        assert pool.counter(0, "quarantined") == 1
        pool.restart(0, app)
        with pytest.raises(AskFailed) as failed:
            await bad.ask({"type": "fine"})
        assert "an operator must release it" in failed.value.message
        assert await good.ask({"type": "fine"}) == "fine"
        assert len(letters(pool)) == 3, "what comes later is refused, not kept"
        recovered = world.recovered
        answer = await pool.live[0].runtime.peers.ask(0, Operation.PARDON, encode_msgpack(pool.route(bad)), 1e9, "")
        assert decode_msgpack(answer) is True
        assert await bad.ask({"type": "fine"}) == "fine"
        assert (world.recovered, pool.counter(0, "quarantined")) == (recovered + 1, 0)
        bad.disconnect()
        good.disconnect()
        await pool.until(lambda: pool.entries() == [] and pool.objects(0) == 1)

    run(body, app, 1, letters=tmp_path / "letters")


def test_quarantined_object_ends_with_its_client(tmp_path: Path) -> None:
    """P-23: without a word of its own code; no slot or id is left."""
    world = World()
    app = make_app(world, AtMostOnce())

    async def body(pool: Pool) -> None:
        bad = await pool.connect("bad", home=0)
        for _ in range(2):
            bad.send({"type": "work", "number": 0})
            await pool.until(lambda: len(pool.live[0].runtime.turns) == 1)
            pool.blame(0, bad)
            pool.restart(0, app)
        assert pool.counter(0, "quarantined") == 1
        bad.disconnect()
        await pool.until(lambda: pool.entries() == [] and pool.objects(0) == 1)
        assert pool.counter(0, "quarantined") == 0

    run(body, app, 1, letters=tmp_path / "letters")


@pytest.mark.parametrize("delivery", ["twice", 3, None])
def test_policy_is_checked_when_the_class_is_registered(delivery: Any) -> None:
    """O-2, M-16: with what can be given."""
    with pytest.raises(TypeMismatch, match="AtMostOnce"):
        make_app(World(), delivery)
    with pytest.raises(TypeMismatch, match="from 2 to 100"):
        AtLeastOnce(1)
