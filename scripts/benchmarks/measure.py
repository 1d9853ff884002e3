"""Interleaved measurement: every contender once per round, ratios within a round, medians over the rounds."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.processes import read_usage
from benchmarks.scenarios import Metric, Scenario, Target
from benchmarks.servers import Contender, Framing, Server, ServerError, running

if TYPE_CHECKING:
    from shardpool._load import Result


@dataclass(frozen=True)
class Pace:
    """How long and how often. Args: pairs: rounds; warm_up, seconds: of each measurement."""

    pairs: int
    warm_up: float
    seconds: float


@dataclass(frozen=True)
class Sample:
    """One measurement of one contender."""

    rate: float
    latency_us: dict[str, float]
    cpu_us: float  # of all its processes, per message
    cpu_by_process: dict[str, float]  # the same by process
    client_us: float
    others_cpu: float  # share of one CPU that the waiting servers used meanwhile

    def value(self, metric: Metric) -> float:
        """What a target compares."""
        match metric:
            case "rate":
                return self.rate
            case "cpu":
                return self.cpu_us
            case "p50":
                return self.latency_us["p50"]


@dataclass(frozen=True)
class Comparison:
    """One target over all rounds; medians."""

    target: Target
    framing: Framing
    ours: float
    theirs: float
    ratio: float
    ratios: list[float]
    our_cpu_us: float
    their_cpu_us: float

    @property
    def met(self) -> bool | None:
        """None: nothing is asked."""
        return self.target.met_by(self.ratio)


@dataclass(frozen=True)
class Row:
    """A scenario measured."""

    scenario: Scenario
    comparisons: list[Comparison]
    samples: dict[str, list[Sample]]


def measure(scenario: Scenario, framings: Sequence[Framing], pace: Pace, python: Path) -> Row:
    """Start all contenders of a scenario and measure them in turn. Raises: ServerError."""
    contenders = {framing: scenario.ours(framing) for framing in framings}
    order = [*contenders.values(), *scenario.peers]
    samples: dict[Contender, list[Sample]] = {contender: [] for contender in order}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running(contender, python)) for contender in order]
        for number in range(pace.pairs):
            # Backwards every other time: a machine that drifts must not favour who comes first.
            for server in servers if number % 2 == 0 else reversed(servers):
                others = [other for other in servers if other is not server]
                sample = measure_once(server, others, scenario.connections, scenario.load, pace)
                samples[server.contender].append(sample)
                _show(f"{scenario.name} {number + 1}/{pace.pairs} {server.contender.name}: {sample.rate:,.0f} msg/s")
    comparisons = [
        compare(target, framing, samples[mine], samples[target.peer])
        for framing, mine in contenders.items()
        for target in scenario.targets
    ]
    return Row(scenario, comparisons, {contender.name: found for contender, found in samples.items()})


def measure_once(
    server: Server, others: Sequence[Server], connections: int, load: Mapping[str, Any], pace: Pace
) -> Sample:
    """Connect, warm up, measure. Raises: ServerError: a wrong, missing or failed reply."""
    client = server.load(connections)
    try:
        check_complete(server, client.run(pace.warm_up, **load))
        before, others_before = read_usage(server.pid), [read_usage(other.pid) for other in others]
        result = client.run(pace.seconds, **load)
        used = read_usage(server.pid).since(before)
        idle = [read_usage(other.pid).since(earlier) for other, earlier in zip(others, others_before, strict=True)]
    finally:
        client.close()
    check_complete(server, result)
    messages = result["messages"]
    latency = {name: value for name, value in result["latency_us"].items() if isinstance(value, float)}
    return Sample(
        rate=result["rate"],
        latency_us=latency,
        cpu_us=sum(used.values()) / messages * 1e6,
        cpu_by_process={name: seconds / messages * 1e6 for name, seconds in used.items()},
        client_us=(result["cpu_user"] + result["cpu_system"]) / messages * 1e6,
        others_cpu=sum(sum(usage.values()) for usage in idle) / result["seconds"],
    )


def check_complete(server: Server, result: "Result") -> None:
    """Raise ServerError unless every message had its reply, and a right one."""
    if result["errors"] or result["unfinished"] or not result["messages"]:
        raise ServerError(
            f"{server.contender.name}: {result['errors']} errors, {result['unfinished']} messages not sent or without"
            f" reply beside {result['messages']} with one. {result['error']}"
        )


def compare(target: Target, framing: Framing, mine: Sequence[Sample], theirs: Sequence[Sample]) -> Comparison:
    """Ratios round by round, then medians."""
    pairs = list(zip(mine, theirs, strict=True))
    ratios = [our.value(target.metric) / their.value(target.metric) for our, their in pairs]
    return Comparison(
        target=target,
        framing=framing,
        ours=median(our.value(target.metric) for our, _ in pairs),
        theirs=median(their.value(target.metric) for _, their in pairs),
        ratio=median(ratios),
        ratios=ratios,
        our_cpu_us=median(our.cpu_us for our, _ in pairs),
        their_cpu_us=median(their.cpu_us for _, their in pairs),
    )


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
