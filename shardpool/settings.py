"""The settings table: the only definition of every name, default, unit, range and meaning (P-28).

Layers, each over the one before: defaults, the TOML file, `SHARDPOOL_*`, flags. This module is the one place where
files and environment are read; below it, components take what they need from the validated table.

`python -m shardpool.settings` prints docs/settings.md.
"""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from shardpool.errors import NotConfigured
from shardpool.exit_codes import EXPLANATIONS

PREFIX = "SHARDPOOL_"
_CONFIG_VARIABLE = PREFIX + "CONFIG"
PROCESSES_MAX = 40  # one bit per process in the shared words

_SUFFIXES_BYTES = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3, "kb": 1000, "mb": 1000**2, "gb": 1000**3}
_SUFFIXES_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class SettingsError(NotConfigured):
    """A setting that cannot be used; says which, its value, and what to do."""


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


KIB, MIB, GIB = 1024, 1024**2, 1024**3

LOG_LEVELS = ("debug", "info", "warning", "error")

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
    _seconds("resume_window", 30.0, 0.1, 86400, "a session waits this long for its client to come back"),
    _seconds("import_timeout", 60.0, 0.1, 3600, "importing the app may take this long"),
    _seconds("time_budget", 0.010, 0.0001, 10, "a shard runs handlers this long before it looks at its event loop"),
    # Restarting
    _count("restart_intensity", 5, 1, 1000, "more deaths than this within restart_period: that worker is given up"),
    _seconds("restart_period", 10.0, 0.1, 86400, "see restart_intensity"),
    _seconds("stall_after", 5.0, 0.1, 86400, "a shard that is in one handler for this long is reported with its stack"),
    Setting("stall_policy", Kind.CHOICE, "report", "what is done with a stalled shard", choices=("report", "restart")),
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
    _count("directory_entries", 65536, 64, 16_777_216, "ids of actors and Spots on this node", power_of_two=True),
    # Limits towards clients
    _bytes("frame_bytes", 64 * KIB, 64, 16 * MIB, "longest message from a client"),
    _bytes("hello_bytes", 4 * KIB, 64, MIB, "longest hello"),
    _count("connections", 10_000, 1, 1_000_000, "connections of one acceptor"),
    _count("connections_per_address", 1000, 1, 1_000_000, "connections of one acceptor from one address"),
    _count("handshakes_per_second", 1000, 1, 1_000_000, "new connections of one acceptor per second"),
    _count("messages_per_second", 0, 0, 10_000_000, "messages of one connection per second; 0: no limit"),
    _bytes("inbound_bytes", 64 * MIB, MIB, 64 * GIB, "bytes from clients that one acceptor holds back at most"),
    _bytes("outbound_bytes", MIB, 4 * KIB, GIB, "bytes that wait to be written to one connection"),
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

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in TABLE}

# An app may say these itself; what the operator says wins.
APP_SETTINGS = ("slow_client", "origins", "static_dir")


