"""How processes of the pool come to life: forked from a warm one where there is one, by exec otherwise."""

import ctypes
import os
from dataclasses import dataclass

import msgspec
import zmq

from shardpool.boot import Boot
from shardpool.supervisor.child import Process, spawn
from shardpool.supervisor.child_spec import ChildSpec, Role
from shardpool.supervisor.console import Console
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.nursery import Born, Nursery, Renewed, Unborn
from shardpool.supervisor.plan import Plan
from shardpool.supervisor.restart_policy import RestartPolicy

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The kernel refused a process."""

    process: int
    reason: str


Outcome = Born | NotStarted | Renewed


class Starter:
    """Starts workers, and keeps the warm processes that they are forked from."""

    def __init__(self, plan: Plan, memory: Memory, poller: zmq.Poller, console: Console) -> None:
        self._plan = plan
        self._memory = memory
        settings = plan.settings
        policy = RestartPolicy(settings["restart_intensity"], settings["restart_period"])
        self._nursery = Nursery(self._spawn_warm, poller, console, policy, settings["import_timeout"])

    def warm_up(self) -> None:
        """Start the warm processes, if the pool has them."""
        if self._plan.warm_command is not None:
            adopt_orphans()
            self._nursery.open()

    def close(self) -> None:
        """No worker is started any more."""
        self._nursery.close()

    @property
    def pids(self) -> set[int]:
        """The warm processes'."""
        return self._nursery.pids

    @property
    def ready(self) -> int:
        """How many of them can be forked."""
        return self._nursery.ready

    @property
    def expecting(self) -> bool:
        """A child may exist whose pid is not known here yet."""
        return self._nursery.expecting

    def start(self, spec: ChildSpec) -> list[Outcome]:
        """Start a worker. Returns: what came of it; nothing: it follows from `look`."""
        return [] if self._nursery.ask(spec, self._boot(spec)) else [self._execute(spec)]

    def cancel(self, process: int) -> bool:
        """Give up a start that is under way. Returns: False: there is none."""
        return self._nursery.cancel(process)

    def renew(self) -> bool:
        """Have shards started from the present code; Renewed follows from `look`, unless this returns False."""
        return self._nursery.renew(Role.SHARD)

    def wait(self, now: float) -> float | None:
        """Seconds until `look` must be called, None while only descriptors matter."""
        return self._nursery.wait(now)

    def look(self) -> list[Outcome]:
        """What has come of starts, and of `renew`."""
        return [self._execute(each.spec) if isinstance(each, Unborn) else each for each in self._nursery.look()]

    def _execute(self, spec: ChildSpec) -> Born | NotStarted:
        try:
            return Born(spec.process, spawn(self._plan.command(spec.role), self._boot(spec), self._plan.environ))
        except OSError as error:
            return NotStarted(spec.process, error.strerror or str(error))

    def _spawn_warm(self, role: Role, requests: int) -> Process:
        assert self._plan.warm_command is not None
        boot = msgspec.structs.replace(self._boot(ChildSpec(role, 0, 0)), requests=requests, cpu=None)
        return spawn(self._plan.warm_command, boot, self._plan.environ)

    def _boot(self, spec: ChildSpec) -> Boot:
        plan = self._plan
        pinned = spec.role is Role.SHARD and plan.cpus
        return Boot(
            role=spec.role.value,
            index=spec.index,
            process=spec.process,
            acceptors=plan.settings["acceptors"],
            shards=plan.settings["workers"],
            segments=self._memory.segments,
            doorbells=self._memory.doorbells,
            listeners=list(plan.listeners) if spec.role is Role.ACCEPTOR else [],
            passages=self._memory.passages if spec.role is Role.ACCEPTOR else [],
            control=plan.run_dir.control,
            app=plan.app,
            app_name=plan.name,
            codec=plan.facts.codec,
            envelope=plan.facts.envelope,
            settings=dict(plan.settings),
            supervisor_pid=os.getpid(),
            cpu=plan.cpus[spec.index % len(plan.cpus)] if pinned else None,
        )


def adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind: of workers, whose go-between has ended.

    Raises: OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), "prctl(PR_SET_CHILD_SUBREAPER)")
