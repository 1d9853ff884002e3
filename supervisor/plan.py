"""What a pool is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardpool.boot import Listener
from shardpool.runtime_dir import RunDir
from shardpool.supervisor.app_facts import AppFacts
from shardpool.supervisor.child_spec import Role

Command = Callable[[Role], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a pool is made of, decided before its first process starts."""

    app: str  # "module:attribute"
    facts: AppFacts
    name: str
    settings: Mapping[str, Any]  # the validated table, complete
    run_dir: RunDir
    listeners: Sequence[Listener]
    cpus: Sequence[int]  # that shards are bound to, in turn; empty: unbound
    environ: Mapping[str, str]  # of the workers
    command: Command  # program of a worker
    warm_command: Sequence[str] | None  # program of a warm start process; None: workers are started by exec only
    close_listeners: Callable[[], None]
    stop_on_hangup: bool  # started from a terminal, whose end is a request to stop
