"""The shards and the acceptor's place, in real shared memory that one process has to itself."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any, cast

from shardpool import _core
from shardpool.app import Blueprint
from shardpool.directory import Directory
from shardpool.testing.dice import Dice
from shardpool.testing.loop import Clock, ShardLoop
from shardpool.workers.context import Parcels, ShardContext, ShardSettings
from shardpool.workers.runtime import Hooks, ShardRuntime
from shardpool.workers.shard import task_hooks

_ACCEPTOR = 1  # process index; 0 is the supervisor's
_INFRA_BYTES = 1 << 17
_ONE_OBJECT = 0
# The time budget of an object (T-22): over after each record, or never, whatever the machine is doing meanwhile.
_BUDGETS = (0, 10**12)
_OBJECTS_PER_LOOK = (1, 1, 1, 2, 8, 64)


class Memory:
    """All segments and doorbells; and what an acceptor does with them, without sockets."""

    def __init__(self, shards: int) -> None:
        # One shard more than the app has: its place is the test's, to post records from.
        geometry = _core.Geometry(
            1,
            shards + 1,
            slots=1024,
            permits=512,
            link_bytes=1 << 19,
            infra_bytes=_INFRA_BYTES,
            arena_bytes=4 << 20,
            directory_entries=2048,
        )
        processes = 2 + shards + 1
        self.segments: list[int] = []
        self.doorbells: list[int] = []
        for process in range(processes):
            self.segments.append(_core.create_segment(geometry, process))
            self.doorbells.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.acceptor = self.node(_ACCEPTOR)
        self._poster = _core.Shard(self.node(processes - 1), shards, _Deaf())
        self._supervisor = self.node(0)
        self._bells = select.poll()
        for number in range(shards):
            self._bells.register(self.doorbells[self.process(number)], select.POLLIN)

    def node(self, process: int) -> _core.Node:
        """The memory as one process has it."""
        return _core.Node(process, self.segments, self.doorbells)

    def process(self, shard: int) -> int:
        """Process index of a shard."""
        return _ACCEPTOR + 1 + shard

    def rung(self) -> set[int]:
        """Doorbells of shards that were rung and not yet heard."""
        return {fd for fd, _ in self._bells.poll(0)}

    def post(self, address: int, kind: int, a: int, b: int, payload: bytes = b"") -> int:
        """A lifecycle record, as an acceptor posts it. Returns: the outcome."""
        outcome = self._poster.post(address, kind, a, b, payload)
        self._poster.park()  # rings whom it owes a ring
        return outcome

    def settle(self, shard: int) -> bool:
        """End what a killed shard had begun, as the supervisor does. False: others must make room first."""
        return _core.settle(self._supervisor, self.process(shard))

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (*self.segments, *self.doorbells):
            os.close(fd)


class _Deaf:
    """Hooks of the poster, to which nobody ever answers."""

    loop = enter_task = leave_task = stub = None

    def poke(self) -> None: ...
    def failed(self, *_: Any) -> None: ...
    def adopt(self, *_: Any) -> None: ...
    def reply(self, *_: Any) -> None: ...
    def control(self, *_: Any) -> None: ...
    def resumed(self, *_: Any) -> None: ...
    def dropped(self, *_: Any) -> None: ...
    def sealed(self, *_: Any) -> None: ...


class _Dead:
    """The executor of a shard that was killed or has ended."""

    current = turn = sessions = 0

    def acquire_gate(self, address: int) -> bool:
        return True  # who waits for a gate is not cancelled, and this one comes from nowhere

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments, **named: 0


class KitShard:
    """One shard: the real executor and runtime, on a loop that runs step by step."""

    def __init__(
        self,
        memory: Memory,
        number: int,
        shards: int,
        blueprint: Blueprint,
        settings: dict[str, Any],
        dice: Dice,
        clock: Clock,
    ) -> None:
        self.name = f"shard-{number}"
        self.loop = ShardLoop(clock, dice)
        self._dice = dice
        self._pump_planned = False
        self.opened = False
        process = memory.process(number)
        self.doorbell = memory.doorbells[process]
        self.node = memory.node(process)
        with self.loop.entered():
            hooks = self._hooks = Hooks(self.loop, self._plan_pump, *task_hooks())
            self.core = _core.Shard(self.node, number, hooks, dice.choice(_BUDGETS))
            context = ShardContext(
                shard=self.core,
                loop=self.loop,
                number=number,
                shards=shards,
                acceptors=1,
                blueprint=blueprint,
                settings=ShardSettings(**{"infra_bytes": _INFRA_BYTES, **settings}),
                directory=Directory(_core.Directory(self.node), blueprint.app.name),
                clock=clock,
            )
            hooks.runtime = self.runtime = ShardRuntime(context, _core.Table)

    def open(self) -> None:
        """Take a predecessor's objects over, if there was one, and begin."""
        with self.loop.entered():
            self.runtime.take_over()
        self.opened = True
        self._plan_pump()

    def _plan_pump(self) -> None:
        if self.opened and not self._pump_planned:
            self._pump_planned = True
            self.loop.call_soon(self._pump)

    def _ring(self) -> None:
        self.core.wake()
        self.runtime.deaths.look()
        self._plan_pump()

    def _pump(self) -> None:
        # As ShardProcess has it, but for how much runs before the loop gets its look: the clock decides that there.
        self._pump_planned = False
        if not self.opened:
            return  # killed meanwhile
        for _ in range(self._dice.choice(_OBJECTS_PER_LOOK)):
            if not self.core.run(_ONE_OBJECT):
                break
        else:
            self._plan_pump()
            return
        if not self.core.park():
            self._plan_pump()

    def step(self, rung: bool) -> str:
        """One callback of its loop, or the doorbell's. Args: rung: whether the doorbell was; it may be heard late."""
        if rung and (not self.loop.ready or self._dice.choice((True, False))):
            with self.loop.entered():
                self._ring()
            return "doorbell"
        return self.loop.step()

    def waits(self) -> str:
        """What is under way here and needs time, for people; empty: nothing."""
        runtime = self.runtime
        counts = {
            "suspended turns": len(runtime.turns),
            "open asks": len(runtime.asks),
            "sends that wait for room": len(runtime.outbox),
            "records that wait for room": len(runtime.insistence),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def die(self) -> None:
        """Stop as a killed process does: what its tasks still do when the kit ends changes nothing in shared memory."""
        self.opened = False
        self.runtime.context.shard = cast(Any, _Dead())

    def end(self) -> None:
        """No more turns; and no circles of references through objects of the core, which no collector sees."""
        self.loop.end()
        context = self.runtime.context
        self._hooks.runtime = None
        context.shard = cast(Any, _Dead())
        context.steps.clear()
        context.parcels = Parcels()
        del self.core
