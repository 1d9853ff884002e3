"""The open asks of a client: their ids, their replies. They outlive a connection, as the session does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shardpool import wire
from shardpool.errors import CapacityExceeded

logger = logging.getLogger("shardpool.client")


class Asks:
    """Args: limit: asks that may be open at the same time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.late = 0
        self.on_send_failed: Callable[[Exception], None] | None = None
        self._loop = loop
        self._limit = limit
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> tuple[int, asyncio.Future[bytes]]:
        """An id that is free, and what will be its reply. Raises: CapacityExceeded."""
        if len(self._open) >= self._limit:
            raise CapacityExceeded(
                f"{len(self._open)} asks are open on this client: wait for some, or raise open_asks", code="asks_full"
            )
        while True:
            self._last = self._last % wire.NUMBER_LIMIT + 1
            if self._last not in self._open:
                break
        future = self._open[self._last] = self._loop.create_future()
        return self._last, future

    def give_up(self, number: int) -> None:
        """Nobody waits any more: a late reply is counted."""
        future = self._open.pop(number, None)
        if future is not None:
            future.cancel()

    def complete(self, number: int, body: bytes, error: Exception | None) -> None:
        """The reply or error of an ask, or (number 0) the error of a send."""
        if number == 0 and error is not None:
            if self.on_send_failed is not None:
                self.on_send_failed(error)
            else:
                logger.warning("a message that was sent failed at the server: %s", error)
            return
        future = self._open.get(number)
        if future is None or future.done():
            self.late += 1
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(body)

    def fail(self, why: Callable[[], Exception]) -> None:
        """The session is over: each waiter gets an exception of its own."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(why())
                future.exception()  # an ask that is still writing never looks at it: no warning about that
