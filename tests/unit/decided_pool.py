"""A pool of decisions only: no process, no clock."""

from shardpool.supervisor.child_spec import child_specs
from shardpool.supervisor.death import Death
from shardpool.supervisor.decisions import decide, initial_state
from shardpool.supervisor.pool_state import (
    Action,
    BecameReady,
    Event,
    Limits,
    Phase,
    Registered,
    Say,
    Send,
    Settle,
    Settled,
    Spawned,
    Start,
    State,
    Tick,
)
from shardpool.supervisor.restart_policy import RestartPolicy

KILLED = Death(signal=9)
CLEAN = Death(exit_code=0)
LIMITS = Limits(drain_timeout=30, stop_timeout=5, restarts=RestartPolicy(5, 10))


class Pool:
    """Feeds events to `decide`; starts and settling succeed at once."""

    def __init__(self, acceptors: int = 1, shards: int = 2) -> None:
        self.now = 100.0
        self.pids = 1000
        self.state: State = initial_state(child_specs(acceptors, shards), LIMITS, self.now)

    def take(self, event: Event) -> list[Action]:
        self.state, actions = decide(self.state, event, self.now)
        wanted = list(actions)
        for action in actions:
            if isinstance(action, Start):
                self.pids += 1
                wanted += self.take(Spawned(action.spec.process, self.pids))
            elif isinstance(action, Settle):
                wanted += self.take(Settled(action.process))
        return wanted

    def ready(self, process: int) -> list[Action]:
        return [*self.take(Registered(process)), *self.take(BecameReady(process))]

    def up(self) -> "Pool":
        self.take(Tick())
        for child in self.state.children:
            self.ready(child.spec.process)
        assert self.state.phase is Phase.SERVING
        return self

    def later(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.take(Tick())

    def sent(self, actions: list[Action], kind: type) -> list[int]:
        return [a.spec.process for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]


def said(actions: list[Action]) -> str:
    return "\n".join(action.line for action in actions if isinstance(action, Say))
