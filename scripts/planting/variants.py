"""A copy of the package, changed on purpose, that processes import in place of the real one.

    build(directory, edits)     then run anything with PYTHONPATH=directory

An editable installation's finder comes after PYTHONPATH, so that the copy is what every process of a pool gets.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardpool"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class OutOfDate(Exception):
    """The source no longer has what an edit replaces."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What stands once in a file of the package (a path below `shardpool/`), and what to put there."""

    path: str
    old: str
    new: str


def apply(edit: Edit, package: Path) -> None:
    """Change one file. Raises: OutOfDate."""
    path = package / edit.path
    text = path.read_text()
    if text.count(edit.old) != 1:
        raise OutOfDate(f"{edit.path} has {text.count(edit.old)} times what is to be replaced:\n{edit.old}")
    path.write_text(text.replace(edit.old, edit.new))


def build(directory: Path, edits: Sequence[Edit], sources: Sequence[Path] = (), include: Path | None = None) -> None:
    """Make the copy.

    Args: sources: C files to add to the core; include: a header that every C file of the core begins with.
    Raises: OutOfDate; RuntimeError when the C does not compile.
    """
    package = directory / "shardpool"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "_core.*.so"))
    for edit in edits:
        apply(edit, package)
    if sources or include or any(edit.path.startswith("_core/") for edit in edits):
        _compile(package, sources, include)
    else:
        shutil.copy(PACKAGE / f"_core{SUFFIX}", package)


def _compile(package: Path, sources: Sequence[Path], include: Path | None) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    core = next(each for each in project["tool"]["setuptools"]["ext-modules"] if each["name"] == "shardpool._core")
    files = [*(package.parent / source for source in core["sources"]), *sources]
    # -w: what is planted may leave something unused.
    flags = ["-std=gnu11", "-O1", "-g", "-w", "-mcx16", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread"]
    flags += ["-I", sysconfig.get_path("include"), "-I", str(package / "_core")]
    if include is not None:
        flags += ["-include", str(include)]
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    command = [*compiler, *flags, *map(str, files), "-o", str(package / f"_core{SUFFIX}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr[:3000]}")


def environ(directory: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which processes import the copy."""
    behind = base.get("PYTHONPATH")
    return {**base, "PYTHONPATH": f"{directory}{os.pathsep}{behind}" if behind else str(directory)}
