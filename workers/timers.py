"""`@every`: due timers put a record into their object's application lane; a timer never overlaps itself (T-33)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable
from dataclasses import dataclass
from time import time_ns
from typing import Any

from shardpool.handlers import TimerHandler
from shardpool.objects import Seat, TurnObject
from shardpool.workers.context import ShardContext
from shardpool.workers.kinds import Kind, Outcome


@dataclass(slots=True, eq=False)
class Timer:
    """One `@every` of one object."""

    number: int
    seat: Seat
    handler: TimerHandler
    due: float  # of the next tick, or of the one that is queued or runs
    stopped: bool = False


class Timers:
    """All timers of a shard, in one heap with one wake-up."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        # Not from 1: ticks that a predecessor queued must not find this process's timers.
        self._numbers = itertools.count(time_ns())
        self._timers: dict[int, Timer] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._of_object: dict[int, list[Timer]] = {}
        self._wake: Any = None
        self._wake_at = float("inf")
        context.steps[Kind.TIMER] = self.run

    def start(self, seat: Seat, handlers: tuple[TimerHandler, ...]) -> None:
        """Begin an object's timers; the first tick is one period from now."""
        if not handlers:
            return
        now = self._context.now()
        timers = [Timer(next(self._numbers), seat, handler, now + handler.seconds) for handler in handlers]
        self._of_object[seat.address] = timers
        for timer in timers:
            self._timers[timer.number] = timer
            self._push(timer)

    def stop(self, address: int) -> None:
        """End an object's timers: no handler of it begins after this."""
        for timer in self._of_object.pop(address, ()):
            timer.stopped = True
            self._timers.pop(timer.number, None)

    def run(self, target: TurnObject, number: int, due_ns: int, payload: bytes) -> Any:
        """In the object's turn: the tick. Returns: a coroutine if the handler is async."""
        timer = self._timers.get(number)
        if timer is None or timer.stopped:
            return None
        try:
            if timer.handler.wants_lateness:
                result = timer.handler.function(target, max(0.0, self._context.now() - timer.due))
            else:
                result = timer.handler.function(target)
        except BaseException:
            self._again(timer)
            raise
        if isinstance(result, Awaitable):
            return self._run_on(timer, result)
        self._again(timer)
        return None

    async def _run_on(self, timer: Timer, result: Awaitable[Any]) -> None:
        try:
            await result
        finally:
            self._again(timer)

    def _again(self, timer: Timer) -> None:
        """Plan the first tick that is not over yet; the ones in between are skipped and counted."""
        if timer.stopped:
            return
        now = self._context.now()
        timer.due += timer.handler.seconds
        if timer.due <= now:
            missed = int((now - timer.due) // timer.handler.seconds) + 1
            timer.due += missed * timer.handler.seconds
            self._context.counts.skipped_ticks += missed
        self._push(timer)

    def _push(self, timer: Timer) -> None:
        heapq.heappush(self._heap, (timer.due, timer.number, timer))
        if timer.due < self._wake_at:
            self._plan(timer.due)

    def _plan(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake_at = at
        self._wake = self._context.loop.call_later(max(0.0, at - self._context.now()), self._tick)

    def _tick(self) -> None:
        self._wake = None
        self._wake_at = float("inf")
        now = self._context.now()
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            if not timer.stopped:
                self._post(timer)
        if self._heap and self._wake is None:
            self._plan(self._heap[0][0])

    def _post(self, timer: Timer) -> None:
        outcome = self._context.shard.post(
            timer.seat.address, Kind.TIMER, timer.number, int(timer.due * 1e9), lifecycle=False
        )
        if outcome == Outcome.STALE:
            self.stop(timer.seat.address)
        elif outcome != Outcome.ACCEPTED:
            # The object has more to do than it can: this tick is a missed one.
            self._context.counts.skipped_ticks += 1
            self._again(timer)
