"""Tests of the decisions of a rolling restart: no process, no clock."""

import pytest
from decided_pool import CLEAN, KILLED, LIMITS, Pool, said

from shardpool.control import HandOver
from shardpool.supervisor import rolling
from shardpool.supervisor.pool_state import (
    Action,
    BecameReady,
    Died,
    DrainAsked,
    Event,
    Kill,
    Phase,
    Refresh,
    Refreshed,
    Registered,
    RestartAsked,
    Start,
    Status,
    Step,
    StopAsked,
    WorkerFailed,
)

FIRST, SECOND = 2, 3  # process indices of the shards


def restarting() -> Pool:
    pool = Pool().up()
    assert [action for action in pool.take(RestartAsked("restart")) if isinstance(action, Refresh)]
    return pool


def started(actions: list[Action]) -> list[int]:
    return [action.spec.process for action in actions if isinstance(action, Start)]


def test_shards_are_replaced_one_after_another() -> None:
    """P-18: the next one is asked when the one before serves; deaths that were asked for are no deaths."""
    pool = restarting()
    actions = pool.take(Refreshed())
    for shard, next_one in ((FIRST, [SECOND]), (SECOND, [])):
        assert pool.sent(actions, HandOver) == [shard]
        assert started(pool.take(Died(shard, CLEAN))) == [shard]
        assert pool.sent(pool.take(Registered(shard)), HandOver) == []
        actions = pool.take(BecameReady(shard))
        assert pool.sent(actions, HandOver) == next_one
    assert "all 2 shards were restarted" in said(actions)
    assert [child.deaths for child in pool.state.children] == [(), (), ()]
    assert rolling.refusal(pool.state) == ""


def test_code_that_cannot_be_imported_touches_nobody() -> None:
    """P-18, O-2: reason and remedy, and that nothing was changed."""
    pool = restarting()
    actions = pool.take(Refreshed("no module named x", "install it"))
    assert pool.sent(actions, HandOver) == []
    assert "no module named x: install it; nothing was changed" in said(actions)
    assert rolling.refusal(pool.state) == ""


@pytest.mark.parametrize(
    "event", [WorkerFailed(FIRST, "no database", "start it", 5), Died(FIRST, KILLED)], ids=["failed", "died"]
)
def test_successor_that_does_not_come_up_ends_it(event: Event) -> None:
    """P-18: the others are left alone."""
    pool = restarting()
    pool.take(Refreshed())
    pool.take(Died(FIRST, CLEAN))
    pool.take(Registered(FIRST))
    actions = pool.take(event)
    assert "shard 1 did not come back" in said(actions)
    assert pool.sent(actions, HandOver) == []
    assert pool.state.child(SECOND).status is Status.READY
    assert pool.state.restart is not None
    assert pool.state.restart.problem


def test_successor_that_says_nothing_ends_it_in_time() -> None:
    """P-18: a hanging on_start bounds the restart, too."""
    pool = restarting()
    pool.take(Refreshed())
    pool.take(Died(FIRST, CLEAN))
    pool.take(Registered(FIRST))
    assert said(pool.later(59)) == ""
    assert "not ready within 60 s" in said(pool.later(1))


def test_shard_that_does_not_leave_is_killed_and_replaced() -> None:
    """P-18: a hung handler does not hold the restart up for ever; the records that it held are its successor's."""
    pool = restarting()
    pool.take(Refreshed())
    actions = pool.later(LIMITS.drain_timeout + LIMITS.stop_timeout)
    assert [action.process for action in actions if isinstance(action, Kill)] == [FIRST]
    assert started(pool.take(Died(FIRST, KILLED))) == [FIRST]
    assert pool.sent(pool.ready(FIRST), HandOver) == [SECOND]


def test_shard_that_was_being_started_by_the_old_code_is_replaced_too() -> None:
    """P-18, P-24: nobody counts as done who has not been started since the import."""
    pool = Pool().up()
    pool.take(Died(FIRST, KILLED))
    pool.take(RestartAsked("restart"))
    assert pool.sent(pool.take(Refreshed()), HandOver) == []
    assert pool.state.restart is not None
    assert pool.state.restart.step is Step.WAITING
    assert pool.sent(pool.ready(FIRST), HandOver) == [FIRST]


def test_shard_that_was_given_up_gets_another_chance() -> None:
    """P-4, P-18: new code may be what it needs."""
    pool = Pool().up()
    while pool.state.child(FIRST).status is not Status.BROKEN:
        pool.take(Died(FIRST, KILLED))
        pool.later(1)
    pool.take(RestartAsked("restart"))
    assert started(pool.take(Refreshed())) == [FIRST]
    assert pool.sent(pool.ready(FIRST), HandOver) == [SECOND]


def test_it_is_refused_while_something_else_is_done() -> None:
    """P-18, O-2: one at a time; not while the pool starts, is drained or stops."""
    assert "starting" in rolling.refusal(Pool().state)
    pool = restarting()
    assert "a restart is under way" in rolling.refusal(pool.state)
    assert pool.take(RestartAsked("restart")) == []
    pool.take(DrainAsked("drain"))
    assert pool.state.phase is Phase.EMPTYING
    assert "being drained" in rolling.refusal(pool.state)
    pool.take(StopAsked("SIGTERM"))
    assert "stopping" in rolling.refusal(pool.state)


def test_stop_during_a_restart_comes_when_the_shard_is_back() -> None:
    """P-17, P-18, P-29: what waits in its segment is run before the pool ends; no other shard is touched."""
    pool = restarting()
    pool.take(Refreshed())
    assert "stopping once shard 1 has been replaced" in said(pool.take(StopAsked("SIGTERM")))
    assert started(pool.take(Died(FIRST, CLEAN))) == [FIRST]
    actions = pool.ready(FIRST)
    assert pool.sent(actions, HandOver) == []
    assert pool.state.phase is Phase.DRAINING_ACCEPTORS
    assert "SIGTERM: draining" in said(actions)


def test_second_signal_does_not_wait_for_a_restart() -> None:
    """P-17: it hastens; so does the end of the time that draining may take."""
    for hasten in (lambda pool: pool.take(StopAsked("SIGTERM")), lambda pool: pool.later(LIMITS.drain_timeout)):
        pool = restarting()
        pool.take(Refreshed())
        pool.take(StopAsked("SIGTERM"))
        hasten(pool)
        assert pool.state.phase is Phase.DRAINING_ACCEPTORS
        assert started(pool.take(Died(FIRST, CLEAN))) == []
        assert pool.state.restart is not None
        assert pool.state.restart.step is Step.ENDED
        assert int(pool.state.exit_code) == 0


def test_stop_during_the_import_comes_at_once() -> None:
    """P-17: nobody is out yet."""
    pool = restarting()
    pool.take(StopAsked("SIGTERM"))
    assert pool.state.phase is Phase.DRAINING_ACCEPTORS
    assert pool.sent(pool.take(Refreshed()), HandOver) == []
