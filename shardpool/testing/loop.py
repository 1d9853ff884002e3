"""A shard's asyncio loop without sockets, threads or a clock of its own: one callback runs when the kit says so.

Within one loop callbacks run in the order they were planned, as on a real one; only of timers that are due at the same
moment the dice say which is first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from shardpool.testing.dice import Dice

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Clock:
    """Virtual time, in seconds; all shards of a kit share it."""

    def __init__(self) -> None:
        # Not 0, which some code takes for "no time".
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


class ShardLoop(asyncio.BaseEventLoop):
    """One shard's loop."""

    _inside = False

    def __init__(self, clock: Clock, dice: Dice) -> None:
        super().__init__()
        self._clock = clock
        self._dice = dice
        self._planned: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        """Virtual seconds."""
        return self._clock.now

    def is_running(self) -> bool:
        """Whether one of its callbacks runs now."""
        return self._inside

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Plan a callback behind those that are planned."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_closed():
            self._planned.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As call_soon: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Plan a callback for a moment of virtual time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_closed():
            heapq.heappush(self._timers, (when, self._dice.fraction(), next(self._numbers), handle))
        return handle

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call the function in a callback of its own: a thread's end would come at a moment that no seed decides."""
        future: asyncio.Future[T] = self.create_future()
        self.call_soon(_call_for, future, func, args)
        return future

    @property
    def ready(self) -> bool:
        """Whether a callback is planned."""
        while self._planned and self._planned[0].cancelled():
            self._planned.popleft()
        return bool(self._planned)

    def due(self) -> float | None:
        """When the next timer is due; None: there is none."""
        while self._timers and self._timers[0][3].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def take_due(self) -> None:
        """Plan the timers that are due by now."""
        while (due := self.due()) is not None and due <= self._clock.now:
            self._planned.append(heapq.heappop(self._timers)[3])

    def step(self) -> str:
        """Run the first planned callback. Returns: what it was."""
        handle = self._planned.popleft()
        with self.entered():
            handle._run()
        return _name_of(handle)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This loop is the running one; whatever loop the test itself runs on comes back afterwards."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            events._set_running_loop(before)

    def end(self) -> None:
        """Forget what is planned."""
        self.close()
        self._planned.clear()
        self._timers.clear()


def _call_for(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _name_of(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        # Turns are named as their handlers; the numbers of unnamed tasks differ from run to run.
        if not (name := owner.get_name()).startswith("Task-"):
            return name
        callback = owner.get_coro()
    return getattr(callback, "__qualname__", None) or type(callback).__name__
