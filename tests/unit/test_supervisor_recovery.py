"""Tests of when the supervisor settles what dead processes left; what settling does is test_settle.py's."""

import pytest

from shardpool.settings import load
from shardpool.supervisor import recovery
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.recovery import Recovery

SMALL = {"workers": 2, "acceptors": 1, "slots": 64, "arena_bytes": 1 << 20, "directory_entries": 64, "permits": 32}


@pytest.fixture
def memory() -> Memory:
    return Memory.create(load(None, {}, SMALL).with_processes(2).values)


def test_the_dead_are_settled_at_once_and_told_once(memory: Memory) -> None:
    """M-15: with nothing in the way the successor waits for one short attempt only."""
    due = Recovery(memory)
    assert due.wait(0.0) is None
    due.begin(2, 0.0)
    due.begin(1, 0.0)
    assert due.wait(0.0) == 0.0
    assert sorted(due.attempt(0.0)) == [1, 2]
    assert due.wait(0.0) is None
    assert due.attempt(1.0) == []
    assert due.overdue(10.0) == []


def test_what_finds_no_room_is_tried_again_and_said_once(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """M-3, M-15: the supervisor keeps the tokens that it owes until there is room, and waits for nobody."""
    answers = {2: [False] * 60 + [True], 3: [True]}
    monkeypatch.setattr(recovery, "settle", lambda node, process: answers[process].pop(0))
    due = Recovery(memory)
    now = 0.0
    due.begin(2, now)
    settled, said = [], []
    while (wait := due.wait(now)) is not None:
        assert wait <= 0.1
        now += wait
        if len(answers[2]) == 40 and answers[3]:
            due.begin(3, now)
        settled += due.attempt(now)
        said += due.overdue(now)
    assert settled == [3, 2]
    assert said == [2]
    assert 1.0 < now < 6.0
