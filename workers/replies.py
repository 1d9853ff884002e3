"""Asks that wait for their reply: each completes exactly once, with what comes first (T-9, T-10)."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from time import time_ns

from shardpool.errors import Condition, error_from_call
from shardpool.workers.context import ShardContext, log


@dataclass(slots=True, eq=False)
class OpenAsk:
    """One ask that is under way."""

    number: int
    future: asyncio.Future[bytes]
    timer: asyncio.TimerHandle
    shard: int = -1  # who is to answer, and the how manieth process in that place when it was asked
    incarnation: int = 0


class OpenAsks:
    """The open asks of a shard, to objects and to its peers."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._open: dict[int, OpenAsk] = {}
        # Numbers are never reused, not even by the successor of a killed shard: late replies must find nothing.
        self._numbers = itertools.count(time_ns())

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, deadline: float, described: str) -> OpenAsk:
        """Reserve the place of a completion before anything is submitted (M-21).

        Args: deadline: of the monotonic clock. described: what is asked of whom, for the error.
        Raises: CapacityExceeded: too many are open. DeadlineExceeded: it is over already.
        """
        if len(self._open) >= self._context.settings.open_asks:
            raise Condition.ASKS_FULL.error(
                f"{described}: {len(self._open):,} asks of this shard are open already; "
                "answer them faster, ask less, or raise open_asks"
            )
        remaining = deadline - self._context.now()
        if remaining <= 0:
            raise Condition.DEADLINE.error(f"{described}: the deadline was over before it was submitted")
        number = next(self._numbers)
        timer = self._context.loop.call_later(remaining, self._expire, number, described)
        ask = OpenAsk(number, self._context.loop.create_future(), timer)
        self._open[number] = ask
        return ask

    def aim(self, ask: OpenAsk, shard: int) -> None:
        """Say who is to answer; before the ask is sent."""
        ask.shard = shard
        ask.incarnation = self._context.incarnation(shard)

    def abandon(self, ask: OpenAsk) -> None:
        """Nobody waits any more; a reply is late from now on."""
        if self._open.pop(ask.number, None) is not None:
            ask.timer.cancel()

    def reply(self, number: int, status: int, payload: bytes) -> None:
        """Executor's hook, and the peers': the answer is there."""
        ask = self._open.pop(number, None)
        if ask is None:
            self._context.counts.late_replies += 1
            return
        ask.timer.cancel()
        if ask.future.done():
            self._context.counts.late_replies += 1
        elif status == 0:
            ask.future.set_result(payload)
        else:
            ask.future.set_exception(error_from_call(status, payload))

    def _expire(self, number: int, described: str) -> None:
        ask = self._open.pop(number, None)
        if ask is None or ask.future.done():
            return
        self._context.counts.timeouts += 1
        ask.future.set_exception(Condition.DEADLINE.error(f"{described}: no reply in time; a late one is dropped"))

    def lost(self, shard: int, incarnation: int, handed_over: bool) -> None:
        """A shard's process is gone: what was asked of it before is not waited for.

        Args: incarnation: of its successor. handed_over: it left between two turns: its successor answers.
        """
        for ask in list(self._open.values()):
            if ask.shard != shard or ask.incarnation == incarnation:
                continue
            if handed_over and ask.incarnation == incarnation - 1:
                ask.incarnation = incarnation
            else:
                del self._open[ask.number]
                ask.timer.cancel()
                if not ask.future.done():
                    why = f"shard {shard} died before it answered; what it had accepted may still run"
                    ask.future.set_exception(Condition.UNAVAILABLE.error(why))

    def fail_all(self, condition: Condition, why: str) -> None:
        """End every open ask, at shutdown."""
        asks, self._open = list(self._open.values()), {}
        for ask in asks:
            ask.timer.cancel()
            if not ask.future.done():
                ask.future.set_exception(condition.error(why))
        if asks:
            log.info("%d open asks ended: %s", len(asks), why)
