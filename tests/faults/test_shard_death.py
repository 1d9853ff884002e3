"""Shards of a real pool are killed: clients stay connected, what waited runs, what was cut off is kept (P-15)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardpool.client import connect
from shardpool.errors import ShardpoolError, Unavailable

KILLS = 10
CLIENTS = 200
SHARDS = 2
PATIENCE = 30.0

APP = """\
import asyncio
import os

from msgspec import Struct
from shardpool import Actor, App, AtLeastOnce, Spot, on

app = App("death")
log = os.open(os.environ["DEATH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(line):
    os.write(log, line.encode() + b"\\n")


class Count(Struct, tag="count"):
    number: int


class Ask(Struct, tag="ask"):
    room: str


class Bad(Struct, tag="bad"):
    later: bool = False


@app.actor
class Player(Actor):
    def on_recover(self):
        note(f"recovered {self.id}")

    @on
    def count(self, msg: Count) -> int:
        note(f"{self.id} {msg.number}")
        return msg.number

    @on
    async def relay(self, msg: Ask) -> str:
        await self.create(Room, msg.room)
        return await self.ask(Room, msg.room, "hold", timeout=300)

    @on
    async def bad(self, msg: Bad) -> None:
        if msg.later:
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), 9)

    @on
    def where(self) -> int:
        return self.shard


@app.spot(delivery=AtLeastOnce(3))
class Room(Spot):
    @staticmethod
    def shard_of(id: str) -> int:
        return int(id[-1])

    @on
    async def hold(self) -> str:
        note(f"held {self.id}")
        await asyncio.sleep(300)
        return "held"
