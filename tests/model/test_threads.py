"""The real headers with real threads under ThreadSanitizer. SHARDPOOL_LONG=1 sends a hundred times as much."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from native_programs import CORE, STRICT, compile_program

SOURCE = Path(__file__).parent / "threads" / "threads.c"
LONG = os.environ.get("SHARDPOOL_LONG") == "1"
MESSAGES = 2_000_000 if LONG else 20_000
TIMEOUT = 1200.0 if LONG else 55.0
SANITIZE = ("-O2", "-fsanitize=thread", "-pthread")


def run(program: Path, producers: int, messages: int) -> subprocess.CompletedProcess[str]:
    command = [str(program), str(producers), str(messages)]
    options = {"env": os.environ | {"TSAN_OPTIONS": "halt_on_error=0 exitcode=66"}, "timeout": TIMEOUT}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):
        # more random bits in addresses than this ThreadSanitizer knows of
        command = ["setarch", platform.machine(), "-R", *command]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    return done  # type: ignore[no-any-return]


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("producers", [1, 3, 6])
def test_threads_neither_race_nor_lose_a_message(tmp_path: Path, producers: int) -> None:
    """M-1, M-3, M-11, M-19: small lanes and links, so that everyone waits for everyone now and then."""
    program = tmp_path / "threads"
    built = compile_program(SOURCE, program, flags=(*SANITIZE, *STRICT))
    done = run(program, producers, MESSAGES)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}built by: {built}"
    assert "accepted and run" in done.stdout


def test_a_missing_release_is_reported(tmp_path: Path) -> None:
    """M-19: a position that is published before the bytes in front of it."""
    for header in CORE.glob("*.h"):
        shutil.copy(header, tmp_path)
    text = (tmp_path / "ring.h").read_text()
    ordered = "sp_store_release(&w->ring->producer, w->position)"
    assert text.count(ordered) == 1, "sp_writer_publish has changed: bring this test up to date"
    (tmp_path / "ring.h").write_text(text.replace(ordered, ordered.replace("release", "relaxed")))
    compile_program(SOURCE, tmp_path / "threads", headers=tmp_path, flags=(*SANITIZE, "-w"))
    done = run(tmp_path / "threads", 3, 20_000)
    assert done.returncode != 0
    assert "data race" in done.stderr
