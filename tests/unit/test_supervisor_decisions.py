"""Tests of the supervisor's decisions: no process, no clock."""

from decided_pool import CLEAN, KILLED, Pool, said
from hypothesis import given, settings
from hypothesis import strategies as st

from shardpool.control import Drain, Homes, Stop
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.child_spec import Role
from shardpool.supervisor.death import Death
from shardpool.supervisor.decisions import decide, next_wake
from shardpool.supervisor.pool_state import (
    LIVE,
    Announce,
    BecameReady,
    Died,
    Event,
    Kill,
    Phase,
    Registered,
    Send,
    Settle,
    Settled,
    SpawnFailed,
    Start,
    Status,
    StopAsked,
    Tick,
    WorkerDrained,
    WorkerFailed,
)


def test_everything_is_started_and_announced_when_all_are_ready() -> None:
    """P-1: the pool serves when its last process is ready, and not before."""
    pool = Pool()
    assert [a.spec.process for a in pool.take(Tick()) if isinstance(a, Start)] == [1, 2, 3]
    assert not pool.take(Tick())
    pool.ready(1)
    pool.ready(3)
    assert pool.state.phase is Phase.STARTING
    assert Announce(Phase.SERVING) in pool.ready(2)


def test_waiting_at_start_is_said_by_name() -> None:
    """P-20: progress for anything that takes over a second."""
    pool = Pool()
    pool.take(Tick())
    pool.ready(1)
    assert "waiting for shard 1, shard 2" in said(pool.later(1.0))
    assert not said(pool.later(0.5))


def test_dead_worker_is_settled_before_its_successor_starts() -> None:
    """P-4, M-14: one line says who, how and what next; the clean-up comes first."""
    pool = Pool().up()
    actions = pool.take(Died(3, KILLED))
    kinds = [type(action) for action in actions]
    assert kinds.index(Settle) < kinds.index(Start)
    assert "shard 2 (pid 1003) was killed by SIGKILL" in said(actions)
    assert "started again now" in said(actions)
    assert "serves again" in said(pool.ready(3))


def test_no_successor_starts_while_its_predecessor_is_not_settled() -> None:
    """M-15: the dead process's bits in shared words pass on only afterwards; nobody is woken for nothing meanwhile."""
    pool = Pool().up()
    state, actions = decide(pool.state, Died(3, KILLED), pool.now)
    assert Settle(3) in actions
    for _ in range(3):
        assert not [action for action in actions if isinstance(action, Start)]
        assert next_wake(state, pool.now) is None
        pool.now += 1.0
        state, actions = decide(state, Tick(), pool.now)
    state, actions = decide(state, Settled(3), pool.now)
    assert [action.spec.process for action in actions if isinstance(action, Start)] == [3]


