"""scripts/measure_restart works; what it measures depends on the machine, and is in docs/reliability.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_restart"


@pytest.mark.parametrize("flags", [(), ("--exec",)], ids=["warm", "exec"])
def test_restarts_of_both_roles_are_measured_under_load(flags: tuple[str, ...]) -> None:
    """P-24, O-17: quantiles from kill to serving, for shards and acceptors; the pool ends well."""
    done = subprocess.run(
        [sys.executable, "-P", SCRIPT, "--kills", "6", "--gap", "0.1", "--seed", "2", *flags],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for role in ("shard", "acceptor"):
        assert re.search(rf"{role} +\d+ kills: p50 +[\d.]+ ms  p99 +[\d.]+ ms", done.stdout), done.stdout
    assert "pool's exit code 0" in done.stdout
    assert int(re.findall(r"(\d+) answers", done.stdout)[0]) > 0
