"""Compiles the C programs of the tests against the real headers."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "shardpool" / "_core"
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wno-unused-function")


def compile_program(source: Path, program: Path, headers: Path = CORE, flags: Sequence[str] = ("-O2", *STRICT)) -> str:
    """Compile one source file; returns the command, for whoever wants to run a failure again."""
    command = [
        *shlex.split(os.environ.get("CC", "gcc")),
        *("-std=gnu11", "-g", "-mcx16", *flags),
        f"-I{headers}",
        str(source),
        *("-o", str(program)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
    return shlex.join(command)


def load_library(directory: Path) -> ctypes.CDLL:
    """The headers as a library (tests/unit/native/core.c), built into a directory."""
    library = directory / "core.so"
    compile_program(ROOT / "tests" / "unit" / "native" / "core.c", library, flags=("-O1", "-shared", "-fPIC", *STRICT))
    return ctypes.CDLL(str(library))


def run_program(program: Path, arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run it with arguments as on a command line; text output, any exit code."""
    return subprocess.run([program, *arguments.split()], capture_output=True, text=True, timeout=timeout, check=False)
