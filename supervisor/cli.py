"""`shardpool`: arguments to commands, refusals to one line and an exit code."""

import argparse
import difflib
import importlib
import importlib.metadata
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence

from shardpool import runtime_dir
from shardpool.exit_codes import ExitCode
from shardpool.settings import SettingsError
from shardpool.supervisor import (
    audit_command,
    preparation,
    restart_command,
    serve_command,
    status_command,
    stop_command,
)
from shardpool.supervisor.console import Console, Level
from shardpool.supervisor.refusal import Refusal

Run = Callable[[Namespace, Mapping[str, str]], ExitCode]

_DESCRIPTION = """\
Runs stateful session servers on every core.

  shardpool serve arena:app --bind tcp://127.0.0.1:7000 --bind ws://127.0.0.1:7001
  shardpool status
  shardpool stop
"""

_SERVE_EXAMPLES = """\
examples:
  shardpool serve arena:app --bind tcp://127.0.0.1:7000 --bind ws://127.0.0.1:7001
  shardpool serve arena:app --config shardpool.toml --workers 8 --pin
  shardpool serve arena:app --bind wss://0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem --user www-data
  SHARDPOOL_WORKERS=2 shardpool serve arena:app --bind tcp://127.0.0.1:0

Ctrl-C or SIGTERM drains and stops; a second one stops at once. Exit codes: docs/settings.md.
"""

_CHECK_EXAMPLES = """\
examples:
  shardpool check arena:app
  shardpool check arena:app --config shardpool.toml
"""

_STATUS_EXAMPLES = """\
examples:
  shardpool status
  shardpool status --name arena --json | jq '.processes[].counters.messages_in'
"""

_AUDIT_EXAMPLES = """\
examples:
  shardpool audit
  shardpool audit --pause && echo "no record was lost"

Exit code 12: the books do not balance.
"""

_STOP_EXAMPLES = """\
examples:
  shardpool stop
  shardpool stop --name arena --timeout 5
"""

_DRAIN_EXAMPLES = """\
examples:
  shardpool drain
  shardpool drain --name arena --timeout 600
"""

_RESTART_EXAMPLES = """\
examples:
  shardpool restart --rolling
  shardpool restart --rolling --name arena
"""

_FORWARDED = {
    "call": ("shardpool.supervisor.call_command", "ask an object of a running pool, or send to it"),
    "dead-letters": ("shardpool.supervisor.dead_letters_command", "messages that were accepted and not run"),
    "bench": ("shardpool.bench_command", "drive any server of this protocol and print latencies"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args: argv: arguments without the program's name; None: this process's.
    Returns: the exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and arguments[0] in _FORWARDED:
            # These load what a supervisor must not: they are imported when they run, by nobody else.
            module = importlib.import_module(_FORWARDED[arguments[0]][0])
            return int(module.main(arguments[1:]) or 0)
        args = _parse(arguments)
        run: Run = args.run
        return int(run(args, os.environ))
    except Exception as error:
        return int(_report(error))
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def build_parser() -> tuple[ArgumentParser, Mapping[str, ArgumentParser]]:
    """The parser, and those of its commands by name."""
    parser = ArgumentParser(
        "shardpool", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parsers: dict[str, ArgumentParser] = {}

    def add(name: str, text: str, examples: str, add_arguments: Callable[[ArgumentParser], None], run: Run) -> None:
        parsers[name] = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_arguments(parsers[name])
        parsers[name].set_defaults(run=run, command=name)

    add("serve", "run an app on every core", _SERVE_EXAMPLES, preparation.add_arguments, serve_command.serve)
    add(
        "check",
        "check app and configuration, start nothing",
        _CHECK_EXAMPLES,
        preparation.add_arguments,
        serve_command.check,
    )
    add(
        "status", "show what a running pool does", _STATUS_EXAMPLES, status_command.add_arguments, status_command.status
    )
    add("audit", "check that a pool's books balance", _AUDIT_EXAMPLES, audit_command.add_arguments, audit_command.audit)
    add("stop", "drain and stop a running pool", _STOP_EXAMPLES, stop_command.add_arguments, stop_command.stop)
    add(
        "drain", "let clients leave, then drain and stop a running pool", _DRAIN_EXAMPLES,
        stop_command.add_arguments, stop_command.drain,
    )  # fmt: skip
    add(
        "restart", "replace the shards one after another, by the present code", _RESTART_EXAMPLES,
        restart_command.add_arguments, restart_command.restart,
    )  # fmt: skip
    for name, (_, text) in _FORWARDED.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser, parsers


def _parse(arguments: Sequence[str]) -> Namespace:
    parser, parsers = build_parser()
    if not arguments:
        parser.print_help()
        raise SystemExit(int(ExitCode.USAGE))
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = parsers[args.command]
        flags = [flag for action in command._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, 1)
        hint = f"did you mean {near[0]}?" if near else f"see shardpool {args.command} --help"
        raise Refusal(f"shardpool {args.command}: unknown argument {unknown[0]}", hint, ExitCode.USAGE)
    return args


def _report(error: Exception) -> ExitCode:
    """One line for what the user can mend, a traceback only for what is our mistake."""
    match error:
        case Refusal():
            code = error.exit_code
        case SettingsError():
            code = ExitCode.CONFIG
        case runtime_dir.AlreadyRunning():
            code = ExitCode.ALREADY_RUNNING
        case runtime_dir.NotRunning():
            code = ExitCode.NOT_RUNNING
        case runtime_dir.Ambiguous():
            code = ExitCode.USAGE
        case runtime_dir.RunDirError():
            code = ExitCode.CONFIG
        case _:
            traceback.print_exception(error)
            code = ExitCode.INTERNAL
    if code is not ExitCode.INTERNAL:
        Console().log(Level.ERROR, str(error))
    return code


def _version() -> str:
    try:
        return f"shardpool {importlib.metadata.version('shardpool')}"
    except importlib.metadata.PackageNotFoundError:
        return "shardpool (not installed)"


if __name__ == "__main__":
    raise SystemExit(main())
