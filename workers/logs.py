"""Logging of a worker: one line per event on the inherited stderr, with who says it; tracebacks behind their line."""

from __future__ import annotations

import logging
import sys


def set_up(identity: str, level: str) -> None:
    """Args: identity: "shard-1". level: a name of the logging module, any case."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {identity} %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # A broken stderr must not turn every log call into a traceback of its own (T-27).
    logging.raiseExceptions = False
