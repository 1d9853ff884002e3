"""Runs a real supervisor over fake workers; started by the tests as a process of its own.

argv: pool name, JSON of settings (as flags).
"""

import json
import os
import sys
from pathlib import Path

from shardpool import runtime_dir
from shardpool.settings import load
from shardpool.supervisor.app_facts import AppFacts
from shardpool.supervisor.console import Console
from shardpool.supervisor.listeners import open_listeners, open_local, parse_address
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.notify import Notify
from shardpool.supervisor.plan import Plan
from shardpool.supervisor.supervisor import Supervisor

WORKER = str(Path(__file__).with_name("supervisor_fake_worker.py"))


class StalledMemory(Memory):
    """Shows the first shard in one handler since the start of time, if FAKE_STALL is set."""

    def counters(self, process: int) -> dict[str, int]:
        counters = super().counters(process)
        if process == 2 and "FAKE_STALL" in os.environ:
            counters |= {"running_slot": 17, "running_since_ns": 1}
        return counters


def main(name: str, flags: str) -> int:
    os.umask(0o077)
    settings = load(None, {}, json.loads(flags)).with_processes(2).values
    run_dir, _lock = runtime_dir.create(name, None, os.environ)
    sockets = [*open_listeners([parse_address("tcp://127.0.0.1:0")]), open_local(run_dir)]
    plan = Plan(
        app="arena:app",
        facts=AppFacts(name, "json"),
        name=name,
        settings=settings,
        run_dir=run_dir,
        listeners=[listener for _, listener in sockets],
        cpus=sorted(os.sched_getaffinity(0)) if settings["pin"] else [],
        environ=dict(os.environ),
        command=lambda role: [sys.executable, WORKER],
        warm_command=None,
        close_listeners=lambda: [sock.close() for sock, _ in sockets] and None,
        stop_on_hangup=False,
    )
    notify = Notify(os.environ.get("NOTIFY_SOCKET"))
    code = Supervisor(plan, StalledMemory.create(settings), Console(), notify).run()
    runtime_dir.remove(run_dir)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
