"""Tests of a real supervisor over fake workers: start, deaths, drain, and what is left after SIGKILL."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardpool.exit_codes import ExitCode

HARNESS = str(Path(__file__).with_name("supervisor_harness.py"))
FAST = {"workers": 2, "acceptors": 1, "stop_timeout": 1.0, "restart_period": 3.0}


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


class Pool:
    """One supervisor process and what can be seen of it."""

    def __init__(self, directory: Path, behaviour: dict[str, str], flags: dict[str, Any], prefix: list[str]) -> None:
        self.directory = directory
        self.prefix = prefix
        self.environ = {
            **os.environ,
            **behaviour,
            "FAKE_LOG": str(directory / "log"),
            "XDG_RUNTIME_DIR": str(directory),
        }
        # Files, not pipes: nobody has to read while the test waits for something else.
        self.out, self.err = directory / "out", directory / "err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, HARNESS, "demo", json.dumps({**FAST, **flags})],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def up(self) -> "Pool":
        wait_for(lambda: b"stop: Ctrl-C" in self.out.read_bytes(), f"start; said {self.err.read_bytes()!r}")
        return self

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "shardpool.supervisor.cli", *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def status(self) -> Any:
        answer = self.command("status", "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def pids(self) -> dict[str, int]:
        return {f"{row['role']}-{row['index']}": row["pid"] for row in self.status()["processes"]}

    def log(self) -> list[list[str]]:
        try:
            return [line.split() for line in (self.directory / "log").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def heard(self) -> list[tuple[str, str]]:
        return [(who, what) for who, _, what in self.log() if what != "started"]

    def said(self) -> str:
        return self.err.read_text()

    def end(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []
    # Not tmp_path: socket paths are short.
    directory = Path("/tmp") / f"sp-{os.getpid()}-{abs(hash(tmp_path)) % 100000}"
    directory.mkdir(mode=0o700)

    def begin(
        behaviour: dict[str, str] | None = None, flags: dict[str, Any] | None = None, prefix: list[str] | None = None
    ) -> Pool:
        pools.append(Pool(directory, behaviour or {}, flags or {}, prefix or []))
        return pools[-1]

    yield begin
    for pool in pools:
        pool.process.kill()
        pool.process.wait(10)
    # In a pid namespace of its own, a worker's pid says nothing here; the namespace ends with its first process.
    started = {int(pid) for pool in pools if not pool.prefix for _, pid, _ in pool.log()}
    wait_for(lambda: not alive(started), "all workers to die with their supervisor", 5)
    shutil.rmtree(directory)


def can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError:
            return False
    return True


def alive(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_pool_starts_shows_itself_and_drains_on_request(start: Callable[..., Pool]) -> None:
    """P-1, P-3, P-17, O-4: one line per address, titles, status from outside, drain in order, exit 0, nothing left."""
    pool = start().up()
    said = pool.out.read_text()
    status = pool.status()
    assert f"listening on {status['listeners'][0]['address']}" in said
    assert [row["state"] for row in status["processes"]] == ["ready"] * 3
    assert all(row["rss_bytes"] > 0 for row in status["processes"])
    titles = {" ".join(psutil.Process(pid).cmdline()).strip() for pid in pool.pids().values()}
    assert titles == {"shardpool: acceptor 1/1 [demo]", "shardpool: shard 1/2 [demo]", "shardpool: shard 2/2 [demo]"}
    assert "shard 2" in pool.command("status").stdout
    directory = Path(status["run_dir"])
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}
    answer = pool.command("stop")
    assert (answer.returncode, answer.stdout) == (0, "demo has stopped\n")
    assert pool.end() == ExitCode.OK
    assert sorted(pool.heard()[:1] + pool.heard()[-1:]) == [("acceptor-0", "Drain"), ("acceptor-0", "Stop")]
    shards = [what for who, what in pool.heard() if who.startswith("shard")]
    assert sorted(shards) == ["Drain", "Drain", "Stop", "Stop"]
    assert not directory.exists()
    assert pool.command("status").returncode == ExitCode.NOT_RUNNING


def test_killed_worker_comes_back_and_the_others_stay(start: Callable[..., Pool]) -> None:
    """P-4, P-15, P-16: one line says who, how and what next; the port never refuses meanwhile."""
    pool = start().up()
    before = pool.pids()
    address = pool.status()["listeners"][0]["address"].removeprefix("tcp://")
    host, port = address.split(":")
    for victim in ("shard-1", "acceptor-0"):
        os.kill(before[victim], signal.SIGKILL)
        socket.create_connection((host, int(port)), timeout=5).close()
        wait_for(lambda victim=victim: pool.pids()[victim] not in (0, before[victim]), f"{victim} to come back")
    wait_for(lambda: pool.said().count("serves again") == 2, "both to serve")
    after = pool.pids()
    assert after["shard-0"] == before["shard-0"]
    assert f"shard 2 (pid {before['shard-1']}) was killed by SIGKILL" in pool.said()
    assert "shard 2 is started again now" in pool.said()
    assert [row["restarts"] for row in pool.status()["processes"]] == [1, 0, 1]


def test_crash_loop_costs_its_place_and_not_the_pool(start: Callable[..., Pool]) -> None:
    """P-4: growing delay, then the breaker; few starts, few lines, the rest serves, status says so."""
    pool = start({"FAKE_SHARD_1": "crash"}, {"restart_period": 60.0}).up()
    wait_for(lambda: "shard 2 is given up" in pool.said(), "the breaker")
    rows = {row["index"]: row for row in pool.status()["processes"] if row["role"] == "shard"}
    assert (rows[0]["state"], rows[1]["state"]) == ("ready", "broken")
    assert len([line for line in pool.log() if line[0] == "shard-1"]) == 6
    assert ("acceptor-0", "Homes") in pool.heard()
    assert "shard 2 was given up" in pool.command("status").stdout
    assert len(pool.said()) < 10_000


def test_nobody_left_ends_the_pool_with_its_code(start: Callable[..., Pool]) -> None:
    """P-4, O-2: every shard crashes: the pool ends by itself, documented exit code."""
    pool = start({"FAKE_SHARD_0": "crash", "FAKE_SHARD_1": "crash"}, {"restart_period": 60.0})
    assert pool.end() == ExitCode.WORKERS
    assert "no shard is left" in pool.said()


def test_failure_at_start_is_one_line_and_the_workers_exit_code(start: Callable[..., Pool]) -> None:
    """O-2, P-4: the reason and the remedy once, no restart, nothing left."""
    pool = start({"FAKE_SHARD_0": "fail", "FAKE_SHARD_1": "fail"})
    assert pool.end() == ExitCode.APP
    assert pool.said().count("no module named 'arena': start where it is") == 1
    assert "Traceback" not in pool.said()
    assert len([line for line in pool.log() if line[2] == "started"]) <= 3


def test_slow_start_is_said_by_name(start: Callable[..., Pool]) -> None:
    """P-20: progress for anything that takes over a second."""
    pool = start({"FAKE_SHARD_1": "slow"}).up()
    assert "starting: waiting for shard 2" in pool.said()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains(start: Callable[..., Pool], number: int) -> None:
    """P-17: SIGTERM and SIGINT drain and exit 0."""
    pool = start().up()
    pool.process.send_signal(number)
    assert pool.end() == ExitCode.OK
    assert ("shard-0", "Drain") in pool.heard()


def test_signals_to_workers_are_left_to_the_supervisor(start: Callable[..., Pool]) -> None:
    """P-17: Ctrl-C or a service manager that signals the whole group: workers drain when told to, not before."""
    pool = start().up()
    pids = pool.pids()
    for pid in pids.values():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        # Handled, not ignored: what user code starts must not inherit it.
        status = Path(f"/proc/{pid}/status").read_text().split()
        ignored = int(status[status.index("SigIgn:") + 1], 16)
        assert not ignored & (1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1) | 1 << (signal.SIGHUP - 1))
    assert pool.pids() == pids
    assert pool.command("stop").returncode == 0
    assert pool.end() == ExitCode.OK


def test_drain_that_does_not_end_is_cut_at_its_deadline(start: Callable[..., Pool]) -> None:
    """P-17: stop --timeout bounds draining; workers that ignore everything are killed and the exit code says so."""
    pool = start({"FAKE_SHARD_0": "undrained", "FAKE_SHARD_1": "deaf"}).up()
    began = time.monotonic()
    answer = pool.command("stop", "--timeout", "1.5")
    assert answer.returncode == 0
    assert pool.end() == ExitCode.KILLED
    assert 1.4 < time.monotonic() - began < 8
    assert "draining: shard 1, shard 2 at work" in pool.said()
    assert "shard 2 (pid" in pool.said()
    assert "did not end in time: killed" in pool.said()


def test_second_signal_hastens(start: Callable[..., Pool]) -> None:
    """P-17: no waiting for drain_timeout after the second SIGTERM."""
    pool = start({"FAKE_ACCEPTOR_0": "undrained"}).up()
    pool.process.send_signal(signal.SIGTERM)
    wait_for(lambda: ("acceptor-0", "Drain") in pool.heard(), "drain")
    began = time.monotonic()
    pool.process.send_signal(signal.SIGTERM)
    assert pool.end() == ExitCode.OK
    assert time.monotonic() - began < 5


def test_nothing_is_left_after_sigkill_and_the_next_start_works(start: Callable[..., Pool]) -> None:
    """M-17, P-1: kill -9 of the supervisor: all children gone within 2 s, port free, no name in /dev/shm."""
    names = set(os.listdir("/dev/shm"))
    pool = start().up()
    workers = set(pool.pids().values())
    address = pool.status()["listeners"][0]["address"].removeprefix("tcp://")
    host, port = address.split(":")
    pool.process.kill()
    pool.end()
    wait_for(lambda: not alive(workers), "workers to die", 2.0)
    assert set(os.listdir("/dev/shm")) <= names
    # A killed process is a zombie while its last thread still lets go of the descriptors.
    wait_for(lambda: can_bind(host, int(port)), "the port", 2.0)
    assert pool.command("status").returncode == ExitCode.NOT_RUNNING
    assert (pool.directory / "shardpool" / "demo" / "local.sock").exists()
    again = start().up()
    assert [row["state"] for row in again.status()["processes"]] == ["ready"] * 3


def test_sigkill_while_starting_leaves_nothing(start: Callable[..., Pool]) -> None:
    """M-17: also between exec and the worker's own death signal: it looks whether its parent still lives."""
    pool = start({"FAKE_SHARD_0": "slow"})
    wait_for(lambda: pool.log() or psutil.Process(pool.process.pid).children(), "first worker")
    workers = {child.pid for child in psutil.Process(pool.process.pid).children()}
    pool.process.kill()
    pool.end()
    wait_for(lambda: not alive(workers), "workers to die", 2.0)


