"""The table, as text and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.measure import Comparison, Row
from benchmarks.scenarios import UNITS
from benchmarks.single import Figure


@dataclass
class Report:
    """Everything one run of scripts/bench has found."""

    machine: dict[str, str]
    versions: dict[str, str]
    pace: dict[str, float]
    probe_before_ns: float
    probe_after_ns: float = 0.0
    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain data; samples included."""
        return {
            "machine": self.machine,
            "versions": self.versions,
            "pace": self.pace,
            "probe_ns": {"before": self.probe_before_ns, "after": self.probe_after_ns},
            "rows": [_row_json(row) for row in self.rows],
            "figures": [{**asdict(figure), "target": figure.text, "met": figure.met} for figure in self.figures],
            "failures": self.failures,
        }

    def as_text(self) -> str:
        """One table for people."""
        lines = [
            "  ".join(f"{name} {value}" for name, value in self.machine.items()),
            "  ".join(f"{name} {value}" for name, value in self.versions.items()),
            f"spin ping-pong of two CPUs: {self.probe_before_ns:.0f} ns before, {self.probe_after_ns:.0f} ns after",
            "",
            *_aligned([_HEAD, *self._cells()]),
        ]
        lines.extend(f"FAILED {name}: {reason}" for name, reason in self.failures.items())
        return "\n".join(lines)

    def _cells(self) -> list[tuple[str, ...]]:
        cells: list[tuple[str, ...]] = []
        for figure in self.figures:
            value = f"{figure.value:.2f} {figure.unit}"
            cells.append((figure.name, value, figure.detail, "", figure.text, _mark(figure.met), ""))
        for row in self.rows:
            cells.extend(_comparison_cells(row.scenario.name, comparison) for comparison in row.comparisons)
        return cells


_HEAD = ("row", "ours", "theirs", "ratio", "target", "met", "CPU µs/msg ours : theirs")


def _comparison_cells(name: str, comparison: Comparison) -> tuple[str, ...]:
    target = comparison.target
    unit = UNITS[target.metric]
    shown = name if comparison.framing == "bare" else f"{name} (session)"
    return (
        shown,
        f"{_number(comparison.ours)} {unit}",
        f"{_number(comparison.theirs)} {target.peer.name}",
        f"{comparison.ratio:.2f}",
        target.text,
        _mark(comparison.met),
        f"{comparison.our_cpu_us:.2f} : {comparison.their_cpu_us:.2f}",
    )


def _row_json(row: Row) -> dict[str, Any]:
    comparisons = [
        {
            "peer": comparison.target.peer.name,
            "metric": comparison.target.metric,
            "unit": UNITS[comparison.target.metric],
            "framing": comparison.framing,
            "ours": comparison.ours,
            "theirs": comparison.theirs,
            "ratio": comparison.ratio,
            "ratios": comparison.ratios,
            "target": comparison.target.text,
            "met": comparison.met,
            "our_cpu_us": comparison.our_cpu_us,
            "their_cpu_us": comparison.their_cpu_us,
        }
        for comparison in row.comparisons
    ]
    return {
        "name": row.scenario.name,
        "title": row.scenario.title,
        "comparisons": comparisons,
        "samples": {name: [asdict(sample) for sample in samples] for name, samples in row.samples.items()},
    }


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table]


def _mark(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "NO"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