@dataclass(frozen=True, slots=True)
class Settings:
    """The validated table."""

    values: dict[str, Any]
    given: frozenset[str]  # names that the operator set, in whatever layer

    def with_app(self, facts: Mapping[str, Any]) -> "Settings":
        """Fill in what the app says about itself where the operator said nothing.

        Args: facts: by setting name; None and other names are ignored.
        Raises: SettingsError when the app's value is not permitted.
        """
        values = dict(self.values)
        for name in APP_SETTINGS:
            if name not in self.given and facts.get(name) is not None:
                values[name] = check(BY_NAME[name], facts[name], "the app")
        return Settings(values, self.given)

    def with_processes(self, cpus: int) -> "Settings":
        """Give the two process counts their numbers, by the CPUs that may be used."""
        values = dict(self.values)
        if values["workers"] is None:
            # Counted down, not refused: a big machine with no flags must start.
            values["workers"] = max(1, min(cpus, (PROCESSES_MAX - 1) * 4 // 5))
        if values["acceptors"] is None:
            values["acceptors"] = max(1, values["workers"] // 4)
        total = 1 + values["workers"] + values["acceptors"]
        if total > PROCESSES_MAX:
            raise SettingsError(
                f"workers = {values['workers']} and acceptors = {values['acceptors']} are {total} processes with the "
                f"supervisor; at most {PROCESSES_MAX} are possible: lower one of them"
            )
        return Settings(values, self.given)


def defaults() -> dict[str, Any]:
    """Every setting at its default; None where the default depends on machine or app."""
    return {setting.name: list(s) if isinstance(s := setting.default, list) else s for setting in TABLE}


def load(config: str | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """Read and check all layers.

    Args:
        config: path of a TOML file, or None: the one that SHARDPOOL_CONFIG names, if it is set.
        environ: the process environment; names that begin with SHARDPOOL_ are settings.
        flags: by setting name, None where the flag was not given.
    Raises: SettingsError: unknown name, wrong type, out of range, contradiction, unreadable file.
    """
    if config is None:
        config = environ.get(_CONFIG_VARIABLE)
    values = defaults()
    given: set[str] = set()
    layers = (
        ((config or "", "", _read_toml(config)) if config else ("", "", {})),
        ("the environment", PREFIX, _read_environ(environ)),
        ("the command line", "--", {name: value for name, value in flags.items() if value is not None}),
    )
    for source, mark, layer in layers:
        for key, value in layer.items():
            setting = BY_NAME.get(key)
            if setting is None:
                raise SettingsError(f"{source}: unknown setting {_written(mark, key)}{_nearest(mark, key)}")
            values[key] = check(setting, value, source)
            given.add(key)
    _check_together(values)
    return Settings(values, frozenset(given))


def check(setting: Setting, value: Any, source: str) -> Any:
    """Bring one value into its type and refuse what is not permitted.

    Raises: SettingsError naming the setting, the value, where it came from and what is permitted.
    """
    try:
        parsed = _parse(setting, value)
    except ValueError:
        raise SettingsError(
            f"{source}: {setting.name} = {value!r} is not {_expected(setting)}; permitted: {setting.range_text}"
        ) from None
    if setting.kind in (Kind.COUNT, Kind.SECONDS, Kind.BYTES) and not setting.low <= parsed <= setting.high:
        raise SettingsError(
            f"{source}: {setting.name} = {value} is out of range; permitted: {setting.range_text} ({setting.help})"
        )
    if setting.power_of_two and parsed & (parsed - 1):
        raise SettingsError(f"{source}: {setting.name} = {value} is not permitted: {setting.range_text}")
    if setting.kind is Kind.CHOICE and parsed not in setting.choices:
        near = difflib.get_close_matches(str(parsed), setting.choices, 1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise SettingsError(
            f"{source}: {setting.name} = {value!r} is not permitted; one of: {setting.range_text}{hint}"
        )
    return parsed


def _parse(setting: Setting, value: Any) -> Any:
    match setting.kind:
        case Kind.COUNT:
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise ValueError
            return int(value)
        case Kind.SECONDS:
            seconds = _parse_number(value, _SUFFIXES_SECONDS)
            if not math.isfinite(seconds):
                raise ValueError
            return seconds
        case Kind.BYTES:
            size = _parse_number(value, _SUFFIXES_BYTES)
            if not math.isfinite(size) or size != int(size):
                raise ValueError
            return int(size)
        case Kind.SWITCH:
            if isinstance(value, bool):
                return value
            if not isinstance(value, str) or value.lower() not in _SWITCHES:
                raise ValueError
            return _SWITCHES[value.lower()]
        case Kind.TEXT | Kind.CHOICE:
            if not isinstance(value, str) or not value or "\0" in value:
                raise ValueError
            return value
        case Kind.TEXTS:
            parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
            if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part for part in parts):
                raise ValueError
            return list(parts)


def _parse_number(value: Any, suffixes: Mapping[str, float]) -> float:
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        raise ValueError
    text = value.strip().replace("_", "")
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    suffix = text[len(digits) :].strip().lower()
    if suffix not in suffixes:
        raise ValueError
    return float(digits) * suffixes[suffix]


def _expected(setting: Setting) -> str:
    match setting.kind:
        case Kind.COUNT:
            return "a whole number"
        case Kind.SECONDS:
            return 'a finite number of seconds (5, 0.5, "500ms", "2m")'
        case Kind.BYTES:
            return 'a number of bytes (65536, "64KiB", "1MiB")'
        case Kind.TEXTS:
            return "a list of texts"
        case Kind.TEXT | Kind.CHOICE:
            return "a text"
        case Kind.SWITCH:
            return "true or false"


def _check_together(values: Mapping[str, Any]) -> None:
    """Refuse values that are permitted one by one and make no sense together."""
    for lower, upper in (
        ("hello_bytes", "frame_bytes"),
        ("frame_bytes", "lane_bytes"),
        ("frame_bytes", "outbound_bytes"),
        ("hello_bytes", "lifecycle_bytes"),
        ("heartbeat", "idle_timeout"),
    ):
        if values[lower] > values[upper]:
            raise SettingsError(
                f"{lower} = {values[lower]} is more than {upper} = {values[upper]}: raise {upper} or lower {lower}"
            )
    if values["link_bytes"] < 2 * values["frame_bytes"]:
        raise SettingsError(
            f"link_bytes = {values['link_bytes']} is less than twice frame_bytes = {values['frame_bytes']}, so that a "
            "longest frame may never find room: raise link_bytes or lower frame_bytes"
        )
    if values["permits"] >= values["slots"]:
        raise SettingsError(
            f"permits = {values['permits']} is not less than slots = {values['slots']}: raise slots or lower permits"
        )
    if values["arena_bytes"] % (64 * KIB):
        raise SettingsError(f"arena_bytes = {values['arena_bytes']} is not a multiple of 64 KiB: round it")
    secure = [address for address in values["bind"] if address.startswith(("tls:", "wss:"))]
    if secure and not (values["tls_cert"] and values["tls_key"]):
        missing = "tls_key" if values["tls_cert"] else "tls_cert"
        raise SettingsError(f"{secure[0]} needs a certificate: set tls_cert and tls_key ({missing} is missing)")


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}: give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {path} is not valid TOML: {error}") from None


def _read_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        key[len(PREFIX) :].lower(): value
        for key, value in environ.items()
        if key.startswith(PREFIX) and key != _CONFIG_VARIABLE
    }


def _written(mark: str, key: str) -> str:
    if mark == PREFIX:
        return PREFIX + key.upper()
    return mark + key.replace("_", "-") if mark else key


def _nearest(mark: str, key: str) -> str:
    near = difflib.get_close_matches(key.lower().replace("-", "_"), BY_NAME, 1)
    return f"; did you mean {_written(mark, near[0])}?" if near else "; docs/settings.md lists all"


def _bytes_text(size: int) -> str:
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def _default_text(setting: Setting) -> str:
    if setting.default_text:
        return setting.default_text
    match setting.kind:
        case Kind.SECONDS:
            return f"{setting.default:g} s"
        case Kind.BYTES:
            return _bytes_text(setting.default)
        case Kind.SWITCH:
            return str(setting.default).lower()
        case Kind.COUNT:
            return f"{setting.default:,}"
        case _:
            return str(setting.default) if setting.default else "none"


_PAGE = """\
# Settings and exit codes

<!-- generated: python -m shardpool.settings > docs/settings.md -->

A setting comes from, each over the one before: its default, the TOML file named by `--config` (or by
`SHARDPOOL_CONFIG`), the variable `SHARDPOOL_<NAME>` in the environment, the flag `--<name>` of `shardpool serve` (with
`-` for `_`). Unknown names and values out of range are refused at start. Times are in seconds (`5`, `0.5`) or with a
suffix (`"500ms"`, `"2m"`), sizes in bytes or with a suffix (`"64KiB"`, `"1MiB"`); lists are TOML lists, or separated by
commas in the environment; `--bind` and `--origins` may be repeated.

```toml
# shardpool.toml: shardpool serve arena:app --config shardpool.toml
bind = ["tcp://127.0.0.1:7000", "ws://127.0.0.1:7001"]
workers = 4
idle_timeout = "2m"
```

`workers` counts the CPUs that the process may run on (affinity), at most the cgroup's CPU quota rounded down, at
least 1. What an app says about itself (`slow_client`, `origins`, `static_dir`) holds where nothing is set here.

| name | default | permitted | since | meaning |
|---|---|---|---|---|
{settings}

## Exit codes

| code | name | meaning |
|---|---|---|
{codes}
"""


def page() -> str:
    """Text of docs/settings.md."""
    settings = (
        f"| `{row.name}` | {_default_text(row)} | {row.range_text} | {row.since} | {row.help} |" for row in TABLE
    )
    codes = (f"| {int(code)} | `{code.name}` | {text} |" for code, text in EXPLANATIONS.items())
    return _PAGE.format(settings="\n".join(settings), codes="\n".join(codes))


if __name__ == "__main__":
    print(page(), end="")
