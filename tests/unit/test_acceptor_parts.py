"""The acceptor's headers without Python.h: frames, UTF-8, unsent output, addresses, the connection table."""

import ctypes
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

HERE = Path(__file__).resolve().parent
CORE = HERE.parent.parent / "shardpool" / "_core"
INCOMPLETE, DATA, OTHER, ILLEGAL, TOO_BIG = range(5)
TCP, WEBSOCKET = 0, 1
FLAGS = "-std=gnu11 -O1 -g -mcx16 -fPIC -shared -Wall -Wextra -Werror -Wconversion -Wno-unused-function"


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("rig"))


_built: list[ctypes.CDLL] = []


def build(where: Path) -> ctypes.CDLL:
    if not _built:
        target = where / "rig.so"
        command = ["cc", *FLAGS.split(), f"-I{CORE}", str(HERE / "acceptor_rig.c"), "-o", str(target)]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(target))
        for name in ("rig_connection_take", "rig_ws_own_size", "rig_addresses_used", "rig_connection_bytes"):
            getattr(library, name).restype = ctypes.c_uint64
        _built.append(library)
    return _built[0]


def u64(value: int) -> Any:
    return ctypes.c_uint64(value)


@given(st.one_of(st.binary(max_size=64), st.text(max_size=64).map(lambda text: text.encode("utf-8", "surrogatepass"))))
@settings(max_examples=1000, deadline=None)
def test_utf8_is_judged_as_python_judges_it(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """P-13, S17: surrogates, overlong forms and cut sequences included."""
    try:
        data.decode()
        valid = True
    except UnicodeDecodeError:
        valid = False
    assert bool(build(tmp_path_factory.mktemp("rig")).rig_utf8(data, u64(len(data)))) == valid


def parsed(lib: ctypes.CDLL, data: bytes, limit: int = 1 << 20, compressed: bool = False) -> tuple[int, bytes, int]:
    """Outcome, unmasked payload, size in the stream."""
    buffer = ctypes.create_string_buffer(data, len(data))
    out = (ctypes.c_uint64 * 4)()
    found = lib.rig_ws_parse(buffer, u64(len(data)), u64(limit), int(compressed), out)
    return found, buffer.raw[out[0] : out[0] + out[1]], out[2]


def masked(opcode: int, payload: bytes, key: bytes, first: int = 0x80) -> bytes:
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", first | opcode, 0x80 | size)
    elif size < 65536:
        head = struct.pack(">BBH", first | opcode, 0xFE, size)
    else:
        head = struct.pack(">BBQ", first | opcode, 0xFF, size)
    return head + key + bytes(byte ^ key[index & 3] for index, byte in enumerate(payload))


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4), st.binary(max_size=20))
@settings(max_examples=300, deadline=None)
def test_a_masked_frame_is_found_whole_and_never_before(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, key: bytes, behind: bytes
) -> None:
    """P-13, P-30: any payload, any key; every cut of it is incomplete."""
    lib = build(tmp_path_factory.mktemp("rig"))
    frame = masked(2, payload, key)
    assert parsed(lib, frame + behind) == (DATA, payload, len(frame))
    for cut in range(len(frame)):
        assert parsed(lib, frame[:cut])[0] == INCOMPLETE


