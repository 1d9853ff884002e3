"""A real shard process: its start, its drain, its end, and every way in which it cannot start."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardpool import _core
from shardpool.control import Drain, Drained, Failed, Ready, Register, Stop
from shardpool.exit_codes import ExitCode

sys.path.insert(0, str(Path(__file__).parent))
from shard_process import ShardProcess

APP = """
import asyncio, pathlib
from shardpool import Actor, App, Session, Spot, on

app = App("test")
here = pathlib.Path(__file__).parent

def note(text):
    with open(here / "story", "a") as file:
        file.write(text + "\\n")

@app.on_start
async def start(shard):
    await asyncio.sleep(0)
    note(f"start {shard}")

@app.on_stop
def stop():
    note("stop")

@app.session
class Door(Session):
    def on_disconnect(self, reason):
        note(f"session {reason}")

@app.actor
class Player(Actor):
    def on_disconnect(self, reason):
        note(f"actor {reason}")

    def on_close(self, reason):
        note(f"close {reason}")

    @on
    def echo(self):
        return "echo"

    @on
    async def slow(self):
        await asyncio.sleep(0.3)
        note("slow done")
        return "slow"
"""

Start = Callable[..., ShardProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ShardProcess] = []

    def begin(module: str = APP, spec: str = "thing:app", **settings: Any) -> ShardProcess:
        (tmp_path / "thing.py").write_text(module)
        started.append(ShardProcess(tmp_path, spec, **settings))
        return started[-1]

    yield begin
    for shard in started:
        shard.close()


def story(tmp_path: Path) -> list[str]:
    return (tmp_path / "story").read_text().splitlines()


def bind(shard: ShardProcess) -> tuple[int, int]:
    """Attach a session. Returns: addresses of its actor and its slot."""
    shard.post(1 << 32, _core.KIND_ATTACH, 8, 1 << 32, b'{"v":1}')
    _, _, _, _, actor, payload = shard.record(_core.KIND_BOUND)
    return actor, int.from_bytes(payload, "little")


def test_registers_serves_and_has_a_title(start: Start, tmp_path: Path) -> None:
    """P-1, P-3, P-7, T-39: Register first, on_start before Ready, then sessions and messages."""
    shard = start()
    assert shard.expect(Register) == Register("shard", 0, shard.process.pid)
    shard.expect(Ready)
    assert story(tmp_path) == ["start 0"]
    assert "shardpool: shard 1/1 [test]" in " ".join(psutil.Process(shard.process.pid).cmdline())
    actor, _ = bind(shard)
    shard.frame(actor, {"type": "echo"}, _core.FLAG_ASK)
    assert json.loads(shard.record(_core.KIND_REPLY)[-1]) == "echo"


def test_parked_shard_uses_no_cpu(start: Start) -> None:
    """M-12: asleep on its doorbell, awake at once when rung."""
    shard = start()
    shard.expect(Ready)
    actor, _ = bind(shard)
    process = psutil.Process(shard.process.pid)
    shard.until(lambda: shard.acceptor.counters(2)["parked"] != 0, "parking")
    before = process.cpu_times()
    process.cpu_percent(0.5)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.03
    shard.frame(actor, {"type": "echo"}, _core.FLAG_ASK)
    shard.record(_core.KIND_REPLY)


def test_drain_waits_for_suspended_turns_and_stop_ends_sessions(start: Start, tmp_path: Path) -> None:
    """P-17, P-11, T-39: what is queued and suspended ends, then on_disconnect once, on_close, on_stop, exit 0."""
    shard = start()
    shard.expect(Ready)
    actor, _ = bind(shard)
    shard.frame(actor, {"type": "slow"}, _core.FLAG_ASK)
    shard.frame(actor, {"type": "echo"}, _core.FLAG_ASK)
    shard.tell(Drain(10.0))
    shard.expect(Drained)
    assert story(tmp_path) == ["start 0", "slow done"]
    shard.tell(Stop())
    assert shard.process.wait(10) == 0
    assert story(tmp_path)[2:] == ["session going_away", "actor going_away", "close disconnected", "stop"]


def test_stop_without_drain_is_quick(start: Start, tmp_path: Path) -> None:
    """P-17: a turn that never ends does not keep the shard from ending."""
    shard = start(APP.replace("asyncio.sleep(0.3)", "asyncio.sleep(3600)"), stop_timeout=0.5)
    shard.expect(Ready)
    actor, _ = bind(shard)
    shard.frame(actor, {"type": "slow"}, _core.FLAG_ASK)
    shard.tell(Stop())
    assert shard.process.wait(10) == 0
    assert "session going_away" in story(tmp_path)


def test_nothing_runs_once_the_shard_has_ended(start: Start, tmp_path: Path) -> None:
    """P-17, T-39: on_stop is the last of all, also where a drain was cut short by a turn that never ends."""
    module = APP.replace("asyncio.sleep(0.3)", "asyncio.sleep(3600)").replace('return "echo"', 'note("echo")')
    shard = start(module, stop_timeout=0.5)
    shard.expect(Ready)
    actor, _ = bind(shard)
    shard.frame(actor, {"type": "slow"})
    shard.frame(actor, {"type": "echo"})
    shard.tell(Drain(10.0))
    shard.tell(Stop())
    assert shard.process.wait(10) == 0
    assert "echo" not in story(tmp_path)
    assert "Traceback" not in shard.err.read_text()


def test_signals_are_the_supervisors_business(start: Start) -> None:
    """P-17: Ctrl-C and a group's SIGTERM reach it and change nothing."""
    shard = start()
    shard.expect(Ready)
    shard.process.send_signal(signal.SIGINT)
    shard.process.send_signal(signal.SIGTERM)
    actor, _ = bind(shard)
    shard.frame(actor, {"type": "echo"}, _core.FLAG_ASK)
    shard.record(_core.KIND_REPLY)


@pytest.mark.parametrize(
    ("module", "spec", "reason"),
    [
        ("x = 1 / 0", "thing:app", "ZeroDivisionError at import"),
        (APP, "thing:apq", "no attribute 'apq'"),
        (APP, "nothing:app", "no module 'nothing'"),
        (APP.replace("await asyncio.sleep(0)", "raise OSError('no database')"), "thing:app", "OSError: no database"),
    ],
)
def test_app_that_cannot_run_is_reported_with_a_remedy(start: Start, module: str, spec: str, reason: str) -> None:
    """O-2, P-4: Failed with reason, remedy and exit code: a restart would not help."""
    shard = start(module, spec)
    failed = shard.expect(Failed)
    assert reason in failed.reason
    assert failed.remedy
    assert failed.exit_code == ExitCode.APP
    assert shard.process.wait(10) == ExitCode.APP


def test_dies_with_its_supervisor(tmp_path: Path) -> None:
    """M-17: no shard outlives the process that started it."""
    code = (
        "import sys, pathlib, os\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from shard_process import ShardProcess\n"
        "from shardpool.control import Ready\n"
        "shard = ShardProcess(pathlib.Path.cwd(), 'thing:app')\n"
        "shard.expect(Ready)\n"
        "print(shard.process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "thing.py").write_text(APP)
    done = psutil.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=-1)
    out, _ = done.communicate(timeout=30)
    pid = int(out)
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        return