def test_restarts_grow_slower_and_then_end() -> None:
    """P-4: growing delay; more than 5 deaths within 10 s open the breaker of that place only."""
    pool = Pool().up()
    delays = []
    for _ in range(6):
        last = pool.take(Died(3, KILLED))
        child = pool.state.child(3)
        delays.append(round(child.due - pool.now, 3) if child.status is Status.DOWN else 0.0)
        if child.status is Status.DOWN:
            pool.later(child.due - pool.now)
    assert delays[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert pool.state.child(3).status is Status.BROKEN
    assert "given up after 6 deaths within 10 s" in said(last)
    assert pool.state.phase is Phase.SERVING
    assert [a.message for a in last if isinstance(a, Send)] == [Homes([0])]
    assert not [a for a in pool.later(1000) if isinstance(a, Start)]


def test_deaths_far_apart_never_open_the_breaker() -> None:
    """P-4: intensity counts within its period."""
    pool = Pool().up()
    for _ in range(50):
        pool.take(Died(2, KILLED))
        pool.later(4.0)
        pool.ready(2)
    assert pool.state.child(2).status is Status.READY
    assert pool.state.child(2).restarts == 50


def test_acceptor_that_comes_later_learns_the_homes() -> None:
    """P-6: a shard whose breaker is open gets no new sessions, from any acceptor."""
    pool = Pool().up()
    for _ in range(6):
        pool.take(Died(3, KILLED))
        pool.later(5.0 if pool.state.child(3).status is Status.READY else 1.0)
    assert pool.state.child(3).status is Status.BROKEN
    pool.take(Died(1, KILLED))
    assert Homes([0]) in [a.message for a in pool.ready(1) if isinstance(a, Send)]


def test_pool_ends_when_a_role_has_nobody_left() -> None:
    """P-4: a pool that can serve nobody stops, with its own exit code."""
    pool = Pool(shards=1).up()
    while pool.state.phase is Phase.SERVING:
        pool.take(Died(2, KILLED))
        pool.later(1.0)
    assert pool.state.exit_code is ExitCode.WORKERS
    pool.take(Died(1, CLEAN))
    assert pool.state.phase is Phase.ENDED


def test_failure_at_start_ends_the_pool_with_one_line() -> None:
    """O-2, P-4: an app that raises at import is not restarted for ever."""
    pool = Pool()
    pool.take(Tick())
    pool.take(Registered(2))
    pool.take(Registered(3))
    first = pool.take(WorkerFailed(2, "cannot import arena", "mend it", int(ExitCode.APP)))
    second = pool.take(WorkerFailed(3, "cannot import arena", "mend it", int(ExitCode.APP)))
    assert said(first) == "cannot start: shard 1: cannot import arena: mend it"
    assert not said(second)
    assert Kill(1) in first  # not registered yet: no message would reach it
    for process in (1, 2, 3):
        pool.take(Died(process, Death(exit_code=5)))
    assert (pool.state.phase, pool.state.exit_code) == (Phase.ENDED, ExitCode.APP)


def test_failure_after_a_restart_goes_by_the_restart_policy() -> None:
    """P-4: code that broke while the pool serves costs that place, not the pool."""
    pool = Pool().up()
    pool.take(Died(2, KILLED))
    pool.take(Registered(2))
    assert not said(pool.take(WorkerFailed(2, "syntax error", "", int(ExitCode.APP))))
    assert "after it reported: syntax error" in said(pool.take(Died(2, Death(exit_code=5))))
    assert pool.state.phase is Phase.SERVING


def test_drain_goes_acceptors_then_shards_then_ends_the_same_way() -> None:
    """P-17: nothing that was read is lost: who produces stops before who consumes."""
    pool = Pool().up()
    assert pool.sent(pool.take(StopAsked("SIGTERM")), Drain) == [1]
    assert pool.sent(pool.take(WorkerDrained(1)), Drain) == [2, 3]
    assert not pool.take(WorkerDrained(2))
    assert pool.sent(pool.take(WorkerDrained(3)), Stop) == [2, 3]
    pool.take(Died(2, CLEAN))
    assert pool.sent(pool.take(Died(3, CLEAN)), Stop) == [1]
    assert Announce(Phase.ENDED) in pool.take(Died(1, CLEAN))
    assert pool.state.exit_code is ExitCode.OK


def test_drain_ends_at_its_deadline_and_killing_at_the_next() -> None:
    """P-17: turns finish within drain_timeout; what does not end then is killed, and the exit code says so."""
    pool = Pool().up()
    pool.take(StopAsked("SIGTERM", timeout=3.0))
    actions = pool.later(3.0)
    assert pool.sent(actions, Stop) == [2, 3]
    actions = pool.later(5.0)
    assert {a.process for a in actions if isinstance(a, Kill)} == {2, 3}
    pool.take(Died(2, KILLED))
    pool.take(Died(3, KILLED))
    pool.take(Died(1, CLEAN))
    assert (pool.state.phase, pool.state.exit_code) == (Phase.ENDED, ExitCode.KILLED)


def test_second_signal_hastens_and_third_kills() -> None:
    """P-17: a second SIGTERM or SIGINT stops at once; a third leaves nobody."""
    pool = Pool().up()
    pool.take(StopAsked("SIGTERM"))
    assert pool.sent(pool.take(StopAsked("SIGINT")), Stop) == [1, 2, 3]
    assert next_wake(pool.state, pool.now) == 1.0
    assert {a.process for a in pool.take(StopAsked("SIGINT")) if isinstance(a, Kill)} == {1, 2, 3}


def test_death_while_draining_is_not_restarted() -> None:
    """P-17: a shard that dies while the pool drains is settled and gone; the others go on."""
    pool = Pool().up()
    pool.take(StopAsked("SIGTERM"))
    pool.take(WorkerDrained(1))
    actions = pool.take(Died(2, KILLED))
    assert Settle(2) in actions
    assert not [a for a in actions if isinstance(a, Start)]
    assert pool.sent(pool.take(WorkerDrained(3)), Stop) == [3]


def test_interrupt_at_start_stops_at_once() -> None:
    """P-17: Ctrl-C before the pool is up."""
    pool = Pool()
    pool.take(Tick())
    pool.take(Registered(1))
    actions = pool.take(StopAsked("SIGINT"))
    assert pool.sent(actions, Stop) == [1]
    assert {a.process for a in actions if isinstance(a, Kill)} == {2, 3}
    # It registers after all: it is told.
    assert pool.state.exit_code is ExitCode.INTERRUPTED


def test_worker_that_cannot_be_started_counts_as_death() -> None:
    """P-4: exec that fails (no memory, no descriptors) goes by the restart policy."""
    pool = Pool().up()
    state, _ = decide(pool.state, Died(2, KILLED), pool.now)
    state, actions = decide(state, SpawnFailed(2, "Cannot allocate memory"), pool.now)
    assert "shard 1 could not be started: Cannot allocate memory" in said(actions)
    assert state.child(2).status is Status.DOWN


EVENTS = st.one_of(
    st.builds(Registered, st.integers(1, 4)),
    st.builds(BecameReady, st.integers(1, 4)),
    st.builds(WorkerDrained, st.integers(1, 4)),
    st.builds(Died, st.integers(1, 4), st.sampled_from((KILLED, CLEAN, Death(exit_code=3)))),
    st.builds(WorkerFailed, st.integers(1, 4), st.just("why"), st.just("what"), st.sampled_from((0, 5, 99))),
    st.builds(StopAsked, st.just("SIGTERM"), st.sampled_from((None, 1.0))),
    st.just(Tick()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.sampled_from((0.0, 0.2, 3.0))), max_size=60))
