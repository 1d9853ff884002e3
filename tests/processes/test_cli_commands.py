"""Tests of the command line as a user meets it: help, one line and an exit code for each mistake."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardpool.exit_codes import ExitCode

GOOD = """\
from shardpool.actor import Actor
from shardpool.app import App
from shardpool.handlers import on

app = App("good")


@app.actor
class Player(Actor):
    @on
    def hello(self) -> str:
        return "hello"
"""
COMMANDS = ("serve", "check", "status", "audit", "stop")


def shardpool(*arguments: str, cwd: Path | None = None, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "shardpool.supervisor.cli", *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "raising.py").write_text("import json\njson.loads('{')\n")
    (tmp_path / "broken.py").write_text("def broken(:\n")
    (tmp_path / "empty.py").write_text("app = 3\nprint('noise on stdout')\n")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "exits.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "crashes.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


def test_help_has_examples() -> None:
    """P-20: --help with examples everywhere."""
    text = shardpool("--help").stdout
    for command in (*COMMANDS, "call", "bench"):
        assert f"    {command}" in text
    for command in COMMANDS:
        answer = shardpool(command, "--help")
        assert answer.returncode == 0
        assert f"examples:\n  shardpool {command}" in answer.stdout
    assert shardpool("--version").stdout.startswith("shardpool ")
    assert shardpool().returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["serve"], ExitCode.USAGE, "MODULE:APP"),
        (["sevre", "good:app"], ExitCode.USAGE, "serve"),
        (["serve", "good:app", "--wrokers", "2"], ExitCode.USAGE, "did you mean --workers?"),
        (["status", "--jsno"], ExitCode.USAGE, "did you mean --json?"),
        (["serve", "good.py"], ExitCode.USAGE, "name the module, not the file: good:app"),
        (["serve", "good:app", "--workers", "0"], ExitCode.CONFIG, "workers = 0 is out of range"),
        (["serve", "good:app", "--bind", "htp://x:1"], ExitCode.CONFIG, "htp is no transport"),
        (["serve", "good:app", "--bind", "tcp://h:1", "--bind", "ws://h:1"], ExitCode.CONFIG, "the same port"),
        (["serve", "good:app", "--config", "none.toml"], ExitCode.CONFIG, "No such file"),
        (["serve", "good:app", "--user", "nobody-at-all"], ExitCode.CONFIG, "does not exist"),
        (["serve", "good:app", "--bind", "wss://127.0.0.1:0"], ExitCode.CONFIG, "needs a certificate"),
        (["serve", "good:app", "--bind", "tcp://203.0.113.7:7000"], ExitCode.PORT, "no such address"),
        (["serve", "nosuch:app"], ExitCode.APP, "nosuch"),
        (["serve", "raising:app"], ExitCode.APP, "raising"),
        (["serve", "broken:app"], ExitCode.APP, "broken"),
        (["serve", "good:ap"], ExitCode.APP, "app"),
        (["serve", "empty:app"], ExitCode.APP, "empty"),
        (["check", "nosuch:app"], ExitCode.APP, "nosuch"),
        (["serve", "exits:app"], ExitCode.APP, "the process that imports it ended with exit code 9"),
        (["serve", "crashes:app"], ExitCode.APP, "the process that imports it was killed by SIGSEGV"),
        (["serve", "../good.py:other"], ExitCode.USAGE, "name the module, not the file: good:other"),
        (["serve", "go od:app"], ExitCode.USAGE, "as in arena:app"),
        (
            ["serve", "good:app", "--static-dir", "/nonexistent"],
            ExitCode.CONFIG,
            "static_dir /nonexistent does not exist",
        ),
        (["serve", "good:app", "--static-dir", "good.py"], ExitCode.CONFIG, "static_dir good.py is no directory"),
        (["serve", "slow:app", "--import-timeout", "0.5"], ExitCode.APP, "took more than 0.5 s"),
        (["status", "--name", "nobody"], ExitCode.NOT_RUNNING, 'no pool named "nobody" is running'),
        (["stop", "--run-dir", "/nonexistent"], ExitCode.NOT_RUNNING, "no pool runs in /nonexistent"),
        (["stop", "--timeout", "-1"], ExitCode.USAGE, "--timeout -1 is out of range"),
    ],
)
def test_mistake_is_one_line_with_its_exit_code(apps: Path, arguments: list[str], code: ExitCode, part: str) -> None:
    """O-2, P-20: what was asked, what was found, what to do; no traceback; documented exit code."""
    answer = shardpool(*arguments, cwd=apps, XDG_RUNTIME_DIR=str(apps / "run"))
    assert answer.returncode == code, answer.stderr
    assert part in answer.stderr
    assert "Traceback" not in answer.stderr


def test_unknown_variable_is_refused(apps: Path) -> None:
    """P-20: the environment too."""
    answer = shardpool("check", "good:app", cwd=apps, SHARDPOOL_BNID="tcp://127.0.0.1:1")
    assert answer.returncode == ExitCode.CONFIG
    assert "did you mean SHARDPOOL_BIND?" in answer.stderr


def test_taken_port_is_refused_before_anything_starts(apps: Path) -> None:
    """O-2: port taken: one line, the remedy, exit code 4."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = shardpool("serve", "good:app", "--bind", f"tcp://127.0.0.1:{port}", cwd=apps)
    assert answer.returncode == ExitCode.PORT
    assert f"cannot listen on tcp://127.0.0.1:{port}: Address already in use" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("limit", [10, 20, 30, 40])
