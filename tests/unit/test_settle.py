"""Real processes die in the middle of their work; the supervisor settles; the next one goes on."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardpool import _core

sys.path.insert(0, str(Path(__file__).parent))
from executor_rig import Recorder, Rig, table

ACCEPTOR, SHARD = 1, 2
IDLE, RUNNABLE = 0, 1


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def die_in_child(work: Callable[[], None]) -> None:
    """Fork, work, and wait until the child has been killed by SIGKILL."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the child was to be killed in the middle"


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def settle(rig: Rig, process: int) -> None:
    assert _core.settle(rig.node(0), process)


class Fragile(Recorder):
    """Dies in the turn of one message."""

    def message(self, data: bytes) -> bytes:
        if data == b"kill":
            kill_self()
        return super().message(data)


def test_a_successor_runs_what_had_not_begun(rig: Rig) -> None:
    """M-16: the record that was running is handed over once, marked; the rest run in order."""

    def shard() -> None:
        one = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
        one.allocate(1, object(), table())
        address = one.allocate(2, Fragile(), table(Fragile.message))
        for payload in (b"a", b"kill", b"b", b"c"):
            assert rig.publish(address, payload) == _core.ACCEPTED
        one.run(1_000_000_000)

    die_in_child(shard)
    settle(rig, SHARD)
    successor = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
    found = {kind: (address, begun) for address, kind, _, _, _, begun, *_ in successor.adopt()}
    address, begun = found[2]
    assert begun is not None
    assert begun[4] == b"kill"
    actor = Recorder()
    successor.restore(found[1][0], object(), table(), True)
    successor.restore(address, actor, table(), True)
    while successor.run(1_000_000_000):
        pass
    assert actor.seen == [b"b", b"c"]
    state = rig.acceptor.slot(address)
    assert (state["phase"], state["application_records"], state["mark"]) == (IDLE, 0, 0)
    assert rig.acceptor.counters(SHARD)["permits_used"] == 0


def test_a_shard_killed_again_and_again_loses_nothing(rig: Rig) -> None:
    """M-16: random kills while it runs: every message is run at most once, and lost only if it was running."""
    actor_address = rig.shards[0].allocate(1, Recorder(), table())
    reads, writes = os.pipe()

    class Writing(Recorder):
        def message(self, data: bytes) -> bytes:
            os.write(writes, data)
            return b""

    sent = 0
    begun: list[bytes] = []
    for generation in range(12):
        while sent < 100 * (generation + 1) and rig.publish(actor_address, b"%08d" % sent, flags=0) == _core.ACCEPTED:
            sent += 1

        def shard(generation: int = generation) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0003 * generation)
            one = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
            for address, *_ in one.adopt():
                one.restore(address, Writing(), table(Writing.message), True)
            while True:
                one.run(1_000_000)

        die_in_child(shard)
        settle(rig, SHARD)
        probe = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
        begun += [found[5][4] for found in probe.adopt() if found[5] is not None]
    last = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
    for address, *_ in last.adopt():
        last.restore(address, Writing(), table(Writing.message), True)
    while last.run(1_000_000_000):
        pass
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        said = file.read()
    ran = [said[i : i + 8] for i in range(0, len(said), 8)]
    assert ran == sorted(set(ran)), "twice, or out of order"
    assert set(ran) | set(begun) == {b"%08d" % number for number in range(sent)}
    assert rig.acceptor.counters(SHARD)["permits_used"] == 0


def test_an_end_that_was_cut_short_is_finished_by_the_successor(rig: Rig) -> None:
    """M-16: a slot that its shard had begun to free is freed once, and can be used again."""
    session, kind = 0x5E551011_5E551011, 16  # offset of `kind` behind `session` in struct sp_slot

    def shard() -> None:
        rig.hooks[0].dropped = lambda address, records: kill_self()  # type: ignore[method-assign]
        one = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
        one.allocate(1, object(), table())
        address = one.allocate(2, Recorder(), table(), session=session)
        assert rig.publish(address, b"unrun") == _core.ACCEPTED
        one.release(address)
        one.run(1_000_000_000)

    die_in_child(shard)
    with mmap.mmap(rig.segments[SHARD], 0) as memory:
        place = memory.find(struct.pack("Q", session)) + kind
        assert struct.unpack_from("Q", memory, place) == (2,)
        struct.pack_into("Q", memory, place, 0)
    settle(rig, SHARD)
    successor = _core.Shard(rig.node(SHARD), 0, rig.hooks[0])
    ((system, found, *_),) = successor.adopt()
    assert found == 1
    successor.restore(system, object(), table(), True)
    assert rig.acceptor.counters(SHARD)["objects"] == 2
    while successor.run(1_000_000_000):
        pass
    counters = rig.acceptor.counters(SHARD)
    assert (counters["objects"], counters["permits_used"]) == (1, 0)
    assert successor.allocate(2, Recorder(), table()) & 0xFFFFFFFF == 1


def test_an_acceptor_killed_anywhere_leaves_its_objects_usable(rig: Rig) -> None:
    """M-15: no bit, permit or reservation is left, and what it had committed runs."""
    actor = Recorder()
    address = rig.shards[0].allocate(1, actor, table())
    for attempt in range(20):

        def acceptor(attempt: int = attempt) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.0001 * attempt)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            node = rig.node(ACCEPTOR)
            while True:
                _core.publish_frames(node, address, 1 << 32, b"message", 3, 0)

        die_in_child(acceptor)
        settle(rig, ACCEPTOR)
        rig.run()
        state = rig.acceptor.slot(address)
        assert (state["phase"], state["in_flight"], state["application_records"]) == (IDLE, 0, 0)
        assert rig.acceptor.counters(SHARD)["permits_used"] == 0
    assert len(actor.seen) % 3 == 0, "a batch is real or it is not"
    assert set(actor.seen) == {b"message"}


def test_everyone_is_rung(rig: Rig) -> None:
    """M-12, M-15: whatever the processes had declared."""
    for bell in rig.doorbells:
        os.eventfd_write(bell, 1)
        os.eventfd_read(bell)
    settle(rig, ACCEPTOR)
    assert [os.eventfd_read(bell) for bell in rig.doorbells] == [1, 1, 1]


@pytest.mark.parametrize("process", [0, 3, 39])
def test_only_workers_are_settled_and_only_by_the_supervisor(rig: Rig, process: int) -> None:
    """M-15: said by number."""
    with pytest.raises(ValueError, match=f"not for {process}"):
        _core.settle(rig.node(0), process)
    with pytest.raises(ValueError, match="the supervisor settles"):
        _core.settle(rig.node(SHARD), ACCEPTOR)
