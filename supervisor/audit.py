"""Whether a pool's books balance (O-14): what each shard's memory says, and what is wrong with it."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil
from msgspec import Struct

from shardpool.supervisor.child import Process

TRIES = 5
_STOP_PATIENCE = 0.02  # a process stops when it next leaves the kernel or is interrupted: microseconds
_STOP_LOOK = 0.0002

_COLUMNS = ("accepted", "moved_in", "handled", "failed", "dead_lettered", "unrun", "moved_out")
_ENDED = _COLUMNS[2:]

Look = Callable[[], Mapping[str, int]]


class ShardBooks(Struct, frozen=True):
    """One shard's records since the pool's start, and what does not fit."""

    shard: int
    books: dict[str, int]  # by column
    waiting: int  # accepted, in its lanes
    in_links: int  # written, and not accepted yet
    objects: int
    judged: bool  # False: it worked while it was looked at, every time
    findings: list[str]


def look_at(shard: int, look: Look, process: Process | None, pause: bool) -> ShardBooks:
    """Look at one shard until it holds still, a few times at most.

    Args:
        shard: from 0; look: `_core.audit` of it.
        process: its process, None while it has none.
        pause: stop the process while its memory is read (about a millisecond).
    """
    for _ in range(TRIES):
        with _held(process if pause else None):
            facts = look()
        findings = judge(facts)
        if not facts["moved"] and not findings:
            break
    moved = bool(facts["moved"])
    return ShardBooks(
        shard=shard,
        books={column: facts[column] for column in _COLUMNS},
        waiting=facts["in_lanes"],
        in_links=facts["in_links"],
        objects=facts["objects"],
        judged=not moved,
        findings=[] if moved else findings,
    )


def judge(facts: Mapping[str, int]) -> list[str]:
    """What does not fit in one look at a shard that held still."""
    findings = []
    apart = facts["accepted"] + facts["moved_in"] - sum(facts[name] for name in _ENDED) - facts["in_lanes"]
    if apart:
        findings.append(f"{abs(apart)} records are {'missing from' if apart > 0 else 'too many in'} the lanes")
    if facts["off"]:
        findings.append(
            f"{facts['off']} objects hold reservations that are not their records, one at {facts['first_off']:#x}"
        )
    if facts["damaged"]:
        findings.append(f"{facts['damaged']} lanes lead nowhere")
    if facts["permits"] != facts["permits_needed"]:
        findings.append(f"{facts['permits']} permits are in use, {facts['permits_needed']} objects hold one")
    if facts["stray_routes"]:
        findings.append(f"{facts['stray_routes']} of {facts['routes']} ids lead to objects that are gone")
    return findings


@contextmanager
def _held(process: Process | None) -> Iterator[None]:
    if process is None:
        yield
        return
    process.kill(signal.SIGSTOP)
    try:
        deadline = time.monotonic() + _STOP_PATIENCE
        while _runs(process.pid) and time.monotonic() < deadline:
            time.sleep(_STOP_LOOK)
        yield
    finally:
        process.kill(signal.SIGCONT)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def table(shards: list[ShardBooks]) -> str:
    """The books for a terminal, findings below."""
    header = ["shard", *(column.replace("_", " ") for column in _COLUMNS), "waiting", "in links", "objects", "books"]
    rows = [header]
    for each in shards:
        verdict = "off" if each.findings else "balance" if each.judged else "busy"
        cells = [str(each.shard + 1), *(f"{each.books[column]:,}" for column in _COLUMNS)]
        rows.append([*cells, f"{each.waiting:,}", f"{each.in_links:,}", f"{each.objects:,}", verdict])
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [f"shard {each.shard + 1}: {finding}" for each in shards for finding in each.findings]
    if any(not each.judged for each in shards):
        lines.append(
            "busy: it worked at every look and was not judged; --pause holds each shard for about a millisecond"
        )
    return "\n".join(lines)
