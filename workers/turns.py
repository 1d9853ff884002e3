"""Turns that suspend: from a coroutine's first step under a stand-in task to a real task, and back to the executor.

The executor steps an async handler once under a Stub, because most never suspend and a task costs 10 to 50 times as
much. What `asyncio.timeout` or a TaskGroup got from `current_task()` in that step is the Stub; once the turn is
adopted the Stub passes everything on to the real task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from shardpool.errors import InvalidOperation
from shardpool.objects import Seat
from shardpool.workers.context import ShardContext


class Stub:
    """Stands in for a task during a coroutine's first step."""

    __slots__ = ("__weakref__", "_cancels", "real")

    def __init__(self) -> None:
        self.real: asyncio.Task[Any] | None = None
        self._cancels = 0

    def cancel(self, msg: Any = None) -> bool:
        if self.real is not None:
            return self.real.cancel(msg)
        self._cancels += 1
        return True

    def cancelling(self) -> int:
        return self.real.cancelling() if self.real is not None else self._cancels

    def uncancel(self) -> int:
        if self.real is not None:
            return self.real.uncancel()
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def get_coro(self) -> None:
        return None

    def get_name(self) -> str:
        return "turn"

    def done(self) -> bool:
        return self.real is not None and self.real.done()

    def cancelled(self) -> bool:
        return self.real is not None and self.real.cancelled()

    def become(self, task: asyncio.Task[Any]) -> None:
        """Pass everything on from now on, cancellations of the first step first."""
        self.real = task
        for _ in range(self._cancels):
            task.cancel()


class _Begun:
    """Awaits the rest of a coroutine whose first step yielded already."""

    __slots__ = ("_address", "_context", "_coro", "_yielded")

    def __init__(self, coro: Coroutine[Any, Any, Any], yielded: Any, context: ShardContext, address: int) -> None:
        self._coro = coro
        self._yielded = yielded
        self._context = context
        self._address = address

    def __await__(self) -> Generator[Any, Any, Any]:
        yielded = self._yielded
        while True:
            sent: Any = None
            thrown: BaseException | None = None
            try:
                sent = yield yielded
            except BaseException as error:
                thrown = error
            # Noted in shared memory: whose turn holds the CPU, should it stall or kill the process.
            self._context.shard.stepping(self._address)
            try:
                yielded = self._coro.send(sent) if thrown is None else self._coro.throw(thrown)
            except StopIteration as stop:
                return stop.value
            finally:
                self._context.shard.stepping(0)


async def _rest(coro: Coroutine[Any, Any, Any], yielded: Any, context: ShardContext, address: int) -> Any:
    return await _Begun(coro, yielded, context, address)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A suspended turn."""

    number: int
    task: asyncio.Task[Any]


class Turns:
    """The suspended turns of a shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._open: dict[int, OpenTurn] = {}
        self._resuming: dict[int, asyncio.Future[None]] = {}
        self._finishing: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self._open)

    def adopt(
        self, address: int, turn: int, coro: Coroutine[Any, Any, Any], yielded: Any, stub: Stub | None, context: Any
    ) -> None:
        """Executor's hook: the turn's first step suspended; without a stub it was not stepped at all."""
        rest = coro if stub is None else _rest(coro, yielded, self._context, address)
        # Named as its handler: `rest` is the same coroutine function for all.
        task = self._context.loop.create_task(rest, name=getattr(coro, "__qualname__", None), context=context)
        if stub is not None:
            stub.become(task)
        self._open[address] = OpenTurn(turn, task)
        task.add_done_callback(lambda done: self._ended(address, turn, done))

    def _ended(self, address: int, turn: int, task: asyncio.Task[Any]) -> None:
        if self._open.get(address) == OpenTurn(turn, task):
            del self._open[address]
        error: BaseException | None
        error = asyncio.CancelledError("the turn was cancelled") if task.cancelled() else task.exception()
        self._finishing = (address, turn)
        self._context.shard.finish(address, turn, None if error is not None else task.result(), error)
        self._finishing = (0, 0)

    def number_of(self, address: int) -> int:
        """Number of the object's turn that runs, is suspended or is being finished; 0: none."""
        if self._context.shard.current == address:
            return self._context.shard.turn
        if self._finishing[0] == address:
            return self._finishing[1]
        open_turn = self._open.get(address)
        return 0 if open_turn is None else open_turn.number

    def check_open(self, seat: Seat, call: object) -> int:
        """The number of the object's own turn. Raises: InvalidOperation outside of one."""
        number = self.number_of(seat.address)
        if number == 0:
            raise InvalidOperation(f"{call}: {seat.label} is in no turn; make this call in one of its own handlers")
        return number

    def check_own_coroutine(self, seat: Seat, call: object) -> None:
        """Raise InvalidOperation unless the caller is the turn's own coroutine and no child task (T-5)."""
        if self._context.shard.current == seat.address:
            return
        open_turn = self._open.get(seat.address)
        if open_turn is None or asyncio.current_task() is not open_turn.task:
            raise InvalidOperation(
                f"{call}: yielding() is for the handler's own coroutine in {seat.label}'s turn, "
                "not for child tasks or outside of it; await it plainly there"
            )

    def resumed(self, address: int) -> None:
        """Executor's hook: a gate that was asked for is held."""
        waiting = self._resuming.pop(address, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def regain(self, address: int) -> None:
        """Wait until the gate is held again; a cancellation meanwhile is raised after that, never without the gate."""
        if self._context.shard.acquire_gate(address):
            return
        granted: asyncio.Future[None] = self._context.loop.create_future()
        self._resuming[address] = granted
        cancelled: asyncio.CancelledError | None = None
        while not granted.done():
            try:
                await asyncio.shield(granted)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
