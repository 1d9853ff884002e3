"""Tests of the settings table: layers, refusals, generated page."""

from pathlib import Path
from typing import Any

import pytest

from shardpool.settings import SettingsError, defaults, load, page
from shardpool.settings_table import TABLE, Kind

ROOT = Path(__file__).parents[2]


def refusal(config: str | None = None, environ: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(config, environ or {}, flags)
    return str(caught.value)


def test_each_layer_is_over_the_one_before(tmp_path: Path) -> None:
    """P-20, P-28: defaults < file < environment < flags."""
    file = tmp_path / "shardpool.toml"
    file.write_text('permits = 100\nslots = 1000\nask_timeout = "2m"\nbind = ["tcp://127.0.0.1:1"]\n')
    environ = {"SHARDPOOL_SLOTS": "2000", "SHARDPOOL_ASK_TIMEOUT": "500ms", "HOME": "/"}
    settings = load(str(file), environ, {"ask_timeout": "7", "pin": None})
    assert settings.values["permits"] == 100
    assert settings.values["slots"] == 2000
    assert settings.values["ask_timeout"] == 7.0
    assert settings.values["bind"] == ["tcp://127.0.0.1:1"]
    assert settings.values["send_timeout"] == 1.0
    assert settings.given == {"permits", "slots", "ask_timeout", "bind"}


def test_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """P-20: SHARDPOOL_CONFIG names the file, and is no setting itself."""
    file = tmp_path / "shardpool.toml"
    file.write_text("workers = 3\n")
    assert load(None, {"SHARDPOOL_CONFIG": str(file)}, {}).values["workers"] == 3


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"SHARDPOOL_WORKRES": "1"}, "did you mean SHARDPOOL_WORKERS?"),
        ({"SHARDPOOL_XYZZY": "1"}, "docs/settings.md lists all"),
    ],
)
def test_unknown_variable_is_refused_with_the_nearest_name(environ: dict[str, str], text: str) -> None:
    """P-20: unknown keys are errors that name the nearest key."""
    assert text in refusal(environ=environ)


def test_unknown_key_in_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    """P-20: in the file's own spelling, naming the file."""
    file = tmp_path / "a.toml"
    file.write_text("idle_timeuot = 3\n")
    text = refusal(str(file))
    assert str(file) in text
    assert "did you mean idle_timeout?" in text


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "0", 0, -1, "1e400", True, "soon", "", [], None])
def test_timeouts_are_finite_and_positive(value: Any) -> None:
    """P-28: anything else is refused at start, naming setting, value and range."""
    if value is None:
        return
    text = refusal(drain_timeout=value)
    assert "drain_timeout" in text
    assert "permitted: 0.1 s to 86400 s" in text


@pytest.mark.parametrize(("text", "value"), [("64KiB", 65536), ("128 KiB", 131072), (65536, 65536), ("65_536", 65536)])
def test_sizes_have_suffixes(text: Any, value: int) -> None:
    """P-28: sizes in bytes or with a suffix."""
    assert load(None, {}, {"frame_bytes": text}).values["frame_bytes"] == value


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"workers": 0}, "permitted: 1 to 38"),
        ({"workers": "two"}, "is not a whole number"),
        ({"workers": 2.5}, "is not a whole number"),
        ({"pin": "maybe"}, "is not true or false"),
        ({"slow_client": "drop-oldst"}, 'did you mean "drop-oldest"?'),
        ({"link_bytes": 100_000}, "a power of two"),
        ({"frame_bytes": "1.5"}, "is not a number of bytes"),
        ({"name": ""}, "is not a text"),
        ({"bind": "tcp://a:1,,"}, "is not a list of texts"),
        ({"heartbeat": 100}, "is more than idle_timeout"),
        ({"frame_bytes": "2MiB", "outbound_bytes": "4MiB"}, "raise link_bytes or lower frame_bytes"),
        ({"permits": 70000}, "raise slots or lower permits"),
        ({"bind": ["wss://127.0.0.1:1"]}, "set tls_cert and tls_key"),
    ],
)
def test_bad_values_are_refused_with_a_remedy(flags: dict[str, Any], text: str) -> None:
    """O-2, P-28: the message names setting, value and what is permitted."""
    message = refusal(**flags)
    assert text in message
    assert next(iter(flags)) in message or "wss" in message


@pytest.mark.parametrize("content", ["workers = ", "\xff\xfe", "[workers"])
def test_broken_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    """O-2: no traceback for a broken configuration file."""
    file = tmp_path / "a.toml"
    file.write_bytes(content.encode("latin-1"))
    assert f"{file} is not valid TOML" in refusal(str(file))
    assert "No such file" in refusal(str(tmp_path / "none.toml"))


def test_app_speaks_only_where_the_operator_does_not() -> None:
    """P-28: what the operator set wins over what the app says about itself."""
    facts = {"slow_client": "close", "origins": ["https://a"], "static_dir": None, "other": 1}
    settings = load(None, {}, {"slow_client": "wait"}).with_app(facts)
    assert settings.values["slow_client"] == "wait"
    assert settings.values["origins"] == ["https://a"]
    assert settings.values["static_dir"] is None
    with pytest.raises(SettingsError, match="the app: slow_client = 'never'"):
        load(None, {}, {}).with_app({"slow_client": "never"})


@pytest.mark.parametrize(("cpus", "workers", "acceptors"), [(1, 1, 1), (2, 2, 1), (8, 8, 2), (256, 31, 7)])
def test_process_counts_follow_the_cpus(cpus: int, workers: int, acceptors: int) -> None:
    """P-1: as many shards as CPUs, a quarter of that acceptors, at most 40 processes."""
    values = load(None, {}, {}).with_processes(cpus).values
    assert (values["workers"], values["acceptors"]) == (workers, acceptors)


def test_too_many_processes_are_refused() -> None:
    """P-28: the limit of 40 processes is named."""
    with pytest.raises(SettingsError, match="at most 40"):
        load(None, {}, {"workers": 38, "acceptors": 4}).with_processes(2)


def test_defaults_are_within_their_own_ranges() -> None:
    """P-28: the table does not contradict itself."""
    given = {name: value for name, value in defaults().items() if value is not None}
    assert load(None, {}, given).values == defaults()
    for setting in TABLE:
        if setting.kind in (Kind.COUNT, Kind.SECONDS, Kind.BYTES):
            assert setting.low < setting.high


def test_page_is_the_table() -> None:
    """P-28: docs/settings.md is generated: python -m shardpool.settings > docs/settings.md."""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page()