def test_whatever_happens_it_ends_when_asked_to(events: list[tuple[Event, float]]) -> None:
    """P-17, P-4: after any history, stop requests and deadlines end the pool with nobody alive, and none started."""
    pool = Pool(acceptors=2, shards=2)
    pool.take(Tick())
    for event, pause in events:
        pool.now += pause
        if isinstance(event, Died) and pool.state.child(event.process).status not in LIVE:
            continue
        pool.take(event)
    pool.take(StopAsked("SIGTERM", timeout=1.0))
    for _ in range(20):
        if pool.state.phase is Phase.ENDED:
            break
        wanted = pool.later(next_wake(pool.state, pool.now) or 1.0)
        assert not [a for a in wanted if isinstance(a, Start)]
        for action in wanted:
            if isinstance(action, Kill) and pool.state.child(action.process).status in LIVE:
                pool.take(Died(action.process, KILLED))
    if pool.state.phase is not Phase.ENDED:
        pool.take(StopAsked("SIGTERM"))
        for action in pool.take(StopAsked("SIGTERM")):
            if isinstance(action, Kill) and pool.state.child(action.process).status in LIVE:
                pool.take(Died(action.process, KILLED))
    assert pool.state.phase is Phase.ENDED
    assert not [child for role in Role for child in pool.state.of(role) if child.status in LIVE]
