"""Logging of a worker: one line per event on the inherited stderr, with who says it; tracebacks behind their line."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

LINES_PER_SECOND = 10
_OWN = "shardpool."


@dataclass(slots=True)
class _Place:
    """One log call in the code, in the present second."""

    since: float
    passed: int = 0
    left_out: int = 0


class Sluice(logging.Filter):
    """Lets only so many lines a second pass from one place in shardpool's own code, and says how many it kept.

    A client can send many thousand unreadable messages a second; it must not fill a disk with what is said about them,
    or keep the shard busy saying it. What the app logs is the app's matter.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if not record.name.startswith(_OWN):
            return True
        now = self._clock()
        place = self._places.setdefault((record.pathname, record.lineno), _Place(now))
        if now - place.since >= 1.0:
            if place.left_out:
                record.msg = f"{record.msg} ({place.left_out:,} more like this were left out before)"
            place.since, place.passed, place.left_out = now, 0, 0
        if place.passed == LINES_PER_SECOND:
            place.left_out += 1
            return False
        place.passed += 1
        return True


def set_up(who: str, level: str) -> None:
    """Args: who: "shard-1". level: a name of the logging module, any case."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {who} %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(Sluice())
    root = logging.getLogger()
    # A forked worker has the handler of the warm process.
    for before in [each for each in root.handlers if any(isinstance(part, Sluice) for part in each.filters)]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # A broken stderr must not turn every log call into a traceback of its own (T-27).
    logging.raiseExceptions = False
