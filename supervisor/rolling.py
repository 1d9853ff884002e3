"""A rolling restart: shards are replaced one after another, each by the present code; as decisions, like decisions.py.

    REFRESHING --code imported--> HANDING_OVER --it has left--> RETURNING --ready, next shard--> HANDING_OVER ...
        '--it cannot be--> ENDED                                    '--ready, the last one; or not ready--> ENDED

Code that cannot be imported changes nothing. A shard that hands over finishes the turns that run and leaves everything
else in its segment, where its successor finds it; clients stay connected and see a pause. What does not come back
ends the restart there: the other shards go on with what they have.
"""

from dataclasses import replace

from shardpool.control import HandOver
from shardpool.supervisor.child_spec import Role
from shardpool.supervisor.pool_state import (
    LIVE,
    Action,
    Child,
    Kill,
    Phase,
    Refresh,
    Refreshed,
    Restart,
    Say,
    Send,
    State,
    Status,
    Step,
    StopAsked,
)

_RETURN_PATIENCE = 60.0
_OUT = frozenset((Step.HANDING_OVER, Step.RETURNING))
_COMING_UP = frozenset((Step.WAITING, Step.RETURNING))


def refusal(state: State) -> str:
    """Why no restart can begin now; empty when it can."""
    match state.phase:
        case Phase.STARTING:
            return "the pool is still starting"
        case Phase.SERVING:
            return f"a restart is under way ({progress(state.restart)})" if is_running(state) else ""
        case Phase.EMPTYING:
            return "the pool is being drained"
        case _:
            return "the pool is stopping"


def is_running(state: State) -> bool:
    """Whether a restart is under way."""
    return state.restart is not None and state.restart.step is not Step.ENDED


def has_a_shard_out(state: State) -> bool:
    """Whether a shard is being replaced: what it was sent waits in its segment for the successor."""
    return is_running(state) and state.restart is not None and state.restart.step in _OUT


def postpone(state: State, event: StopAsked, actions: list[Action], now: float) -> State:
    """The pool stops when that shard is back: without it, messages that were accepted would not be run."""
    assert state.restart is not None
    label = state.child(state.restart.left[0]).spec.label
    timeout = state.limits.drain_timeout if event.timeout is None else event.timeout
    actions.append(Say(f"{event.by}: stopping once {label} has been replaced (again: without waiting for that)"))
    return replace(state, postponed=event, postponed_until=now + timeout)


def progress(restart: Restart | None) -> str:
    """How far it is, for people."""
    if restart is None:
        return "none"
    if restart.step is Step.REFRESHING:
        return "importing the app"
    return f"{restart.of - len(restart.left)} of {restart.of} shards done"


def begin(state: State, by: str, actions: list[Action]) -> State:
    """Take the wish in; `refusal` was asked before."""
    shards = tuple(child.spec.process for child in state.of(Role.SHARD))
    number = 1 if state.restart is None else state.restart.number + 1
    actions.append(Say(f"{by}: restarting {len(shards)} shards one after another"))
    actions.append(Refresh())
    return replace(state, restart=Restart(number, len(shards), shards))


def refreshed(state: State, event: Refreshed, actions: list[Action], now: float) -> State:
    """The present code is ready to be started, or cannot be."""
    restart = state.restart
    if restart is None or restart.step is not Step.REFRESHING:
        return state
    if event.reason:
        remedy = f": {event.remedy}" if event.remedy else ""
        return end(state, f"{event.reason}{remedy}; nothing was changed", actions)
    return _next(state, restart, actions, now)


def leaves_as_told(state: State, process: int) -> bool:
    """Whether a death is the restart's own work."""
    restart = state.restart
    return restart is not None and restart.step is Step.HANDING_OVER and restart.left[0] == process


def left(state: State, now: float) -> State:
    """The shard at work is gone; its successor is started at once."""
    assert state.restart is not None
    return replace(state, restart=replace(state.restart, step=Step.RETURNING, deadline=now + _RETURN_PATIENCE))


def returned(state: State, process: int, actions: list[Action], now: float) -> State:
    """A shard is ready: if it is the one at work, the next one's turn has come."""
    restart = state.restart
    if restart is None or restart.step not in _COMING_UP or restart.left[0] != process:
        return state
    done = restart.step is Step.RETURNING
    return _next(state, replace(restart, left=restart.left[done:]), actions, now)


def failed(state: State, process: int, why: str, actions: list[Action]) -> State:
    """A shard did not come up: if it is the one at work, no other is touched."""
    restart = state.restart
    if restart is None or restart.step not in _COMING_UP or restart.left[0] != process:
        return state
    return end(
        state, f"{state.child(process).spec.label} did not come back: {why}; the others were left alone", actions
    )


def late(state: State, actions: list[Action], now: float) -> State:
    """Look at the deadline."""
    restart = state.restart
    if restart is None or restart.deadline is None or now < restart.deadline:
        return state
    process = restart.left[0]
    if restart.step in _COMING_UP:
        return failed(state, process, f"not ready within {_RETURN_PATIENCE:g} s", actions)
    actions.append(Say(f"{state.child(process).spec.label} did not hand over in time: killed", error=True))
    actions.append(Kill(process))
    return replace(state, restart=replace(restart, deadline=None))


def end(state: State, problem: str, actions: list[Action]) -> State:
    """It is over, well or not."""
    if not is_running(state):
        return state
    assert state.restart is not None
    if problem:
        actions.append(Say(f"the restart ended after {progress(state.restart)}: {problem}", error=True))
    else:
        actions.append(Say(f"all {state.restart.of} shards were restarted"))
    return replace(state, restart=replace(state.restart, step=Step.ENDED, deadline=None, problem=problem))


def _next(state: State, restart: Restart, actions: list[Action], now: float) -> State:
    if state.postponed is not None:
        return end(replace(state, restart=restart), "the pool stops", actions)
    if not restart.left:
        return end(replace(state, restart=restart), "", actions)
    child = state.child(restart.left[0])
    if child.status is Status.READY:
        timeout = state.limits.drain_timeout
        actions.append(Send(child.spec, HandOver(timeout)))
        restart = replace(restart, step=Step.HANDING_OVER, deadline=now + timeout + state.limits.stop_timeout)
        return replace(state, restart=restart)
    # It died a moment ago and comes back anyway, by the present code; or its breaker is open, and this is its chance.
    if child.status is Status.BROKEN:
        state = _revived(state, child, now)
    step = Step.WAITING if child.status in LIVE else Step.RETURNING
    return replace(state, restart=replace(restart, step=step, deadline=now + _RETURN_PATIENCE))


def _revived(state: State, child: Child, now: float) -> State:
    children = list(state.children)
    children[child.spec.process - 1] = replace(child, status=Status.DOWN, due=now, deaths=())
    return replace(state, children=tuple(children))
