"""A node at work: one step of one part after another, as the dice say, at moments of virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardpool.app import Blueprint
from shardpool.testing.acceptor import Inbox
from shardpool.testing.client import Client
from shardpool.testing.dice import Dice
from shardpool.testing.limits import STEPS_SHOWN, TURNS_SHOWN, Endless, NotSettled
from shardpool.testing.loop import Clock
from shardpool.testing.parts import KitShard, Memory
from shardpool.workers.places import LIST_MAX

_SLACK = 1e-6  # sums of fractions differ by less; a timer that is due within it is due
_LAG_CHANCE = 0.1
_ENDING_STEPS = 20_000


class Run:
    """All parts of a node, from their start to their end.

    Args: shards, lag, steps, settings: as Kit has them.
    """

    def __init__(
        self, blueprint: Blueprint, dice: Dice, shards: int, lag: float, steps: int, settings: dict[str, Any]
    ) -> None:
        self._blueprint = blueprint
        self._dice = dice
        self._lag = lag
        self._steps = steps
        self.clock = Clock()
        self._quiet_at = self.clock.now
        self.memory = Memory(shards)
        self.clients: dict[int, Client] = {}
        self._inbox = Inbox(self.memory, self.clients)
        self._settings = settings
        self._dead: list[KitShard] = []
        self.shards = [self._made(number, shards) for number in range(shards)]

    def _made(self, number: int, shards: int) -> KitShard:
        return KitShard(self.memory, number, shards, self._blueprint, self._settings, self._dice, self.clock)

    def kill(self, number: int) -> None:
        """A shard's process dies, and the supervisor settles and starts another, which is not open yet."""
        dead = self.shards[number]
        dead.die()
        self._dead.append(dead)
        self._dice.note(f"{self.clock.now:.6f} {dead.name} dies")
        self.shards[number] = self._made(number, len(self.shards))
        while not self.memory.settle(number):
            if not self._step():
                raise NotSettled(f"what {dead.name} had begun cannot be ended: nobody makes room for it")

    def advance(self, seconds: float) -> None:
        """See Kit."""
        target = self.clock.now + seconds
        self._work(target)
        while (due := self._due()) is not None and due <= target + _SLACK:
            self.clock.now = max(self.clock.now, due)
            for shard in self.shards:
                shard.loop.take_due()
            self._work(target)
        self._quiet_at = self.clock.now = max(self.clock.now, target)

    def until(self, condition: Callable[[], bool], seconds: float, described: str) -> None:
        """See Kit."""
        self.work()
        end = self.clock.now + seconds
        while not condition():
            due = self._due()
            if due is None or due > end:
                raise NotSettled(
                    f"{described} did not come within {seconds:g} s of virtual time; {self.waits() or 'nothing waits'}"
                )
            self.advance(max(0.0, due - self.clock.now))

    def _due(self) -> float | None:
        dues = [due for shard in self.shards if (due := shard.loop.due()) is not None]
        return min(dues, default=None)

    def waits(self) -> str:
        """What is under way and needs time, for people; empty: nothing."""
        shards = [f"{shard.name}: {waits}" for shard in self.shards if (waits := shard.waits())]
        clients = [f"{client.name}: {client.unsent} unsent" for client in self.clients.values() if client.unsent]
        return "; ".join(shards + clients)

    def work(self, steps: int | None = None) -> bool:
        """Until nothing is left to do at this moment. Args: steps: or so many were made. Raises: Endless."""
        if steps is not None:
            return not all(self._step() for _ in range(steps))
        self._work(self.clock.now)
        return True

    def _work(self, target: float) -> None:
        """Steps until nothing is ready; with lag perhaps only until time may pass. Args: target: how far it may."""
        counted: dict[int, int] = {}
        for step in range(self._steps):
            if step == self._steps // 2:
                counted = self._turns()
            if not self._step():
                self._quiet_at = self.clock.now
                return
            if self._lag and self._may_lag(target):
                return
        raise Endless(self._endless(counted))

    def _may_lag(self, target: float) -> bool:
        due = self._due()
        if due is None or due > min(target, self._quiet_at + self._lag):
            return False
        return self._dice.fraction() < _LAG_CHANCE

    def _step(self) -> bool:
        rung = self.memory.rung()
        ready: list[KitShard | Client | Inbox] = [
            shard for shard in self.shards if shard.loop.ready or (shard.opened and shard.doorbell in rung)
        ]
        ready += [client for client in self.clients.values() if client.ready]
        if self._inbox.ready:
            ready.append(self._inbox)
        if not ready:
            return False
        part = self._dice.next_part(ready, [part.name for part in ready])
        if isinstance(part, KitShard):
            what = part.step(part.opened and part.doorbell in rung)
            self._inbox.ready = True
            for client in self.clients.values():
                client.held = False
        else:
            what = part.step()
        self._dice.note(f"{self.clock.now:.6f} {part.name} {what}")
        return True

    def _turns(self) -> dict[int, int]:
        """Number of the last turn of every object that can be found, by address."""
        places = self.shards[0].runtime.places
        found = [
            places.find(name, entry.id) for name in self._blueprint.types for entry in places.list(name, "", LIST_MAX)
        ]
        return {address: self.memory.acceptor.slot(address)["turn"] for address in found if address}

    def _endless(self, counted: dict[int, int]) -> str:
        grown = {address: turn - counted.get(address, 0) for address, turn in self._turns().items()}
        busiest = sorted(grown, key=lambda address: grown[address], reverse=True)[:TURNS_SHOWN]
        objects = ", ".join(self._label(address) for address in busiest if grown[address])
        last = "\n  ".join(list(self._dice.trace)[-STEPS_SHOWN:])
        return (
            f"still busy after {self._steps:,} steps: objects that send in a circle, or a handler that never waits for "
            f"time to pass. Most turns: {objects or 'none, so look for a loop around sleep(0)'}. "
            f"The last steps:\n  {last}\n{self._dice.replay}"
        )

    def _label(self, address: int) -> str:
        return str(getattr(self.shards[address >> 56].core.target(address), "_seat", "an object that ended"))

    def end(self) -> None:
        """Cancel what is suspended, so that its `finally` blocks run, and give everything back."""
        tasks = [_cancelled(shard) for shard in self.shards]
        for _ in range(_ENDING_STEPS):
            if all(task.done() for of_shard in tasks for task in of_shard) or not self._step():
                break
        # Last of all: the handlers of killed shards learn now that they were cut off.
        for shard in self._dead:
            _cancelled(shard)
            for _ in range(_ENDING_STEPS):
                if not shard.loop.ready:
                    break
                shard.loop.step()
        for shard in self.shards + self._dead:
            shard.end()
        self.memory.close()


def _cancelled(shard: KitShard) -> set[asyncio.Task[Any]]:
    tasks = asyncio.all_tasks(shard.loop)
    with shard.loop.entered():
        for task in tasks:
            task.cancel()
            # One that waits for a gate goes on waiting for it (Turns.regain); it ends with its kit.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
    return tasks
