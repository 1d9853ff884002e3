"""The control file of a build with kill points; its layout is at the head of kill_points.c."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

from planting.variants import Edit, build

HERE = Path(__file__).resolve().parent
PROCESSES, MOST, NAME, NAMES = 48, 2048, 96, 256
COUNTS = NAMES + MOST * NAME // 8
WORDS = COUNTS + PROCESSES * MOST

# The one thing that a step cannot know by itself: whose it is.
ENTER = Edit(
    "_core/node.c",
    "    self->node.self = process;\n",
    "    self->node.self = process;\n    sp_kill_points_enter(process);\n",
)


def build_with_points(directory: Path, edits: Sequence[Edit] = ()) -> None:
    """Make a copy of the package whose processes die where they are told to."""
    build(directory, [ENTER, *edits], [HERE / "kill_points.c"], HERE / "kill_points.h")


class Control:
    """The mapped control file. Points are numbers; `name` says what they are."""

    def __init__(self, path: Path) -> None:
        with open(path, "w+b") as file:
            file.truncate(WORDS * 8)
            self._map = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._map).cast("Q")

    @property
    def points(self) -> int:
        """How many there are; 0 before the pool's first process."""
        return self._words[0]

    def name(self, point: int) -> str:
        """file:function:line."""
        at = NAMES * 8 + point * NAME
        return self._map[at : at + NAME].split(b"\0", 1)[0].decode()

    def passes(self, process: int, point: int) -> int:
        """How often a process, or one before it in its place, was there."""
        return self._words[COUNTS + process * MOST + point]

    def arm(self, process: int, point: int, passes: int) -> None:
        """Have a process die in front of a point, at that many passes from now."""
        self._words[64 + 2 * process] = 0
        self._words[65 + 2 * process] = passes
        self._words[64 + 2 * process] = point + 1

    def is_armed(self, process: int) -> bool:
        """Whether it has yet to die."""
        return self._words[64 + 2 * process] != 0

    def disarm(self, process: int) -> None:
        """Let it live."""
        self._words[64 + 2 * process] = 0