def test_a_frame_may_be_parsed_again_after_it_was_unmasked(lib: ctypes.CDLL) -> None:
    """P-9: a frame that has to wait for room is parsed once more, and is still the same message."""
    frame = masked(1, b"hello world", b"\x01\x02\x03\x04")
    buffer = ctypes.create_string_buffer(frame, len(frame))
    out = (ctypes.c_uint64 * 4)()
    for _ in range(3):
        assert lib.rig_ws_parse(buffer, u64(len(frame)), u64(1000), 0, out) == DATA
        assert buffer.raw[out[0] : out[0] + out[1]] == b"hello world"


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        (b"\x82\x00", ILLEGAL),
        (b"\xa2\x80", ILLEGAL),
        (b"\xc2\x80", ILLEGAL),
        (b"\x83\x80", ILLEGAL),
        (b"\x8b\x80", ILLEGAL),
        (b"\x09\x80", ILLEGAL),
        (b"\x89\xfe", ILLEGAL),
        (b"\x82\xfe\x00\x7d", ILLEGAL),
        (b"\x82\xff\x00\x00\x00\x00\x00\x00\xff\xff", ILLEGAL),
        (b"\x82\xff\x80\x00\x00\x00\x00\x01\x00\x00", ILLEGAL),
        (b"\x82\xff\x00\x00\x00\x00\x00\x10\x00\x01", TOO_BIG),
        (b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff", TOO_BIG),
        (masked(1, b"\xff", b"abcd"), OTHER),
        (masked(2, b"x", b"abcd", first=0), OTHER),
        (masked(0, b"x", b"abcd"), OTHER),
        (masked(8, b"", b"abcd"), OTHER),
        (masked(9, b"x" * 125, b"abcd"), OTHER),
    ],
)
def test_headers_are_sorted_before_anything_is_awaited(lib: ctypes.CDLL, frame: bytes, found: int) -> None:
    """P-13, P-30: illegal headers and lengths above the limit are known from the header alone."""
    assert parsed(lib, frame)[0] == found


def test_a_compressed_frame_is_the_librarys_only_where_compression_was_agreed(lib: ctypes.CDLL) -> None:
    """P-13: RSV1 without the extension is illegal."""
    frame = masked(1, b"\x00", b"abcd", first=0xC0)
    assert parsed(lib, frame)[0] == ILLEGAL
    assert parsed(lib, frame, compressed=True)[0] == OTHER
    assert parsed(lib, masked(9, b"", b"abcd", first=0xC0), compressed=True)[0] == ILLEGAL


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 1 << 24])
def test_own_headers_are_the_shortest(lib: ctypes.CDLL, size: int) -> None:
    """P-13: and their size is read back from them."""
    head = ctypes.create_string_buffer(10)
    length = lib.rig_ws_header(head, 2, u64(size))
    assert length == (2 if size < 126 else 4 if size < 65536 else 10)
    assert lib.rig_ws_own_size(head) == length + size


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10), st.integers(0, 500))
@settings(max_examples=200, deadline=None)
def test_tcp_frames_are_cut_where_their_lengths_say(
    tmp_path_factory: pytest.TempPathFactory, frames: list[bytes], cut: int
) -> None:
    """P-13: a prefix of a stream gives a prefix of its frames."""
    lib = build(tmp_path_factory.mktemp("rig"))
    stream = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)[:cut]
    got = []
    out = (ctypes.c_uint64 * 3)()
    while True:
        buffer = ctypes.create_string_buffer(stream, len(stream))
        if lib.rig_frame_next(buffer, u64(len(stream)), 1000, out) != 0:
            break
        got.append(stream[out[0] : out[0] + out[1]])
        stream = stream[out[2] :]
    assert got == frames[: len(got)]
    assert sum(4 + len(frame) for frame in got) <= cut


