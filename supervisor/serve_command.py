"""`shardpool serve` and `shardpool check`."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping

import setproctitle

from shardpool import runtime_dir
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.child_spec import Role
from shardpool.supervisor.console import Console, Level
from shardpool.supervisor.listeners import open_local
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.notify import Notify
from shardpool.supervisor.plan import Plan
from shardpool.supervisor.preparation import Prepared, prepare, read_settings
from shardpool.supervisor.privileges import raise_descriptor_limit
from shardpool.supervisor.supervisor import Supervisor

# Descriptors of a worker besides its connections: memory, doorbells, listeners, event loop, files of user code.
_OTHER_DESCRIPTORS = 256


def serve(args: Namespace, environ: Mapping[str, str]) -> ExitCode:
    """Run a pool until it is told to stop."""
    settings = read_settings(args, environ)
    console = Console(settings.values["log_level"])
    # Whatever is created from here on is this user's alone: sockets, lock, what user code writes.
    os.umask(0o077)
    descriptors = raise_descriptor_limit()
    prepared = prepare(args, settings, console, bind=True)
    wanted = prepared.settings.values["connections"] + _OTHER_DESCRIPTORS
    if descriptors < wanted:
        console.log(
            Level.WARNING,
            f"at most {descriptors} open descriptors per process, so an acceptor cannot reach "
            f"connections = {prepared.settings.values['connections']}: ulimit -n {wanted} (LimitNOFILE= for systemd)",
        )
    run_dir, lock = runtime_dir.create(prepared.name, prepared.settings.values["run_dir"], environ)
    try:
        return _run(prepared, run_dir, console, environ)
    finally:
        runtime_dir.remove(run_dir)
        os.close(lock)


def check(args: Namespace, environ: Mapping[str, str]) -> ExitCode:
    """Check app and configuration, start nothing."""
    settings = read_settings(args, environ)
    console = Console(settings.values["log_level"])
    prepared = prepare(args, settings, console, bind=False)
    runtime_dir.check_name(prepared.name)
    values = prepared.settings.values
    counts = f"workers = {values['workers']}, acceptors = {values['acceptors']}"
    console.answer(
        f"ok: {prepared.app} is {prepared.facts.name!r} (codec {prepared.facts.codec}); it would run with {counts}, "
        f"bind = {', '.join(values['bind']) or 'nothing'}"
    )
    return ExitCode.OK


def _run(prepared: Prepared, run_dir: runtime_dir.RunDir, console: Console, environ: Mapping[str, str]) -> ExitCode:
    values = prepared.settings.values
    sockets = [*prepared.sockets, open_local(run_dir)]
    memory = Memory.create(values)
    setproctitle.setproctitle(f"shardpool: supervisor [{prepared.name}]")

    def close_listeners() -> None:
        for sock, _ in sockets:
            sock.close()

    plan = Plan(
        app=prepared.app,
        facts=prepared.facts,
        name=prepared.name,
        settings=values,
        run_dir=run_dir,
        listeners=[listener for _, listener in sockets],
        cpus=sorted(os.sched_getaffinity(0)) if values["pin"] else [],
        # systemd counts messages of the main process only; workers have nothing to say there.
        environ={name: value for name, value in environ.items() if name != "NOTIFY_SOCKET"},
        command=_worker_command,
        warm_command=[sys.executable, "-m", "shardpool.workers.warm"] if values["warm_start"] else None,
        close_listeners=close_listeners,
        stop_on_hangup=sys.stdin is not None and sys.stdin.isatty(),
    )
    return Supervisor(plan, memory, console, Notify(environ.get("NOTIFY_SOCKET"))).run()


def _worker_command(role: Role) -> list[str]:
    return [sys.executable, "-m", f"shardpool.workers.{role.value}"]
