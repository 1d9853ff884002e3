"""A shard that is started again on its predecessor's segment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from shardpool import Accept, Actor, App, Session, Spot, on

sys.path.insert(0, str(Path(__file__).parent))
from shard_harness import LiveShard, Pool, run


class Enter(Struct, tag="enter"):
    room: str


def make_app(ended: list[str]) -> App:
    app = App("test")

    @app.actor
    class Player(Actor):
        @on
        def enter(self, msg: Enter) -> None:
            self.join(Room, msg.room).defer()

        def on_joined(self, outcome: Any) -> None:
            self.session.send(outcome.accepted)

        def on_disconnect(self, reason: str) -> None:
            ended.append(f"{self.id} {reason}")

        @on
        def who(self) -> str:
            return self.id

    @app.spot
    class Room(Spot):
        @staticmethod
        def shard_of(id: str) -> int:
            return int(id[-1])

    @app.session
    class Door(Session):
        def on_connect(self, hello: Any) -> Accept:
            return Accept(identity=hello.auth)

    return app


def test_successor_closes_what_was_there_and_serves_on() -> None:
    """P-4, M-2: clients of the dead shard are told to come back; ids are free again; the other shard's go on."""
    ended: list[str] = []
    app = make_app(ended)

    async def body(pool: Pool) -> None:
        names = [f"user{n}" for n in range(8)]
        lost = [await pool.connect(name, home=0) for name in names]
        away = await pool.connect("away", home=0)
        away.send({"type": "enter", "room": "room1"})
        guest = await pool.connect("guest", home=1)
        guest.send({"type": "enter", "room": "room0"})
        stays = await pool.connect("stays", home=1)
        await pool.until(lambda: away.pushed == guest.pushed == [True])
        pool.live[0].stop()
        pool.live[0] = LiveShard(pool, 0, app)
        closed = [*lost, away, guest]
        await pool.until(lambda: all(client.closed is not None for client in closed))
        assert {client.closed[0] for client in closed if client.closed is not None} == {4503}
        await pool.until(lambda: ended == ["away unavailable"])
        assert await stays.ask({"type": "who"}) == "stays"
        guest.disconnect()
        for name in [*names, "away", "guest"]:
            again = await pool.connect(name, home=len(name) % 2)
            assert again.refused is None
            assert await again.ask({"type": "who"}) == name

    run(body, app, 2)
