"""`shardpool status`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import msgspec

from shardpool import runtime_dir
from shardpool.control import StatusReply, StatusRequest
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.admin_client import ask_supervisor
from shardpool.supervisor.console import Console
from shardpool.supervisor.status import PoolStatus, table


def add_pool_arguments(parser: ArgumentParser) -> None:
    """Arguments of commands that talk to a running pool."""
    parser.add_argument("--name", help="the pool, when several run")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="the pool's private directory, when it is not in the default place"
    )


def add_arguments(parser: ArgumentParser) -> None:
    """Arguments of `status`."""
    add_pool_arguments(parser)
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS", help="to wait for the answer (3)")


def status(args: Namespace, environ: Mapping[str, str]) -> ExitCode:
    """Print what a running pool does."""
    run_dir, pid = runtime_dir.find(args.name, args.run_dir, environ)
    reply = ask_supervisor(run_dir, pid, StatusRequest(), args.timeout)
    assert isinstance(reply, StatusReply)
    if args.json:
        text = msgspec.json.format(msgspec.json.encode(reply.status), indent=2).decode()
    else:
        text = table(msgspec.convert(reply.status, PoolStatus))
    Console().answer(text)
    return ExitCode.OK
