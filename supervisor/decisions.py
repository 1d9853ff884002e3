"""The supervisor's decisions, without its hands: `decide(state, event, now) -> (state, actions)`.

    STARTING --all ready--> SERVING --stop asked--> DRAINING_ACCEPTORS -> DRAINING_SHARDS -> STOPPING_SHARDS
        |                      |'-drain asked-> EMPTYING --clients have left--^                 -> STOPPING_ACCEPTORS
        '--failed, interrupted-'--nothing left to serve with, second signal--> STOPPING_ALL             |
                                                                                    '-----> ENDED <-----'

Clients lose nothing on the way down: acceptors first publish what they read, then shards run what they have, then
they end, and only then the acceptors, which wrote the last replies meanwhile (shardpool/control.py).

Nothing here reads a clock, touches a process or prints; time is monotonic seconds, given by the caller.
"""

from dataclasses import replace
from typing import assert_never

from shardpool.control import CloseDoors, Drain, Homes, Stop
from shardpool.exit_codes import ExitCode
from shardpool.supervisor import rolling
from shardpool.supervisor.child_spec import ChildSpec, Role
from shardpool.supervisor.death import Death
from shardpool.supervisor.pool_state import (
    LIVE,
    REACHABLE,
    Action,
    Announce,
    BecameReady,
    Child,
    Died,
    DrainAsked,
    Emptied,
    Event,
    Kill,
    Limits,
    Phase,
    Refreshed,
    Registered,
    RestartAsked,
    Say,
    Send,
    Settle,
    Settled,
    Spawned,
    SpawnFailed,
    Start,
    State,
    Status,
    StopAsked,
    Tick,
    WorkerDrained,
    WorkerFailed,
)  # fmt: skip

_PROGRESS_PERIOD = 1.0
_HASTY_STOP = 1.0
_UP = frozenset((Phase.STARTING, Phase.SERVING, Phase.EMPTYING))


def decide(state: State, event: Event, now: float) -> tuple[State, list[Action]]:
    """Take one event in.

    Returns: the next state and what to do, in order. The pool has ended when `state.phase` is ENDED.
    """
    actions: list[Action] = []
    match event:
        case Spawned(process, pid):
            state = _with(state, process, status=Status.STARTING, pid=pid, started=now)
        case SpawnFailed(process, reason):
            child = state.child(process)
            actions.append(Say(f"{child.spec.label} could not be started: {reason}", error=True))
            state = _lost(state, child, actions, now)
        case Registered(process):
            state = _registered(state, state.child(process), actions)
        case BecameReady(process):
            if state.child(process).status is Status.REGISTERED:
                state = _ready(state, state.child(process), actions, now)
        case WorkerFailed():
            state = _failed(state, event, actions, now)
        case WorkerDrained(process):
            if state.child(process).status is Status.READY:
                state = _with(state, process, status=Status.DRAINED)
        case Died(process, death):
            state = _with(state, process, settled=False, last_death=death.text, died=now)
            state = _died(state, state.child(process), death, actions, now)
        case Settled(process):
            state = _with(state, process, settled=True)
        case StopAsked() if rolling.has_a_shard_out(state) and state.postponed is None:
            state = rolling.postpone(state, event, actions, now)
        case StopAsked():
            state = _stop_asked(state, event, actions, now)
        case DrainAsked() if state.phase is Phase.SERVING:
            state = _drain_asked(rolling.end(state, "the pool is drained", actions), event, actions, now)
        case Emptied() if state.phase is Phase.EMPTYING:
            state = _drain(state, state.limits.drain_timeout, actions, now)
        case RestartAsked(by) if not rolling.refusal(state):
            state = rolling.begin(state, by, actions)
        case Refreshed():
            state = rolling.refreshed(state, event, actions, now)
        case DrainAsked() | Emptied() | RestartAsked():
            pass  # asked while something else was decided; whoever asked was refused by name
        case Tick():
            pass
        case _:
            assert_never(event)
    state = rolling.late(state, actions, now)
    if state.postponed is not None and (now >= state.postponed_until or not rolling.has_a_shard_out(state)):
        state = _stop_asked(state, state.postponed, actions, now)
    return _advance(state, actions, now), actions


def initial_state(specs: tuple[ChildSpec, ...], limits: Limits, now: float) -> State:
    """State before anything was started; the first Tick starts everything."""
    children = tuple(Child(spec, due=now) for spec in specs)
    return State(limits, children, progress_due=now + _PROGRESS_PERIOD)


