"""The rows of the settings table; shardpool.settings reads, checks and prints them."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

KIB, MIB, GIB = 1024, 1024**2, 1024**3

PROCESSES_MAX = 40  # one bit per process in the shared words
LOG_LEVELS = ("debug", "info", "warning", "error")


class Kind(Enum):
    """How a setting's value is written and checked."""

    COUNT = "number"
    SECONDS = "seconds"
    BYTES = "bytes"
    SWITCH = "true or false"
    TEXT = "text"
    TEXTS = "list of texts"
    CHOICE = "one of"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    kind: Kind
    default: Any
    help: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    default_text: str = ""
    power_of_two: bool = False
    since: str = "0.1"

    @property
    def flag(self) -> str:
        """Command-line form of the name."""
        return "--" + self.name.replace("_", "-")

    @property
    def range_text(self) -> str:
        """The permitted values, for people."""
        powers = ", a power of two" if self.power_of_two else ""
        match self.kind:
            case Kind.COUNT:
                return f"{self.low:g} to {int(self.high):,}{powers}"
            case Kind.SECONDS:
                return f"{self.low:g} s to {self.high:g} s"
            case Kind.BYTES:
                return f"{_bytes_text(int(self.low))} to {_bytes_text(int(self.high))}{powers}"
            case Kind.CHOICE:
                return ", ".join(f'"{choice}"' for choice in self.choices)
            case _:
                return str(self.kind.value)

    @property
    def default_shown(self) -> str:
        """The default, for people."""
        if self.default_text:
            return self.default_text
        match self.kind:
            case Kind.SECONDS:
                return f"{self.default:g} s"
            case Kind.BYTES:
                return _bytes_text(self.default)
            case Kind.SWITCH:
                return str(self.default).lower()
            case Kind.COUNT:
                return f"{self.default:,}"
            case _:
                return str(self.default) if self.default else "none"


def _count(
    name: str,
    default: int | None,
    low: int,
    high: int,
    text: str,
    default_text: str = "",
    *,
    power_of_two: bool = False,
) -> Setting:
    return Setting(name, Kind.COUNT, default, text, low, high, default_text=default_text, power_of_two=power_of_two)


def _seconds(name: str, default: float, low: float, high: float, text: str) -> Setting:
    return Setting(name, Kind.SECONDS, default, text, low, high)


def _bytes(name: str, default: int, low: int, high: int, text: str, *, power_of_two: bool = False) -> Setting:
    return Setting(name, Kind.BYTES, default, text, low, high, power_of_two=power_of_two)


def _text(name: str, text: str, default_text: str = "none") -> Setting:
    return Setting(name, Kind.TEXT, None, text, default_text=default_text)


