"""The shard's executor in C: drains, gates, lanes, moves and adoption, with records in real links."""

from __future__ import annotations

import contextvars
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from executor_rig import ASYNC, CLIENT, Recorder, Rig, table

from shardpool import _core

IDLE, RUNNABLE, RUNNING, WAITING, FINALIZING = range(5)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def state(rig: Rig, address: int) -> dict[str, int]:
    return rig.acceptor.slot(address)


def permits(rig: Rig, shard: int = 0) -> int:
    return rig.acceptor.counters(2 + shard)["permits_used"]


def test_frames_run_in_order_and_their_replies_go_back(rig: Rig) -> None:
    """M-1, M-7, M-21: one batch, one permit; afterwards nothing is held."""
    actor = Recorder()
    address = rig.shards[0].allocate(1, actor, table())
    assert rig.publish(address, b"one", 3) == _core.ACCEPTED
    assert permits(rig) == 1
    assert state(rig, address)["application_records"] == 3
    rig.run()
    assert actor.seen == [b"one"] * 3
    assert rig.sent() == [(_core.KIND_REPLY, b"one")] * 3
    assert permits(rig) == 0
    assert state(rig, address)["application_records"] == 0
    assert state(rig, address)["phase"] == IDLE


def test_a_send_is_not_answered(rig: Rig) -> None:
    """P-14: the return value of a send is dropped, bare mode's is a frame unless it is None."""
    quiet = rig.shards[0].allocate(1, Recorder(), table())
    rig.publish(quiet, b"x", flags=0)
    rig.publish(quiet, b"y", flags=_core.FLAG_BARE)
    rig.run()
    assert rig.sent() == [(_core.KIND_REPLY, b"y")]


def test_a_stale_generation_is_refused_never_delivered(rig: Rig) -> None:
    """M-2: the next tenant of a slot gets nothing that was meant for the last."""
    first = rig.shards[0].allocate(1, Recorder(), table())
    rig.shards[0].release(first)
    rig.run()
    tenant = Recorder()
    second = rig.shards[0].allocate(1, tenant, table())
    assert second & 0xFFFFFFFF == first & 0xFFFFFFFF
    assert rig.publish(first, b"old") == _core.STALE
    assert rig.publish(second, b"new") == _core.ACCEPTED
    rig.run()
    assert tenant.seen == [b"new"]


@pytest.mark.parametrize("address", [5 << 56 | 1 << 32, 1 << 32 | 999_999, 0])
def test_an_address_of_nobody_is_refused(rig: Rig, address: int) -> None:
    """M-2, M-7: no such object."""
    assert rig.publish(address, b"x") == _core.STALE


def test_the_lane_limits_are_exact_and_a_refusal_changes_nothing() -> None:
    """M-3, M-7, T-18: 1,024 records of 256 bytes charge and no more; lifecycle has room all the same."""
    rig = Rig(link_bytes=1 << 20)
    address = rig.shards[0].allocate(1, Recorder(), table())
    for _ in range(16):
        assert rig.publish(address, b"", 64) == _core.ACCEPTED
    before = state(rig, address)
    assert rig.publish(address, b"") == _core.LANE_FULL
    assert state(rig, address) == before
    assert rig.shards[0].post(address, _core.KIND_CUSTOM) == _core.ACCEPTED
    rig.run()
    assert state(rig, address)["application_records"] == 0
    rig.close()


def test_a_full_link_is_no_admission(rig: Rig) -> None:
    """M-3: nothing was begun, so nothing is held."""
    address = rig.shards[0].allocate(1, Recorder(), table())
    while (outcome := rig.publish(address, bytes(60_000), 4)) == _core.ACCEPTED:
        pass
    assert outcome == _core.LINK_FULL
    assert rig.publish(address, bytes(300_000)) == _core.TOO_BIG
    rig.run()
    assert permits(rig) == 0


def test_one_flooded_object_leaves_the_others_their_share_of_a_link() -> None:
    """M-3: a quarter of the link between two shards, then its sender waits; others still get through."""
    rig = Rig(shards=2, link_bytes=1 << 18)
    flooded, other = (rig.shards[1].allocate(1, Recorder(), table()) for _ in range(2))
    sent = 0
    while (outcome := rig.shards[0].send(flooded, bytes(4000))) == _core.ACCEPTED:
        sent += 1
    assert outcome == _core.LINK_FULL
    assert sent * 4000 <= 1 << 16
    assert rig.shards[0].send(other, b"x") == _core.ACCEPTED
    rig.run(1)
    assert rig.shards[0].send(flooded, b"x") == _core.ACCEPTED
    rig.run(1)
    rig.close()