def next_wake(state: State, now: float) -> float | None:
    """Seconds until a Tick must come, None when only events matter."""
    down = [child for child in state.children if child.status is Status.DOWN and child.settled]
    times = [child.due for child in down if state.phase in _UP]
    if state.deadline is not None:
        times.append(state.deadline)
    if state.restart is not None and state.restart.deadline is not None:
        times.append(state.restart.deadline)
    if state.postponed is not None:
        times.append(state.postponed_until)
    if state.phase is not Phase.SERVING:
        times.append(state.progress_due)
    return max(0.0, min(times) - now) if times else None


def _with(state: State, process: int, **changes: object) -> State:
    children = list(state.children)
    children[process - 1] = replace(children[process - 1], **changes)  # type: ignore[arg-type]
    return replace(state, children=tuple(children))


def _registered(state: State, child: Child, actions: list[Action]) -> State:
    if child.status is not Status.STARTING:
        return state
    if state.phase not in _UP:
        actions.append(Send(child.spec, Stop()))
    return _with(state, child.spec.process, status=Status.REGISTERED)


def _ready(state: State, child: Child, actions: list[Action], now: float) -> State:
    if state.phase in _UP and child.restarts:
        actions.append(Say(f"{child.spec.label} (pid {child.pid}) serves again"))
    state = _with(state, child.spec.process, status=Status.READY)
    homes = [shard.spec.index for shard in state.of(Role.SHARD) if shard.status is not Status.BROKEN]
    if child.spec.role is Role.ACCEPTOR and len(homes) < len(state.of(Role.SHARD)):
        actions.append(Send(child.spec, Homes(homes)))
    if child.spec.role is Role.ACCEPTOR and state.phase is Phase.EMPTYING:
        actions.append(Send(child.spec, CloseDoors()))
    return rolling.returned(state, child.spec.process, actions, now)


def _failed(state: State, event: WorkerFailed, actions: list[Action], now: float) -> State:
    child = state.child(event.process)
    text = f"{event.reason}: {event.remedy}" if event.remedy else event.reason
    state = _with(state, event.process, failure=text)
    if state.phase is not Phase.STARTING:
        # It dies of it in a moment, and the restart policy decides.
        return rolling.failed(state, event.process, text, actions)
    actions.append(Say(f"cannot start: {child.spec.label}: {text}", error=True))
    try:
        code = ExitCode(event.exit_code)
    except ValueError:
        code = ExitCode.WORKERS
    return _stop_all(replace(state, exit_code=code or ExitCode.WORKERS), actions, now)


def _died(state: State, child: Child, death: Death, actions: list[Action], now: float) -> State:
    actions.append(Settle(child.spec.process))
    if rolling.leaves_as_told(state, child.spec.process):
        if not death.clean:
            actions.append(Say(f"{child.spec.label} (pid {child.pid}) {death.text} while it handed over", error=True))
        state = _with(
            state, child.spec.process, status=Status.DOWN, pid=0, due=now, restarts=child.restarts + 1, failure="",
            last_death="left in a rolling restart" if death.clean else death.text,
        )  # fmt: skip
        return rolling.left(state, now)
    if state.phase in _UP:
        state = rolling.failed(state, child.spec.process, f"it {death.text}", actions)
        cause = f" after it reported: {child.failure}" if child.failure else ""
        actions.append(Say(f"{child.spec.label} (pid {child.pid}) {death.text}{cause}", error=True))
        return _lost(state, child, actions, now)
    state = _with(state, child.spec.process, status=Status.GONE, pid=0)
    if death.clean or child.status is Status.DISMISSED or state.phase is Phase.STOPPING_ALL:
        return state
    actions.append(Say(f"{child.spec.label} (pid {child.pid}) {death.text} while the pool stops", error=True))
    return replace(state, exit_code=state.exit_code or ExitCode.KILLED)


