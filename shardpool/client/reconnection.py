"""Coming back after a lost connection: how often, how long, and when it is over.

lost ─▶ pause ─▶ attempt ─▶ welcome, resumed ─▶ up again
          ▲         │
          └─────────┴ refused for good, or too late ─▶ over, or a new session ("anew")
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from shardpool.client.errors import Closed
from shardpool.client.settings import Reconnect
from shardpool.errors import ShardpoolError
from shardpool.wire import RESUME_REFUSED

# A connection that ends with these leaves its session behind; docs/protocol.md, "Close codes".
SESSION_STAYS = frozenset({1006, 4410, 4453, 4503})
# Connecting again the same way would give the same answer.
_FINAL = frozenset({1002, 1007, 1009, 4400, 4401, RESUME_REFUSED, 4409, 4413})

ATTEMPT_SECONDS = 10.0
FIRST_PAUSE = 0.1
PAUSE = 0.25
PAUSE_MAX = 5.0


def pauses(rng: random.Random) -> Callable[[], float]:
    """Seconds before the next attempt: a first that spreads a crowd, then growing ones, each with some chance in it."""
    attempts = 0

    def following() -> float:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            return rng.uniform(0, FIRST_PAUSE)
        return min(PAUSE_MAX, PAUSE * 2.0 ** (attempts - 2)) * rng.uniform(0.5, 1.0)

    return following


class Reconnection:
    """One client's way back.

    Args:
        attempt: connects and says hello, with or without a wish to resume; returns once the session is bound.
        lapsed: told why, before a session is given up for a new one.
        over: told why when it is given up for good.
    """

    def __init__(
        self,
        mode: Reconnect,
        attempt: Callable[[bool], Awaitable[None]],
        lapsed: Callable[[Closed], None],
        over: Callable[[Closed], None],
    ) -> None:
        self._mode = mode
        self._attempt = attempt
        self._lapsed = lapsed
        self._over = over
        self._task: asyncio.Task[None] | None = None

    def wanted(self, code: int, resume_window: float) -> bool:
        """Whether a connection that ended with that code is to be replaced."""
        return self._mode is not False and code in SESSION_STAYS and (resume_window > 0 or self._mode == "anew")

    def begin(self, lost: Closed, resume_window: float) -> None:
        """The connection is lost. Args: resume_window: seconds for which the server keeps the session."""
        self._task = asyncio.get_running_loop().create_task(self._run(lost, resume_window), name="shardpool reconnect")

    def stop(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self, lost: Closed, window: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + window
        following = pauses(random.Random())
        why, resume = lost, window > 0
        while True:
            left = deadline - loop.time() if resume else ATTEMPT_SECONDS + PAUSE_MAX
            pause = following()
            if left > 0 and pause < left:
                await asyncio.sleep(pause)
                try:
                    async with asyncio.timeout(min(ATTEMPT_SECONDS, left - pause)):
                        await self._attempt(resume)
                    return
                except Closed as closed:
                    why = closed
                except (ShardpoolError, OSError, TimeoutError) as error:
                    why = Closed(lost.close_code, f"{lost.reason}; not reconnected: {error or 'no answer in time'}")
                if why.close_code not in _FINAL:
                    continue
            else:
                why = Closed(lost.close_code, f"{why.reason}; the session is kept for {window:g} s, which are over")
            if self._mode != "anew" or not resume:
                self._over(why)
                return
            self._lapsed(why)
            resume = False
