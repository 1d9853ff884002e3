"""Rows that are figures of ours rather than ratios: publish, idle, drain."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.drain import measure_drain
from benchmarks.measure import Pace
from benchmarks.processes import read_memory, read_usage
from benchmarks.servers import HERE, Contender, Server, ServerError, ours, running

SESSIONS = 1000
PUBLISHES_PER_SECOND = 100.0
PLAIN_WRITER = Contender(
    "plain writer in C",
    (sys.executable, str(HERE / "peers" / "plain_writer.py"), "--port", "{port}"),
    check="echo",
)


@dataclass(frozen=True)
class Figure:
    """One figure with what is asked of it. Args: at_most, at_least: the limit."""

    name: str
    title: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure is within its limits."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    @property
    def text(self) -> str:
        """The limit, as in the table."""
        return f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}"


def measure_publish(pace: Pace, python: Path) -> list[Figure]:
    """One member of a room speaks, a thousand hear it; against a plain server in C that only does the socket writes."""
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(running(ours("room", framing="session"), python))
        plain = stack.enter_context(running(PLAIN_WRITER, python))
        costs = [(_publish_once(mine, pace), _publish_once(plain, pace)) for _ in range(pace.pairs)]
    above = median(our - their for our, their in costs)
    detail = f"ours {median(our for our, _ in costs):.2f}, plain writes {median(their for _, their in costs):.2f}"
    title = f"publish to {SESSIONS:,} sessions of one room, above the socket writes"
    return [Figure("publish", title, above, "µs CPU/delivered", at_most=1.5, detail=detail)]


def measure_idle(pace: Pace, python: Path) -> list[Figure]:
    """What silent sessions cost; long enough for a round of heartbeats unless the pace is quick."""
    with running(ours("counter", framing="session"), python) as server:
        warm = server.load(50)
        warm.run(pace.warm_up)
        warm.close()
        before = read_memory(server.pid)
        load = server.load(SESSIONS)
        load.run(0.5, receive=True)
        memory = (read_memory(server.pid) - before) / SESSIONS / 1024
        usage = read_usage(server.pid)
        result = load.run(20.0 if pace.pairs >= 5 else pace.seconds, receive=True)
        used = sum(read_usage(server.pid).since(usage).values()) / result["seconds"] * 100
        load.close()
    if result["connections"] != SESSIONS:
        raise ServerError(f"{SESSIONS - result['connections']} silent sessions were closed: {result['error']}")
    return [
        Figure("idle", f"{SESSIONS:,} connected silent sessions", used, "% CPU", at_most=1.0),
        Figure("idle", f"{SESSIONS:,} connected silent sessions", memory, "KiB/session", at_most=6.0),
    ]


def measure_shard(pace: Pace, _python: Path) -> list[Figure]:
    """The shard's executor alone."""
    rates = [measure_drain(pace.seconds / 4) for _ in range(max(1, pace.pairs))]
    title = "shard drain: `def` handler and reply, records ready in a link"
    return [Figure("drain", title, median(rates) / 1e6, "M msg/s", at_least=6.0)]


SINGLES: dict[str, Callable[[Pace, Path], list[Figure]]] = {
    "drain": measure_shard,
    "publish": measure_publish,
    "idle": measure_idle,
}


def _publish_once(server: Server, pace: Pace) -> float:
    """Server CPU in µs per delivered message."""
    load = server.load(SESSIONS)
    try:
        load.run(pace.warm_up, rate=PUBLISHES_PER_SECOND, senders=1)
        before = read_usage(server.pid)
        result = load.run(pace.seconds, rate=PUBLISHES_PER_SECOND, senders=1)
        used = sum(read_usage(server.pid).since(before).values())
    finally:
        load.close()
    # The plain writer's sender gets its echo as its reply; our sender hears itself besides.
    expected = result["sent"] * (SESSIONS - (0 if server.contender.framing == "session" else 1))
    if result["errors"] or result["pushes"] != expected or not result["sent"]:
        raise ServerError(
            f"{server.contender.name}: {result['pushes']} pushes where {expected} were due, {result['error']}"
        )
    return used / result["pushes"] * 1e6
