"""`shardpool restart`."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import msgspec

from shardpool import runtime_dir
from shardpool.control import RestartReply, RestartRequest, StatusReply, StatusRequest
from shardpool.exit_codes import ExitCode
from shardpool.runtime_dir import RunDir
from shardpool.supervisor.admin_client import ask_supervisor
from shardpool.supervisor.console import Console, Level
from shardpool.supervisor.refusal import Refusal
from shardpool.supervisor.status import PoolStatus, RestartStatus
from shardpool.supervisor.status_command import add_pool_arguments

_ANSWER_TIMEOUT = 3.0
_LOOK_PERIOD = 0.1
_PROGRESS_PERIOD = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    """Arguments of `restart`."""
    add_pool_arguments(parser)
    # Not the default: another kind of restart, should there be one, must not be what an old script gets.
    parser.add_argument("--rolling", action="store_true", help="one shard after another (the only way there is)")


def restart(args: Namespace, environ: Mapping[str, str]) -> ExitCode:
    """Have a pool replace its shards, and wait until it has."""
    if not args.rolling:
        raise Refusal(
            "restart replaces shards one after another only",
            "give --rolling; stop and serve replace everything",
            ExitCode.USAGE,
        )
    run_dir, pid = runtime_dir.find(args.name, args.run_dir, environ)
    reply = ask_supervisor(run_dir, pid, RestartRequest(), _ANSWER_TIMEOUT)
    assert isinstance(reply, RestartReply)
    ended = _wait(run_dir, pid, reply.number, Console())
    if ended.problem:
        raise Refusal(f"the restart ended after {ended.progress}", ended.problem, ExitCode.REFUSED)
    Console().answer(f"{run_dir.path.name} was restarted: {ended.progress}")
    return ExitCode.OK


def _wait(run_dir: RunDir, pid: int, number: int, console: Console) -> RestartStatus:
    """The pool bounds each step, so this ends."""
    said = time.monotonic()
    while True:
        reply = ask_supervisor(run_dir, pid, StatusRequest(), _ANSWER_TIMEOUT)
        assert isinstance(reply, StatusReply)
        status = msgspec.convert(reply.status, PoolStatus).restart
        if status is None or status.number != number:
            raise Refusal("another restart has begun", "see shardpool status", ExitCode.REFUSED)
        if not status.running:
            return status
        if time.monotonic() - said >= _PROGRESS_PERIOD:
            said = time.monotonic()
            console.log(Level.INFO, f"restarting: {status.progress}")
        time.sleep(_LOOK_PERIOD)
