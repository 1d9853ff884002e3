"""Words, admission, permits and what is settled after a death, one step at a time."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
from native_programs import load_library

ACCEPTED, LANE_FULL, SATURATED, SEALED, STALE, _, LINK_FULL = range(7)
APPLICATION, LIFECYCLE = 0, 1
DATA, INFRA = 0, 1
IDLE, RUNNABLE, RUNNING, WAITING, FINALIZING = range(5)
AGAIN, ENDS_FINALIZING, ENDS_IDLE, ENDS_SEALED = range(4)
ACCEPTOR, SHARD = 1, 2
GENERATION = 45
TOKEN, CUSTOM = 31, 6
NONE, TAKE, OPEN, GIVE, JOIN, WRITE, RUN, PLAIN, OWES = range(9)
WIDTHS = (12, 22, 9, 18)  # records and units of the application lane, then of the lifecycle lane


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    core = load_library(tmp_path_factory.mktemp("core"))
    for name in ("fields_add", "fields_subtract", "charge", "node_word", "node_held", "node_permits", "node_step"):
        getattr(core, name).restype = ctypes.c_uint64
    for name in ("has_room", "node_start", "node_seal", "node_settle_producer"):
        getattr(core, name).restype = ctypes.c_bool
    core.node_open.restype = ctypes.c_void_p
    return core


class Small:
    """A supervisor, an acceptor and a shard of four slots in this process."""

    def __init__(self, core: ctypes.CDLL, permits: int = 2, lane_records: int = 3, infra_bytes: int = 4096) -> None:
        self.core = core
        self.pointer = ctypes.c_void_p(core.node_open(permits, lane_records, ctypes.c_uint64(infra_bytes)))

    def publish(self, slot: int, lane: int = APPLICATION, until: int = 1, generation: int = 1) -> int:
        address = ctypes.c_uint64(generation << 32 | slot)
        return int(self.core.node_publish(self.pointer, ACCEPTOR, address, lane, until))

    def word(self, slot: int) -> int:
        return int(self.core.node_word(self.pointer, slot))

    def phase(self, slot: int) -> int:
        return self.word(slot) & 7

    def in_flight(self, slot: int) -> int:
        return self.word(slot) >> 5 & (1 << 40) - 1

    def generation(self, slot: int) -> int:
        return self.word(slot) >> GENERATION

    def held(self, slot: int) -> list[int]:
        return unpack(int(self.core.node_held(self.pointer, slot)))

    def permits(self) -> int:
        return int(self.core.node_permits(self.pointer))

    def take(self, kind: int, stream: int = DATA, process: int = ACCEPTOR) -> int:
        return int(self.core.node_take(self.pointer, process, stream, kind))

    def die(self, step: int, slot: int = 0) -> bool:
        """As if the acceptor had died with this step announced; True: settled."""
        self.core.node_set_intent(self.pointer, ACCEPTOR, ctypes.c_uint64(step), ctypes.c_uint64(1 << 32 | slot))
        return bool(self.core.node_settle_producer(self.pointer, ACCEPTOR))


@pytest.fixture
def small(core: ctypes.CDLL) -> Iterator[Small]:
    small = Small(core)
    yield small
    core.node_close(small.pointer)


def pack(fields: tuple[int, ...] | list[int]) -> int:
    word = shift = 0
    for field, width in zip(fields, WIDTHS, strict=True):
        word |= field << shift
        shift += width
    return word


def unpack(word: int) -> list[int]:
    fields = []
    for width in WIDTHS:
        fields.append(word & (1 << width) - 1)
        word >>= width
    return fields


four = st.tuples(*(st.integers(0, (1 << width) - 1) for width in WIDTHS))


@given(four, four)
def test_packed_reservations_are_four_numbers_of_their_own(core: ctypes.CDLL, a: list[int], b: list[int]) -> None:
    """M-11: each counts modulo its size, and none carries into the next."""
    total = [(x + y) % (1 << width) for x, y, width in zip(a, b, WIDTHS, strict=True)]
    rest = [(x - y) % (1 << width) for x, y, width in zip(a, b, WIDTHS, strict=True)]
    assert unpack(core.fields_add(ctypes.c_uint64(pack(a)), ctypes.c_uint64(pack(b)))) == total
    assert unpack(core.fields_subtract(ctypes.c_uint64(pack(a)), ctypes.c_uint64(pack(b)))) == rest


@given(st.integers(0, 65536), st.sampled_from([APPLICATION, LIFECYCLE]))
def test_a_record_reserves_its_lane_only(core: ctypes.CDLL, length: int, lane: int) -> None:
    """M-3: one record, and its bytes with what the record itself costs, in units of 64 bytes."""
    units = -(-(length + 256) // 64)
    expected = [1, units, 0, 0] if lane == APPLICATION else [0, 0, 1, units]
    assert unpack(core.charge(lane, ctypes.c_uint64(length))) == expected


@given(
    st.tuples(st.integers(1, 4095), st.integers(1, 511)),
    st.tuples(st.integers(0, (1 << 21) - 1), st.integers(0, (1 << 17) - 1)),
    four,
    st.data(),
)
def test_a_lane_has_room_exactly_below_its_limits(
    core: ctypes.CDLL, records: tuple[int, int], units: tuple[int, int], done: tuple[int, ...], data: st.DataObject
) -> None:
    """M-3, M-7: against plain numbers, wherever the counters stand."""
    held = data.draw(
        st.tuples(
            st.integers(0, records[0]), st.integers(0, units[0]), st.integers(0, records[1]), st.integers(0, units[1])
        )
    )
    lane = data.draw(st.sampled_from([APPLICATION, LIFECYCLE]))
    more_records = data.draw(st.integers(1, 255))
    more_units = data.draw(st.integers(0, 1000))
    added = [more_records, more_units, 0, 0] if lane == APPLICATION else [0, 0, more_records, more_units]
    reserved = core.fields_add(ctypes.c_uint64(pack(done)), ctypes.c_uint64(pack(held)))
    fits = held[2 * lane] + more_records <= records[lane] and held[2 * lane + 1] + more_units <= units[lane]
    answer = core.has_room(
        records[0],
        ctypes.c_uint64(units[0] * 64),
        records[1],
        ctypes.c_uint64(units[1] * 64),
        ctypes.c_uint64(reserved),
        ctypes.c_uint64(pack(done)),
        ctypes.c_uint64(pack(added)),
    )
    assert answer == fits


def test_lifecycle_is_never_refused_by_a_full_application_lane(small: Small) -> None:
    """M-1, M-10: nor by used-up permits; and the other way round."""
    while small.publish(0) == ACCEPTED:
        pass
    assert small.publish(0) == LANE_FULL
    assert small.publish(0, LIFECYCLE) == ACCEPTED
    assert small.publish(1) == ACCEPTED
    assert small.publish(2) == SATURATED
    assert small.publish(2, LIFECYCLE) == ACCEPTED
    assert small.permits() == 3
    while small.publish(3, LIFECYCLE) == ACCEPTED:
        pass
    assert small.publish(3) == ACCEPTED


def test_an_old_generation_is_refused_and_changes_nothing(small: Small) -> None:
    """M-2: generations run from 1 to 2^19 - 1 and never are 0."""
    for generation, following in ((1, 2), ((1 << 19) - 1, 1)):
        small.core.node_set_word(small.pointer, 0, ctypes.c_uint64(generation << GENERATION))
        assert small.publish(0, generation=generation) == ACCEPTED
        assert small.core.node_start(small.pointer, 0)
        small.core.node_seal(small.pointer, 0)
        small.core.node_vacate(small.pointer, 0)
        assert small.generation(0) == following
        before = small.word(0)
        assert small.publish(0, generation=generation) == STALE
        assert (small.word(0), small.held(0), small.permits()) == (before, [0, 0, 0, 0], 0)


@pytest.mark.parametrize("slot", [4, 5, 2**32 - 1])
def test_a_slot_that_does_not_exist_is_refused(small: Small, slot: int) -> None:
    """M-2, M-3: indexes are checked against the geometry."""
    assert small.publish(slot) == STALE


def test_a_full_link_begins_nothing(small: Small) -> None:
    """M-3, M-7: the room is found before the first word changes."""
    small.core.node_fill(small.pointer, ACCEPTOR, DATA)
    assert small.publish(0) == LINK_FULL
    assert (small.phase(0), small.permits(), small.core.node_step(small.pointer, ACCEPTOR)) == (IDLE, 0, NONE)


def test_one_token_for_one_object(small: Small) -> None:
    """M-5, M-9: the first commit opens it and owes the token; the next need neither permit nor token."""
    assert [small.publish(0), small.publish(0)] == [ACCEPTED, ACCEPTED]
    assert (small.phase(0), small.permits(), small.take(TOKEN)) == (RUNNABLE, 1, 1)


def test_every_end_of_a_drain(small: Small) -> None:
    """M-5, M-8: work left, committed meanwhile, in flight, nothing left."""
    node, slot = small.pointer, 0
    small.publish(slot)
    assert small.core.node_start(node, slot)
    assert not small.core.node_start(node, slot), "one executor"
    assert small.core.node_end(node, slot, True) == AGAIN
    small.core.node_start(node, slot)
    small.publish(slot)
    assert small.core.node_end(node, slot, False) == AGAIN, "committed during the drain"
    small.core.node_start(node, slot)
    assert small.publish(slot, until=0) == ACCEPTED
    assert small.core.node_end(node, slot, False) == ENDS_FINALIZING
    assert (small.phase(slot), small.permits()) == (FINALIZING, 1)


def test_a_suspended_object_holds_no_permit(small: Small) -> None:
    """M-5, M-10: it is given back, and taken again beyond the capacity."""
    small.publish(0)
    small.core.node_start(small.pointer, 0)
    small.core.node_wait(small.pointer, 0)
    assert (small.phase(0), small.permits()) == (WAITING, 0)
    assert [small.publish(1), small.publish(2)] == [ACCEPTED, ACCEPTED]
    small.take(TOKEN)
    assert small.publish(0) == ACCEPTED
    assert small.take(TOKEN) == 0, "a waiting object needs no token"
    small.core.node_resume(small.pointer, 0)
    assert (small.phase(0), small.permits()) == (RUNNING, 3)


def test_a_sealed_object_gets_its_turn_and_settles(small: Small) -> None:
    """M-5, T-16: also if it was idle, with a permit that it gives back."""
    assert small.core.node_seal(small.pointer, 0)
    assert (small.phase(0), small.permits()) == (RUNNABLE, 1)
    assert small.publish(0) == SEALED
    small.core.node_start(small.pointer, 0)
    assert small.core.node_end(small.pointer, 0, True) == ENDS_SEALED
    small.core.node_vacate(small.pointer, 0)
    assert (small.phase(0), small.permits(), small.core.node_step(small.pointer, SHARD)) == (IDLE, 0, NONE)


def test_what_a_dead_producer_had_begun_is_taken_back(small: Small) -> None:
    """M-15: permit, in-flight bit and reservation."""
    small.publish(0, until=0)
    assert (small.phase(0), small.permits(), small.in_flight(0)) == (FINALIZING, 1, 1 << ACCEPTOR)
    assert small.core.node_settle_producer(small.pointer, ACCEPTOR)
    assert (small.phase(0), small.permits(), small.in_flight(0)) == (IDLE, 0, 0)
    assert small.held(0) == [0, 0, 0, 0]


def test_an_owed_token_waits_for_room_in_the_supervisors_link(core: ctypes.CDLL) -> None:
    """M-15: settling says so, and goes on when it is called again."""
    small = Small(core)
    small.publish(0)
    assert small.take(TOKEN) == 1
    # announced, cleared, and no token behind the batch: the next position is the batch's end again
    small.core.node_fill(small.pointer, 0, INFRA)
    assert not small.die(OWES)
    assert small.core.node_step(small.pointer, ACCEPTOR) == OWES
    assert not small.core.node_settle_producer(small.pointer, ACCEPTOR)
    small.take(TOKEN, INFRA, process=0)
    assert small.core.node_settle_producer(small.pointer, ACCEPTOR)
    assert small.core.node_step(small.pointer, ACCEPTOR) == NONE
    assert small.take(TOKEN, INFRA, process=0) == 1
    core.node_close(small.pointer)


@pytest.mark.parametrize("address", [0xFF << 56, 1 << 32 | 4, 2**64 - 1])
@pytest.mark.parametrize("step", [TAKE, OPEN, WRITE, RUN, 77])
def test_an_intent_of_nonsense_is_dropped(small: Small, address: int, step: int) -> None:
    """M-3, M-15: numbers read from shared memory are checked before they are used."""
    small.core.node_set_intent(small.pointer, ACCEPTOR, ctypes.c_uint64(step), ctypes.c_uint64(address))
    assert small.core.node_settle_producer(small.pointer, ACCEPTOR)
    assert small.permits() == 0


@pytest.mark.parametrize("suspended", [False, True])
def test_a_dead_shards_objects_are_runnable_for_its_successor(small: Small, suspended: bool) -> None:
    """M-16: running or suspended, with one permit each."""
    small.publish(0)
    small.core.node_start(small.pointer, 0)
    if suspended:
        small.core.node_wait(small.pointer, 0)
    small.core.node_settle_shard(small.pointer)
    assert (small.phase(0), small.permits()) == (RUNNABLE, 1)
