"""The books of a shard, looked at from outside while it works, stands, or is dead."""

from __future__ import annotations

import mmap
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardpool import _core

sys.path.insert(0, str(Path(__file__).parent))
from executor_rig import ASYNC, Recorder, Rig, table

SHARD = 2


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def audit(rig: Rig) -> dict[str, int]:
    return _core.audit(rig.node(0), 0)


def open_records(books: dict[str, int]) -> int:
    ended = sum(books[name] for name in ("handled", "failed", "dead_lettered", "unrun", "moved_out"))
    return books["accepted"] + books["moved_in"] - ended


class Failing(Recorder):
    def message(self, data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError
        return data


def test_every_record_is_in_one_column(rig: Rig) -> None:
    """O-14: accepted = handled + failed + unrun + waiting, while records wait in the link, in a lane, or suspended."""
    shard = rig.shards[0]
    shard.allocate(1, object(), table())
    actor = shard.allocate(2, Failing(), table(Failing.message))
    slow = shard.allocate(2, Recorder(), ASYNC)
    rig.publish(actor, b"good", 3)
    rig.publish(actor, b"bad", 2)
    rig.publish(slow, b"later", 4)
    before = audit(rig)
    assert (before["in_links"], before["in_lanes"], before["off"], before["accepted"]) == (9, 0, 0, 0)
    rig.run()
    books = audit(rig)
    assert (books["accepted"], books["handled"], books["failed"]) == (9, 3, 2)
    assert open_records(books) == books["in_lanes"]
    assert (books["off"], books["damaged"], books["moved"]) == (0, 0, 0)
    assert books["permits"] == books["permits_needed"]
    for _ in range(5):
        rig.hooks[0].finish_all(shard)
        rig.run()
    books = audit(rig)
    assert (books["accepted"], books["handled"], books["failed"], books["in_lanes"]) == (9, 7, 2, 0)


def test_what_an_ended_object_had_not_run_is_unrun(rig: Rig) -> None:
    """O-14: records that an object's end leaves unrun are counted as such."""
    shard = rig.shards[0]
    shard.allocate(1, object(), table())
    actor = shard.allocate(2, Recorder(), table())
    rig.publish(actor, b"x", 5)
    shard.release(actor)
    rig.run()
    books = audit(rig)
    assert (books["accepted"], books["unrun"], books["handled"], books["in_lanes"]) == (5, 5, 0, 0)


def test_a_move_is_booked_on_both_sides(rig: Rig) -> None:
    """O-14, T-16: what leaves with its object is moved out here and moved in there."""
    shard = rig.shards[0]
    shard.allocate(1, object(), table())
    source = shard.allocate(2, Recorder(), table())
    rig.publish(source, b"x", 3)
    shard.seal(source)
    rig.run()
    [(_, records)] = rig.hooks[0].moved
    target = shard.allocate(2, Recorder(), table())
    assert shard.place(target, [(kind, flags, a, b, payload) for kind, flags, a, b, payload in records])
    shard.vacate(source)
    rig.run()
    books = audit(rig)
    assert (books["accepted"], books["moved_out"], books["moved_in"], books["handled"]) == (3, 3, 3, 3)
    assert open_records(books) == books["in_lanes"] == 0


def test_a_lost_record_is_found(rig: Rig) -> None:
    """O-14: a lane that lost a record is named, by its object's address."""
    shard = rig.shards[0]
    shard.allocate(1, object(), table())
    slow = shard.allocate(2, Recorder(), ASYNC)
    rig.publish(slow, b"later", 3)
    rig.run()
    assert audit(rig)["off"] == 0
    with mmap.mmap(rig.segments[SHARD], 0) as memory:
        chain = _lane(rig, memory, slow)
        memory[chain : chain + 8] = bytes(8)
    books = audit(rig)
    assert (books["off"], books["first_off"]) == (1, slow)
    assert open_records(books) == books["in_lanes"] + 3
    for _, _, coroutine in rig.hooks[0].suspended:
        coroutine.close()


def _lane(rig: Rig, memory: mmap.mmap, address: int) -> int:
    """Where the application lane of an object lies in its shard's segment, by struct sp_slot."""
    turn = rig.acceptor.slot(address)["turn"]
    session = 0x5E551011_5E551011
    marker = rig.shards[0].allocate(2, Recorder(), table(), session=session)
    at = memory.find(session.to_bytes(8, "little"))
    index, own = marker & 0xFFFFFFFF, address & 0xFFFFFFFF
    slot = at - 32 - (index - own) * 128
    lane = slot + 64 + 16
    assert int.from_bytes(memory[lane + 16 : lane + 24], "little") == turn
    return lane


def test_the_books_balance_after_kills_at_random_moments(rig: Rig) -> None:
    """O-14, M-16: a successor mends the entry that the kill cut in two; nothing else is ever missing."""
    actor = rig.shards[0].allocate(1, Recorder(), table())
    for generation in range(40):
        while rig.publish(actor, b"%08d" % generation, flags=0) == _core.ACCEPTED:
            pass
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            one = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
            if generation % 2:
                signal.setitimer(signal.ITIMER_REAL, 0.00002 * generation)  # somewhere in the adoption
            for address, *_ in one.adopt():
                one.restore(address, Recorder(), table(), True)
            signal.setitimer(signal.ITIMER_REAL, 0.00001 + 0.000005 * generation)
            while True:
                one.run(1_000_000)
        os.waitpid(pid, 0)
        assert _core.settle(rig.node(0), SHARD)
        successor = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
        for address, *_ in successor.adopt():
            successor.restore(address, Recorder(), table(), True)
        books = audit(rig)
        assert open_records(books) == books["in_lanes"], f"generation {generation}: {books}"
        assert (books["off"], books["damaged"]) == (0, 0), f"generation {generation}: {books}"
    assert books["handled"] > 0
