"""Plants one fault and runs what must find it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torturing.points.control import build_with_points

from planting.faults import Fault, Finder
from planting.variants import ROOT, OutOfDate, build, environ

MODEL = ROOT / "tests" / "model"
sys.path[:0] = [str(ROOT / "tests"), str(MODEL)]

from explorer import planted  # noqa: E402
from native_programs import compile_program  # noqa: E402


@dataclass(frozen=True, slots=True)
class ModelFault:
    """A fault of the memory protocol, for the explorer."""

    name: str
    planted: planted.Fault


@dataclass(frozen=True, slots=True)
class Found:
    """How a hunt ended."""

    fault: str
    finder: str
    is_caught: bool
    seconds: float
    said: str

    def as_line(self) -> str:
        """One row."""
        mark = "found" if self.is_caught else "NOT FOUND"
        return f"{mark:>9}  {self.seconds:6.1f} s  {self.fault}  [{self.finder}]  {self.said}"

    def as_json(self) -> dict[str, Any]:
        """The same."""
        return asdict(self)


def model_faults() -> list[ModelFault]:
    """Those that the explorer finds."""
    return [ModelFault(fault.name, fault) for fault in planted.FAULTS]


def hunt(fault: Fault | ModelFault, limit: float) -> Found:
    """Plant it, look for it. Args: limit: seconds, the time to compile not counted."""
    directory = Path(tempfile.mkdtemp(prefix="sp-planted-"))
    try:
        if isinstance(fault, ModelFault):
            return _explore(fault, directory, limit)
        return _run(fault, directory, limit)
    except OutOfDate as error:
        return Found(fault.name, "", False, 0.0, f"out of date: {error}".replace("\n", " "))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _explore(fault: ModelFault, directory: Path, limit: float) -> Found:
    planted.plant(fault.planted, directory)
    program = directory / fault.planted.program
    source = MODEL / "explorer" / f"{fault.planted.program}.c"
    compile_program(source, program, headers=directory, flags=("-O1", "-w"))
    code, said, seconds = _call([str(program), *fault.planted.run.split()], dict(os.environ), limit)
    finder = f"explorer {fault.planted.program} {fault.planted.run}".rstrip()
    return Found(fault.name, finder, code == 1, seconds, _line(said, ""))


def _run(fault: Fault, directory: Path, limit: float) -> Found:
    command = [sys.executable]
    env = dict(os.environ)
    if fault.finder is Finder.TORTURE:
        command += [str(ROOT / "scripts" / "torture"), *fault.arguments.split(), "--package", str(directory)]
        make = build_with_points if "--points" in fault.arguments else build
        make(directory, fault.edits)
    else:
        command += ["-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault.arguments.split()]
        build(directory, fault.edits)
        env = environ(directory)
    code, said, seconds = _call(command, env, limit)
    # 1 is what both say when something was found; any other code is a mistake in how they were called.
    mark = "FAULT: " if fault.finder is Finder.TORTURE else "FAILED "
    return Found(
        fault.name, f"{fault.finder.value} {fault.arguments}", code == 1 and mark in said, seconds, _line(said, mark)
    )


def _line(said: str, mark: str) -> str:
    """The line that says what was found, cut to a row's length."""
    lines = [line for line in said.splitlines() if mark in line]
    return lines[-1].partition(mark)[2][:120] if lines else said.strip()[-120:].replace("\n", " / ")


def _call(command: list[str], env: dict[str, str], limit: float) -> tuple[int, str, float]:
    """Run it with everything that it starts; exit code -1 when it had to be ended."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        code = -1
    return code, said, time.monotonic() - began
