"""`python -m shardpool.check`: what the supervisor learns of an app, and every way in which there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardpool.exit_codes import ExitCode

GOOD = """
from shardpool import Actor, App
app = App("arena", codec="raw", envelope=False, static_dir="web", origins=["https://a.example"], slow_client="close")
other = 3
print("printed at import")
@app.actor
class Player(Actor):
    pass
"""


def check(directory: Path, spec: str, *flags: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "shardpool.check", spec, *flags],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def failure(directory: Path, spec: str) -> dict[str, Any]:
    code, out, _ = check(directory, spec, "--json")
    answer: dict[str, Any] = json.loads(out)
    assert code == answer["exit_code"] != 0
    return answer


def test_tells_what_the_supervisor_needs(tmp_path: Path) -> None:
    """P-1, P-2: one line of JSON, whatever the app prints at import."""
    (tmp_path / "arena.py").write_text(GOOD)
    code, out, err = check(tmp_path, "arena:app", "--json")
    assert code == 0
    assert json.loads(out) == {
        "name": "arena",
        "codec": "raw",
        "envelope": False,
        "static_dir": str(tmp_path / "web"),
        "origins": ["https://a.example"],
        "slow_client": "close",
    }
    assert "printed at import" in err


@pytest.mark.parametrize(
    ("module", "spec", "code", "error", "remedy"),
    [
        (GOOD, "arena", ExitCode.USAGE, "does not name an app", "MODULE:APP"),
        (GOOD, "arena.py:app", ExitCode.USAGE, "is a path", "arena:app"),
        (GOOD, "aren:app", ExitCode.APP, "no module 'aren'", 'did you mean "arena"'),
        (GOOD, "arena:apq", ExitCode.APP, "no attribute 'apq'", "Did you mean arena:app?"),
        (GOOD, "arena:other", ExitCode.APP, "is an int, not a shardpool.App", "arena:app"),
        ("import nothere", "arena:app", ExitCode.APP, "ModuleNotFoundError at import: No module named 'nothere'", ""),
        ("x = 1 / 0", "arena:app", ExitCode.APP, "ZeroDivisionError at import: division by zero at ", "Correct it"),
        ("def (", "arena:app", ExitCode.APP, "SyntaxError at import: invalid syntax at ", "Correct it"),
        ("raise SystemExit(3)", "arena:app", ExitCode.APP, "SystemExit at import: 3", "Correct it"),
        ("x = 1", "arena:app", ExitCode.APP, "no attribute 'app'", 'app = App("name")'),
        (
            "from shardpool import App\napp = App('a')",
            "arena:app",
            ExitCode.APP,
            "app 'a' in 'arena' cannot run: app 'a' has no actor",
            "Correct it",
        ),
    ],
)
def test_each_way_in_which_there_is_no_app(
    tmp_path: Path, module: str, spec: str, code: ExitCode, error: str, remedy: str
) -> None:
    """P-20, O-2: error and remedy name what was found; no traceback."""
    (tmp_path / "arena.py").write_text(module)
    answer = failure(tmp_path, spec)
    assert answer["exit_code"] == code
    assert error in answer["error"]
    assert remedy in answer["remedy"]
    code_text, out, err = check(tmp_path, spec)
    assert code_text == code
    assert "Traceback" not in out + err


def test_error_at_import_names_the_users_line(tmp_path: Path) -> None:
    """O-2: file and line are the user's, not importlib's."""
    (tmp_path / "arena.py").write_text("\n\nimport part\n")
    (tmp_path / "part.py").write_text("\nboom()\n")
    assert failure(tmp_path, "arena:app")["error"].endswith(f"at {tmp_path / 'part.py'}:2")


def test_human_form(tmp_path: Path) -> None:
    """O-2: without --json, a line for a person on stderr, facts on stdout."""
    (tmp_path / "arena.py").write_text(GOOD)
    _, out, _ = check(tmp_path, "arena:app")
    assert "name: arena" in out
    _, out, err = check(tmp_path, "nope:app")
    assert out == ""
    assert err.startswith("shardpool: there is no module 'nope'")
