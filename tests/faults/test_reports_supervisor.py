"""What other servers' users reported of their supervisors, as tests of this one, with real processes.

Each docstring says where it happened and what. SHARDPOOL_LONG=1 repeats some of it more often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from served_pool import APP, ServedPool, alive, wait_for

from shardpool.client import Client, connect
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.child import Process

Serve = Callable[..., ServedPool]

LONG = os.environ.get("SHARDPOOL_LONG") == "1"
SUPERVISOR_KILLS = 100 if LONG else 5
BROKEN = "def this is no Python\n"

FRAIL = (
    APP
    + """
import os

@app.on_start
def boot(shard):
    if shard == 0 and os.path.exists("frail"):
        raise RuntimeError("no database")
"""
)

TICKING = """\
import os
from shardpool import Actor, App, every, on

app = App("faults")
ticks = os.open("ticks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.actor
class Player(Actor):
    @on
    def hello(self) -> str:
        return "hello"

    @every(0.1)
    def tick(self) -> None:
        os.write(ticks, b".")
"""

ORPHANING = (
    APP
    + """
import subprocess

@app.on_start
def boot(shard):
    subprocess.run(["sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.2 &) ; done"], check=True)
"""
)

STUCK = """\
import time
from shardpool import Actor, App, on

app = App("faults")


def forever():
    while True:
        time.sleep(0.01)


@app.actor
class Player(Actor):
    @on
    def hello(self) -> str:
        return "hello"

    @on
    def hang(self) -> None:
        forever()
"""


async def while_asking(pool: ServedPool, act: Callable[[Client], Coroutine[Any, Any, None]]) -> int:
    """Ask one thing after another while something is done to the pool; every ask is answered. Returns: how many."""
    async with connect(pool.address, timeout=10) as client:
        doing = asyncio.ensure_future(act(client))
        asked = 0
        while not doing.done():
            assert await client.ask({"type": "hello"}, timeout=10) == "hello"
            asked += 1
        await doing
        return asked


def is_free(port: int) -> bool:
    """Whether a server could have the port."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def signal_all(pids: set[int], *numbers: signal.Signals) -> None:
    """Whoever still lives."""
    for pid in pids:
        for number in numbers:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def test_storm_of_hangups_changes_nothing(serve: Serve) -> None:
    """P-18, O-2: SIGHUP with broken new code killed the old workers first (gunicorn#2443); one SIGHUP became several
    SIGTERMs for each worker, and the second hit while its interpreter ended (gunicorn#3274).

    This version does not reload: every worker stays, every ask is answered, the log says so and stays short.
    """
    pool = serve().warm()
    before = pool.pids()
    pool.write(BROKEN)

    async def storm(_: Client) -> None:
        for _round in range(20):
            pool.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.05)  # the pace of the report

    assert asyncio.run(while_asking(pool, storm)) > 20
    assert pool.pids() == before
    lines = [line for line in pool.said().splitlines() if "SIGHUP" in line]
    assert 1 <= len(lines) <= 20
    assert "nothing was changed" in lines[0]
    assert pool.stop() == 0


