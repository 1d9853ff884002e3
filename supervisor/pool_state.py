"""What the supervisor's decisions are about: states, events, actions."""

from dataclasses import dataclass, field
from enum import Enum, auto

from shardpool.control import ToWorker
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.child_spec import ChildSpec, Role
from shardpool.supervisor.death import Death
from shardpool.supervisor.restart_policy import RestartPolicy


class Phase(Enum):
    """What the pool as a whole is doing."""

    STARTING = auto()
    SERVING = auto()
    EMPTYING = auto()  # no new clients; those who are there leave when they like
    DRAINING_ACCEPTORS = auto()
    DRAINING_SHARDS = auto()
    STOPPING_SHARDS = auto()
    STOPPING_ACCEPTORS = auto()
    STOPPING_ALL = auto()
    ENDED = auto()


class Status(Enum):
    """What one place of the pool is doing."""

    DOWN = auto()  # no process; one is started when `due` has come
    STARTING = auto()  # process started, nothing heard
    REGISTERED = auto()  # it can get control messages
    READY = auto()
    DRAINED = auto()
    BROKEN = auto()  # breaker open: no process, none will be started
    DISMISSED = auto()  # killed because it held nothing yet when the pool stopped
    GONE = auto()  # ended while the pool stops


LIVE = frozenset((Status.STARTING, Status.REGISTERED, Status.READY, Status.DRAINED, Status.DISMISSED))
REACHABLE = frozenset((Status.REGISTERED, Status.READY, Status.DRAINED))


@dataclass(frozen=True, slots=True)
class Child:
    """One place and what is in it."""

    spec: ChildSpec
    status: Status = Status.DOWN
    pid: int = 0
    started: float = 0.0
    due: float = 0.0
    deaths: tuple[float, ...] = ()
    restarts: int = 0
    last_death: str = ""  # how the last process of this place ended
    died: float = 0.0
    failure: str = ""  # what it last reported as Failed, until it dies of it
    settled: bool = True  # nothing of a dead predecessor is left in shared memory


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that decisions depend on."""

    drain_timeout: float = 30.0
    stop_timeout: float = 5.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


class Step(Enum):
    """What a rolling restart is doing."""

    REFRESHING = auto()  # the present code is being imported
    WAITING = auto()  # for a shard that was being started by the old code
    HANDING_OVER = auto()
    RETURNING = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class Restart:
    """A rolling restart, under way or the last one (rolling.py)."""

    number: int  # from 1
    of: int  # shards in all
    left: tuple[int, ...]  # process indices; the first is at work
    step: Step = Step.REFRESHING
    deadline: float | None = None
    problem: str = ""  # why it ended early


@dataclass(frozen=True, slots=True)
class State:
    """Everything that decisions depend on."""

    limits: Limits
    children: tuple[Child, ...]
    phase: Phase = Phase.STARTING
    deadline: float | None = None  # of the phase
    hard_deadline: float | None = None  # of all draining together
    progress_due: float = 0.0
    exit_code: ExitCode = ExitCode.OK
    restart: Restart | None = None
    postponed: "StopAsked | None" = None  # until the restart's present shard has been replaced
    postponed_until: float = 0.0

    def child(self, process: int) -> Child:
        """The place with this process index."""
        return self.children[process - 1]

    def of(self, role: Role) -> tuple[Child, ...]:
        """All places of a role."""
        return tuple(child for child in self.children if child.spec.role is role)


# Events


@dataclass(frozen=True, slots=True)
class Spawned:
    process: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    process: int
    reason: str


@dataclass(frozen=True, slots=True)
class Registered:
    process: int


@dataclass(frozen=True, slots=True)
class BecameReady:
    process: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    process: int
    reason: str
    remedy: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class WorkerDrained:
    process: int


@dataclass(frozen=True, slots=True)
class Died:
    process: int
    death: Death


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing that the dead process had begun in shared memory is left."""

    process: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    by: str
    timeout: float | None = None  # None: drain_timeout


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """No new clients; stop when the present ones have left, or at the end of the timeout."""

    by: str
    timeout: float | None = None  # None: drain_timeout


@dataclass(frozen=True, slots=True)
class Emptied:
    """No client is connected any more."""


@dataclass(frozen=True, slots=True)
class RestartAsked:
    by: str


@dataclass(frozen=True, slots=True)
class Refreshed:
    """New shards run the present code from now on, or cannot."""

    reason: str = ""  # why not
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Spawned | SpawnFailed | Registered | BecameReady | WorkerFailed | WorkerDrained | Died | Settled | StopAsked
    | DrainAsked | Emptied | RestartAsked | Refreshed | Tick
)  # fmt: skip

# Actions


@dataclass(frozen=True, slots=True)
class Start:
    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class Settle:
    """Finish what the dead one had begun in shared memory, ring whom it may have left asleep, and tell Settled."""

    process: int


@dataclass(frozen=True, slots=True)
class Send:
    spec: ChildSpec
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Kill:
    process: int


@dataclass(frozen=True, slots=True)
class Refresh:
    """Import the present code where shards are started from, and tell Refreshed."""


@dataclass(frozen=True, slots=True)
class Say:
    line: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class Announce:
    """The pool is in this phase from now on."""

    phase: Phase


Action = Start | Settle | Send | Kill | Refresh | Say | Announce
