"""The suite finds mistakes that are planted; here a few of them, with SHARDPOOL_LONG=1 all.

The mistakes of the memory protocol are all planted in tests/model/test_interleavings.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from planting.faults import FAULTS, Fault
from planting.variants import PACKAGE

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("SHARDPOOL_LONG") == "1"
QUICK = (
    "a dead letter is counted and not written",
    "a late reply goes to whoever asks now",
    "nobody rings the doorbell",
)


@pytest.mark.timeout(330)
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if LONG or fault.name in QUICK])
def test_a_planted_fault_of_the_real_pool_is_found(name: str) -> None:
    """O-17: each within five minutes."""
    command = [sys.executable, str(ROOT / "scripts" / "planted"), name, "--limit", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=325, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_a_fault_replaces_is_there(fault: Fault) -> None:
    """O-17: a change of the source must not make a fault harmless without anybody's notice."""
    for edit in fault.edits:
        assert (PACKAGE / edit.path).read_text().count(edit.old) == 1, edit
