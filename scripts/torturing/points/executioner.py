"""Has every step of every role kill its process, again and again, while clients send."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torturing.killer import Kill
from torturing.points.control import Control
from torturing.pool import Pool

LOOK_SECONDS = 0.01
# A step that is not passed in this time is one of a start: then the process is killed, and its successor dies there.
REACH_SECONDS = 1.5
GIVE_UP_SECONDS = 8.0
MOST_PASSES = 8


@dataclass(slots=True)
class Place:
    """One worker's place in the pool, whoever lives there."""

    process: int
    role: str
    index: int
    pid: int = 0
    point: int | None = None
    since: float = 0.0
    triggered: bool = False


@dataclass(slots=True)
class Agenda:
    """What is left of a round, by role; each round has every point that the role has ever passed."""

    chance: random.Random
    left: dict[str, list[int]] = field(default_factory=dict)
    rounds: Counter[str] = field(default_factory=Counter)

    def next(self, role: str, points: Callable[[], list[int]]) -> int | None:
        """The next point of a role."""
        if not self.left.get(role):
            self.left[role] = points()
            self.chance.shuffle(self.left[role])
            self.rounds[role] += 1
        return self.left[role].pop() if self.left[role] else None


class Executioner:
    """In the place of the Killer, for a build with kill points."""

    def __init__(self, pool: Pool, control: Control, victims: str, chance: random.Random) -> None:
        self._pool = pool
        self._control = control
        self._roles = ("shard", "acceptor") if victims == "both" else (victims.removesuffix("s"),)
        self._chance = chance
        self._agenda = Agenda(chance)
        self.kills: list[Kill] = []
        self.skipped = 0
        self.deaths: Counter[tuple[str, str]] = Counter()  # by role and point
        self.missed: set[tuple[str, str]] = set()

    def rage(self, is_over: Callable[[], bool]) -> None:
        """Go through the points until it is over."""
        rows = [row for row in self._pool.processes() if row["role"] in self._roles]
        places = [Place(row["process"], row["role"], row["index"]) for row in rows]
        self._begin(places, is_over)
        while not is_over():
            alive = {row["process"]: row for row in self._pool.processes()}
            for place in places:
                self._look(place, alive[place.process])
            time.sleep(LOOK_SECONDS)
        for place in places:
            self._control.disarm(place.process)

    def _begin(self, places: list[Place], is_over: Callable[[], bool]) -> None:
        """One ordinary death of each, so that the steps of adopting are known, too."""
        for place in places:
            while not is_over() and self._row(place)["state"] != "ready":
                time.sleep(LOOK_SECONDS)
            time.sleep(0.3)
            self._note(place)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._row(place)["pid"], signal.SIGKILL)
        while not is_over() and not self._pool.is_serving():
            time.sleep(LOOK_SECONDS)
        time.sleep(0.5)

    def _row(self, place: Place) -> dict[str, Any]:
        return next(row for row in self._pool.processes() if row["process"] == place.process)

    def _note(self, place: Place) -> None:
        self.kills.append(Kill(time.monotonic(), place.role, place.index))

    def _points(self, role: str) -> list[int]:
        processes = [row["process"] for row in self._pool.processes() if row["role"] == role]
        return [
            point
            for point in range(self._control.points)
            if any(self._control.passes(process, point) for process in processes)
        ]

    def _look(self, place: Place, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if place.point is None:
            if row["state"] == "ready" and row["pid"] != place.pid:
                self._arm(place, row, now)
        elif not self._control.is_armed(place.process):
            self._note(place)
            self.deaths[place.role, self._control.name(place.point)] += 1
            place.point = None
        elif now - place.since > GIVE_UP_SECONDS:
            self._control.disarm(place.process)
            self.missed.add((place.role, self._control.name(place.point)))
            place.point, place.pid = None, 0
        elif now - place.since > REACH_SECONDS and not place.triggered:
            place.triggered = True
            self._control.arm(place.process, place.point, 1)
            self._note(place)
            with contextlib.suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)

    def _arm(self, place: Place, row: dict[str, Any], now: float) -> None:
        point = self._agenda.next(place.role, lambda: self._points(place.role))
        if point is None:
            return
        place.point, place.pid, place.since, place.triggered = point, row["pid"], now, False
        self._control.arm(place.process, point, self._chance.randint(1, MOST_PASSES))

    def as_text(self) -> str:
        """What was covered."""
        lines = []
        for role in self._roles:
            deaths = {name: count for (whose, name), count in self.deaths.items() if whose == role}
            missed = sorted(name for whose, name in self.missed if whose == role and name not in deaths)
            each = f", {min(deaths.values())} to {max(deaths.values())} each" if deaths else ""
            line = f"{role}s died {sum(deaths.values())} times in front of {len(deaths)} steps{each}"
            lines.append(line + (f"; not reached again: {', '.join(missed)}" if missed else ""))
        return "\n".join(lines)
