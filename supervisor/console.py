"""Lines for people: what was asked for goes to stdout, what happens goes to stderr, each in one write.

One write per line keeps lines of several processes whole. Nobody reading any more must not stop a supervisor.
"""

import contextlib
import os
import sys
from enum import IntEnum

from shardpool.settings_table import LOG_LEVELS


class Level(IntEnum):
    """How much a line matters; the least one shown is a setting."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


class Console:
    """Where a command's lines go."""

    def __init__(self, log_level: str = "info") -> None:
        self._least = Level(LOG_LEVELS.index(log_level))

    def answer(self, text: str) -> None:
        """What the user asked for."""
        _write(sys.stdout.fileno(), text)

    def log(self, level: Level, text: str) -> None:
        """Something that happened."""
        if level >= self._least:
            _write(sys.stderr.fileno(), f"shardpool: {text}")


def _write(fd: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(fd, text.encode("utf-8", "backslashreplace") + b"\n")
