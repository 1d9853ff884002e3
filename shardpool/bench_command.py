"""`shardpool bench`: drives a server of this protocol and prints how long its answers take."""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from shardpool._load import Load
from shardpool.exit_codes import ExitCode

if TYPE_CHECKING:
    from shardpool._load import Result

_EXAMPLES = """\
examples:
  shardpool bench tcp://127.0.0.1:7000 --payload-json '{"type": "limits"}'
  shardpool bench ws://127.0.0.1:7001 --connections 100 --mode pipelined --outstanding 16 --size 64
  shardpool bench tcp://127.0.0.1:7000 --connections 1000 --mode rate --rate 10000 --plot latency.png

Modes: closed: each connection waits for its reply before it sends again. pipelined: --outstanding messages on their
way per connection. rate: --rate messages per second in all, whether or not the server keeps up; latency counts from
when a message should have been sent, so that a stall shows in every message that it delayed.
"""
_PORTS = {"tcp": 0, "ws": 80}
Check = Literal["none", "echo", "counter"]
Transport = Literal["tcp", "ws"]


class BenchError(Exception):
    """What the user can mend, as a sentence; with the exit code."""

    def __init__(self, text: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is."""

    transport: Transport
    host: str
    port: int
    path: str


def main(argv: Sequence[str]) -> int:
    """Run the command. Args: argv: arguments behind `bench`. Returns: the exit code."""
    args = _parser().parse_args(argv)
    try:
        target = parse_target(args.url)
        pyplot = _load_pyplot() if args.plot else None
        result = _drive(args, target)
        _print_result(args, result)
        if pyplot is not None:
            _draw(pyplot, args, result)
    except BenchError as error:
        print(f"shardpool bench: {error}", file=sys.stderr)
        return error.code
    return ExitCode.OK if result["errors"] == 0 and result["unfinished"] == 0 else ExitCode.REFUSED


def parse_target(url: str) -> Target:
    """Take a URL apart. Raises: BenchError: with what is wrong and what to write."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise BenchError(f"{url!r}: bench drives tcp://HOST:PORT and ws://HOST:PORT/PATH; give one of these")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise BenchError(f"{url!r}: {error}") from None
    if not parts.hostname or not port:
        raise BenchError(f"{url!r} has no {'port' if parts.hostname else 'host'}: write {parts.scheme}://HOST:PORT")
    return Target(cast(Transport, parts.scheme), parts.hostname, port, parts.path or "/")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "shardpool bench",
        description="Drive a server of this protocol and print its latency.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="tcp://HOST:PORT or ws://HOST:PORT/PATH")
    add("--mode", choices=["closed", "pipelined", "rate"], help="default: rate with --rate, else by --outstanding")
    add("--connections", type=_count, default=1, metavar="N", help="default 1")
    add("--outstanding", type=_count, metavar="N", help="messages on their way per connection; default 16 if pipelined")
    add("--rate", type=_positive, metavar="N", help="messages per second over all connections")
    add("--seconds", type=_positive, default=5.0, metavar="S", help="default 5")
    add("--warm-up", type=_positive, default=0.5, metavar="S", help="driven before, not counted; default 0.5")
    add("--size", type=_count, default=64, metavar="BYTES", help="of generated messages (codec raw); default 64")
    add("--payload-json", metavar="JSON", help='the message to ask with, as in \'{"type": "limits"}\'')
    add("--auth-json", metavar="JSON", help="what the hello carries as `auth`")
    add("--bare", action="store_true", help="the server's app has envelope=False: frames without kinds, no hello")
    add("--check", choices=["none", "echo", "counter"], default="none", help="what replies must be; default none")
    add("--json", action="store_true", help="print one JSON object")
    add("--plot", metavar="FILE", help="draw the distribution of latency (needs shardpool[plot])")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a number above 0")
    return value


def _traffic(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of Load.run from mode, rate and outstanding. Raises: BenchError: they contradict each other."""
    mode = args.mode or ("rate" if args.rate else "pipelined" if (args.outstanding or 1) > 1 else "closed")
    if (mode == "rate") != bool(args.rate):
        raise BenchError("--mode rate and --rate N belong together: give both, or neither")
    if mode != "pipelined" and args.outstanding not in (None, 1):
        raise BenchError(f"--outstanding {args.outstanding} has no meaning with --mode {mode}; use --mode pipelined")
    match mode:
        case "rate":
            return {"rate": args.rate}
        case "pipelined":
            return {"outstanding": args.outstanding or 16}
        case _:
            return {"outstanding": 1}


def _json_argument(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BenchError(f"{name} {text!r} is not JSON: {error}") from None


def _open(args: argparse.Namespace, target: Target) -> Load:
    payload: bytes | None = None
    if args.payload_json is not None:
        if args.check != "none":
            raise BenchError(f"--check {args.check} works on generated messages: leave out --payload-json")
        payload = json.dumps(_json_argument("--payload-json", args.payload_json), separators=(",", ":")).encode()
    hello: dict[str, Any] = {"v": 1}
    if args.auth_json is not None:
        hello["auth"] = _json_argument("--auth-json", args.auth_json)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        load = Load(
            target.host,
            target.port,
            connections=args.connections,
            transport=target.transport,
            framing="bare" if args.bare else "session",
            path=target.path,
            hello=json.dumps(hello).encode(),
            check=cast(Check, args.check),
            size=args.size,
            payload=payload,
        )
        load.connect(10 + args.connections / 500)
    except ValueError as error:
        raise BenchError(str(error)) from None
    except OSError as error:
        raise BenchError(f"{error}. Is it running, and does it speak this protocol?", ExitCode.NOT_RUNNING) from None
    finally:
        if soft > args.connections + 64:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return load


def _drive(args: argparse.Namespace, target: Target) -> Result:
    traffic = _traffic(args)
    load = _open(args, target)
    welcome = json.loads(load.welcome or b"{}")
    if welcome.get("codec") == "json" and args.payload_json is None:
        raise BenchError(
            f"the app {welcome.get('app')!r} takes JSON: name a message with --payload-json '{{\"type\": ...}}'"
        )
    show = not args.json and sys.stderr.isatty()
    try:
        first = load.run(args.warm_up, **traffic)
        if first["errors"] and first["error"]:
            print(f"shardpool bench: while warming up: {first['error']}", file=sys.stderr)
        result = load.run(args.seconds, progress=_show_progress if show else None, **traffic)
    except ConnectionError as error:
        raise BenchError(str(error), ExitCode.NO_ANSWER) from None
    finally:
        if show:
            print("\r\033[K", end="", file=sys.stderr)
        load.close()
    return result


def _show_progress(seconds: float, messages: int, errors: int) -> None:
    failed = f", {errors} errors" if errors else ""
    print(f"\r\033[K{seconds:.0f} s  {messages:,} messages{failed}", end="", file=sys.stderr, flush=True)


def _print_result(args: argparse.Namespace, result: Result) -> None:
    if args.json:
        print(json.dumps({"url": args.url, **result}))
        return
    latency = result["latency_us"]
    print(f"{result['messages']:,} replies in {result['seconds']:.2f} s: {result['rate']:,.0f} per second")
    print(f"over {result['connections']} connections; {result['pushes']:,} pushes")
    names: tuple[Literal["p50", "p90", "p99", "p99.9", "max"], ...] = ("p50", "p90", "p99", "p99.9", "max")
    print("latency in µs: " + "  ".join(f"{name} {latency[name]:,.0f}" for name in names))
    if result["errors"] or result["unfinished"]:
        print(f"{result['errors']:,} errors, {result['unfinished']:,} messages without reply. First: {result['error']}")


def _load_pyplot() -> Any:
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise BenchError("--plot needs matplotlib: pip install 'shardpool[plot]'") from None


def _draw(pyplot: Any, args: argparse.Namespace, result: Result) -> None:
    """Latency over how many messages were slower, on logarithmic axes: the tail is what one looks for."""
    lower = [bound for bound, _ in result["histogram_us"]]
    slower, above = [], sum(count for _, count in result["histogram_us"])
    total = max(1, above)
    for _, count in result["histogram_us"]:
        slower.append(above / total)
        above -= count
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.step([max(bound, 0.1) for bound in lower], slower, where="post")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("latency, µs")
    axes.set_ylabel("share of messages at least as slow")
    axes.set_title(f"{args.url}: {result['rate']:,.0f} replies/s over {result['connections']} connections")
    axes.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    try:
        figure.savefig(args.plot)
    except (OSError, ValueError) as error:
        raise BenchError(f"--plot {args.plot}: {error}") from None
