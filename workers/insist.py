"""Records that must arrive although a place is full or an object is moving: disconnects, leaves, ends of Joins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardpool.workers.context import ShardContext, log
from shardpool.workers.kinds import Kind, Outcome

PAUSE_FIRST = 0.001
PAUSE_MAX = 0.05


class Insistence:
    """Posts lifecycle records until they are accepted, or their object is gone."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def post(
        self,
        where: Callable[[], int],
        kind: Kind,
        a: int = 0,
        payload: bytes = b"",
        done: Callable[[], None] | None = None,
    ) -> None:
        """Post now, else again and again.

        Args: where: the object's address at the moment; a stale address that has not changed ends it.
              done: called when it was accepted, or its object is gone.
        """
        address = where()
        outcome = self._once(address, kind, a, payload) if address else Outcome.STALE
        if not address or outcome in (Outcome.ACCEPTED, Outcome.SHUTTING_DOWN):
            if outcome is not Outcome.ACCEPTED:
                self._context.parcels.lose(kind, a)
            if done is not None:
                done()
            return
        task = self._context.loop.create_task(self._try_on(where, address, kind, a, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if done is not None:
            task.add_done_callback(lambda _: done())

    def _once(self, address: int, kind: Kind, a: int, payload: bytes) -> Outcome:
        return Outcome(self._context.shard.post(address, kind, a, payload=payload))

    async def _try_on(self, where: Callable[[], int], last: int, kind: Kind, a: int, payload: bytes) -> None:
        if not await self._again(where, last, kind, a, payload):
            self._context.parcels.lose(kind, a)

    async def _again(self, where: Callable[[], int], last: int, kind: Kind, a: int, payload: bytes) -> bool:
        """Returns: whether it was accepted at last."""
        pause = PAUSE_FIRST
        while True:
            address = where()
            if not address:
                return False
            outcome = self._once(address, kind, a, payload)
            if outcome is Outcome.ACCEPTED:
                return True
            if outcome is Outcome.SHUTTING_DOWN or (outcome is Outcome.STALE and address == last):
                return False
            if outcome is Outcome.TOO_BIG:
                log.error("a %s record of %d bytes is too big and was dropped", kind.name.lower(), len(payload))
                return False
            last = address
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)
