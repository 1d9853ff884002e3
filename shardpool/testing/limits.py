"""What ends a test that would not end by itself."""

from __future__ import annotations

STEPS_MAX = 100_000  # of one run(); a turn is one to three steps
SETTLE_SECONDS = 60.0
TURNS_SHOWN = 3
STEPS_SHOWN = 10


class Endless(AssertionError):
    """More steps than a run may have: objects send in a circle, or a handler never lets go of its loop."""


class NotSettled(AssertionError):
    """Something still waits although time passed for it."""