def _lost(state: State, child: Child, actions: list[Action], now: float) -> State:
    """A place is without process: when to fill it again, or never."""
    # While the pool is emptied nobody can connect to another acceptor.
    if state.phase not in _UP or (state.phase is Phase.EMPTYING and child.spec.role is Role.ACCEPTOR):
        return _with(state, child.spec.process, status=Status.GONE, pid=0)
    policy = state.limits.restarts
    deaths, delay = policy.after_death(child.deaths, now)
    if delay is None:
        actions.append(
            Say(
                f"{child.spec.label} is given up after {len(deaths)} deaths within {policy.period:g} s; the pool goes "
                "on without it; mend the cause and restart the pool",
                error=True,
            )
        )
        state = _with(state, child.spec.process, status=Status.BROKEN, pid=0, deaths=deaths, failure="")
        if child.spec.role is Role.SHARD:
            homes = [shard.spec.index for shard in state.of(Role.SHARD) if shard.status is not Status.BROKEN]
            ready = (acceptor for acceptor in state.of(Role.ACCEPTOR) if acceptor.status is Status.READY)
            actions += [Send(acceptor.spec, Homes(homes)) for acceptor in ready]
        return state
    when = "now" if delay == 0 else f"in {delay:g} s"
    actions.append(Say(f"{child.spec.label} is started again {when}"))
    return _with(
        state, child.spec.process, status=Status.DOWN, pid=0, due=now + delay, deaths=deaths,
        restarts=child.restarts + 1, failure="",
    )  # fmt: skip


def _stop_asked(state: State, event: StopAsked, actions: list[Action], now: float) -> State:
    state = replace(rolling.end(state, "the pool stops", actions), postponed=None)
    if state.phase is Phase.STARTING:
        actions.append(Say(f"{event.by}: stopping before the pool was up"))
        return _stop_all(replace(state, exit_code=state.exit_code or ExitCode.INTERRUPTED), actions, now)
    if state.phase in _UP:
        timeout = state.limits.drain_timeout if event.timeout is None else event.timeout
        actions.append(Say(f"{event.by}: draining for up to {timeout:g} s (again: stop at once)"))
        return _drain(state, timeout, actions, now)
    if state.phase is Phase.STOPPING_ALL:
        actions += [Kill(child.spec.process) for child in _live(state.children)]
        return state
    actions.append(Say(f"{event.by}: stopping at once"))
    return _stop_all(state, actions, now)


def _drain_asked(state: State, event: DrainAsked, actions: list[Action], now: float) -> State:
    timeout = state.limits.drain_timeout if event.timeout is None else event.timeout
    actions.append(Say(f"{event.by}: no new clients; those who are there have up to {timeout:g} s to leave"))
    actions.append(Announce(Phase.EMPTYING))
    actions += [Send(child.spec, CloseDoors()) for child in _reachable(state.of(Role.ACCEPTOR))]
    return replace(state, phase=Phase.EMPTYING, deadline=now + timeout, progress_due=now + _PROGRESS_PERIOD)


def _drain(state: State, timeout: float, actions: list[Action], now: float) -> State:
    """Acceptors first; who is not up yet does not come up any more."""
    if state.phase is not Phase.EMPTYING:
        actions.append(Announce(Phase.DRAINING_ACCEPTORS))
    for child in state.children:
        if child.status is Status.DOWN:
            state = _with(state, child.spec.process, status=Status.GONE)
    actions += [Send(child.spec, Drain(timeout)) for child in _reachable(state.of(Role.ACCEPTOR))]
    return replace(
        state, phase=Phase.DRAINING_ACCEPTORS, deadline=now + timeout, hard_deadline=now + timeout,
        progress_due=now + _PROGRESS_PERIOD,
    )  # fmt: skip


def _dismiss(state: State, child: Child, actions: list[Action]) -> State:
    """It holds nothing yet, and no message would reach it."""
    actions.append(Kill(child.spec.process))
    return _with(state, child.spec.process, status=Status.DISMISSED)


def _stop_all(state: State, actions: list[Action], now: float) -> State:
    """Leave order aside: everybody ends now."""
    if state.phase is Phase.STOPPING_ALL:
        return state
    if state.phase in _UP:
        actions.append(Announce(Phase.STOPPING_ALL))
    for child in state.children:
        if child.status is Status.DOWN:
            state = _with(state, child.spec.process, status=Status.GONE)
        elif child.status is Status.STARTING:
            state = _dismiss(state, child, actions)
        elif child.status in REACHABLE:
            actions.append(Send(child.spec, Stop()))
    hasty = min(_HASTY_STOP, state.limits.stop_timeout)
    return replace(state, phase=Phase.STOPPING_ALL, deadline=now + hasty, progress_due=now + _PROGRESS_PERIOD)


