"""Type checking of an app written against shardpool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

APP = """
from msgspec import Struct
from shardpool import Accept, Actor, App, Hello, JoinOutcome, Request, Session, Spot, every, on

app = App("arena")

class Enter(Struct, tag="enter"):
    room: str

class Size(Struct):
    w: float

class GetSize(Request[Size], tag="size"):
    pass

@app.session
class Door(Session):
    async def on_connect(self, hello: Hello) -> Accept:
        return Accept(identity="ann")

@app.actor(move="preserve")
class Player(Actor):
    x: float = 0.0

    @on
    def enter(self, msg: Enter) -> None:
        self.join(Arena, msg.room).defer()

    def on_joined(self, outcome: JoinOutcome) -> None:
        self.session.send({"joined": outcome.spot})

    @on(client=False)
    async def grow(self) -> float:
        typed = await self.ask(Arena, self.spot.id, GetSize())
        reveal_type(typed)
        given = await self.ask(Arena, self.spot.id, "size", reply=Size).yielding()
        reveal_type(given)
        free = await self.ask(Arena, self.spot.id, "size")
        reveal_type(free)
        return typed.w + given.w

@app.spot(mode="spotwide")
class Arena(Spot):
    @every(0.05)
    def tick(self) -> None:
        self.publish({p.id: p.x for p in self.members})

    @on
    def size(self, msg: GetSize) -> Size:
        return Size(1.0)
"""


def check(directory: Path, text: str) -> tuple[int, str]:
    (directory / "arena.py").write_text(text)
    # An editable install is found by an import hook, which type checkers do not run.
    environ = {**os.environ, "MYPYPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "mypy", "--strict", "arena.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, env=environ)
    return done.returncode, done.stdout + done.stderr


def test_strict_app_passes_and_ask_is_typed_by_its_message(tmp_path: Path) -> None:
    """O-13: mypy --strict; the reply's type comes from Request[R] or reply=R."""
    code, said = check(tmp_path, APP)
    revealed = [line.split('"')[1] for line in said.splitlines() if "Revealed type" in line]
    assert revealed == ["arena.Size", "arena.Size", "Any"], said
    assert code == 0, said


def test_wrong_use_of_a_reply_is_found(tmp_path: Path) -> None:
    """O-13: an error before anything runs."""
    code, said = check(tmp_path, APP.replace("return typed.w + given.w", "return typed.nothing"))
    assert code == 1
    assert 'has no attribute "nothing"' in said
