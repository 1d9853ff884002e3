"""Sends to objects and clients: what leaves at once, what waits for room, what is dropped and counted (T-36)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from shardpool.app import ObjectType
from shardpool.calls import Delivery
from shardpool.errors import NUMBERS, Condition, ShardpoolError
from shardpool.objects import Seat
from shardpool.workers.context import ShardContext, log
from shardpool.workers.gates import Gates
from shardpool.workers.kinds import Outcome
from shardpool.workers.places import Places

WAITING_MAX = 4096
_PAUSE_FIRST = 0.001
_PAUSE_MAX = 0.02


class Delivered:
    """It left."""

    async def wait(self) -> None:
        """Return at once."""


class Behind:
    """It left, towards a client that is behind; who waits is held back."""

    def __init__(self, outbox: Outbox, client: int) -> None:
        self._outbox = outbox
        self._client = client

    async def wait(self) -> None:
        """Return when the client caught up. Raises: DeadlineExceeded after `send_timeout`."""
        await self._outbox.caught_up(self._client)


@dataclass(eq=False)
class Held:
    """A message that found no room."""

    payload: bytes
    deadline: float
    future: asyncio.Future[None]
    awaited: bool = False

    async def wait(self) -> None:
        """Return when it was accepted; raise what kept it."""
        self.awaited = True
        await asyncio.shield(self.future)


@dataclass(eq=False)
class Queue:
    """What is held for one object, in order."""

    kind: ObjectType
    id: str
    held: deque[Held] = field(default_factory=deque)


DELIVERED: Delivery = Delivered()


class Outbox:
    """What a shard's objects send."""

    def __init__(self, context: ShardContext, places: Places, gates: Gates) -> None:
        self._context = context
        self._places = places
        self._gates = gates
        self._queues: dict[tuple[str, str], Queue] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._behind: dict[int, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        """Sends that wait for room."""
        return self._waiting

    def send(self, seat: Seat | None, kind: ObjectType, id: str, payload: bytes) -> Delivery:
        """Send to an object now, or as soon as it has room.

        Raises: CapacityExceeded: only the sender itself could make room, or too many wait.
        """
        key = (kind.name, id)
        if key not in self._queues:
            address = self._places.find(*key)
            if address:
                outcome = Outcome(self._context.shard.send(address, payload))
                if outcome is Outcome.ACCEPTED:
                    return DELIVERED
                if outcome is Outcome.STALE:
                    self._places.remove(*key, address)
                elif outcome is not Outcome.SEALED and seat is not None and self._gates.needs_gate_of(address, seat):
                    raise refusal(outcome, f"send to {kind.name} {id!r}: only {seat.label} itself could make room")
        return self._hold(kind, id, payload)

    def _hold(self, kind: ObjectType, id: str, payload: bytes) -> Delivery:
        if self._waiting >= WAITING_MAX:
            raise Condition.CAPACITY.error(f"send to {kind.name} {id!r}: {WAITING_MAX:,} sends wait here already")
        held = Held(
            payload, self._context.now() + self._context.settings.send_timeout, self._context.loop.create_future()
        )
        self._waiting += 1
        key = (kind.name, id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = Queue(kind, id)
            task = self._context.loop.create_task(self._drain(key, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        queue.held.append(held)
        return held

    async def _drain(self, key: tuple[str, str], queue: Queue) -> None:
        # One turn of the loop first: what found no room is tried again after the turns that are running now.
        await asyncio.sleep(0)
        try:
            while queue.held:
                held = queue.held[0]
                try:
                    await self._deliver(queue, held)
                    _settle(held, None)
                except ShardpoolError as error:
                    _settle(held, error)
                    if not held.awaited:
                        self._dropped(queue, error)
                queue.held.popleft()
                self._waiting -= 1
        finally:
            self._waiting -= len(queue.held)
            del self._queues[key]

    async def _deliver(self, queue: Queue, held: Held) -> None:
        described = f"send to {queue.kind.name} {queue.id!r}"
        pause = _PAUSE_FIRST
        stale = False
        while True:
            address = self._places.find(queue.kind.name, queue.id)
            if not address:
                raise Condition.NOT_FOUND.error(f"{described}: there is no such object")
            outcome = Outcome(self._context.shard.send(address, held.payload))
            match outcome:
                case Outcome.ACCEPTED:
                    return
                case Outcome.STALE if not stale:
                    stale = True
                    self._places.remove(queue.kind.name, queue.id, address)
                    continue
                case Outcome.STALE | Outcome.SHUTTING_DOWN | Outcome.TOO_BIG:
                    raise refusal(outcome, described)
                case Outcome.SEALED:
                    pass  # it moves: its entry is rewritten before it opens at its new place
                case _ if not held.awaited:
                    raise refusal(outcome, described)
            if self._context.now() + pause > held.deadline:
                raise Condition.DEADLINE.error(f"{described}: no room for {self._context.settings.send_timeout:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX)

    def _dropped(self, queue: Queue, error: ShardpoolError) -> None:
        counts = self._context.counts
        counts.dropped_sends += 1
        # Every power of two: a flood of drops must not become a flood of lines.
        if counts.dropped_sends & (counts.dropped_sends - 1) == 0:
            log.warning("a send was dropped (%d so far): %s", counts.dropped_sends, error)

    def push(self, client: int, payload: bytes) -> Delivery:
        """Send a message to a client; the acceptor bounds what a client that is behind costs."""
        self._check_size(payload)
        if client:
            self._context.shard.push(client, payload)
            if client in self._behind:
                return Behind(self, client)
        return DELIVERED

    def publish(self, clients: bytes, payload: bytes) -> Delivery:
        """Send a message to many clients; none of them delays the others."""
        self._check_size(payload)
        if clients:
            self._context.shard.publish(clients, payload)
        return DELIVERED

    def _check_size(self, payload: bytes) -> None:
        limit = self._context.settings.frame_bytes - 9  # kind, seq, id
        if len(payload) > limit:
            raise Condition.TOO_BIG.error(
                f"a message of {len(payload):,} bytes is above a frame's {limit:,}; split it or raise frame_bytes"
            )

    def client_is_behind(self, client: int) -> None:
        """The acceptor says: too much is unsent to this client."""
        self._behind.setdefault(client, [])

    def client_caught_up(self, client: int) -> None:
        """The acceptor says: go on. Also when the client is gone."""
        for waiting in self._behind.pop(client, ()):
            if not waiting.done():
                waiting.set_result(None)

    async def caught_up(self, client: int) -> None:
        """Wait for a client that is behind."""
        waiters = self._behind.get(client)
        if waiters is None:
            return
        if len(waiters) >= WAITING_MAX:
            raise Condition.CAPACITY.error(f"{len(waiters):,} sends to this client wait already")
        waiting: asyncio.Future[None] = self._context.loop.create_future()
        waiters.append(waiting)
        timeout = self._context.settings.send_timeout
        try:
            async with asyncio.timeout(timeout):
                await waiting
        except TimeoutError:
            raise Condition.DEADLINE.error(f"the client did not read for {timeout:g} s; it still may") from None


def refusal(outcome: Outcome, described: str) -> ShardpoolError:
    """The error of a refused admission."""
    condition = NUMBERS[int(outcome)]
    return condition.error(f"{described}: {condition.row.meaning}")


def _settle(held: Held, error: ShardpoolError | None) -> None:
    if held.future.done():
        return
    if error is None:
        held.future.set_result(None)
    else:
        held.future.set_exception(error)
        held.future.exception()  # told here: whoever did not await it does not want it told again