"""


class DeathPool:
    """A pool with the app above."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        runtime = directory / "runtime"
        runtime.mkdir(mode=0o700)
        self.environ = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(runtime),
            "DEATH_LOG": str(directory / "log"),
            "SHARDPOOL_RESTART_INTENSITY": "1000",
            "SHARDPOOL_RESTART_PERIOD": "0.1",
        }
        self.out, self.err = directory / "out", directory / "err"
        binds = ["--bind", "tcp://127.0.0.1:0", "--bind", "ws://127.0.0.1:0"]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = psutil.Popen(
                [
                    *(sys.executable, "-m", "shardpool.supervisor.cli", "serve", "death:app", *binds),
                    *("--workers", str(SHARDS), "--acceptors", "1"),
                ],
                cwd=directory,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.wait_for(lambda: "stop: Ctrl-C" in self.out.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.err.read_text()
        self.addresses = re.findall(r"listening on ((?:tcp|ws)://\S+)", self.out.read_text())
        assert len(self.addresses) == 2, self.out.read_text()

    def wait_for(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < deadline, self.err.read_text()[-4000:]
            time.sleep(0.01)
        return result

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "shardpool.supervisor.cli", *arguments]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=30, check=False)

    def shard(self, number: int) -> psutil.Process | None:
        """The process of a shard, once it has its title."""
        title = f"shard {number + 1}/{SHARDS}"
        for child in self.process.children(recursive=True):
            try:
                if title in "".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                    return child
            except psutil.Error:
                continue
        return None

    def kill(self, number: int) -> None:
        """Kill a shard that serves, and see it dead."""
        victim = self.wait_for(lambda: self.shard(number))
        victim.kill()
        self.wait_for(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE)

    def log(self) -> list[str]:
        path = self.directory / "log"
        return path.read_text().splitlines() if path.exists() else []

    def letters(self) -> list[dict[str, Any]]:
        answer = self.command("dead-letters", "list", "--json")
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found


@pytest.fixture
def pool() -> Iterator[DeathPool]:
    directory = Path(f"/tmp/sp-death-{os.getpid()}")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    (directory / "death.py").write_text(APP)
    started = DeathPool(directory)
    yield started
    started.process.kill()
    started.process.wait(10)
    shutil.rmtree(directory)


async def until(condition: Callable[[], Any], pool: DeathPool) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, pool.err.read_text()[-4000:]
        await asyncio.sleep(0.01)


@pytest.mark.timeout(170)
def test_clients_stay_connected_and_their_messages_run_once_and_in_order(pool: DeathPool) -> None:
    """P-15, M-16: 200 clients over TCP and WebSocket, a shard killed ten times: 0 closed, nothing lost but by name."""

    async def play(client: Any, over: Callable[[], bool], told: dict[int, list[str]], number: int) -> None:
        asked = 0
        while not over():
            asked += 1
            try:
                reply = await client.ask({"type": "count", "number": asked}, timeout=PATIENCE)
                told.setdefault(number, []).append(f"ran {reply}")
            except Unavailable:
                told.setdefault(number, []).append(f"unavailable {asked}")
            await asyncio.sleep(0.02)

    async def body() -> tuple[dict[int, list[str]], list[str]]:
        clients = [await connect(pool.addresses[n % 2], timeout=PATIENCE, reconnect=False) for n in range(CLIENTS)]
        done = False
        told: dict[int, list[str]] = {}
        players = [asyncio.create_task(play(client, lambda: done, told, n)) for n, client in enumerate(clients)]
        for kill in range(KILLS):
            before = len(pool.log())
            await until(lambda before=before: len(pool.log()) > before + CLIENTS, pool)  # type: ignore[misc]
            await asyncio.to_thread(pool.kill, kill % SHARDS)
        before = len(pool.log())
        await until(lambda: len(pool.log()) > before + 2 * CLIENTS, pool)
        done = True
        await asyncio.gather(*players)
        sessions = [client.welcome.session for client in clients]
        for client in clients:
            await client.close()
        return told, sessions

    told, sessions = asyncio.run(body())
    ran: dict[str, list[int]] = {}
    recovered = 0
    for line in pool.log():
        who, what = line.split()
        if who == "recovered":
            recovered += 1
        else:
            ran.setdefault(who, []).append(int(what))
    assert recovered >= KILLS * CLIENTS // SHARDS // 2, "on_recover ran in every actor of a killed shard"
    lost = 0
    for number, session in enumerate(sessions):
        assert ran[session] == sorted(set(ran[session])), "twice, or out of order"
        answered = {int(line.split()[1]) for line in told[number] if line.startswith("ran")}
        assert answered <= set(ran[session]), "answered and not run"
        missing = set(range(1, len(told[number]) + 1)) - answered
        assert missing == {int(line.split()[1]) for line in told[number] if line.startswith("unavailable")}
        lost += len(missing)
    assert lost <= KILLS, "a kill cuts one running handler off"
    assert len(pool.letters()) == lost


@pytest.mark.timeout(60)
def test_ask_between_shards_gets_unavailable_when_the_asked_one_dies(pool: DeathPool) -> None:
    """P-15, T-10: long before its deadline of 300 s; at-least-once runs the asked handler again."""

    async def body() -> None:
        async with connect(pool.addresses[0], timeout=PATIENCE) as client:
            mine = await client.ask("where")
            room = f"room{1 - mine}"
            asking = asyncio.create_task(client.ask({"type": "ask", "room": room}, timeout=300))
            await until(lambda: f"held {room}" in pool.log(), pool)
            await asyncio.to_thread(pool.kill, 1 - mine)
            with pytest.raises(Unavailable, match="died before it answered"):
                await asyncio.wait_for(asking, PATIENCE)
            await until(lambda: pool.log().count(f"held {room}") == 2, pool)

    asyncio.run(body())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("later", [False, True])
def test_message_that_kills_its_shard_twice_is_shut_off_from_it(pool: DeathPool, later: bool) -> None:
    """P-23, M-16: in its first step or behind an await; the shard serves on; status, letters and release show it."""

    async def body() -> None:
        async with (
            connect(pool.addresses[0], timeout=PATIENCE) as bad,
            connect(pool.addresses[0], timeout=PATIENCE) as good,
        ):
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await bad.ask({"type": "bad", "later": later}, timeout=PATIENCE)
            with pytest.raises(Unavailable, match="quarantined"):
                await bad.ask({"type": "bad", "later": later}, timeout=PATIENCE)
            assert await good.ask({"type": "count", "number": 1}, timeout=PATIENCE) == 1
            status = await asyncio.to_thread(pool.command, "status")
            assert "1 quarantined objects" in status.stdout
            letters = await asyncio.to_thread(pool.letters)
            assert [each["reason"] for each in letters] == ["shard_died", "quarantined"]
            shown = await asyncio.to_thread(pool.command, "dead-letters", "show", letters[0]["id"])
            assert '"type": "bad"' in shown.stdout
            name = letters[0]["object"]
            assert name == bad.welcome.session
            released = await asyncio.to_thread(pool.command, "dead-letters", "release", "Player", name)
            assert released.returncode == 0, released.stderr
            assert await bad.ask({"type": "count", "number": 2}, timeout=PATIENCE) == 2
            again = await asyncio.to_thread(pool.command, "dead-letters", "release", "Player", name)
            assert again.returncode != 0
            assert "it is not quarantined" in again.stderr

    asyncio.run(body())


@pytest.mark.timeout(60)
def test_dead_letter_is_sent_again(pool: DeathPool) -> None:
    """M-16, O-2: to its object; no such id, and no such file, are said in one line."""

    async def body() -> None:
        async with connect(pool.addresses[0], timeout=PATIENCE) as client:
            mine = await client.ask("where")
            with pytest.raises(ShardpoolError):
                await client.ask({"type": "bad"}, timeout=PATIENCE)
            (letter,) = await asyncio.to_thread(pool.letters)
            assert (letter["shard"], letter["type"]) == (mine, "Player")
            for arguments, part in (
                (("show", "nothing"), "no dead letter 'nothing'"),
                (("list", "--file", "/nonexistent"), "there is no file /nonexistent"),
                (("list", "--name", "nobody"), 'no pool named "nobody" is running'),
                (("release", "Player", "nobody"), "there is no such object"),
            ):
                answer = await asyncio.to_thread(pool.command, "dead-letters", *arguments)
                assert answer.returncode != 0
                assert part in answer.stderr
                assert answer.stderr.count("\n") == 1
            before = len([line for line in pool.log() if line.startswith("recovered")])
            sent = await asyncio.to_thread(pool.command, "dead-letters", "resend", letter["id"])
            assert sent.returncode == 0, sent.stderr
            # The message kills its shard again: it did arrive.
            await until(lambda: len([line for line in pool.log() if line.startswith("recovered")]) >= before, pool)
            await until(lambda: len(pool.letters()) == 2, pool)

    asyncio.run(body())