def test_too_few_descriptors_are_refused_in_words(apps: Path, limit: int) -> None:
    """O-2, P-12: how many it needs and how to raise the limit; neither traceback nor half a start."""
    command = f"ulimit -n {limit}; exec {sys.executable} -m shardpool.supervisor.cli serve good:app --workers 1"
    answer = subprocess.run(
        ["bash", "-c", command], cwd=apps, env={**os.environ, "XDG_RUNTIME_DIR": str(apps / "run")},
        capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert answer.returncode == ExitCode.CONFIG, answer.stderr
    assert f"and {limit} are permitted" in answer.stderr
    assert "ulimit -n" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_check_says_what_would_run(apps: Path) -> None:
    """P-20: check validates app and configuration and exits."""
    (apps / "pool.toml").write_text('workers = 3\nbind = ["tcp://127.0.0.1:7000"]\n')
    answer = shardpool("check", "good:app", "--config", "pool.toml", cwd=apps)
    assert answer.returncode == 0, answer.stderr
    assert "'good'" in answer.stdout
    assert "workers = 3, acceptors = 1, bind = tcp://127.0.0.1:7000" in answer.stdout


def test_ctrl_c_while_the_app_is_imported_leaves_nothing(apps: Path) -> None:
    """P-17, M-17: interrupted or killed during the import, the importing child goes too."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-m", "shardpool.supervisor.cli", "check", "slow:app"], cwd=apps, stderr=subprocess.PIPE
        ) as process:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            deadline = time.monotonic() + 20
            while not (child := children.read_text().strip()):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            # Past fork and exec: it imports.
            while b"slow:app" not in Path(f"/proc/{child}/cmdline").read_bytes():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(10) == (ExitCode.INTERRUPTED if number == signal.SIGINT else -signal.SIGKILL)
            assert b"Traceback" not in (process.stderr.read() if process.stderr else b"")
        while os.path.exists(f"/proc/{child}") and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_affinity_limits_the_workers(apps: Path) -> None:
    """P-1: shards by default are the CPUs that this process may use."""
    one = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(one), sys.executable, "-m", "shardpool.supervisor.cli", "check", "good:app"]
    answer = subprocess.run(command, cwd=apps, capture_output=True, text=True, timeout=40, check=True)
    assert "workers = 1, acceptors = 1" in answer.stdout


CPU_GROUPS = Path("/sys/fs/cgroup/cpu")


@pytest.mark.skipif(not os.access(CPU_GROUPS / "cpu.cfs_quota_us", os.F_OK), reason="needs cgroup v1 as root")
@pytest.mark.skipif(os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2, reason="needs root and two CPUs")
def test_cgroup_quota_limits_the_workers(apps: Path) -> None:
    """P-1: a quota of one CPU gives one shard, whatever the machine has."""
    group = CPU_GROUPS / f"shardpool-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("150000")
        script = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -m shardpool.supervisor.cli check good:app"
        answer = subprocess.run(["sh", "-c", script], cwd=apps, capture_output=True, text=True, timeout=40, check=True)
        assert "workers = 1, acceptors = 1" in answer.stdout
    finally:
        group.rmdir()