def test_hangup_storm_during_a_rolling_restart_disturbs_nobody(serve: Serve) -> None:
    """P-18: every old shard is told once and leaves with exit code 0 (gunicorn#3274), broken code or not."""
    pool = serve().warm()
    command = subprocess.Popen(
        [*pool.command_line, "restart", "--rolling"], env=pool.environ, stdout=subprocess.DEVNULL
    )
    while command.poll() is None:
        # A service manager that means the whole group; the supervisor gets what it does not stop for.
        signal_all({pool.process.pid}, signal.SIGHUP)
        signal_all(pool.everybody(), signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
        time.sleep(0.002)  # the storm's pace
    assert command.returncode == 0, pool.said()
    assert "was killed" not in pool.said()
    assert "ended with" not in pool.said()
    assert pool.stop() == 0


@pytest.mark.parametrize("pause", [0.0, 0.002, 0.02])
def test_storm_of_sigterm_ends_with_an_exit_code(serve: Serve, pause: float) -> None:
    """P-17, O-2: a second SIGTERM that hit while the interpreter ended made a death by signal of an orderly end
    (gunicorn#3274): to the whole tree, until nobody is left, the exit code is a documented one.
    """
    pool = serve().warm()
    everybody = pool.everybody()
    while pool.process.poll() is None:
        signal_all({pool.process.pid, *everybody}, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        time.sleep(pause)  # the storm's pace
    assert pool.process.returncode in (ExitCode.OK, ExitCode.KILLED), pool.said()
    assert "SIGTERM" not in re.sub(r"SIGTERM: (draining|stopping)", "", pool.said())
    assert "Traceback" not in pool.said()
    assert not alive(everybody)
    assert serve().up().stop() == 0


def test_whoever_got_a_dead_workers_pid_is_left_alone() -> None:
    """P-4: the supervisor signalled a pid that was reaped and given to somebody else (gunicorn#371, circus#1171)."""
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    if os.geteuid() != 0 or not os.access(last_pid, os.W_OK):
        pytest.skip("needs to choose pids: root, and a kernel with checkpoints")
    for _ in range(50):
        worker = subprocess.Popen(["sleep", "600"])
        watched = Process(worker.pid, os.pidfd_open(worker.pid))
        worker.kill()
        worker.wait(10)
        last_pid.write_text(str(worker.pid - 1))
        bystander = subprocess.Popen(["sleep", "600"])
        try:
            watched.kill(signal.SIGKILL)
            assert bystander.poll() is None
        finally:
            watched.abandon()
            bystander.kill()
            bystander.wait(10)
        if bystander.pid == worker.pid:
            return
    pytest.skip("other processes took the pids first")


def test_shard_that_fails_at_every_start_is_given_up(serve: Serve) -> None:
    """P-4: a worker that failed at start was started again for ever, at full speed, until the disk was full of logs,
    and the master looked healthy (gunicorn#2504, uvicorn#2987): few starts, little log, status says so, others serve.
    """
    pool = serve(app=FRAIL).warm()
    (pool.directory / "frail").touch()
    os.kill(pool.pids()["shard-0"], signal.SIGKILL)
    wait_for(lambda: "shard 1 is given up" in pool.said(), pool.said, 60.0)
    assert pool.said().count("shard 1 is started again") <= 10
    assert len(pool.said()) < 100_000
    assert "no database" in pool.said()
    shards = [row for row in pool.status()["processes"] if row["role"] == "shard"]
    assert [row["state"] for row in shards] == ["broken", "ready"]
    shown = pool.command("status").stdout
    assert "shard 1 was given up after repeated deaths" in shown
    assert "shard 1: its last process ended with exit code 5" in shown
    asyncio.run(while_asking(pool, lambda _: asyncio.sleep(0.1)))  # new sessions go to those who serve
    (pool.directory / "frail").unlink()
    answer = pool.command("restart", "--rolling")
    assert answer.returncode == 0, answer.stderr
    assert all(row["state"] == "ready" for row in pool.status()["processes"])
    assert pool.stop() == 0


WALL_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* The wall clock is shifted by the seconds that the file named by FAKE_SHIFT holds; other clocks are left alone. */
static time_t shift(void)
{
    long seconds = 0;
    FILE *file = fopen(getenv("FAKE_SHIFT"), "re");
    if (file != NULL) {
        if (fscanf(file, "%ld", &seconds) != 1)
            seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now != NULL)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
"""


def test_wall_clock_that_jumps_restarts_nobody(serve: Serve, tmp_path: Path) -> None:
    """P-4, T-13: heartbeats by the wall clock declared all workers hung at an NTP step and killed them (gunicorn#1965,
    gunicorn#1709): a day forth, a day back, nobody is called stalled, no timer storms or stands still.
    """
    source, library, shift = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "shift"
    source.write_text(WALL_CLOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, timeout=60)
    shift.write_text("0")
    environ = {"LD_PRELOAD": str(library), "FAKE_SHIFT": str(shift)}
    pool = serve("--stall-after", "1", "--stall-policy", "restart", app=TICKING, environ=environ).warm()
    before = pool.pids()
    probe = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env={**os.environ, **environ}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert abs(float(probe.stdout) - time.time()) < 60

    async def jump(_: Client) -> None:
        for seconds in (86400, -86400, 0):
            shift.write_text(str(seconds))
            await asyncio.sleep(2.5)  # two looks of the supervisor

    began = time.monotonic()
    assert asyncio.run(while_asking(pool, jump)) > 100
    due = (time.monotonic() - began) / 0.1
    assert due / 3 < (pool.directory / "ticks").stat().st_size < due + 20
    assert pool.pids() == before
    assert "has been" not in pool.said()
    assert "started again" not in pool.said()
    assert pool.stop() == 0


def test_supervisor_killed_under_load_leaves_nothing_that_hinders(serve: Serve) -> None:
    """M-17, P-1: kill -9 of the master left workers that served on and held the socket, and the next master could not
    bind (LightRAG#3494): all children are gone within 2 s, port free, no memory, zombie or socket that hinders.
    """
    names = set(os.listdir("/dev/shm"))
    port = 0
    for _ in range(SUPERVISOR_KILLS):
        pool = serve(address=f"tcp://127.0.0.1:{port}").warm()
        port = pool.endpoint[1]
        everybody = pool.everybody()
        assert len(everybody) == 5

        async def kill_at_work(pool: ServedPool = pool, everybody: set[int] = everybody) -> float:
            async with connect(pool.address, timeout=10, reconnect=False) as client:
                asks = [asyncio.ensure_future(client.ask({"type": "hello"}, timeout=10)) for _ in range(200)]
                await asks[0]
                pool.process.kill()
                began = time.monotonic()
                await asyncio.to_thread(pool.process.wait, 10)
                await asyncio.to_thread(wait_for, lambda: not alive(everybody), "all children to be gone", 2.0)
                for ask in asks:
                    ask.cancel()
                await asyncio.gather(*asks, return_exceptions=True)
                return time.monotonic() - began

        assert asyncio.run(kill_at_work()) < 2.5
        assert set(os.listdir("/dev/shm")) <= names
        # A process whose main thread has ended may be ending others for a moment.
        wait_for(lambda port=port: is_free(port), f"port {port} to be free", 1.0)
    assert serve(address=f"tcp://127.0.0.1:{port}").up().stop() == 0
    assert list((pool.directory / "run").rglob("*.sock")) == []


def test_pid_one_reaps_what_shards_leave(serve: Serve) -> None:
    """P-17: as PID 1 of a container nobody reaped orphans: five of them were five zombies (hermes-agent#15116)."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a namespace of pids")
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    pool = serve(app=ORPHANING, prefix=unshare).up()
    [supervisor] = psutil.Process(pool.process.pid).children()

    def settled() -> bool:
        found = []
        for child in supervisor.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append((child.name(), child.status()))
        return all(name != "sleep" and status != psutil.STATUS_ZOMBIE for name, status in found)

    wait_for(settled, "orphans to be reaped", 10.0)
    supervisor.send_signal(signal.SIGTERM)
    assert pool.process.wait(30) == 0


def test_memory_has_no_name_and_no_tracker(serve: Serve) -> None:
    """P-1, M-17: whoever attached shared memory had it removed for everybody at its end (cpython#82300): commands come
    and go, a shard crashes, and the memory stays; afterwards there is no name, and no tracker complains.
    """
    names = set(os.listdir("/dev/shm"))
    pool = serve().warm()

    async def come_and_go(_: Client) -> None:
        for command in (("status",), ("audit",), ("status", "--json")):
            answer = await asyncio.to_thread(pool.command, *command)
            assert answer.returncode == 0, answer.stderr

    assert asyncio.run(while_asking(pool, come_and_go)) > 10
    victim = pool.pids()["shard-1"]
    os.kill(victim, signal.SIGKILL)
    pool.replaced("shard-1", victim)
    assert asyncio.run(while_asking(pool, come_and_go)) > 10
    assert set(os.listdir("/dev/shm")) <= names
    assert not [child for child in pool.everybody() if "resource_tracker" in " ".join(psutil.Process(child).cmdline())]
    assert pool.stop() == 0
    assert "resource_tracker" not in pool.said()
    assert set(os.listdir("/dev/shm")) <= names


@pytest.mark.parametrize(
    ("prefix", "flags", "words"),
    [
        (("prlimit", f"--fsize={8 << 20}"), (), r"shared memory \(\d+ MiB for 4 processes\): .*File too large"),
        ((), ("--arena-bytes", str(32 << 30), "--workers", "30"), r"need \d+ MiB, and \d+ MiB of memory are left"),
    ],
    ids=["refused", "more-than-there-is"],
)
def test_full_memory_is_a_refusal_at_start(
    serve: Serve, prefix: tuple[str, ...], flags: tuple[str, ...], words: str
) -> None:
    """P-1, O-2: a full shared memory was SIGBUS at the first touch, again and again (shadow#2266, pipelinedb#1279):
    sizes, remedy, exit code, and nobody was started.
    """
    pool = serve(*flags, prefix=prefix)
    assert pool.process.wait(30) == ExitCode.CONFIG, pool.said()
    assert re.search(words, pool.said())
    assert "lower arena_bytes" in pool.said()
    assert "Traceback" not in pool.said()


def test_one_cpu_makes_one_shard(serve: Serve) -> None:
    """P-1: the count of CPUs ignored affinity and quota (cpython#149452): far too many workers. Quotas: unit tests."""
    pool = serve(prefix=("taskset", "-c", str(min(os.sched_getaffinity(0)))))
    answer = subprocess.run(
        ["taskset", "-c", str(min(os.sched_getaffinity(0))), *pool.command_line, "check", "faulty:app"],
        cwd=pool.directory, env=pool.environ, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "workers = 1, acceptors = 1" in answer.stdout


def test_hung_handler_is_shown_and_its_shard_replaced(serve: Serve) -> None:
    """P-4, O-8: found by its turn counter from outside; its Python stack is in the log; by policy it is replaced.

    Its session and others live on; what waited behind it is run.
    """
    pool = serve("--stall-after", "0.5", "--stall-policy", "restart", "--workers", "1", app=STUCK).warm()
    before = pool.pids()["shard-0"]

    async def hang() -> None:
        async with (
            connect(pool.address, timeout=10, reconnect=False) as culprit,
            connect(pool.address, timeout=10, reconnect=False) as bystander,
        ):
            await culprit.send({"type": "hang"})
            waits = asyncio.ensure_future(bystander.ask({"type": "hello"}, timeout=30))
            await asyncio.to_thread(pool.replaced, "shard-0", before)
            assert await waits == "hello"
            assert await culprit.ask({"type": "hello"}, timeout=10) == "hello"

    asyncio.run(hang())
    assert "in forever" in pool.said()
    assert re.search(
        r"shard 1 \(pid \d+\) has been in one handler \(object slot \d+\) for \d+\.\d s: killed", pool.said()
    )
    assert re.search(r"shard 1 \(pid \d+\) was killed by SIGKILL \(stalled for \d+\.\d s\)", pool.said())
    assert asyncio.run(while_asking(pool, lambda _: asyncio.sleep(0.1))) > 1
    assert "was killed by SIGKILL (stalled for" in pool.command("status").stdout
    assert pool.stop() == 0
