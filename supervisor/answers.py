"""What the command line is told about a pool: its status and its books."""

import os
import time
from collections.abc import Mapping
from functools import partial

from shardpool import dead_letters
from shardpool.supervisor import audit
from shardpool.supervisor.audit import ShardBooks
from shardpool.supervisor.child import Process
from shardpool.supervisor.child_spec import Role
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.plan import Plan
from shardpool.supervisor.pool_state import State
from shardpool.supervisor.starter import Starter
from shardpool.supervisor.status import PoolStatus, Sample, describe, restart_status

_SAMPLE_AGE = 0.5


class Answers:
    """Looks at memory and processes for whoever asks; changes nothing."""

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self._plan = plan
        self._memory = memory
        self._started = time.monotonic()
        self._samples: dict[int, Sample] = {}

    def books(self, state: State, processes: Mapping[int, Process], pause: bool) -> list[ShardBooks]:
        """Every shard's. Args: processes: by process index; pause: stop each while its memory is read."""
        return [
            audit.look_at(
                child.spec.index,
                partial(self._memory.audit, child.spec.index),
                processes.get(child.spec.process),
                pause,
            )
            for child in state.of(Role.SHARD)
        ]

    def status(self, state: State, starter: Starter) -> PoolStatus:
        """The pool at this moment."""
        now = time.monotonic()
        rows = []
        for child in state.children:
            index = child.spec.process
            before = self._samples.get(index)
            row, sample = describe(child, self._memory, before, now)
            # Rates over a moment say nothing: a look soon after another keeps the older base.
            if before is None or before.pid != sample.pid or now - before.at >= _SAMPLE_AGE:
                self._samples[index] = sample
            rows.append(row)
        return PoolStatus(
            name=self._plan.name,
            app=self._plan.app,
            pid=os.getpid(),
            phase=state.phase.name.lower(),
            uptime=now - self._started,
            run_dir=str(self._plan.run_dir.path),
            dead_letters=str(self._plan.settings["dead_letters"] or self._plan.run_dir.path / dead_letters.NAME),
            listeners=[{"transport": each.transport, "address": each.address} for each in self._plan.listeners],
            processes=rows,
            warm=sorted(starter.pids),
            warm_ready=starter.ready,
            restart=restart_status(state.restart),
        )
