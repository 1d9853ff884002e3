"""Settings: the one table of shardpool.settings_table, its layers, and what is refused (P-28).

Layers, each over the one before: defaults, the TOML file, `SHARDPOOL_*`, flags. This module is the one place where
files and environment are read; below it, components take what they need from the validated table.

`python -m shardpool.settings` prints docs/settings.md.
"""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardpool.errors import NotConfigured
from shardpool.exit_codes import EXPLANATIONS
from shardpool.settings_table import KIB, PROCESSES_MAX, TABLE, Kind, Setting

PREFIX = "SHARDPOOL_"
_CONFIG_VARIABLE = PREFIX + "CONFIG"

RECORD_HEAD = 64  # what the longest frame takes in a link besides its own bytes, at most
_SUFFIXES_BYTES = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3, "kb": 1000, "mb": 1000**2, "gb": 1000**3}
_SUFFIXES_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class SettingsError(NotConfigured):
    """A setting that cannot be used; says which, its value, and what to do."""


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
    if values["link_bytes"] // 4 < values["frame_bytes"] + RECORD_HEAD:
        raise SettingsError(
            f"a quarter of link_bytes = {values['link_bytes']} is less than a frame of frame_bytes = "
            f"{values['frame_bytes']}, so that the longest would never be taken: raise link_bytes or lower frame_bytes"
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
        f"| `{row.name}` | {row.default_shown} | {row.range_text} | {row.since} | {row.help} |" for row in TABLE
    )
    codes = (f"| {int(code)} | `{code.name}` | {text} |" for code, text in EXPLANATIONS.items())
    return _PAGE.format(settings="\n".join(settings), codes="\n".join(codes))


if __name__ == "__main__":
    print(page(), end="")
