"""What runs, read from shared memory and /proc: it answers while a shard is stuck (O-4)."""

from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from msgspec import Struct

from shardpool.supervisor import rolling
from shardpool.supervisor.child_spec import Role
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.pool_state import Child, Restart, Step

_NS = 1_000_000_000


class Running(Struct, frozen=True):
    """A handler that runs at this moment."""

    slot: int  # of the object
    seconds: float


class ProcessStatus(Struct, frozen=True):
    """One row of `shardpool status`."""

    process: int
    role: str
    index: int
    state: str
    pid: int
    uptime: float  # seconds
    restarts: int
    last_death: str  # how the last process of this place ended; empty: none has
    seconds_since_death: float
    cpu_percent: float  # of one CPU, since the last look
    rss_bytes: int  # shared memory included, as far as it was touched
    messages_per_second: float
    counters: dict[str, int]
    running: Running | None = None


class RestartStatus(Struct, frozen=True):
    """A rolling restart, under way or the last one."""

    number: int  # from 1
    running: bool
    progress: str
    problem: str


class PoolStatus(Struct, frozen=True):
    """What `shardpool status --json` prints."""

    name: str
    app: str
    pid: int
    phase: str
    uptime: float
    run_dir: str
    listeners: list[dict[str, str]]
    processes: list[ProcessStatus]
    dead_letters: str = ""  # the file of messages that were not run
    warm: list[int] = []  # pids of the warm start processes
    warm_ready: int = 0  # how many of them can be forked
    restart: RestartStatus | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Running totals of one process at one moment."""

    at: float  # monotonic seconds
    pid: int
    cpu: float  # seconds
    messages: int


def restart_status(restart: Restart | None) -> RestartStatus | None:
    """For the status."""
    if restart is None:
        return None
    return RestartStatus(restart.number, restart.step is not Step.ENDED, rolling.progress(restart), restart.problem)


def take_sample(pid: int, counters: Mapping[str, int], now: float) -> tuple[Sample, int]:
    """Look at a process.

    Args: pid: 0 for none; counters: its shared counters; now: monotonic seconds.
    Returns: its totals and its resident bytes.
    """
    messages = counters.get("messages_in", 0) + counters.get("messages_out", 0)
    if pid == 0:
        return Sample(now, 0, 0.0, messages), 0
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return Sample(now, pid, times.user + times.system, messages), process.memory_info().rss
    except psutil.Error:
        return Sample(now, 0, 0.0, messages), 0


def describe(child: Child, memory: Memory, before: Sample | None, now: float) -> tuple[ProcessStatus, Sample]:
    """One worker's row.

    Args: before: its last sample, for rates; now: monotonic seconds, the clock of running_since_ns.
    """
    counters = memory.counters(child.spec.process)
    sample, rss = take_sample(child.pid, counters, now)
    if before is None or before.pid != sample.pid:
        # The average over its life; counters outlive a process, so messages have no such average.
        before = Sample(child.started, sample.pid, 0.0, sample.messages)
    elapsed = max(now - before.at, 1e-3)
    since = counters.get("running_since_ns", 0)
    running = None
    if child.spec.role is Role.SHARD and since and child.pid:
        running = Running(counters.get("running_slot", 0), max(0.0, now - since / _NS))
    row = ProcessStatus(
        process=child.spec.process,
        role=child.spec.role.value,
        index=child.spec.index,
        state=child.status.name.lower(),
        pid=child.pid,
        uptime=now - child.started if child.pid else 0.0,
        restarts=child.restarts,
        last_death=child.last_death,
        seconds_since_death=now - child.died if child.last_death else 0.0,
        cpu_percent=max(0.0, 100 * (sample.cpu - before.cpu) / elapsed),
        rss_bytes=rss,
        messages_per_second=max(0, sample.messages - before.messages) / elapsed,
        counters=counters,
        running=running,
    )
    return row, sample


def table(status: PoolStatus) -> str:
    """The status for a terminal."""
    lines = [
        f"{status.name} ({status.app}): {status.phase}, supervisor pid {status.pid}, up {_duration(status.uptime)}",
        *(f"  {listener['address']}" for listener in status.listeners),
        *_starts(status),
        "",
    ]
    lines += _columns([_HEADER, *(_row(row) for row in status.processes)])
    for row in status.processes:
        if row.running is not None and row.running.seconds >= 1:
            where = f"(object slot {row.running.slot})"
            lines.append(f"shard {row.index + 1} has been in one handler for {row.running.seconds:.1f} s {where}")
        if row.last_death:
            ago = _duration(row.seconds_since_death)
            lines.append(f"{row.role} {row.index + 1}: its last process {row.last_death}, {ago} ago")
        if row.counters.get("quarantined"):
            lines.append(
                f"shard {row.index + 1} has {row.counters['quarantined']} quarantined objects, which killed it; "
                "see shardpool dead-letters list"
            )
        if row.state == "broken":
            lines.append(
                f"{row.role} {row.index + 1} was given up after repeated deaths; mend the cause and restart the pool"
            )
    return "\n".join(lines)


def _starts(status: PoolStatus) -> list[str]:
    """How workers come to life, and how the last restart went."""
    warm = f"{status.warm_ready} of {len(status.warm)} ready" if status.warm else "none; workers are started by exec"
    lines = [f"  warm start processes: {warm}"]
    if status.restart is not None:
        state = "under way" if status.restart.running else "ended early" if status.restart.problem else "done"
        problem = f": {status.restart.problem}" if status.restart.problem else ""
        lines.append(f"  rolling restart {status.restart.number}: {state}, {status.restart.progress}{problem}")
    return lines


_HEADER = [
    "process", "state", "pid", "uptime", "restarts", "cpu", "rss", "msgs/s",
    "conns", "sessions", "objects", "ready", "refused",
]  # fmt: skip


def _row(row: ProcessStatus) -> list[str]:
    shard = row.role == Role.SHARD
    counters = row.counters
    refused = sum(value for name, value in counters.items() if name.startswith("refused_"))
    return [
        f"{row.role} {row.index + 1}",
        row.state,
        str(row.pid or "-"),
        _duration(row.uptime),
        str(row.restarts),
        f"{row.cpu_percent:.0f}%",
        f"{row.rss_bytes / 1024**2:.0f}M",
        f"{row.messages_per_second:,.0f}",
        "" if shard else str(counters.get("connections", 0)),
        str(counters.get("sessions", 0)) if shard else "",
        str(counters.get("objects", 0)) if shard else "",
        str(counters.get("ready", 0)) if shard else "",
        str(refused),
    ]


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
