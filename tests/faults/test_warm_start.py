"""Workers forked from a warm process: whose children they are, and what happens when it fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from served_pool import APP, ServedPool, alive, wait_for

Serve = Callable[..., ServedPool]

THREADS_AT_IMPORT = (
    APP
    + """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
)

STUCK_IN_FORK = (
    APP
    + """
import os, sys, time
if "shardpool.workers.warm" in " ".join(sys.orig_argv):
    os.register_at_fork(before=lambda: time.sleep(600))
"""
)


def warm_pid(pool: ServedPool, role: str) -> int:
    [found] = [
        pid for pid in pool.status()["warm"] if f"warm start of {role}s" in " ".join(psutil.Process(pid).cmdline())
    ]
    return int(found)


def test_restarted_worker_is_the_supervisors_own_child(serve: Serve) -> None:
    """P-24, P-1: not the warm process's: its parent, group, title, signals and descriptors are as if it was exec'ed."""
    pool = serve().warm()
    for who, title in (("shard-1", "shard 2/2"), ("acceptor-0", "acceptor 1/1")):
        before = psutil.Process(pool.pids()[who])
        descriptors = before.num_fds()
        before.kill()
        process = psutil.Process(pool.replaced(who, before.pid))
        assert process.ppid() == pool.process.pid
        assert os.getpgid(process.pid) == process.pid
        assert " ".join(process.cmdline()).strip() == f"shardpool: {title} [faults]"
        # One more or less is the difference between /dev/null and nothing, not a socket of the birth.
        assert abs(process.num_fds() - descriptors) <= 1
    assert pool.said().count("serves again") == 2
    assert pool.command("call", "Player", "x", "hello").returncode in (0, 11)
    assert pool.stop() == 0


def test_restart_is_fast(serve: Serve) -> None:
    """P-24, P-4: the first death of a period costs no delay; measured finer by scripts/measure_restart."""
    pool = serve().warm()
    pid = pool.pids()["shard-0"]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "serves again" in pool.said(), pool.said)
    assert time.monotonic() - began < 0.3


def test_exit_code_of_a_forked_worker_is_known(serve: Serve) -> None:
    """P-4: the go-between and the warm process do not come between a worker and whoever reaps it."""
    pool = serve().warm()
    first = pool.pids()["shard-0"]
    os.kill(first, signal.SIGKILL)
    second = pool.replaced("shard-0", first)
    os.kill(second, signal.SIGSEGV)
    pool.replaced("shard-0", second)
    assert f"shard 1 (pid {second}) was killed by SIGSEGV" in pool.said()
    children = psutil.Process(pool.process.pid).children()
    assert [child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE] == []


def test_death_of_the_warm_process_costs_nobody_anything(serve: Serve) -> None:
    """P-24: it is started again; workers forked from it live on; one that dies meanwhile is started by exec."""
    pool = serve().warm()
    first = pool.pids()["shard-0"]
    os.kill(first, signal.SIGKILL)
    forked = pool.replaced("shard-0", first)
    warm = warm_pid(pool, "shard")
    os.kill(warm, signal.SIGKILL)
    other = pool.pids()["shard-1"]
    os.kill(other, signal.SIGKILL)
    pool.replaced("shard-1", other)
    assert alive({forked})
    wait_for(lambda: pool.status()["warm_ready"] == 2, pool.said)
    assert warm_pid(pool, "shard") != warm
    assert f"the warm start of shards (pid {warm}) was killed by SIGKILL" in pool.said()
    assert pool.stop() == 0


def test_warm_process_that_does_not_answer_is_replaced(serve: Serve) -> None:
    """P-24, P-2: the supervisor waits for nobody; a place never gets two processes, also when the late one wakes up."""
    pool = serve().warm()
    warm = warm_pid(pool, "shard")
    os.kill(warm, signal.SIGSTOP)
    pid = pool.pids()["shard-0"]
    os.kill(pid, signal.SIGKILL)
    pool.replaced("shard-0", pid)
    assert f"the warm start of shards (pid {warm}) does not answer: killed" in pool.said()
    wait_for(lambda: pool.status()["warm_ready"] == 2, pool.said)
    status = pool.status()
    wait_for(lambda: len(pool.everybody()) == len(status["processes"]) + 2, lambda: str(pool.everybody()), 5.0)
    assert pool.stop() == 0


def test_app_that_hangs_in_fork_falls_back(serve: Serve) -> None:
    """P-24: at-fork handlers are user code."""
    pool = serve(app=STUCK_IN_FORK).warm()
    pid = pool.pids()["shard-0"]
    os.kill(pid, signal.SIGKILL)
    pool.replaced("shard-0", pid)
    assert "does not answer: killed" in pool.said()


def test_app_with_threads_is_started_by_exec(serve: Serve) -> None:
    """P-1, P-24: never forked from a threaded parent; said once, with the remedy."""
    pool = serve(app=THREADS_AT_IMPORT).up()
    wait_for(lambda: "starts threads at import" in pool.said(), pool.said)
    assert "start them in on_start" in pool.said()
    pid = pool.pids()["shard-0"]
    os.kill(pid, signal.SIGKILL)
    pool.replaced("shard-0", pid)
    assert pool.said().count("starts threads at import") == 1
    assert pool.status()["warm_ready"] == 1


@pytest.mark.parametrize("flags", [(), ("--no-warm-start",)], ids=["warm", "exec"])
def test_signals_in_a_workers_first_moments_are_left_to_the_supervisor(serve: Serve, flags: tuple[str, ...]) -> None:
    """P-17: a service manager that signals the whole group does not kill whom the interpreter is still starting."""
    pool = serve("--restart-intensity", "1000", "--restart-period", "0.1", *flags)
    pool.up() if flags else pool.warm()
    known = pool.everybody()
    pid = pool.pids()["shard-0"]
    for _ in range(5):
        os.kill(pid, signal.SIGKILL)
        newcomers = wait_for(lambda known=known: pool.everybody() - known, "the successor", 5.0)
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            for newcomer in pool.everybody() - known | newcomers:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    try:
                        os.kill(newcomer, number)
                    except ProcessLookupError:
                        continue
            time.sleep(0.001)
        pid = pool.replaced("shard-0", pid)
        known = pool.everybody()
    assert "SIGTERM" not in pool.said()
    assert "SIGINT" not in pool.said()
    assert pool.stop() == 0


def test_supervisor_killed_during_a_birth_leaves_nobody(serve: Serve) -> None:
    """M-17, P-24: neither warm process nor go-between nor worker, whenever it happens."""
    for delay in (0.0, 0.001, 0.003, 0.006, 0.01):
        pool = serve().warm()
        everybody = pool.everybody()
        os.kill(pool.pids()["shard-0"], signal.SIGKILL)
        time.sleep(delay)  # the moment is the subject
        everybody |= pool.everybody()
        pool.process.kill()
        pool.process.wait(10)
        wait_for(lambda seen=everybody: not alive(seen), lambda seen=everybody: str(alive(seen)), 2.0)
        titled = f"{pool.directory}"
        left = [p.pid for p in psutil.process_iter(["cwd"]) if (p.info["cwd"] or "").startswith(titled)]
        wait_for(lambda seen=set(left): not alive(seen), f"the end of {left}", 2.0)
