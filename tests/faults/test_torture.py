"""scripts/torture in its short form: a minute of deaths, and an account of every message.

SHARDPOOL_LONG=1: the long forms, ten minutes. A failure prints the command that repeats the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("SHARDPOOL_LONG") == "1"
LIMIT = 900 if LONG else 170

EVERYBODY = "--messages 1000000 --seconds 300 --period 500" if LONG else "--messages 30000 --seconds 35 --period 400"
SOCKETS = "--messages 600000 --seconds 300" if LONG else "--messages 20000 --seconds 25"


def torture(arguments: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "torture"), *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(LIMIT)
def test_whoever_is_killed_every_message_is_accounted_for() -> None:
    """M-15, M-16, M-20: once or reported; none lost, twice, out of order or torn; nothing is left afterwards."""
    torture(f"{EVERYBODY} --victims both")


@pytest.mark.timeout(LIMIT)
def test_killed_shards_account_for_every_message_of_many_clients() -> None:
    """M-16, M-20: with many open sockets, over TCP and WebSocket."""
    torture(f"{SOCKETS} --victims shards --period 500 --clients {1000 if LONG else 300}")
