"""The model of admission, permits, schedule word, doorbell and death, run exhaustively by spin.

SHARDPOOL_LONG=1 adds the configurations that take minutes and gigabytes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parent / "admission.pml"
LONG = os.environ.get("SHARDPOOL_LONG") == "1"
TIMEOUT = 3600.0 if LONG else 240.0
MEGABYTES = 12000 if LONG else 4000

COMPLETE = (
    "",
    "-DLANE=1",
    "-DDEATH -DMESSAGES=1",
    "-DDEATH -DMESSAGES=1 -DLANE=1",
    "-DDEATH -DMORTAL_MESSAGES=1",
    "-DSTOP -DMESSAGES=1",
)
COMPLETE_LONG = ("-DSTOP", "-DDEATH")
MISTAKES = (
    "-DX_NO_RECHECK",
    "-DX_RING_BEFORE_TOKEN",
    "-DX_NO_TOKEN",
    "-DX_NO_IN_FLIGHT",
    "-DX_NO_DIRTY",
    "-DX_NO_PERMIT",
    "-DX_PERMIT_FIRST",
    "-DX_LOOK_BEFORE",
    "-DDEATH -DX_SETTLE_CANCELS",
    "-DDEATH -DX_SETTLE_COMMITS",
    "-DDEATH -DX_SETTLE_NO_TOKEN",
    "-DDEATH -DX_SETTLE_RINGS_NOBODY",
    "-DSTOP -DX_CLEAR_THEN_RING",
    "-DSTOP -DX_LINK_IS_NO_TOKEN",
)


def need_spin() -> None:
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if not missing:
        return
    reason = f"{' and '.join(missing)} not found: install with apt-get install {' '.join(missing)}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def explore(directory: Path, switches: str) -> tuple[int, int, str]:
    """Run spin over all states. Returns: errors, states stored, all that it said."""
    subprocess.run(["spin", "-a", *switches.split(), MODEL], cwd=directory, check=True, capture_output=True)
    options = ("-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEGABYTES}", "-DVECTORSZ=1024")
    subprocess.run(["gcc", *options, "-o", "pan", "pan.c"], cwd=directory, check=True)
    done = subprocess.run(
        ["./pan", "-E", "-m2000000", "-w24"], cwd=directory, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"([\d.]+(?:e\+\d+)?) states, stored", said)
    assert errors is not None, said
    assert states is not None, said
    # a search that was cut short has proved nothing, whatever it says about errors
    assert "Search not completed" not in said or errors.group(1) != "0", said
    assert "max search depth too small" not in said, said
    return int(errors.group(1)), int(float(states.group(1))), said


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("switches", COMPLETE + (COMPLETE_LONG if LONG else ()))
def test_the_protocol_holds_in_every_state(tmp_path: Path, switches: str) -> None:
    """M-4, M-5, M-6, M-7, M-8, M-9, M-10, M-12, M-15, M-18: no assertion fails, and at rest nothing is left or lost."""
    need_spin()
    errors, states, said = explore(tmp_path, switches)
    assert errors == 0, said
    assert states > 10_000, "the model no longer explores what it is there for"


@pytest.mark.parametrize("switches", MISTAKES)
def test_a_planted_mistake_breaks_the_model(tmp_path: Path, switches: str) -> None:
    """M-18: each of the known bugs put back in is found."""
    need_spin()
    errors, _, said = explore(tmp_path, f"{switches} -DMESSAGES=1")
    assert errors == 1, said
    assert "assertion violated" in said
