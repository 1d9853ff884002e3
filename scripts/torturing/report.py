"""The figures of a run, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torturing.verdict import CLASSES


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run showed. gaps: seconds from a shard's death to the next answer of each session that lived there;
    back: seconds from the last death of an acceptor to each return of a session."""

    messages: dict[str, int]
    hops: dict[str, int]
    kills: dict[str, int]
    skipped: int
    closed: int
    sessions_lost: int
    gaps: list[float]
    back: list[float]
    longest: float
    errors: dict[str, int]
    reasons: dict[str, int]
    seconds: float
    faults: list[str]
    points: str = ""

    def as_json(self) -> dict[str, Any]:
        """Everything, percentiles in place of samples."""
        return {
            "messages": self.messages,
            "hops": self.hops,
            "kills": self.kills,
            "no_victim_at_work": self.skipped,
            "connections_closed": self.closed,
            "sessions_lost": self.sessions_lost,
            "answer_gap_ms": _percentiles(self.gaps),
            "back_ms": _percentiles(self.back),
            "longest_ask_ms": round(self.longest * 1000, 1),
            "errors": self.errors,
            "closes": self.reasons,
            "points": self.points,
            "seconds": round(self.seconds, 1),
            "faults": self.faults,
        }

    def as_text(self) -> str:
        """The table."""
        lines = [f"{'':>10} {'messages':>12} {'between shards':>15}"]
        lines += [f"{name:>10} {self.messages.get(name, 0):12,} {self.hops.get(name, 0):15,}" for name in CLASSES]
        total = sum(self.messages.values())
        kills = ", ".join(f"{count} {role}s" for role, count in sorted(self.kills.items())) or "nobody"
        lines += [
            "",
            f"sent {total:,} in {self.seconds:.1f} s ({total / self.seconds:,.0f}/s); killed {kills}",
            f"connections closed {self.closed}, sessions lost {self.sessions_lost}",
            f"a shard's death to the next answer of its sessions: {_shown(self.gaps)}",
            f"an acceptor's death to the return of its sessions: {_shown(self.back)}",
            f"longest answered ask {self.longest * 1000:.0f} ms",
        ]
        if self.points:
            lines.append(self.points)
        if self.skipped:
            lines.append(f"{self.skipped} times no victim was at work for 10 s")
        for title, counts in (("errors", self.errors), ("closes", self.reasons)):
            if counts:
                lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        return "\n".join([*lines, *(f"FAULT: {fault}" for fault in self.faults)])


def _percentiles(samples: Sequence[float]) -> dict[str, float]:
    if not samples:
        return {}
    ordered = sorted(samples)
    picked = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    found = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in picked.items()}
    return {"count": len(ordered), **{name: round(value * 1000, 1) for name, value in found.items()}}


def _shown(samples: Sequence[float]) -> str:
    found = _percentiles(samples)
    if not found:
        return "none"
    return f"p50 {found['p50']} ms, p99 {found['p99']} ms, max {found['max']} ms ({found['count']:,})"