def test_second_pool_of_the_name_is_refused(start: Callable[..., Pool]) -> None:
    """O-2: the line names pid and directory."""
    pool = start().up()
    from_other = start()
    from_other.end()
    assert f"already running (pid {pool.process.pid}" in from_other.said()
    assert [row["state"] for row in pool.status()["processes"]] == ["ready"] * 3


def test_pin_binds_shards_to_cpus(start: Callable[..., Pool]) -> None:
    """P-5: each shard to one CPU, acceptors to none."""
    pool = start(flags={"pin": True}).up()
    cpus = sorted(os.sched_getaffinity(0))
    pids = pool.pids()
    for index in (0, 1):
        assert os.sched_getaffinity(pids[f"shard-{index}"]) == {cpus[index % len(cpus)]}
    assert os.sched_getaffinity(pids["acceptor-0"]) == set(cpus)


def test_idle_supervisor_costs_nothing(start: Callable[..., Pool]) -> None:
    """P-2: it sleeps in one poll."""
    pool = start().up()
    process = psutil.Process(pool.process.pid)
    before = process.cpu_times()
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > 3, "three seconds", 5)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.06
    # The interpreter's own thread; ZeroMQ's two do not run Python.
    assert process.num_threads() <= 3


def test_stop_of_a_frozen_pool_says_what_to_do(start: Callable[..., Pool]) -> None:
    """O-2: a supervisor that does not answer is named, with the remedy."""
    pool = start().up()
    pool.process.send_signal(signal.SIGSTOP)
    try:
        answer = pool.command("status", "--timeout", "0.5")
        assert answer.returncode == ExitCode.NO_ANSWER
        assert f"kill -9 {pool.process.pid}" in answer.stderr
    finally:
        pool.process.send_signal(signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")
def test_pid_one_reaps_orphans_and_drains(start: Callable[..., Pool]) -> None:
    """P-17: as PID 1 of a container: orphans leave no zombies, SIGTERM drains."""
    pool = start(prefix=["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]).up()
    [supervisor] = psutil.Process(pool.process.pid).children()
    orphans = subprocess.run(
        [
            "nsenter", "--target", str(supervisor.pid), "--pid", "--mount", "sh", "-c",
            "for i in 1 2 3 4 5; do (sleep 0.2 &) ; done",
        ],
        check=True,
        timeout=10,
    )  # fmt: skip
    assert orphans.returncode == 0

    def zombies() -> list[psutil.Process]:
        return [child for child in supervisor.children() if child.status() == psutil.STATUS_ZOMBIE]

    wait_for(lambda: len(supervisor.children()) == 3 and not zombies(), "orphans to be reaped", 5)
    supervisor.send_signal(signal.SIGTERM)
    assert pool.end() == 0
    assert ("shard-0", "Drain") in pool.heard()


def test_service_manager_learns_ready_and_stopping(start: Callable[..., Pool], tmp_path: Path) -> None:
    """P-17: sd_notify when the pool serves and when it drains."""
    path = f"/tmp/sp-notify-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(20)
        try:
            pool = start({"NOTIFY_SOCKET": path})
            assert manager.recv(200).startswith(b"READY=1\n")
            pool.process.send_signal(signal.SIGTERM)
            assert manager.recv(200).startswith(b"STOPPING=1\n")
            assert pool.end() == 0
        finally:
            os.unlink(path)


def test_stalled_shard_is_reported_with_its_stack(start: Callable[..., Pool]) -> None:
    """P-4, O-4, O-8: from outside the shard, once; status shows in which object since when, and the shard lives on."""
    pool = start({"FAKE_STALL": "1"}, {"stall_after": 0.5}).up()
    shard = pool.pids()["shard-0"]
    wait_for(lambda: 'supervisor_fake_worker.py", line' in pool.said(), "the stack")
    assert f"shard 1 (pid {shard}) has been in one handler (object slot 17)" in pool.said()
    [row] = [row for row in pool.status()["processes"] if row["pid"] == shard]
    assert row["running"]["slot"] == 17
    assert "shard 1 has been in one handler for" in pool.command("status").stdout
    assert pool.pids()["shard-0"] == shard
    assert pool.said().count("has been in one handler") == 1


def test_stalled_shard_is_restarted_by_policy(start: Callable[..., Pool]) -> None:
    """P-4: killed and started again, where the operator wants that."""
    pool = start({"FAKE_STALL": "1"}, {"stall_after": 1.0, "stall_policy": "restart"}).up()
    wait_for(lambda: "shard 1 is started again now" in pool.said(), "the restart")
    assert "killed" in pool.said()
