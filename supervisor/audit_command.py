"""`shardpool audit`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import msgspec

from shardpool import runtime_dir
from shardpool.control import AuditReply, AuditRequest
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.admin_client import ask_supervisor
from shardpool.supervisor.audit import ShardBooks, table
from shardpool.supervisor.console import Console
from shardpool.supervisor.status_command import add_pool_arguments


def add_arguments(parser: ArgumentParser) -> None:
    """Arguments of `audit`."""
    add_pool_arguments(parser)
    parser.add_argument("--pause", action="store_true", help="hold each shard still for the look, about a millisecond")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="to wait for the answer (5)")


def audit(args: Namespace, environ: Mapping[str, str]) -> ExitCode:
    """Print whether a running pool's books balance. Returns: UNBALANCED if they do not."""
    run_dir, pid = runtime_dir.find(args.name, args.run_dir, environ)
    reply = ask_supervisor(run_dir, pid, AuditRequest(args.pause), args.timeout)
    assert isinstance(reply, AuditReply)
    if args.json:
        text = msgspec.json.format(msgspec.json.encode(reply.shards), indent=2).decode()
    else:
        text = table(msgspec.convert(reply.shards, list[ShardBooks]))
    Console().answer(text)
    return ExitCode.UNBALANCED if any(shard["findings"] for shard in reply.shards) else ExitCode.OK
