"""The rows that are measured against peers: load, contenders, and what is asked of the ratio ours : theirs."""

from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.servers import Contender, Framing, Transport, ours, peer

Metric = Literal["rate", "cpu", "p50"]
UNITS: dict[Metric, str] = {"rate": "msg/s", "cpu": "µs CPU/msg", "p50": "µs p50"}

UVLOOP = peer("uvloop", "protocol_echo.py")
ASYNCIO = peer("asyncio", "protocol_echo.py", "--engine", "asyncio")
HOP_CLOUDTOID = peer("hop-cloudtoid", "hop.py")
HOP_CLOUDTOID_READS = peer("hop-cloudtoid, a record per read", "hop.py", "--grain", "read")
HOP_MULTIPROCESSING = peer("hop-multiprocessing", "hop.py", "--queue", "multiprocessing")
PICOWS = peer("picows", "picows_echo.py", transport="ws")
REUSEPORT = peer("uvloop × 2 SO_REUSEPORT", "protocol_echo.py", "--processes", "2")
LOOPING_REUSEPORT = peer("uvloop × 2 SO_REUSEPORT", "protocol_echo.py", "--processes", "2", "--loop", "1000")
LOOPING_UVLOOP = peer("uvloop", "protocol_echo.py", "--loop", "1000")
LOOPING_HOP = peer("hop-cloudtoid", "hop.py", "--loop", "1000")


@dataclass(frozen=True)
class Target:
    """One comparison. Args: at_least, at_most: what the ratio ours : theirs must be; neither: only shown."""

    peer: Contender
    metric: Metric
    at_least: float | None = None
    at_most: float | None = None

    def met_by(self, ratio: float) -> bool | None:
        """None: nothing is asked."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or ratio >= self.at_least) and (self.at_most is None or ratio <= self.at_most)

    @property
    def text(self) -> str:
        """As in the table."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else ""


@dataclass(frozen=True)
class Scenario:
    """One row. Args: load: arguments of Load.run."""

    name: str
    title: str
    app: str
    connections: int
    targets: tuple[Target, ...]
    load: dict[str, Any] = field(default_factory=dict)
    transport: Transport = "tcp"
    workers: int = 1

    def ours(self, framing: Framing) -> Contender:
        """Our server of this row."""
        return ours(self.app, transport=self.transport, framing=framing, workers=self.workers)

    @property
    def peers(self) -> tuple[Contender, ...]:
        """Each once, in the order of the targets."""
        return tuple(dict.fromkeys(target.peer for target in self.targets))


def _pipelined(connections: int) -> tuple[Target, ...]:
    shown = (Target(HOP_CLOUDTOID_READS, "rate"), Target(ASYNCIO, "rate")) if connections == 100 else ()
    return (
        Target(UVLOOP, "rate", at_least=1.3),
        Target(HOP_CLOUDTOID, "rate", at_least=2.0),
        Target(HOP_MULTIPROCESSING, "rate", at_least=20.0),
        *shown,
    )


SCENARIOS = (
    Scenario("tcp-100x16", "TCP, 100 clients × 16 outstanding", "counter", 100, _pipelined(100), {"outstanding": 16}),
    Scenario(
        "tcp-1000x16", "TCP, 1,000 clients × 16 outstanding", "counter", 1000, _pipelined(1000), {"outstanding": 16}
    ),
    Scenario(
        "tcp-closed",
        "TCP closed loop, 100 clients",
        "counter",
        100,
        (
            Target(UVLOOP, "cpu", at_most=1.2),
            Target(HOP_CLOUDTOID, "cpu", at_most=1.0),
            Target(UVLOOP, "rate"),
            Target(HOP_CLOUDTOID, "rate"),
        ),
    ),
    Scenario(
        "tcp-rate",
        "10,000 msg/s over 1,000 clients",
        "counter",
        1000,
        (
            Target(UVLOOP, "p50", at_most=1.6),
            Target(UVLOOP, "cpu", at_most=1.6),
            Target(HOP_CLOUDTOID, "p50"),
            Target(HOP_CLOUDTOID, "cpu"),
        ),
        {"rate": 10_000},
    ),
    Scenario(
        "loop-1000",
        "1,000-iteration loop per message, 2 shards + 1 acceptor, 100 clients × 16",
        "looping",
        100,
        (
            Target(LOOPING_REUSEPORT, "rate", at_least=0.9),
            Target(LOOPING_HOP, "rate", at_least=1.2),
            Target(LOOPING_UVLOOP, "rate"),
        ),
        {"outstanding": 16},
        workers=2,
    ),
    Scenario(
        "ws-100x16",
        "WebSocket, 100 clients × 16 outstanding",
        "counter",
        100,
        (Target(PICOWS, "rate", at_least=4.0),),
        {"outstanding": 16},
        "ws",
    ),
    Scenario(
        "ws-closed",
        "WebSocket closed loop, 100 clients",
        "counter",
        100,
        (Target(PICOWS, "rate", at_least=0.9), Target(PICOWS, "cpu")),
        transport="ws",
    ),
)