def test_idle_objects_need_a_permit_runnable_ones_do_not() -> None:
    """M-9, M-10: saturated for the third object, not for the first two."""
    rig = Rig(permits=2)
    addresses = [rig.shards[0].allocate(1, Recorder(), table()) for _ in range(3)]
    assert [rig.publish(address, b"x") for address in addresses] == [_core.ACCEPTED, _core.ACCEPTED, _core.SATURATED]
    assert rig.publish(addresses[0], b"x") == _core.ACCEPTED
    assert rig.shards[0].post(addresses[2], _core.KIND_DETACH) == _core.ACCEPTED, "lifecycle is never refused a permit"
    assert permits(rig) == 3
    rig.run()
    assert permits(rig) == 0
    assert rig.publish(addresses[2], b"x") == _core.ACCEPTED
    rig.close()


def test_a_suspended_turn_keeps_its_reservation_and_mark_but_no_permit(rig: Rig) -> None:
    """M-5, M-10, M-11, T-3, T-26: the next record waits for the end of the first, once."""
    actor = Recorder()
    address = rig.shards[0].allocate(1, actor, ASYNC)
    rig.publish(address, b"first")
    rig.publish(address, b"second")
    rig.run()
    assert state(rig, address)["phase"] == WAITING
    assert state(rig, address)["application_records"] == 2
    assert state(rig, address)["mark"] != 0
    assert permits(rig) == 0
    rig.publish(address, b"third")
    assert permits(rig) == 0, "a publication to a waiting object takes none"
    old = rig.hooks[0].suspended[0]
    rig.hooks[0].finish_all(rig.shards[0])
    assert not rig.shards[0].finish(old[0], old[1], b"again", None), "an old turn number changes nothing"
    rig.run()
    rig.hooks[0].finish_all(rig.shards[0])
    rig.run()
    rig.hooks[0].finish_all(rig.shards[0])
    rig.run()
    assert state(rig, address)["phase"] == IDLE
    assert state(rig, address)["application_records"] == 0
    assert [payload for _, payload in rig.sent()] == [b"late"] * 3


def test_members_of_one_gate_never_overlap(rig: Rig) -> None:
    """T-2, T-3, T-37: while a member is suspended the others wait in order of arrival."""
    shard, hooks = rig.shards[0], rig.hooks[0]
    log: list[str] = []

    def note(name: str) -> _core.Table:
        async def handler(_: object, data: bytes) -> bytes:
            log.append(name)
            return data

        return table(handler, _core.HANDLER_ASYNC)

    spot, one, two = (shard.allocate(1, Recorder(), note(name)) for name in ("spot", "one", "two"))
    shard.share_gate(one, spot)
    shard.share_gate(two, spot)
    for address in (one, two, spot):
        rig.publish(address, b"x")
    rig.run()
    assert [address for address, _, _ in hooks.suspended] == [one]
    for expected in (two, spot):
        hooks.finish_all(shard)
        rig.run()
        assert [address for address, _, _ in hooks.suspended] == [expected]
    hooks.finish_all(shard)


def test_a_turn_that_gives_its_gate_back_gets_it_again_in_turn(rig: Rig) -> None:
    """T-5, T-6, T-37: others run meanwhile; its own next record does not; it resumes behind who waited."""
    shard, hooks = rig.shards[0], rig.hooks[0]
    spot, member = shard.allocate(1, Recorder(), ASYNC), shard.allocate(1, Recorder(), ASYNC)
    shard.share_gate(member, spot)
    rig.publish(member, b"a", 2)
    rig.run()
    shard.release_gate(member)
    rig.publish(spot, b"b")
    rig.run()
    assert [address for address, _, _ in hooks.suspended] == [member, spot]
    assert not shard.acquire_gate(member)
    held = hooks.suspended.pop()
    held[2].close()
    shard.finish(held[0], held[1], b"", None)
    rig.run()
    assert hooks.resumptions == [member]
    hooks.finish_all(shard)
    rig.run()
    assert [address for address, _, _ in hooks.suspended] == [member], "the second record, after the first ended"
    hooks.finish_all(shard)


def test_lifecycle_goes_first_but_owes_one_turn_after_eight(rig: Rig) -> None:
    """T-19, T-20: eight lifecycle turns, one application turn, and so on."""
    actor = Recorder()
    address = rig.shards[0].allocate(1, actor, table())
    for number in range(20):
        rig.shards[0].post(address, _core.KIND_CUSTOM, a=number)
    rig.publish(address, b"app", 3)
    rig.run()
    lanes = ["app" if entry == b"app" else "life" for entry in actor.seen]
    assert lanes == (["life"] * 8 + ["app"]) * 2 + ["life"] * 4 + ["app"]


