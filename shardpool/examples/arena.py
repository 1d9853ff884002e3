"""Rooms in which everybody moves a dot and sees the others'.

shardpool serve shardpool.examples.arena:app --bind tcp://127.0.0.1:7000 --bind ws://127.0.0.1:7001

Then open http://127.0.0.1:7001/ in two windows. A room is a Spot, made when its first player enters; it runs on one
shard, and its players move there, so that its tick reads their positions without asking anybody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from shardpool import Actor, App, InvalidOperation, JoinOutcome, Reject, Rejected, Spot, every, on

WIDTH, HEIGHT = 100.0, 60.0
STEP_MAX = 5.0
PLAYERS_MAX = 200
NAME_MAX = 24

app = App("arena", static_dir=Path(__file__).parent / "static")


class Enter(Struct, tag="enter"):
    """Go into a room; a `joined` message says how it went."""

    room: str
    name: str


class Move(Struct, tag="move"):
    """One step; longer ones are cut. The reply is where one is then."""

    dx: float
    dy: float


@app.actor
class Player(Actor):
    """One client's dot."""

    name: str = ""
    x: float = WIDTH / 2
    y: float = HEIGHT / 2

    @on
    def enter(self, msg: Enter) -> None:
        if not 0 < len(msg.name) <= NAME_MAX or not 0 < len(msg.room) <= NAME_MAX:
            raise Rejected(f"name and room have 1 to {NAME_MAX} characters")
        self.name = msg.name
        self.join(Arena, msg.room).defer()

    def on_joined(self, outcome: JoinOutcome) -> None:
        why = outcome.reply if outcome.error is None else str(outcome.error)
        self.session.send(
            {"type": "joined", "room": outcome.spot, "accepted": outcome.accepted, "you": self.id, "why": why}
        )

    def on_recover(self) -> None:
        # Still in its room, but its name went with the shard's process: the page says it again.
        if isinstance(self.spot, Arena):
            self.session.send({"type": "recovered"})

    @on
    async def move(self, msg: Move) -> dict[str, float]:
        if not isinstance(self.spot, Arena):
            raise InvalidOperation('not in a room yet: send {"type":"enter","room":…,"name":…} and wait for "joined"')
        limit = await self.ask(Arena, self.spot.id, "limits").yielding()
        # Read only now: others had their turns while the gate was given back.
        self.x = min(limit["w"], max(0.0, self.x + min(STEP_MAX, max(-STEP_MAX, msg.dx))))
        self.y = min(limit["h"], max(0.0, self.y + min(STEP_MAX, max(-STEP_MAX, msg.dy))))
        return {"x": self.x, "y": self.y}


@app.spot(mode="spotwide")
class Arena(Spot):
    """One room."""

    def on_actor_join(self, actor: Player, request: Any) -> Reject | None:
        if len(self.members) >= PLAYERS_MAX:
            return Reject(f"the room is full ({PLAYERS_MAX} players)")
        return None

    def on_actor_leave(self, actor: Player) -> None:
        if not self.members:
            self.close()  # clients name the rooms: those that nobody is in must not add up

    @every(0.05)
    def tick(self) -> None:
        players = {
            player.id: (player.name, round(player.x, 2), round(player.y, 2))
            for player in self.members
            if isinstance(player, Player)
        }
        self.publish({"type": "positions", "players": players})

    @on
    def limits(self) -> dict[str, float]:
        return {"w": WIDTH, "h": HEIGHT}
