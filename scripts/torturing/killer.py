"""SIGKILL for random workers that are really at work, in an order that the seed decides."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import close, pidfd_open
from typing import Any

from torturing.ledger import PIDS, Ledger
from torturing.pool import Pool

PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One death. at: monotonic seconds."""

    at: float
    role: str
    index: int


class Killer:
    """Kills one worker per period. `skipped`: times when none was at work for long."""

    def __init__(self, pool: Pool, ledger: Ledger, victims: str, period: float, chance: random.Random) -> None:
        self._pool = pool
        self._ledger = ledger
        self._roles = ("shard", "acceptor") if victims == "both" else (victims.removesuffix("s"),)
        self._period = period
        self._chance = chance
        self._first_seen: dict[int, int] = {}
        self.kills: list[Kill] = []
        self.skipped = 0

    def rage(self, is_over: Callable[[], bool]) -> None:
        """Kill until it is over."""
        next_at = time.monotonic() + self._period
        while not is_over():
            # Not in step with the load, and yet the same for the same seed.
            pause = next_at + self._chance.uniform(-0.3, 0.3) * self._period - time.monotonic()
            time.sleep(max(0.0, min(pause, 0.2)))
            if pause > 0.2:
                continue
            self._strike(is_over)
            next_at = max(next_at + self._period, time.monotonic())

    def _strike(self, is_over: Callable[[], bool]) -> None:
        role = self._chance.choice(self._roles)
        place = self._chance.random()
        deadline = time.monotonic() + PATIENCE
        while not is_over():
            rows = sorted((row for row in self._pool.processes() if row["role"] == role), key=lambda row: row["index"])
            # Only of these: clients of a killed acceptor may all have gone to another one.
            at_work = [row for row in rows if self._is_at_work(row)]
            if at_work:
                self._kill(at_work[int(place * len(at_work))])
                return
            if time.monotonic() > deadline:
                self.skipped += 1
                return
            time.sleep(0.005)

    def _is_at_work(self, row: dict[str, Any]) -> bool:
        """Registered, and it took a message since its start."""
        pid = row["pid"]
        if row["state"] != "ready" or pid == 0:
            return False
        if row["role"] == "shard":
            return self._ledger.taken[pid % PIDS] > 0
        before = self._first_seen.setdefault(pid, row["counters"]["messages_in"])
        return row["counters"]["messages_in"] > before

    def _kill(self, row: dict[str, Any]) -> None:
        with contextlib.suppress(ProcessLookupError):
            handle = pidfd_open(row["pid"])
            try:
                if row["role"] == "shard":
                    self._ledger.taken[row["pid"] % PIDS] = 0  # for whoever gets this pid next
                self.kills.append(Kill(time.monotonic(), row["role"], row["index"]))
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                close(handle)
