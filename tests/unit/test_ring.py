"""The byte ring: half of a link."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
from native_programs import load_library

CAPACITY = 1024
EMPTY, CORRUPT, FRAME, TOKEN = -1, -2, 1, 31
HEAD = 32


class Ring:
    """A writer and a reader of one ring in this process."""

    def __init__(self, core: ctypes.CDLL, position: int = 0, capacity: int = CAPACITY) -> None:
        self._core = core
        core.ring_open.restype = ctypes.c_void_p
        core.ring_bytes.restype = ctypes.POINTER(ctypes.c_uint8)
        core.ring_position.restype = ctypes.c_uint64
        for name in ("ring_write", "ring_release", "ring_want"):
            getattr(core, name).restype = ctypes.c_bool
        self.pair = ctypes.c_void_p(core.ring_open(ctypes.c_uint64(capacity), ctypes.c_uint64(position)))
        self._buffer = ctypes.create_string_buffer(4 * capacity)

    def close(self) -> None:
        self._core.ring_close(self.pair)

    def write(self, payload: bytes) -> bool:
        return bool(self._core.ring_write(self.pair, payload, len(payload)))

    def publish(self) -> None:
        self._core.ring_publish(self.pair)

    def abort(self) -> None:
        self._core.ring_abort(self.pair)

    def token(self) -> None:
        self._core.ring_token(self.pair)

    def read(self) -> bytes | int:
        length = ctypes.c_uint32()
        kind = self._core.ring_read(self.pair, self._buffer, ctypes.byref(length))
        return self._buffer.raw[: length.value] if kind == FRAME else int(kind)

    def release(self) -> bool:
        return bool(self._core.ring_release(self.pair))

    def want(self, size: int) -> bool:
        return bool(self._core.ring_want(self.pair, ctypes.c_uint64(size)))

    @property
    def position(self) -> int:
        return int(self._core.ring_position(self.pair))

    def put_u32(self, offset: int, value: int) -> None:
        at = self._core.ring_bytes(self.pair)
        for i, byte in enumerate(value.to_bytes(4, "little")):
            at[offset + i] = byte


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_library(tmp_path_factory.mktemp("core"))


@pytest.fixture
def ring(core: ctypes.CDLL) -> Iterator[Ring]:
    ring = Ring(core)
    yield ring
    ring.close()


def test_nothing_is_seen_before_it_is_published(ring: Ring) -> None:
    """M-1: a writer that dies while it copies has written nothing."""
    assert ring.write(b"one")
    assert ring.read() == EMPTY
    ring.publish()
    assert ring.read() == b"one"
    assert ring.read() == EMPTY


def test_what_was_aborted_never_appears(ring: Ring) -> None:
    """M-7: the place is written again."""
    ring.write(b"dropped")
    ring.abort()
    assert ring.position == 0
    ring.write(b"kept")
    ring.publish()
    assert ring.read() == b"kept"


@pytest.mark.parametrize("start", range(CAPACITY - 128, CAPACITY + 8, 8))
def test_a_record_never_wraps(core: ctypes.CDLL, start: int) -> None:
    """M-1: what is left at the ring's end is a pad, at whatever position the end is met."""
    ring = Ring(core, start)
    for number in range(4):
        assert ring.write(bytes([number]) * 40)
    ring.publish()
    ring.token()
    assert [ring.read() for _ in range(4)] == [bytes([number]) * 40 for number in range(4)]
    assert ring.read() == TOKEN
    assert ring.read() == EMPTY
    ring.close()


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 200])
def test_what_fits_leaves_room_for_a_token(core: ctypes.CDLL, length: int) -> None:
    """M-3, M-9: at every position of the end: the batch and one token, or nothing."""
    for start in range(0, CAPACITY, 8):
        ring = Ring(core, start)
        while ring.write(b"x" * length):
            ring.publish()
        ring.token()
        assert ring.position - start <= CAPACITY
        ring.close()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=CAPACITY // 4 - HEAD), st.sampled_from(["publish", "abort", "read", "release", "token"])
        ),
        max_size=200,
    ),
    st.integers(0, CAPACITY // 8).map(lambda units: units * 8 + 2**64 - CAPACITY),
)
def test_it_is_a_queue_of_records(core: ctypes.CDLL, steps: list[bytes | str], start: int) -> None:
    """M-1, M-3: any order of calls against a list; positions run over 2^64."""
    ring = Ring(core, start)
    claimed: list[bytes | int] = []
    published: deque[bytes | int] = deque()
    for step in steps:
        match step:
            case bytes():
                if ring.write(step):
                    claimed.append(step)
            case "publish" | "token":
                ring.publish()
                published += claimed
                claimed.clear()
                if step == "token" and ring.write(b""):  # room for a token, wherever it comes from
                    ring.abort()
                    ring.token()
                    published.append(TOKEN)
            case "abort":
                ring.abort()
                claimed.clear()
            case "read":
                assert ring.read() == (published.popleft() if published else EMPTY)
            case "release":
                ring.release()
    while published:
        assert ring.read() == published.popleft()
    assert ring.read() == EMPTY
    ring.close()


@pytest.mark.parametrize("length", [CAPACITY, 2**31, 2**32 - 1, 41, 2**32 - 40])
def test_a_corrupt_length_is_refused_not_followed(ring: Ring, length: int) -> None:
    """M-3: a record that does not lie wholly before the published position stops the reader, again and again."""
    ring.write(b"x" * 40)
    ring.publish()
    ring.put_u32(0, length)
    assert ring.read() == CORRUPT
    assert ring.read() == CORRUPT


@pytest.mark.parametrize("length", [0, 8, 40, CAPACITY, 2**32 - 1])
def test_a_corrupt_pad_is_refused(ring: Ring, length: int) -> None:
    """M-3: a pad ends exactly where the ring ends, and only if that much was published."""
    ring.write(b"x" * 40)
    ring.publish()
    ring.put_u32(0, length)
    ring.put_u32(4, 0)
    assert ring.read() == CORRUPT


def test_whoever_waits_for_room_is_rung_once(ring: Ring) -> None:
    """M-3, M-12: asking and giving room back: one of the two sees the other."""
    while ring.write(b"x" * 100):
        ring.publish()
    assert not ring.want(336)
    while ring.read() != EMPTY:
        pass
    assert ring.release()
    assert ring.write(b"x" * 100)
    ring.publish()
    assert ring.read() == b"x" * 100
    assert not ring.release()
    assert ring.want(336)