TABLE: tuple[Setting, ...] = (
    # Processes
    _count("workers", None, 1, PROCESSES_MAX - 2, "shard processes", "CPUs by affinity and cgroup quota"),
    _count("acceptors", None, 1, PROCESSES_MAX - 2, "acceptor processes", "workers / 4, at least 1"),
    Setting("bind", Kind.TEXTS, [], "addresses to listen on: tcp, ws, tls or wss://HOST:PORT (port 0: any free)"),
    _text("name", "name of the pool, for titles, directory and commands", "the app's name"),
    Setting("pin", Kind.SWITCH, False, "bind each shard to one CPU"),
    _text("user", "user to become after binding (the supervisor must start as root)", "stay"),
    _text("run_dir", "private directory (0700) of the pool's sockets", "under $XDG_RUNTIME_DIR or the temp directory"),
    _text("tls_cert", "certificate chain (PEM) of tls:// and wss://"),
    _text("tls_key", "private key (PEM) of tls:// and wss://, not readable by others"),
    Setting("log_level", Kind.CHOICE, "info", "least level that is logged", choices=LOG_LEVELS),
    # Time
    _seconds("ask_timeout", 30.0, 0.001, 86400, "an ask without its own deadline fails after this"),
    _seconds("send_timeout", 1.0, 0.001, 3600, "a sender in a shard waits this long for room towards a client"),
    _seconds("hello_timeout", 5.0, 0.1, 600, "a connection that has not authenticated is closed after this"),
    _seconds("handshake_timeout", 5.0, 0.1, 600, "a TLS or WebSocket handshake must end within this"),
    _seconds("heartbeat", 15.0, 0.1, 3600, "a silent connection is pinged after this"),
    _seconds("idle_timeout", 60.0, 0.2, 86400, "a connection that sends nothing, not even a pong, is closed then"),
    _seconds("drain_timeout", 30.0, 0.1, 86400, "queued work may take this long when the pool stops"),
    _seconds("stop_timeout", 5.0, 0.1, 3600, "after draining, a worker that has not ended within this is killed"),
    _seconds("resume_window", 30.0, 0.0, 86400, "a session waits this long for its client to come back; 0: not at all"),
    _seconds("import_timeout", 60.0, 0.1, 3600, "importing the app may take this long"),
    _seconds("time_budget", 0.010, 0.0001, 10, "a shard runs handlers this long before it looks at its event loop"),
    # Restarting
    _count("restart_intensity", 5, 1, 1000, "more deaths than this within restart_period: that worker is given up"),
    _seconds("restart_period", 10.0, 0.1, 86400, "see restart_intensity"),
    _seconds("stall_after", 5.0, 0.1, 86400, "a shard that is in one handler for this long is reported with its stack"),
    Setting(
        "warm_start", Kind.SWITCH, True,
        "restarted workers are forked from a process that has everything imported; off: they are started by exec",
    ),
    Setting("stall_policy", Kind.CHOICE, "report", "what is done with a stalled shard", choices=("report", "restart")),
    # Dead letters
    _text("dead_letters", "file of messages that were accepted and not run", "dead-letters.jsonl in run_dir"),
    _bytes("dead_letter_bytes", 16 * MIB, 64 * KIB, GIB, "size of that file and its predecessor together"),
    # Memory of a shard
    _count("permits", 4096, 1, 16_777_215, "objects of one shard that may have work at the same time"),
    _count("slots", 65536, 2, 16_777_216, "objects of one shard"),
    _count("lane_records", 1024, 1, 4095, "messages that wait for one object"),
    _bytes("lane_bytes", 64 * MIB, 4 * KIB, 128 * MIB, "bytes that wait for one object"),
    _count("lifecycle_records", 128, 8, 511, "lifecycle records that wait for one object"),
    _bytes("lifecycle_bytes", 4 * MIB, 4 * KIB, 8 * MIB, "bytes of lifecycle records that wait for one object"),
    _count("open_asks", 4096, 1, 1_048_576, "asks of one shard without an answer yet"),
    _bytes("arena_bytes", 64 * MIB, MIB, 32 * GIB, "memory for the waiting messages of one shard; whole 64 KiB"),
    _bytes("link_bytes", MIB, 64 * KIB, GIB, "data ring from each process to each other", power_of_two=True),
    _bytes("infra_bytes", 256 * KIB, 16 * KIB, GIB, "ring of completions and control, likewise", power_of_two=True),
    _count("directory_entries", 16384, 64, 16_777_216, "cells for ids, a quarter of them spare", power_of_two=True),
    # Limits towards clients
    _bytes("frame_bytes", 64 * KIB, 64, 16 * MIB, "longest message from a client"),
    _bytes("hello_bytes", 4 * KIB, 64, MIB, "longest hello"),
    _count("connections", 10_000, 1, 1_000_000, "connections of one acceptor"),
    _count("connections_per_address", 1000, 1, 1_000_000, "connections of one acceptor from one address"),
    _count("handshakes_per_second", 1000, 1, 1_000_000, "new connections of one acceptor per second"),
    _count("messages_per_second", 0, 0, 10_000_000, "messages of one connection per second; 0: no limit"),
    _bytes("inbound_bytes", 64 * MIB, MIB, 64 * GIB, "bytes from clients that one acceptor holds back at most"),
    _bytes("outbound_bytes", MIB, 4 * KIB, GIB, "bytes that wait to be written to one connection"),
    _bytes("resume_bytes", 64 * MIB, 64 * KIB, 32 * GIB, "bytes that one acceptor keeps for clients to come back"),
    _bytes("resume_bytes_per_session", MIB, 4 * KIB, GIB, "bytes of these for one session; beyond, it is not resumed"),
    Setting(
        "slow_client", Kind.CHOICE, "wait", "what is done when outbound_bytes is reached",
        choices=("wait", "drop-oldest", "close"), default_text="the app's, or wait",
    ),
    Setting(
        "origins", Kind.TEXTS, [], 'origins of pages that may open a WebSocket; "*": any',
        default_text="the app's, or the same host",
    ),
    Setting("compression", Kind.SWITCH, False, "permessage-deflate on WebSockets"),
    _text("static_dir", "directory of files served over HTTP on ws:// and wss:// addresses", "the app's"),
)  # fmt: skip


def _bytes_text(size: int) -> str:
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
