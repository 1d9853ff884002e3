"""A pool whose actors talk without pause, and clients that check every number: for tests that cut and kill."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from shardpool.client import Client, connect
from shardpool.errors import DeadlineExceeded

T = TypeVar("T")

APP = """\
from msgspec import Struct
from shardpool import Actor, App, Session, every, on

app = App("talk")


class Say(Struct, tag="say"):
    n: int


@app.session
class Door(Session):
    resumes = 0


@app.actor
class Talker(Actor):
    def __init__(self) -> None:
        self.ticks = 0
        self.heard: list[int] = []
        self.resumes = 0

    @every(0.01)
    async def tick(self) -> None:
        if not self.heard:
            return  # the client has its handler when it speaks
        self.ticks += 1
        await self.session.send({"type": "tick", "n": self.ticks})

    def on_resume(self) -> None:
        self.resumes += 1

    @on
    def say(self, msg: Say) -> int:
        self.heard.append(msg.n)
        return msg.n

    @on
    def account(self) -> dict:
        return {"heard": self.heard, "ticks": self.ticks, "resumes": self.resumes}
"""


class Served:
    """`shardpool serve` of the app above, in a directory of its own."""

    def __init__(self, directory: Path, acceptors: int, *more: str, binds: tuple[str, ...] = ("tcp", "ws")) -> None:
        self.directory = directory
        self.count = acceptors
        (directory / "talk.py").write_text(APP)
        runtime = directory / "runtime"
        runtime.mkdir(mode=0o700)
        self.out, self.err = directory / "out", directory / "err"
        # A death is no reason to wait here: some are wanted, and each counts for itself.
        unlimited = {"SHARDPOOL_RESTART_INTENSITY": "1000", "SHARDPOOL_RESTART_PERIOD": "0.1"}
        self.environ = {**os.environ, **unlimited, "XDG_RUNTIME_DIR": str(runtime)}
        command = [sys.executable, "-m", "shardpool.supervisor.cli", "serve", "talk:app", "--workers", "2"]
        for transport in binds:
            command += ["--bind", f"{transport}://127.0.0.1:0"]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = psutil.Popen(
                [*command, "--acceptors", str(acceptors), *more],
                cwd=directory,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.wait_for(lambda: "stop: Ctrl-C" in self.out.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.err.read_text()
        listening = re.findall(r"listening on ((\w+)://\S+)", self.out.read_text())
        self.addresses = {transport: address for address, transport in listening}

    def wait_for(self, condition: Callable[[], T], seconds: float = 30.0) -> T:
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < deadline, self.err.read_text()[-4000:]
            time.sleep(0.01)
        return result

    def acceptors(self) -> list[psutil.Process]:
        """The acceptor processes that are up, by their titles."""
        children = {}
        for child in self.process.children():
            with suppress(psutil.NoSuchProcess):  # it has just died
                children[child] = " ".join(child.cmdline())
        return sorted(
            (child for child, title in children.items() if title.startswith("shardpool: acceptor")),
            key=lambda child: children[child],
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)


class Talking:
    """One client: asks one after the other, and checks the numbers of what is pushed to it."""

    def __init__(self, number: int, address: str, **how: Any) -> None:
        self.number = number
        self.address = address
        self.how = how
        self.client: Client
        self.ticks = 0
        self.answered: list[int] = []
        self.unanswered: list[int] = []
        self.faults: list[str] = []
        self.asked = 0

    async def begin(self) -> None:
        self.client = await connect(self.address, timeout=20, **self.how)
        self.client.on("tick", self._tick)

    def _tick(self, message: dict[str, Any]) -> None:
        if message["n"] != self.ticks + 1:
            self.faults.append(f"client {self.number}: tick {message['n']} after {self.ticks}")
        self.ticks = message["n"]

    async def talk(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.say()
            await asyncio.sleep(0.01)

    async def say(self) -> None:
        self.asked += 1
        n = self.asked
        try:
            assert await self.client.ask({"type": "say", "n": n}, timeout=4.0) == n
            self.answered.append(n)
        except DeadlineExceeded:
            self.unanswered.append(n)  # it was on its way when the connection broke

    async def check(self) -> None:
        """What the actor heard: everything that was answered, nothing twice, in order."""
        account = await self.client.ask({"type": "account"}, timeout=20)
        heard = account["heard"]
        assert heard == sorted(set(heard)), f"client {self.number}: doubled or reordered"
        assert set(self.answered) <= set(heard)
        assert set(range(1, self.asked + 1)) - set(heard) <= set(self.unanswered)
        assert not self.faults, self.faults[:3]
        assert self.client.closed is None
        # pushes go on: whatever was made when the account was, arrives
        while self.ticks < account["ticks"]:
            await asyncio.sleep(0.01)
        await self.client.close()

    @property
    def reconnects(self) -> int:
        return self.client.statistics().reconnects
