"""Tests of `shardpool serve` with real workers, as an operator uses it: look, call, stop, drop privileges."""

import asyncio
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardpool.client import connect
from shardpool.exit_codes import ExitCode

APP = """\
import time

from msgspec import Struct
from shardpool import Actor, App, on

app = App("stuck")


class Spin(Struct, tag="spin"):
    seconds: float


@app.actor
class Player(Actor):
    @on
    def hello(self) -> str:
        return "hello"

    @on
    def spin(self, msg: Spin) -> str:
        end = time.monotonic() + msg.seconds
        while time.monotonic() < end:
            pass
        return "done"
"""


class Served:
    """One `shardpool serve` with everything of it in one directory."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        # Not the working directory: a directory named shardpool there would hide the package.
        self.environ = {**os.environ, "XDG_RUNTIME_DIR": str(directory / "run")}
        self.out, self.err = directory / "out", directory / "err"
        command = ["serve", "stuck:app", "--bind", "tcp://127.0.0.1:0", "--workers", "2", *flags]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shardpool.supervisor.cli", *command],
                cwd=directory,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.wait_for(lambda: "stop: Ctrl-C" in self.out.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.err.read_text()
        found = re.search(r"listening on (tcp://\S+)", self.out.read_text())
        assert found is not None
        self.address = found[1]

    def wait_for(self, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < deadline, self.err.read_text()
            time.sleep(0.02)
        return result

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "shardpool.supervisor.cli", *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def processes(self) -> list[dict[str, Any]]:
        answer = self.command("status", "--json")
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, Any]] = json.loads(answer.stdout)["processes"]
        return found


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    directory = Path(f"/tmp/sp-serve-{os.getpid()}")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    (directory / "run").mkdir(mode=0o700)
    (directory / "stuck.py").write_text(APP)
    started: list[Served] = []

    def begin(*flags: str) -> Served:
        started.append(Served(directory, *flags))
        return started[-1]

    yield begin
    for served in started:
        served.process.kill()
        served.process.wait(10)
    shutil.rmtree(directory)


async def ask(address: str, message: dict[str, Any]) -> Any:
    async with connect(address) as client:
        return await client.ask(message)


def test_status_answers_while_a_shard_is_stuck(serve: Callable[..., Served]) -> None:
    """O-4, O-8, P-4: it shows in which object since when; the log has the stack; the shard lives on and answers."""
    served = serve("--stall-after", "0.5")

    async def look() -> str:
        async with connect(served.address) as client:
            asked = asyncio.ensure_future(client.ask({"type": "spin", "seconds": 4.0}))
            while "in spin" not in served.err.read_text():
                assert not asked.done(), served.err.read_text()
                await asyncio.sleep(0.05)
            shown = served.command("status").stdout
            assert await asked == "done"
            return shown

    assert re.search(r"shard \d has been in one handler for \d", asyncio.run(look()))
    assert [row["restarts"] for row in served.processes()] == [0, 0, 0]


def test_the_books_of_a_working_pool_balance(serve: Callable[..., Served]) -> None:
    """O-14, P-20: `audit` judges every shard, under load and afterwards, and holds none up for long."""
    served = serve()

    async def work() -> list[Any]:
        clients = [await connect(served.address) for _ in range(8)]
        audits: list[Any] = []

        async def talk(client: Any) -> None:
            while len(audits) < 3:
                assert await client.ask({"type": "hello"}) == "hello"

        async def look() -> None:
            for _ in range(3):
                answer = await asyncio.to_thread(served.command, "audit", "--pause", "--json")
                assert answer.returncode == ExitCode.OK, answer.stdout
                audits.append(json.loads(answer.stdout))

        await asyncio.gather(look(), *(talk(client) for client in clients))
        for client in clients:
            await client.close()
        return audits

    for shards in asyncio.run(work()):
        assert [shard["judged"] for shard in shards] == [True, True]
    assert sum(shard["books"]["handled"] for shard in shards) > 0
    assert "balance" in served.command("audit").stdout


def test_sigterm_with_idle_clients_ends_at_once(serve: Callable[..., Served]) -> None:
    """P-17: clients that do nothing do not hold a drain up; exit 0 long before drain_timeout."""
    served = serve()

    async def drain() -> float:
        clients = [await connect(served.address) for _ in range(50)]
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(served.process.wait, 25)
        for client in clients:
            await client.close()
        assert code == ExitCode.OK, served.err.read_text()
        return time.monotonic() - began

    assert asyncio.run(drain()) < 10


def test_killed_shard_serves_new_clients_again(serve: Callable[..., Served]) -> None:
    """P-4, P-15: within a second or so of kill -9, sessions whose home it is are served."""
    served = serve()
    victim = next(row for row in served.processes() if row["role"] == "shard")
    os.kill(victim["pid"], signal.SIGKILL)
    served.wait_for(lambda: "serves again" in served.err.read_text(), 5)
    for _ in range(4):
        assert asyncio.run(ask(served.address, {"type": "hello"})) == "hello"


def test_sigkill_of_the_supervisor_leaves_nothing(serve: Callable[..., Served]) -> None:
    """M-17, P-1: real workers die with it; the next start takes the directory over."""
    served = serve()
    workers = [psutil.Process(row["pid"]) for row in served.processes()]
    served.process.kill()
    served.process.wait(10)
    gone = served.wait_for(
        lambda: all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in workers), 2.0
    )
    assert gone
    assert asyncio.run(ask(serve().address, {"type": "hello"})) == "hello"


def test_call_of_an_unknown_object_is_refused_with_its_own_code(serve: Callable[..., Served]) -> None:
    """P-20, P-27: one line with the kind, exit code 11."""
    served = serve()
    answer = served.command("call", "Player", "nobody", "hello")
    assert answer.returncode == ExitCode.REFUSED, answer.stderr
    assert answer.stderr.startswith("shardpool: Player 'nobody' 'hello': NotFound: ")


def runs_as_nobody() -> bool:
    """Whether that user can reach this interpreter at all."""
    command = [sys.executable, "-c", "import shardpool._core"]
    try:
        return subprocess.run(command, user="nobody", capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(os.geteuid() != 0 or not runs_as_nobody(), reason="needs root, and Python where nobody can run it")
def test_user_is_dropped_to_before_user_code_runs(serve: Callable[..., Served]) -> None:
    """P-31: supervisor and workers run as the user; its files are its own."""
    directory = Path(f"/tmp/sp-serve-{os.getpid()}")
    nobody = pwd.getpwnam("nobody")
    for path in (directory, directory / "run", directory / "stuck.py"):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    served = serve("--user", "nobody")
    pids = [row["pid"] for row in served.processes()] + [served.process.pid]
    assert {psutil.Process(pid).uids() for pid in pids} == {(nobody.pw_uid,) * 3}
    assert asyncio.run(ask(served.address, {"type": "hello"})) == "hello"


@pytest.mark.skipif(os.geteuid() != 0 or runs_as_nobody(), reason="needs root, and Python where nobody cannot run it")
def test_user_that_cannot_run_python_is_told_so(serve: Callable[..., Served]) -> None:
    """O-2, P-31: one line with the remedy."""
    with pytest.raises(AssertionError, match=r"as uid .*: Permission denied: install Python and the app where"):
        serve("--user", "nobody")