def _advance(state: State, actions: list[Action], now: float) -> State:
    """Go through the phases whose end has come; each ends by what has happened or by its deadline."""
    while True:
        before = state.phase
        late = state.deadline is not None and now >= state.deadline
        match state.phase:
            case Phase.STARTING | Phase.SERVING:
                state = _advance_up(state, actions, now)
            case Phase.EMPTYING:
                state = (
                    _drain(state, state.limits.drain_timeout, actions, now)
                    if late
                    else _advance_up(state, actions, now)
                )
            case Phase.DRAINING_ACCEPTORS:
                if late or not _busy(state.of(Role.ACCEPTOR)):
                    left = max(0.0, (state.hard_deadline or now) - now)
                    actions += [Send(child.spec, Drain(left)) for child in _reachable(state.of(Role.SHARD))]
                    state = replace(state, phase=Phase.DRAINING_SHARDS)
            case Phase.DRAINING_SHARDS:
                if late or not _busy(state.of(Role.SHARD)):
                    state = _stop_role(state, Phase.STOPPING_SHARDS, Role.SHARD, actions, now)
            case Phase.STOPPING_SHARDS:
                if not _live(state.of(Role.SHARD)):
                    state = _stop_role(state, Phase.STOPPING_ACCEPTORS, Role.ACCEPTOR, actions, now)
                elif late:
                    state = _kill_late(state, state.of(Role.SHARD), actions)
            case Phase.STOPPING_ACCEPTORS | Phase.STOPPING_ALL:
                if not _live(state.children):
                    state = replace(state, phase=Phase.ENDED, deadline=None)
                    actions.append(Announce(Phase.ENDED))
                elif late:
                    state = _kill_late(state, state.children, actions)
            case Phase.ENDED:
                return state
        if state.phase is before:
            return _progress(state, actions, now)


def _advance_up(state: State, actions: list[Action], now: float) -> State:
    for role in Role:
        if all(child.status is Status.BROKEN for child in state.of(role)):
            actions.append(Say(f"no {role} is left: stopping", error=True))
            return _stop_all(replace(state, exit_code=ExitCode.WORKERS), actions, now)
    for child in state.children:
        # The dead one's bits in shared words pass on only when nothing of it is left there.
        if child.status is Status.DOWN and child.due <= now and child.settled:
            actions.append(Start(child.spec))
            # Until Spawned or SpawnFailed tells the outcome: no second start.
            state = _with(state, child.spec.process, status=Status.STARTING, started=now)
    settled = all(child.status in (Status.READY, Status.BROKEN) for child in state.children)
    if state.phase is Phase.STARTING and settled:
        actions.append(Announce(Phase.SERVING))
        return replace(state, phase=Phase.SERVING)
    return state


def _stop_role(state: State, phase: Phase, role: Role, actions: list[Action], now: float) -> State:
    for child in _live(state.of(role)):
        if child.status is Status.STARTING:
            state = _dismiss(state, child, actions)
        else:
            actions.append(Send(child.spec, Stop()))
    return replace(state, phase=phase, deadline=now + state.limits.stop_timeout)


def _kill_late(state: State, children: tuple[Child, ...], actions: list[Action]) -> State:
    for child in _live(children):
        actions.append(Kill(child.spec.process))
        actions.append(Say(f"{child.spec.label} (pid {child.pid}) did not end in time: killed", error=True))
    return replace(state, deadline=None, exit_code=state.exit_code or ExitCode.KILLED)


def _progress(state: State, actions: list[Action], now: float) -> State:
    """One line per second about whatever is waited for."""
    if state.phase is Phase.SERVING or now < state.progress_due:
        return state
    match state.phase:
        case Phase.STARTING:
            waiting = [child for child in state.children if child.status not in (Status.READY, Status.BROKEN)]
            text = f"starting: waiting for {_names(waiting)}"
        case Phase.EMPTYING:
            text = f"waiting for clients to leave, {max(0.0, (state.deadline or now) - now):.0f} s left"
        case Phase.DRAINING_ACCEPTORS | Phase.DRAINING_SHARDS:
            role = Role.ACCEPTOR if state.phase is Phase.DRAINING_ACCEPTORS else Role.SHARD
            left = max(0.0, (state.hard_deadline or now) - now)
            text = f"draining: {_names(_busy(state.of(role)))} at work, {left:.0f} s left"
        case _:
            text = f"stopping: waiting for {_names(_live(state.children))}"
    actions.append(Say(text))
    return replace(state, progress_due=now + _PROGRESS_PERIOD)


def _live(children: tuple[Child, ...]) -> list[Child]:
    return [child for child in children if child.status in LIVE]


def _reachable(children: tuple[Child, ...]) -> list[Child]:
    return [child for child in children if child.status in REACHABLE]


def _busy(children: tuple[Child, ...]) -> list[Child]:
    """Those that have not answered Drain yet; one that does not serve yet has nothing to drain."""
    return [child for child in children if child.status is Status.READY]


def _names(children: list[Child]) -> str:
    names = [child.spec.label for child in children]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
