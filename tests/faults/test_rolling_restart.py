"""`shardpool restart --rolling` and `shardpool drain` with real workers, and what they refuse."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import psutil
import pytest
from served_pool import APP, ServedPool, wait_for

from shardpool.client import connect
from shardpool.exit_codes import ExitCode

Serve = Callable[..., ServedPool]

NEW = APP.replace('return "hello"', 'return "new"')
SLOW_BOOT = (
    APP
    + """
import asyncio

@app.on_start
async def boot():
    await asyncio.sleep(1.0)
"""
)
SUSPENDED = """\
import asyncio
import os
from shardpool import Actor, App, on

app = App("faults")


def note(text):
    with open("story", "a") as file:
        file.write(f"{text}\\n")


@app.on_stop
def stop(shard):
    note(f"stop {shard}")


@app.actor
class Player(Actor):
    @on
    def hello(self) -> str:
        return "hello"

    @on
    async def slow(self) -> str:
        note("begun")
        await asyncio.sleep(0.7)
        note("done")
        return "done"
"""


def ask(pool: ServedPool, what: str) -> object:
    async def once() -> object:
        async with connect(pool.address, timeout=10) as client:
            return await client.ask({"type": what}, timeout=10)

    return asyncio.run(once())


class Knocking:
    """Connects again and again; a listener that is not there would refuse."""

    def __init__(self, endpoint: tuple[str, int]) -> None:
        self._endpoint = endpoint
        self._over = False
        self.connects = 0
        self.refused: list[OSError] = []
        self._thread = threading.Thread(target=self._knock)
        self._thread.start()

    def _knock(self) -> None:
        while not self._over:
            try:
                socket.create_connection(self._endpoint, timeout=5).close()
                self.connects += 1
            except OSError as error:
                self.refused.append(error)

    def end(self) -> None:
        self._over = True
        self._thread.join()


@pytest.mark.parametrize("flags", [(), ("--no-warm-start",)], ids=["warm", "exec"])
def test_every_shard_is_replaced_by_the_present_code(serve: Serve, flags: tuple[str, ...]) -> None:
    """P-18, P-24: one after another, ready before the next; acceptors stay; nobody is counted as dead."""
    pool = serve(*flags)
    pool.up() if flags else pool.warm()
    before = pool.pids()
    assert ask(pool, "hello") == "hello"
    pool.write(NEW)
    answer = pool.command("restart", "--rolling")
    assert (answer.returncode, answer.stdout) == (0, "faults was restarted: 2 of 2 shards done\n"), answer.stderr
    after = pool.pids()
    assert after["acceptor-0"] == before["acceptor-0"]
    assert not {after["shard-0"], after["shard-1"]} & set(before.values())
    assert ask(pool, "hello") == "new"
    assert "was killed" not in pool.said()
    assert "ended with" not in pool.said()
    assert pool.stop() == 0


def test_code_that_cannot_be_imported_changes_nothing(serve: Serve) -> None:
    """P-18, O-2: named, with the remedy; the old code serves on, also after a death."""
    pool = serve().warm()
    before = pool.pids()
    pool.write("import nothing_of_this_name\n")
    answer = pool.command("restart", "--rolling")
    assert answer.returncode == ExitCode.REFUSED
    assert "nothing_of_this_name" in answer.stderr
    assert "nothing was changed" in answer.stderr
    assert pool.pids() == before
    assert ask(pool, "hello") == "hello"
    os.kill(before["shard-0"], signal.SIGKILL)
    pool.replaced("shard-0", before["shard-0"])
    assert ask(pool, "hello") == "hello"


def test_shard_that_does_not_come_back_ends_the_restart(serve: Serve) -> None:
    """P-18: the others are left alone, and whoever asked is told."""
    pool = serve().warm()
    before = pool.pids()
    pool.write(APP + "\n@app.on_start\ndef boot():\n    raise RuntimeError('no database')\n")
    answer = pool.command("restart", "--rolling")
    assert answer.returncode == ExitCode.REFUSED
    assert "shard 1 did not come back" in answer.stderr
    assert "no database" in answer.stderr
    assert pool.pids()["shard-1"] == before["shard-1"]


def test_suspended_turns_end_before_their_shard_leaves(serve: Serve) -> None:
    """P-18, P-29: a turn that runs is not cut, its client gets the answer; on_stop runs."""
    pool = serve(app=SUSPENDED).warm()

    async def during() -> list[object]:
        async with connect(pool.address, timeout=10) as one, connect(pool.address, timeout=10) as two:
            asks = [asyncio.ensure_future(each.ask({"type": "slow"}, timeout=10)) for each in (one, two)]
            story = pool.directory / "story"
            while not story.exists() or story.read_text().count("begun") < 2:
                await asyncio.sleep(0.01)
            command = await asyncio.create_subprocess_exec(
                *pool.command_line, "restart", "--rolling", env=pool.environ, stdout=subprocess.DEVNULL
            )
            answers = await asyncio.gather(*asks, return_exceptions=True)
            assert await command.wait() == 0, pool.said()
            return list(answers)

    assert asyncio.run(during()) == ["done", "done"]
    story = (pool.directory / "story").read_text().split("\n")
    assert story.count("done") == 2
    assert {"stop 0", "stop 1"} <= set(story)


def test_slow_boot_never_refuses_a_connect(serve: Serve) -> None:
    """P-16, P-18: replaced when ready, not after some time; also when acceptor and shard are killed meanwhile."""
    pool = serve(app=SLOW_BOOT).warm()
    knocking = Knocking(pool.endpoint)
    try:
        assert pool.command("restart", "--rolling").returncode == 0
        before = pool.pids()
        for who in ("shard-0", "acceptor-0"):
            os.kill(before[who], signal.SIGKILL)
            pool.replaced(who, before[who])
    finally:
        knocking.end()
    # A connection that the killed acceptor held is cut; one that waited in the backlog is not.
    assert [error for error in knocking.refused if isinstance(error, ConnectionRefusedError)] == []
    assert knocking.connects > 100


def test_restart_is_refused_by_name_while_something_else_is_done(serve: Serve) -> None:
    """P-18, O-2: one restart at a time; none while the pool is drained."""
    pool = serve(app=SLOW_BOOT).warm()
    first = subprocess.Popen([*pool.command_line, "restart", "--rolling"], env=pool.environ, stdout=subprocess.DEVNULL)
    wait_for(lambda: (pool.status()["restart"] or {}).get("running"), pool.said)
    second = pool.command("restart", "--rolling")
    assert second.returncode == ExitCode.REFUSED
    assert "a restart is under way" in second.stderr
    assert first.wait(60) == 0
    with socket.create_connection(pool.endpoint):
        wait_for(lambda: any(row["counters"].get("connections") for row in pool.status()["processes"]), pool.said)
        draining = subprocess.Popen([*pool.command_line, "drain"], env=pool.environ, stdout=subprocess.DEVNULL)
        wait_for(lambda: pool.status()["phase"] == "emptying", pool.said)
        third = pool.command("restart", "--rolling")
        assert third.returncode == ExitCode.REFUSED
        assert "the pool refused: the pool is being drained" in third.stderr
        assert pool.command("drain").returncode == ExitCode.REFUSED
    assert draining.wait(60) == 0
    assert pool.process.wait(10) == 0


def test_restart_needs_to_be_told_how(serve: Serve) -> None:
    """O-2: the only way there is has to be named."""
    answer = serve().up().command("restart")
    assert answer.returncode == ExitCode.USAGE
    assert "give --rolling" in answer.stderr


def test_stop_during_a_restart_stops(serve: Serve) -> None:
    """P-17, P-18: exit code 0, whatever the restart was at."""
    for delay in (0.05, 0.3, 0.6, 0.9, 1.3):
        pool = serve(app=SLOW_BOOT).warm()
        command = subprocess.Popen(
            [*pool.command_line, "restart", "--rolling"],
            env=pool.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda seen=pool: "restarting 2 shards" in seen.said(), pool.said)
        time.sleep(delay)  # the moment is the subject
        assert pool.stop() == 0, (delay, pool.said())
        command.wait(60)


def test_drained_pool_serves_those_who_are_there_and_nobody_else(serve: Serve) -> None:
    """P-17, P-29: no new client is accepted, the present ones are answered until they leave, exit code 0."""
    pool = serve().warm()

    async def stay() -> None:
        async with connect(pool.address, timeout=10) as client:
            command = await asyncio.create_subprocess_exec(
                *pool.command_line, "drain", env=pool.environ, stdout=subprocess.DEVNULL
            )
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(pool.endpoint, timeout=5).close()
                except ConnectionRefusedError:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError(f"it still accepts: {pool.said()}")
            for _ in range(10):
                assert await client.ask({"type": "hello"}, timeout=5) == "hello"
                await asyncio.sleep(0.05)
        assert await command.wait() == 0

    asyncio.run(stay())
    assert pool.process.wait(10) == 0


def test_clients_that_do_not_leave_are_sent_away(serve: Serve) -> None:
    """P-17: --timeout bounds the waiting."""
    pool = serve().up()
    with socket.create_connection(pool.endpoint):
        began = time.monotonic()
        assert pool.command("drain", "--timeout", "1").returncode == 0
        assert time.monotonic() - began < 15
    assert pool.process.wait(10) == 0


def test_acceptor_that_dies_while_the_pool_is_emptied_is_not_replaced(serve: Serve) -> None:
    """P-17: nobody could connect to it."""
    pool = serve().warm()
    with socket.create_connection(pool.endpoint):
        wait_for(lambda: any(row["counters"].get("connections") for row in pool.status()["processes"]), pool.said)
        command = subprocess.Popen([*pool.command_line, "drain"], env=pool.environ, stdout=subprocess.DEVNULL)
        wait_for(lambda: pool.status()["phase"] == "emptying", pool.said)
        psutil.Process(pool.pids()["acceptor-0"]).kill()
    assert command.wait(60) == 0
    assert pool.process.wait(10) == 0
