"""`shardpool call`: ask an object of a running pool, or send to it, through the pool's local socket."""

import argparse
import asyncio
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from shardpool import runtime_dir
from shardpool.errors import ShardpoolError
from shardpool.exit_codes import ExitCode
from shardpool.local import connect
from shardpool.supervisor.console import Console
from shardpool.supervisor.refusal import Refusal
from shardpool.supervisor.status_command import add_pool_arguments

_EXAMPLES = """\
examples:
  shardpool call Arena lobby limits
  shardpool call Player 17 '{"type": "move", "dx": 1.0, "dy": 0.0}'
  shardpool call Arena lobby '{"type": "close"}' --send

The reply is printed as JSON. MESSAGE is a JSON object whose "type" names the message, or that name alone.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns: the exit code."""
    args = build_parser().parse_args(argv)
    run_dir, _ = runtime_dir.find(args.name, args.run_dir, os.environ)
    message = read_message(args.message)
    try:
        reply = asyncio.run(_call(str(run_dir.path), args, message))
    except ShardpoolError as error:
        what = f"{args.type} {args.id!r} {message['type']!r}"
        raise Refusal(f"{what}: {error.kind}: {error}", "", ExitCode.REFUSED) from None
    if not args.send:
        Console().answer(json.dumps(reply, ensure_ascii=sys.stdout.encoding.lower() != "utf-8", default=repr))
    return ExitCode.OK


def build_parser() -> ArgumentParser:
    """The command's arguments."""
    parser = ArgumentParser(
        "shardpool call",
        description="Ask an object of a running pool, or send to it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("type", metavar="TYPE", help="class of the actor or Spot, as in Arena")
    parser.add_argument("id", metavar="ID", help="its id")
    parser.add_argument("message", metavar="MESSAGE", help="the message")
    parser.add_argument(
        "--send", action="store_true", help="do not wait for a reply, only for its mailbox to accept it"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="for the reply (default: the pool's ask_timeout)"
    )
    add_pool_arguments(parser)
    return parser


def read_message(text: str) -> dict[str, Any]:
    """Read MESSAGE; raises Refusal saying how one is written."""
    if text.isidentifier():
        return {"type": text}
    try:
        message = json.loads(text)
    except ValueError as error:
        raise Refusal(f"MESSAGE {text!r} is not JSON ({error})", "see shardpool call --help", ExitCode.USAGE) from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Refusal(f'MESSAGE {text!r} has no "type"', 'write {"type": "NAME", …}', ExitCode.USAGE)
    return message


async def _call(run_dir: str, args: Namespace, message: dict[str, Any]) -> Any:
    client = await connect(run_dir)
    try:
        if args.send:
            return await client.send(args.type, args.id, message)
        return await client.ask(args.type, args.id, message, timeout=args.timeout)
    finally:
        await client.close()