def test_a_raising_handler_answers_its_client_and_returns_everything(rig: Rig) -> None:
    """T-27, M-11: the ask, or the send, gets the error; gate, permit and reservation are back; the object goes on."""

    def boom(_: object, data: bytes) -> bytes:
        raise KeyError(data)

    address = rig.shards[0].allocate(1, Recorder(), table(boom))
    rig.publish(address, b"ask")
    rig.publish(address, b"send", flags=0)
    rig.run()
    assert [type(failure) for failure in rig.hooks[0].failures] == [KeyError, KeyError]
    assert rig.sent() == [(_core.KIND_ERROR, b"failed")] * 2
    assert permits(rig) == 0
    assert state(rig, address)["application_records"] == 0


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RecursionError])
def test_no_exception_escapes_a_turn(rig: Rig, error: type[BaseException]) -> None:
    """T-27: whatever a handler raises is that turn's failure."""

    def boom(_: object, data: bytes) -> bytes:
        raise error

    address = rig.shards[0].allocate(1, Recorder(), table(boom))
    rig.publish(address, b"ask")
    rig.run()
    assert rig.sent() == [(_core.KIND_ERROR, b"failed")]
    assert state(rig, address)["phase"] == IDLE


def test_every_turn_runs_in_its_objects_context(rig: Rig) -> None:
    """T-24: what one object sets, another does not see."""
    variable: contextvars.ContextVar[bytes] = contextvars.ContextVar("variable", default=b"unset")

    def swap(_: object, data: bytes) -> bytes:
        old = variable.get()
        variable.set(data)
        return old

    one, two = (rig.shards[0].allocate(1, Recorder(), table(swap)) for _ in range(2))
    for address in (one, two, one, two):
        rig.publish(address, b"one" if address == one else b"two")
        rig.run()
    assert [payload for _, payload in rig.sent()] == [b"unset", b"unset", b"one", b"two"]
    assert variable.get() == b"unset"


def test_asks_between_shards_complete_and_raise_at_the_asker() -> None:
    """M-21, T-9: a reply is infrastructure; it comes back although the asker's objects do not run."""
    rig = Rig(shards=2)
    address = rig.shards[1].allocate(1, Recorder(), table())
    assert rig.shards[0].send(address, b"question", call_id=7) == _core.ACCEPTED
    rig.run(1)
    rig.run(0)
    assert rig.hooks[0].replies == [(7, 0, b"question")]
    rig.close()


def test_an_object_that_sends_to_itself_is_queued_not_run_inline(rig: Rig) -> None:
    """T-11: it goes to the tail."""
    order: list[bytes] = []
    shard = rig.shards[0]

    def handler(_: object, data: bytes) -> bytes:
        if data == b"first":
            shard.send(shard.current, b"own")
        order.append(data)
        return data

    shared = _core.Table(None, {bytes: (handler, 0)}, None, bytes, bytes, Recorder.lifecycle)
    address = shard.allocate(1, Recorder(), shared)
    rig.publish(address, b"first")
    rig.publish(address, b"second")
    rig.run()
    assert order == [b"first", b"second", b"own"]


def test_a_sealed_object_refuses_settles_and_moves_with_its_records() -> None:
    """M-4, M-7, T-16: nothing is lost, doubled or reordered; the old address becomes stale."""
    rig = Rig(shards=2)
    source, target = rig.shards
    address = source.allocate(1, Recorder(), ASYNC)
    rig.publish(address, b"running")
    rig.publish(address, b"left-1")
    rig.publish(address, b"left-2")
    rig.run(0)
    source.seal(address)
    assert rig.publish(address, b"late") == _core.SEALED
    rig.run(0)
    assert rig.hooks[0].moved == [], "the running turn ends first"
    rig.hooks[0].finish_all(source)
    rig.run(0)
    (moved,) = rig.hooks[0].moved
    assert [record[4] for record in moved[1]] == [b"left-1", b"left-2"]
    actor = Recorder()
    new = target.allocate(1, actor, table())
    assert target.place(new, moved[1])
    source.vacate(address)
    assert rig.publish(address, b"late") == _core.STALE
    assert rig.publish(new, b"late") == _core.ACCEPTED
    rig.run(1)
    assert actor.seen == [b"left-1", b"left-2", b"late"]
    assert permits(rig, 0) == permits(rig, 1) == 0
    assert state(rig, new)["application_records"] == 0
    rig.close()


