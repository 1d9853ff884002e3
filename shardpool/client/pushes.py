"""What the app pushes, on its way to the program: a handler by name, or the queue that `async for` reads.

    message ─▶ plain handler, nothing queued ─▶ called at once
            ─▶ otherwise ─▶ inbox (bounded) ─▶ async handlers, one at a time, in order
                                            └▶ `async for`, what has no handler

A full inbox stops the reading of the socket, so that the server learns of it. Only where nobody has asked for these
messages yet (no handler, no `async for`) the oldest is dropped and counted: a program that merely asks
must not be stopped by pushes that it does not want.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from shardpool.client.bodies import Bodies, message_name, name_of
from shardpool.errors import InvalidOperation, ShardpoolError

logger = logging.getLogger("shardpool.client")

Handler = Callable[[Any], Awaitable[None] | None]


class Inbox:
    """Bounded queue of pushed messages for one reader; `full` and `roomy` tell the connection when to stop and go on.

    Args: size: messages held at most. wanted: somebody will read; else the first `get` says so.
    """

    def __init__(self, size: int, full: Callable[[], None], roomy: Callable[[], None], wanted: bool = False) -> None:
        self.size = size
        self.dropped = 0
        self._messages: deque[Any] = deque()
        self._wanted = wanted
        self._waiter: asyncio.Future[None] | None = None
        self._end: Exception | None = None
        self._full = full
        self._roomy = roomy
        self._stopped = False

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Any) -> None:
        """Append; one read of the socket may go past `size`, no more."""
        if not self._wanted and len(self._messages) >= self.size:
            self._messages.popleft()
            self.dropped += 1
        self._messages.append(message)
        self._wake()
        if self._wanted and not self._stopped and len(self._messages) >= self.size:
            self._stopped = True
            self._full()

    def end(self, error: Exception) -> None:
        """What is queued can still be read; then `get` raises `error`."""
        self._end = error
        self._wake()

    async def get(self) -> Any:
        """The next message. Raises: InvalidOperation: somebody else waits; the error of `end`."""
        self._wanted = True
        while not self._messages:
            if self._end is not None:
                raise self._end
            if self._waiter is not None:
                raise InvalidOperation("two tasks read this client's messages: one `async for` at a time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        if self._stopped and len(self._messages) <= self.size // 2:
            self._stopped = False
            self._roomy()
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pushes:
    """Hands messages to handlers in the order they came.

    Args: inbox: what no handler takes. queue: what waits for async handlers; same bounds.
    """

    def __init__(self, bodies: Bodies, inbox: Inbox, queue: Inbox) -> None:
        self.failures = 0
        self._bodies = bodies
        self._inbox = inbox
        self._queue = queue
        self._handlers: dict[str | None, tuple[Handler, Any]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._busy = False

    def on(self, key: type[msgspec.Struct] | str | None, handler: Handler) -> None:
        """Register; the last one for a name holds. Args: key: a tagged Struct, a name, or None for all the rest."""
        if isinstance(key, type):
            self._handlers[message_name(key)] = (handler, key)
        else:
            self._handlers[key] = (handler, Any)

    def take(self, body: bytes) -> None:
        """A message came. Raises: ProtocolError: it is nothing of the codec."""
        value = self._bodies.decode(body)
        found = self._handlers.get(name_of(value)) or self._handlers.get(None)
        if found is None:
            self._inbox.put(value)
            return
        handler, cls = found
        if self._busy or self._queue or inspect.iscoroutinefunction(handler):
            self._queue.put((handler, cls, value))
            if self._worker is None:
                self._worker = asyncio.get_running_loop().create_task(self._work(), name="shardpool client pushes")
            return
        try:
            self._called(handler, cls, value)
        except Exception:
            self._failed(handler)

    def stop(self) -> None:
        if self._worker is not None and self._worker is not asyncio.current_task():
            self._worker.cancel()

    async def _work(self) -> None:
        while True:
            try:
                handler, cls, value = await self._queue.get()
            except ShardpoolError:
                return
            self._busy = True
            try:
                result = self._called(handler, cls, value)
                if result is not None:
                    await result
            except Exception:
                self._failed(handler)
            finally:
                self._busy = False

    def _called(self, handler: Handler, cls: Any, value: Any) -> Awaitable[None] | None:
        result = handler(value if cls is Any else msgspec.convert(value, cls))
        if result is None or inspect.isawaitable(result):
            return result
        return None

    def _failed(self, handler: Handler) -> None:
        # One bad message or handler must not end the connection for all the others.
        self.failures += 1
        logger.exception("push handler %s failed", getattr(handler, "__qualname__", handler))
