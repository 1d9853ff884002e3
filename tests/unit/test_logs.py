"""What a worker writes, and how much of it."""

import logging

import pytest

from shardpool.boot import Boot
from shardpool.workers.logs import LINES_PER_SECOND, Sluice


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture, clock: Clock) -> logging.Logger:
    caplog.handler.addFilter(Sluice(clock))
    caplog.set_level(logging.INFO)
    return logging.getLogger("shardpool.shard")


def complain(log: logging.Logger, times: int) -> None:
    for number in range(times):
        log.info("cannot read %d", number)


def test_one_place_says_so_much_in_a_second_and_then_how_much_it_kept(caplog: pytest.LogCaptureFixture) -> None:
    """P-12, P-31: what clients make the server say is bounded; nothing vanishes unmentioned."""
    clock = Clock()
    log = lines(caplog, clock)
    complain(log, 1000)
    assert len(caplog.messages) == LINES_PER_SECOND
    clock.now += 1.5
    complain(log, 2)
    assert caplog.messages[-2:] == ["cannot read 0 (990 more like this were left out before)", "cannot read 1"]


def test_other_places_and_the_app_are_heard_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    """P-12: a flood of one kind of line hides no other."""
    log = lines(caplog, Clock())
    complain(log, 1000)
    log.error("something else")
    complain(logging.getLogger("game"), 500)
    assert "something else" in caplog.messages
    assert len([record for record in caplog.records if record.name == "game"]) == 500


def test_workers_are_named_as_people_count_them() -> None:
    """O-6: the log's shard-2 is the shard 2/4 of ps and the shard 2 of `shardpool status`."""
    boot = Boot("shard", 1, 3, 1, 4, [], [], [], "", "m:app", "arena", "json", True, {}, 1)
    assert boot.log_name == "shard-2"
    assert "shard 2/4" in boot.title