def test_a_sealed_object_that_stays_goes_on_with_everything(rig: Rig) -> None:
    """T-16: a refused move opens the source again."""
    actor = Recorder()
    address = rig.shards[0].allocate(1, actor, table())
    rig.publish(address, b"a", 2)
    rig.shards[0].seal(address)
    rig.run()
    assert actor.seen == []
    rig.shards[0].unseal(address)
    rig.run()
    assert actor.seen == [b"a", b"a"]
    assert rig.publish(address, b"b") == _core.ACCEPTED


def test_a_released_object_drops_its_queue_and_frees_its_python_half(rig: Rig) -> None:
    """M-2, T-40: also when it ends itself in its own turn."""
    shard = rig.shards[0]

    def leave(_: object, data: bytes) -> bytes:
        shard.release(shard.current)
        return data

    address = shard.allocate(1, Recorder(), table(leave))
    rig.publish(address, b"x", 3)
    rig.run()
    assert rig.sent() == [(_core.KIND_REPLY, b"x")]
    assert rig.acceptor.counters(2)["dropped"] == 2
    assert [record[4] for record in rig.hooks[0].unrun] == [b"x", b"x"]
    assert rig.acceptor.counters(2)["objects"] == 0
    assert permits(rig) == 0
    gc.collect()
    assert shard.target(address) is None


def test_a_full_outbound_link_stops_the_executor_until_there_is_room() -> None:
    """P-9, M-3: what one turn sent is kept, nothing more is run, everything arrives in order."""
    rig = Rig(link_bytes=1 << 16)
    shard = rig.shards[0]
    count = 0

    def chatty(_: object, data: bytes) -> bytes:
        nonlocal count
        for _number in range(4):
            shard.push(CLIENT, count.to_bytes(4, "big") + bytes(8000))
            count += 1
        return data

    address = shard.allocate(1, Recorder(), table(chatty))
    rig.publish(address, b"x", 10)
    rig.run()
    assert shard.blocked
    assert count < 40
    assert shard.park(), "blocked: only the acceptor's ring helps"
    numbers: list[int] = []
    while len(numbers) < 40:
        got = rig.sent()
        numbers += [int.from_bytes(payload[:4], "big") for kind, payload in got if kind == _core.KIND_PUSH]
        rig.run()
        assert got or not shard.blocked, "the flush must make progress"
    assert numbers == list(range(40))
    assert not shard.blocked
    rig.close()


def test_publish_stores_its_payload_once_per_acceptor(rig: Rig) -> None:
    """P-10: one record with the addresses and the body."""
    clients = [CLIENT | index for index in range(1000)]
    assert rig.shards[0].publish(clients, b"body") == 1000
    (record,) = _core.drain_links(rig.acceptor, True)
    assert record[0] == _core.KIND_PUBLISH
    assert int.from_bytes(record[5][:4], sys.byteorder) == 1000
    assert record[5].endswith(b"body")


def test_a_message_no_link_can_take_is_refused_with_the_remedy(rig: Rig) -> None:
    """M-3, O-2: the error names size, limit and setting."""
    with pytest.raises(ValueError, match="link_bytes"):
        rig.shards[0].push(CLIENT, bytes(1 << 20))


def test_a_full_arena_stalls_its_links_and_recovers() -> None:
    """M-3, M-10: data waits in the link, lifecycle still gets in, nothing is lost."""
    rig = Rig(arena_bytes=32 << 16, link_bytes=1 << 20, lane_records=4000)
    shard, hooks = rig.shards[0], rig.hooks[0]
    actor = Recorder()
    address = shard.allocate(1, actor, ASYNC)
    sent = 0
    for _ in range(8):
        while rig.publish(address, sent.to_bytes(4, "big") + bytes(30_000)) == _core.ACCEPTED:
            sent += 1
        rig.run()
    assert sent > 60
    assert shard.park(), "a stalled link is no reason to stay awake"
    other = Recorder()
    second = shard.allocate(1, other, table())
    assert shard.post(second, _core.KIND_CUSTOM) == _core.ACCEPTED
    rig.run()
    assert len(other.seen) == 1
    while hooks.suspended:
        hooks.finish_all(shard)
        rig.run()
    assert [int.from_bytes(data[:4], "big") for data in actor.seen] == list(range(sent))
    rig.close()


