"""`shardpool dead-letters`: the messages that a pool accepted and did not run."""

import argparse
import asyncio
import contextlib
import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shardpool import dead_letters, runtime_dir
from shardpool.client.errors import Closed
from shardpool.control import StatusReply, StatusRequest
from shardpool.dead_letters import DeadLetter
from shardpool.errors import NotFound, ShardpoolError, TypeMismatch
from shardpool.exit_codes import ExitCode
from shardpool.local import connect
from shardpool.supervisor.admin_client import ask_supervisor
from shardpool.supervisor.console import Console
from shardpool.supervisor.refusal import Refusal
from shardpool.supervisor.status_command import add_pool_arguments

_EXAMPLES = """\
examples:
  shardpool dead-letters list
  shardpool dead-letters list --json | jq '.[] | select(.reason == "quarantined")'
  shardpool dead-letters show 0000000100000007-41-0
  shardpool dead-letters resend 0000000100000007-41-0
  shardpool dead-letters release Player ann
  shardpool dead-letters list --file /var/lib/arena/dead-letters.jsonl

A letter stays in the file when it was sent again; old ones make room for new ones (dead_letter_bytes).
"""

_TIMEOUT = 3.0
_SHOWN = 2000


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns: the exit code."""
    args = build_parser().parse_args(argv)
    try:
        match args.action:
            case "list":
                _list(args)
            case "show":
                _show(args)
            case "resend":
                _resend(args)
            case "release":
                _release(args)
    except NotFound as error:
        raise Refusal(str(error), "", ExitCode.REFUSED) from None
    except TypeMismatch as error:
        raise Refusal(str(error), "", ExitCode.REFUSED) from None
    except OSError as error:
        raise Refusal(f"the dead letters cannot be read: {error}", "", ExitCode.REFUSED) from None
    return ExitCode.OK


def build_parser() -> ArgumentParser:
    """The command's arguments."""
    parser = ArgumentParser(
        "shardpool dead-letters",
        description="Messages that the pool accepted and did not run: list them, show one, send one again.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, text: str, *arguments: str) -> ArgumentParser:
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        for argument in arguments:
            action.add_argument(argument.lower(), metavar=argument)
        add_pool_arguments(action)
        return action

    for action in (add("list", "all of them, oldest first"), add("show", "one of them with its payload", "ID")):
        action.add_argument("--json", action="store_true", help="everything, for programs; payloads in base64")
        action.add_argument("--file", help="the file, when its pool does not run")
    add("resend", "send one to its object again", "ID").add_argument(
        "--file", help="the file, when it is another pool's"
    )
    add("release", "release a quarantined object", "TYPE", "ID")
    return parser


def _list(args: Namespace) -> None:
    letters = dead_letters.read(_path(args))
    if args.json:
        Console().answer(msgspec.json.format(msgspec.json.encode(letters), indent=2).decode())
        return
    rows = [["id", "when", "shard", "object", "kind", "reason", "attempts", "bytes"]]
    for each in letters:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.at))
        what = f"{each.type} {each.object!r}"
        size = f"{len(each.payload):,}"
        rows.append([each.id, when, str(each.shard + 1), what, each.kind, each.reason, str(each.attempts), size])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    Console().answer("\n".join(lines) if letters else "no dead letters")


def _show(args: Namespace) -> None:
    letter = dead_letters.find(_path(args), args.id)
    if args.json:
        Console().answer(msgspec.json.format(msgspec.json.encode(letter), indent=2).decode())
        return
    fields: dict[str, Any] = msgspec.to_builtins(letter)
    fields["payload"] = _payload_text(letter)
    Console().answer("\n".join(f"{name:9} {value}" for name, value in fields.items()))


def _payload_text(letter: DeadLetter) -> str:
    try:
        return json.dumps(_message(letter), default=repr)[:_SHOWN]
    except Refusal:
        return repr(letter.payload[:_SHOWN])


def _message(letter: DeadLetter) -> dict[str, Any]:
    """The message as an object takes it from the local socket. Raises: Refusal: it is none."""
    message: Any = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        match letter.codec:
            case "json":
                message = msgspec.json.decode(letter.payload)
            case "msgpack":
                message = msgspec.msgpack.decode(letter.payload)
    if not isinstance(message, dict):
        what = "bytes of the app's own" if letter.codec == "raw" else f"no {letter.codec} object"
        raise Refusal(f"the payload of {letter.id} is {what}: it cannot be sent again from here", "", ExitCode.REFUSED)
    return message


def _resend(args: Namespace) -> None:
    run_dir, _ = runtime_dir.find(args.name, args.run_dir, os.environ)
    letter = dead_letters.find(_path(args), args.id)
    message = _message(letter)
    _at_the_pool(str(run_dir.path), f"{letter.type} {letter.object!r}", "send", letter.type, letter.object, message)
    Console().answer(f"sent to {letter.type} {letter.object!r}")


def _release(args: Namespace) -> None:
    run_dir, _ = runtime_dir.find(args.name, args.run_dir, os.environ)
    _at_the_pool(str(run_dir.path), f"{args.type} {args.id!r}", "release", args.type, args.id)
    Console().answer(f"{args.type} {args.id!r} runs again")


def _at_the_pool(run_dir: str, described: str, method: str, *arguments: Any) -> None:
    async def call() -> None:
        async with connect(f"{run_dir}/") as pool:
            await getattr(pool, method)(*arguments)

    try:
        asyncio.run(call())
    except (ShardpoolError, Closed) as error:
        kind = getattr(error, "kind", type(error).__name__)
        raise Refusal(f"{described}: {kind}: {error}", "", ExitCode.REFUSED) from None


def _path(args: Namespace) -> Path:
    if args.file:
        if not Path(args.file).is_file():
            raise Refusal(f"there is no file {args.file}", "", ExitCode.REFUSED)
        return Path(args.file)
    run_dir, pid = runtime_dir.find(args.name, args.run_dir, os.environ)
    reply = ask_supervisor(run_dir, pid, StatusRequest(), _TIMEOUT)
    assert isinstance(reply, StatusReply)
    return Path(reply.status["dead_letters"])
