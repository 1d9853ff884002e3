"""`shardpool stop` and `shardpool drain`."""

import os
import select
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from shardpool import runtime_dir
from shardpool.control import DrainRequest, StopReply, StopRequest
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.admin_client import ask_supervisor
from shardpool.supervisor.console import Console, Level
from shardpool.supervisor.refusal import Refusal
from shardpool.supervisor.status_command import add_pool_arguments

_ANSWER_TIMEOUT = 3.0
# After draining, shards and then acceptors have stop_timeout each (5 s unless set).
_STOP_MARGIN = 15.0
# Once the clients have left, what they have sent is finished within drain_timeout, which may be long.
_DRAIN_MARGIN = 30.0


def add_arguments(parser: ArgumentParser) -> None:
    """Arguments of `stop` and `drain`."""
    add_pool_arguments(parser)
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS",
        help="for finishing queued work; drain: for clients to leave (default: the pool's drain_timeout)",
    )  # fmt: skip


def stop(args: Namespace, environ: Mapping[str, str]) -> ExitCode:
    """Have a pool drain and stop, and wait until it has."""
    return _end(args, environ, StopRequest(args.timeout), 0.0)


def drain(args: Namespace, environ: Mapping[str, str]) -> ExitCode:
    """Have a pool accept no more clients and stop when those who are there have left, and wait until it has."""
    return _end(args, environ, DrainRequest(args.timeout), _DRAIN_MARGIN)


def _end(args: Namespace, environ: Mapping[str, str], request: StopRequest | DrainRequest, margin: float) -> ExitCode:
    if args.timeout is not None and not 0 < args.timeout <= 86400:
        raise Refusal(
            f"--timeout {args.timeout:g} is out of range", "give seconds, more than 0, at most 86400", ExitCode.USAGE
        )
    run_dir, pid = runtime_dir.find(args.name, args.run_dir, environ)
    console = Console()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        console.answer(f"{run_dir.path.name} has stopped")
        return ExitCode.OK
    try:
        reply = ask_supervisor(run_dir, pid, request, _ANSWER_TIMEOUT)
        assert isinstance(reply, StopReply)
        _wait(pidfd, pid, reply.timeout + _STOP_MARGIN + margin, console)
    finally:
        os.close(pidfd)
    console.answer(f"{run_dir.path.name} has stopped")
    return ExitCode.OK


def _wait(pidfd: int, pid: int, timeout: float, console: Console) -> None:
    started = time.monotonic()
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    while not poller.poll(1000):
        waited = time.monotonic() - started
        if waited > timeout:
            raise Refusal(
                f"the pool (pid {pid}) has not stopped within {waited:.0f} s",
                f"end it with kill -9 {pid} (its workers end with it)",
                ExitCode.NO_ANSWER,
            )
        console.log(Level.INFO, f"waiting for pid {pid} to stop: {waited:.0f} s of at most {timeout:.0f} s")