def test_a_successor_adopts_objects_records_and_free_slots(rig: Rig) -> None:
    """M-16: accepted records run in order in the successor; slots and cells are not handed out twice."""
    first = rig.shards[0].allocate(3, Recorder(), table(), client=CLIENT, session=42)
    gone = rig.shards[0].allocate(3, Recorder(), table())
    last = rig.shards[0].allocate(4, Recorder(), table())
    rig.shards[0].release(gone)
    rig.run()
    for number in range(50):
        rig.publish(first, number.to_bytes(4, "big") + bytes(number * 40))
    successor = _core.Shard(rig.node(2), 0, rig.hooks[0])
    assert [(entry[0], entry[1], entry[2], entry[3]) for entry in successor.adopt()] == [
        (first, 3, 42, CLIENT),
        (last, 4, 0, 0),
    ]
    actor = Recorder()
    for address in (first, last):
        successor.restore(address, actor, table(), True)
    assert successor.allocate(5, actor, table()) & 0xFFFFFFFF == gone & 0xFFFFFFFF
    while successor.run(10**9):
        pass
    assert [int.from_bytes(data[:4], "big") for data in actor.seen] == list(range(50))
    assert permits(rig) == 0


def test_many_objects_share_the_shard_fairly(rig: Rig) -> None:
    """M-13, T-22: a flooded object goes to the tail after its budget; the others have run by then."""
    shard = rig.shards[0]
    flood, other = Recorder(), Recorder()
    first, second = shard.allocate(1, flood, table()), shard.allocate(1, other, table())
    rig.publish(first, b"x", 600)
    rig.publish(second, b"y")
    seen_by_then: list[int] = []
    other.message = lambda data: seen_by_then.append(len(flood.seen))  # type: ignore[method-assign, assignment]

    def count(target: Any, data: bytes) -> bytes:
        target.message(data)
        return data

    watched = shard.allocate(1, other, table(count))
    rig.publish(watched, b"z")
    rig.run()
    assert seen_by_then == [256]
    assert len(flood.seen) == 600


def test_no_committed_record_waits_for_the_next_message() -> None:
    """M-6, M-12: whatever lies in the link when an object runs is seen before it is idle."""
    rig = Rig(link_bytes=1 << 20)
    actors = [Recorder() for _ in range(200)]
    addresses = [rig.shards[0].allocate(1, actor, table()) for actor in actors]
    for _ in range(2):
        for address in addresses:
            assert rig.publish(address, b"x", 8, flags=0) == _core.ACCEPTED
    rig.run()
    assert rig.shards[0].park()
    assert [len(actor.seen) for actor in actors] == [16] * 200
    rig.close()


def test_records_that_waited_for_memory_wake_their_object() -> None:
    """M-6, M-12: the object went idle while its record could not be linked; linking it opens the object again."""
    rig = Rig(arena_bytes=32 << 16, lane_records=4000)
    shard, hooks = rig.shards[0], rig.hooks[0]
    hog, other = Recorder(), Recorder()
    first, second = shard.allocate(1, hog, ASYNC), shard.allocate(1, other, table())
    while rig.publish(first, bytes(30_000)) == _core.ACCEPTED:
        rig.run()
    assert rig.publish(second, b"one", flags=0) == _core.ACCEPTED
    assert shard.post(second, _core.KIND_CUSTOM) == _core.ACCEPTED
    rig.run()
    assert b"one" not in other.seen
    while hooks.suspended:
        hooks.finish_all(shard)
        rig.run()
    assert b"one" in other.seen
    assert permits(rig) == 0
    rig.close()


def test_a_closing_node_refuses_application_work_only(rig: Rig) -> None:
    """M-7, P-17: lifecycle still gets in."""
    address = rig.shards[0].allocate(1, Recorder(), table())
    rig.acceptor.set_closing(True)
    assert rig.publish(address, b"x") == _core.SHUTTING_DOWN
    assert rig.shards[0].post(address, _core.KIND_DETACH) == _core.ACCEPTED
    rig.run()


def test_parking_sees_what_was_published_and_wakes_once(rig: Rig) -> None:
    """M-12: published before the park: no sleep; after it: one ring."""
    shard = rig.shards[0]
    address = shard.allocate(1, Recorder(), table())
    rig.publish(address, b"x")
    assert not shard.park()
    rig.run()
    assert shard.park()
    rung = rig.acceptor.counters(1)["rung"]
    rig.publish(address, b"x")
    rig.publish(address, b"x")
    assert rig.acceptor.counters(1)["rung"] == rung + 1
    assert os.eventfd_read(rig.doorbells[2]) == 1
    shard.wake()
    rig.run()
