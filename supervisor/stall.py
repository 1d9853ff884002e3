"""Shards that do not come back from a handler, seen from outside: by progress, never by an answer to a question.

A pong from a side thread would call a hung loop healthy; the turn counter is written by the loop itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_NS = 1_000_000_000
STACK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """What was last seen of one shard."""

    turns: int
    since: float  # monotonic seconds at which `turns` was first seen
    told: int = 0  # how often this standstill was a Stall


@dataclass(frozen=True, slots=True)
class Stall:
    """A shard that stands still."""

    seconds: float
    slot: int  # of the object whose handler runs; 0: none, it has work and takes none up
    again: bool = False  # it was told of, and its stack has had the time to be written


def observe(
    before: Progress | None, counters: Mapping[str, int], now: float, after: float
) -> tuple[Progress, Stall | None]:
    """Compare a shard's counters with what was seen before.

    Args: now: monotonic seconds, the clock of running_since_ns; after: seconds without progress that are a stall.
    Returns: what to remember, and the stall: twice per standstill, STACK_SECONDS apart.
    """
    turns = counters.get("turns", 0)
    if before is None or before.turns != turns:
        before = Progress(turns, now)
    started = counters.get("running_since_ns", 0)
    if started:
        stuck = min(now - started / _NS, now - before.since)
    elif counters.get("ready", 0):
        stuck = now - before.since
    else:
        # Idle: nothing is due, however long ago the last turn was.
        return Progress(turns, now), None
    if before.told > 1 or stuck < after + before.told * STACK_SECONDS:
        return before, None
    stall = Stall(stuck, counters.get("running_slot", 0), again=before.told == 1)
    return Progress(turns, before.since, before.told + 1), stall