class Unsent(RuleBasedStateMachine):
    """What waits for one connection: whatever is taken and dropped, the client sees whole frames without gaps."""

    framing = TCP

    def __init__(self) -> None:
        super().__init__()
        self.lib = _built[0]
        self.lib.rig_unsent_reset()
        self.sequence = 0
        self.stream = b""
        self.kept: list[tuple[str, bytes]] = []  # what must arrive: replies; pushes may be dropped
        self.taken = 0

    def _framed(self, frame: bytes) -> bytes:
        if self.framing == TCP:
            return struct.pack(">I", len(frame)) + frame
        head = ctypes.create_string_buffer(10)
        length = self.lib.rig_ws_header(head, 2, u64(len(frame)))
        return head.raw[:length] + frame

    @rule(size=st.integers(0, 3000), push=st.booleans())
    def append(self, size: int, push: bool) -> None:
        self.sequence += 1
        body = b"x" * size
        frame = (b"M" if push else b"R") + struct.pack(">I", self.sequence) + (b"" if push else b"\0\0\0\1") + body
        data = self._framed(frame)
        self.lib.rig_unsent_frame(data, len(data), self.framing)
        if not push:
            self.kept.append(("R", body))

    @rule(size=st.integers(1, 5000))
    def take(self, size: int) -> None:
        buffer = ctypes.create_string_buffer(size)
        got = self.lib.rig_unsent_take(buffer, size)
        self.stream += buffer.raw[:got]

    @rule(wanted=st.integers(1, 4000))
    def drop(self, wanted: int) -> None:
        freed = ctypes.c_uint32()
        self.sequence -= self.lib.rig_unsent_drop(self.framing, 1, wanted, ctypes.byref(freed))

    def _split(self) -> list[bytes]:
        frames, position = [], 0
        while position < len(self.stream):
            rest = self.stream[position:]
            if self.framing == TCP:
                if len(rest) < 4:
                    break
                head, size = 4, struct.unpack(">I", rest[:4])[0]
            else:
                if len(rest) < 4:
                    break
                head, size = (2, rest[1]) if rest[1] < 126 else (4, struct.unpack(">H", rest[2:4])[0])
            if len(rest) < head + size:
                break
            frames.append(rest[head : head + size])
            position += head + size
        return frames

    @invariant()
    def numbers_have_no_gap_and_replies_all_come(self) -> None:
        frames = self._split()
        assert [struct.unpack(">I", frame[1:5])[0] for frame in frames] == list(range(1, len(frames) + 1))
        replies = [frame[9:] for frame in frames if frame[:1] == b"R"]
        assert replies == [body for _, body in self.kept[: len(replies)]]

    def teardown(self) -> None:
        buffer = ctypes.create_string_buffer(1 << 22)
        got = self.lib.rig_unsent_take(buffer, 1 << 22)
        self.stream += buffer.raw[:got]
        frames = self._split()
        assert len(frames) == self.sequence
        assert len([frame for frame in frames if frame[:1] == b"R"]) == len(self.kept)


class UnsentWebSocket(Unsent):
    framing = WEBSOCKET


@pytest.mark.parametrize("machine", [Unsent, UnsentWebSocket])
def test_dropping_never_cuts_a_frame_or_leaves_a_gap(lib: ctypes.CDLL, machine: type[Unsent]) -> None:
    """P-9: drop-oldest over any order of appends, partial writes and drops."""
    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=400))
@settings(max_examples=100, deadline=None)
def test_addresses_are_counted_exactly(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, int]]) -> None:
    """P-12: over any order of comings and goings, with collisions and removals in between."""
    lib = build(tmp_path_factory.mktemp("rig"))
    counts: dict[int, int] = {}
    for add, key in steps:
        if add:
            permitted = counts.get(key, 0) < 5
            assert bool(lib.rig_addresses_add(u64(key << 32 | 7), u64(5))) == permitted
            counts[key] = counts.get(key, 0) + permitted
        elif counts.get(key, 0) > 0:
            lib.rig_addresses_remove(u64(key << 32 | 7))
            counts[key] -= 1
    assert lib.rig_addresses_used() == sum(count > 0 for count in counts.values())
    for key, count in counts.items():
        for _ in range(count):
            lib.rig_addresses_remove(u64(key << 32 | 7))
    assert lib.rig_addresses_used() == 0


def test_a_client_address_names_one_tenant(lib: ctypes.CDLL) -> None:
    """P-11: a place that was given back answers to its next generation only."""
    first = lib.rig_connection_take()
    others = [lib.rig_connection_take() for _ in range(1000)]
    assert len({first, *others}) == 1001
    assert lib.rig_connection_give(u64(first)) == 1
    assert lib.rig_connection_known(u64(first)) == 0
    assert lib.rig_connection_give(u64(first)) == 0
    again = lib.rig_connection_take()
    assert again & 0xFFFFFFFF == first & 0xFFFFFFFF
    assert again != first
    assert all(lib.rig_connection_known(u64(client)) for client in others)
    assert lib.rig_connection_known(u64(again ^ 1 << 56)) == 0


def test_an_idle_connection_is_small(lib: ctypes.CDLL) -> None:
    """P-12, S1: what a silent client costs in the acceptor besides the kernel's part."""
    assert lib.rig_connection_bytes() <= 256
