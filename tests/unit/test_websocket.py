"""WebSocket beyond the engine's plain case: fragments, control frames, compression, violations."""

import os
import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from acceptor_rig import Peer, Rig
from wsproto.connection import Connection, ConnectionType

from shardpool.workers.doors import Transport
from shardpool.workers.last_words import REASON_BYTES_MAX, close_frame
from shardpool.workers.websocket import BoundedDeflate, Fragments, WebSocketTail

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(
    opcode: int, payload: bytes, final: bool = True, rsv: int = 0, mask: bytes | None = b"\x11\x22\x33\x44"
) -> bytes:
    """A client's frame."""
    first = opcode | (0x80 if final else 0) | rsv
    bit = 0x80 if mask is not None else 0
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", first, bit | size)
    elif size < 65536:
        head = struct.pack(">BBH", first, bit | 126, size)
    else:
        head = struct.pack(">BBQ", first, bit | 127, size)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[index & 3] for index, byte in enumerate(payload))


# --- the library's part alone ---------------------------------------------------------------------


def test_fragments_become_one_message() -> None:
    """P-13: with control frames in between."""
    tail = WebSocketTail(None, 1000, Fragments(1 << 20))
    assert tail.receive(frame(TEXT, b"h\xc3", final=False)).fragmented
    step = tail.receive(frame(PING, b"?"))
    assert step.out == b"\x8a\x01?"
    assert step.fragmented
    step = tail.receive(frame(0, b"\xa9!"))
    assert (step.message, step.text, step.fragmented) == ("hé!".encode(), True, False)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(0, b"alone")], 1002),
        ([frame(TEXT, b"a", final=False), frame(TEXT, b"b")], 1002),
        ([frame(TEXT, b"\xff")], 1007),
        ([frame(TEXT, b"\xed\xa0\x80")], 1007),
        ([frame(TEXT, b"\xc3", final=False), frame(0, b"\x28")], 1007),
        ([frame(BINARY, b"x", mask=None)], 1002),
        ([frame(3, b"x")], 1002),
        ([frame(BINARY, b"x", rsv=0x40)], 1002),
        ([frame(PING, b"x" * 126)], 1002),
        ([frame(PING, b"x", final=False)], 1002),
        ([frame(CLOSE, b"\x03")], 1002),
        ([frame(CLOSE, struct.pack(">H", 1005))], 1002),
        ([frame(CLOSE, struct.pack(">H", 1000) + b"\xff")], 1007),
        ([frame(BINARY, b"x" * 600, final=False), frame(0, b"x" * 600)], 1009),
    ],
)
def test_a_violation_ends_with_its_code(frames: list[bytes], code: int) -> None:
    """P-13, S17: the library judges; what it refuses is closed with the code of RFC 6455."""
    tail = WebSocketTail(None, 1000, Fragments(1 << 20))
    for one in frames:
        step = tail.receive(one)
    assert step.end is not None
    assert step.end[0] == code
    assert step.last[:1] == b"\x88"
    assert struct.unpack(">H", step.last[2:4])[0] == code


def test_a_close_is_answered_with_the_same_code() -> None:
    """P-11: the client's close ends the session, and its handshake is completed."""
    step = WebSocketTail(None, 1000, Fragments(1 << 20)).receive(frame(CLOSE, struct.pack(">H", 1001) + b"leaving"))
    assert step.end == (1001, "leaving")
    assert step.last == b"\x88\x09" + struct.pack(">H", 1001) + b"leaving"


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def compressed_tail(limit: int) -> WebSocketTail:
    deflate = BoundedDeflate(limit)
    deflate.accept("permessage-deflate")
    return WebSocketTail(Connection(ConnectionType.SERVER, [deflate]), limit, Fragments(1 << 20))


def test_compressed_messages_are_inflated() -> None:
    """P-13: each by itself, whole or in fragments."""
    tail = compressed_tail(100_000)
    for _ in range(3):
        step = tail.receive(frame(TEXT, deflated(b"hello " * 1000), rsv=0x40))
        assert step.message == b"hello " * 1000
    packed = deflated(b"again " * 100)
    assert tail.receive(frame(BINARY, packed[:5], final=False, rsv=0x40)).fragmented
    assert tail.receive(frame(0, packed[5:])).message == b"again " * 100


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_compression_bomb_is_stopped_while_it_is_inflated(pieces: int) -> None:
    """P-30, S3: 10 MB of zeros in 10 KB end with 1009 long before they are 10 MB."""
    tail = compressed_tail(65536)
    packed = deflated(bytes(10_000_000))
    size = len(packed) // pieces + 1
    parts = [packed[start : start + size] for start in range(0, len(packed), size)]
    for index, part in enumerate(parts):
        step = tail.receive(frame(0 if index else BINARY, part, index == len(parts) - 1, 0 if index else 0x40))
        if step.end is not None:
            break
    assert step.end is not None
    assert step.end == (1009, "the message is longer than 65536 bytes")


def test_compressed_nonsense_is_refused_in_words() -> None:
    """P-13, P-30: the library's own words say nothing to whoever reads them."""
    assert compressed_tail(1000).receive(frame(BINARY, b"\xff" * 50, rsv=0x40)).end == (
        1007,
        "compressed data that cannot be inflated",
    )
    assert compressed_tail(1000).receive(frame(PING, b"", rsv=0x40)).end == (
        1002,
        "a reserved bit that means nothing there",
    )


def test_fragments_of_all_connections_together_are_bounded() -> None:
    """P-12: inbound_bytes counts them; what is finished, or gone, does not count any more."""
    fragments = Fragments(2500)
    tails = [WebSocketTail(None, 2000, fragments) for _ in range(3)]
    for tail in tails[:2]:
        assert tail.receive(frame(BINARY, bytes(1200), final=False)).end is None
    ended = tails[2].receive(frame(BINARY, bytes(1200), final=False)).end
    assert ended is not None
    assert ended[0] == 4529
    assert "inbound_bytes" in ended[1]
    tails[2].release()
    assert tails[1].receive(frame(0, b"!")).message == bytes(1200) + b"!"
    assert fragments.held == 1200
    tails[0].release()
    assert fragments.held == 0


def test_fragments_without_content_cost_nothing() -> None:
    """P-12: neither the empty ones nor the small ones cost more than their bytes."""
    tail = WebSocketTail(None, 65536, Fragments(1 << 20))
    tail.receive(frame(BINARY, b"", final=False))
    tracemalloc.start()
    try:
        for _ in range(20_000):
            tail.receive(frame(0, b"", final=False))
            tail.receive(frame(0, b"ab", final=False))
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_a_reason_is_cut_at_a_characters_end() -> None:
    """P-11: a close frame's reason has 123 bytes at most and stays UTF-8."""
    sent = close_frame(4400, "é" * 100)
    assert sent[1] == 2 + 122
    assert sent[4:].decode() == "é" * 61
    assert REASON_BYTES_MAX == 123


# --- with the engine ------------------------------------------------------------------------------


class Browser:
    """A WebSocket client by hand."""

    def __init__(self, rig: Rig, extensions: bytes = b"") -> None:
        self.peer: Peer = rig.connect(Transport.WS)
        self.peer.write(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + extensions + b"\r\n"
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = self.peer.read(1)
            assert piece, head
            head += piece
        assert head.startswith(b"HTTP/1.1 101")

    def write(self, *frames: bytes) -> None:
        self.peer.write(b"".join(frames))

    def read(self) -> tuple[int, bytes]:
        """Opcode and payload of the server's next frame; it is never masked."""
        head = self.peer.read(2)
        assert head, "the stream ended without a close frame"
        assert head[0] & 0x80
        size = head[1]
        if size == 126:
            (size,) = struct.unpack(">H", self.peer.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self.peer.read(8))
        assert size < 1 << 40
        return head[0] & 15, self.peer.read(size)

    def closed_with(self) -> int:
        opcode, payload = self.read()
        assert opcode == CLOSE, (opcode, payload)
        assert self.peer.read(1) == b""
        return int(struct.unpack(">H", payload[:2])[0])


@pytest.fixture
def bare() -> Iterator[Rig]:
    with Rig(envelope=False) as rig:
        yield rig


def test_messages_of_all_sizes_come_back_as_they_were_sent(bare: Rig) -> None:
    """P-13: text stays text, binary stays binary, whatever length form they need."""
    browser = Browser(bare)
    for size in (0, 1, 7, 8, 125, 126, 127, 1000, 65535, 65536):
        data = os.urandom(size)
        browser.write(frame(BINARY, data, mask=os.urandom(4)))
        assert browser.read() == (BINARY, data)
        text = b"\xc3\xa9" * (size // 2)
        browser.write(frame(TEXT, text, mask=os.urandom(4)))
        assert browser.read() == (TEXT, text)


def test_plain_frames_fragments_and_control_frames_keep_their_order(bare: Rig) -> None:
    """P-8, P-13: what the engine reads and what the library reads is one stream."""
    browser = Browser(bare)
    browser.write(
        frame(BINARY, b"1"),
        frame(TEXT, b"2", final=False),
        frame(PING, b"p"),
        frame(0, b"2"),
        frame(BINARY, b"3"),
        frame(PONG, b"unasked"),
        frame(BINARY, b"4", final=False),
        frame(0, b"", final=False),
        frame(0, b"4"),
        frame(BINARY, b"5"),
    )
    got = [browser.read() for _ in range(6)]
    assert (PONG, b"p") in got
    assert [payload for opcode, payload in got if opcode != PONG] == [b"1", b"22", b"3", b"44", b"5"]


def test_a_stream_may_be_cut_anywhere(bare: Rig) -> None:
    """P-13: octet by octet it is the same stream."""
    browser = Browser(bare)
    stream = frame(TEXT, b"one") + frame(TEXT, b"tw", final=False) + frame(0, b"o") + frame(BINARY, b"x" * 130)
    for position in range(len(stream)):
        browser.write(stream[position : position + 1])
        bare.step()
    assert [browser.read()[1] for _ in range(3)] == [b"one", b"two", b"x" * 130]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"x", mask=None), 1002),
        (frame(TEXT, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80"), 1007),
        (frame(BINARY, b"x", rsv=0x20), 1002),
        (frame(11, b""), 1002),
        (struct.pack(">BBQ", 0x82, 0xFF, 1 << 63) + b"mask", 1002),
        (struct.pack(">BBH", 0x82, 0xFE, 5) + b"maskhello", 1002),
        (struct.pack(">BBQ", 0x82, 0xFF, 65537) + b"mask", 1009),
        (frame(BINARY, b"x" * 40_000, final=False) + frame(0, b"x" * 40_000), 1009),
        (frame(CLOSE, struct.pack(">H", 1000)), 1000),
    ],
)
def test_violations_are_closed_with_their_code_and_end_the_session(bare: Rig, data: bytes, code: int) -> None:
    """P-13, P-12: unmasked frames, bad UTF-8, reserved bits, opcodes, lengths; the session hears of it once."""
    browser = Browser(bare)
    bare.until(lambda: bare.sessions)
    browser.write(data)
    assert browser.closed_with() == code
    bare.until(lambda: bare.sessions[0][1].detached)
    assert bare.sessions[0][1].detached == [code]


def test_pushes_have_the_opcode_of_the_clients_last_message(bare: Rig) -> None:
    """P-13: bare mode answers and pushes in the client's own way."""
    browser = Browser(bare)
    browser.write(frame(TEXT, b"hello"))
    assert browser.read() == (TEXT, b"hello")
    bare.shard.push(bare.sessions[0][4], b"news")
    assert browser.read() == (TEXT, b"news")


def test_compression_passes_through_the_engine() -> None:
    """P-13: compressed frames take the library's way, plain ones the engine's."""
    with Rig(envelope=False, compression=True) as rig:
        browser = Browser(rig, b"Sec-WebSocket-Extensions: permessage-deflate\r\n")
        browser.write(frame(TEXT, deflated(b"abc" * 100), rsv=0x40), frame(TEXT, b"plain"))
        assert browser.read() == (TEXT, b"abc" * 100)
        assert browser.read() == (TEXT, b"plain")
        browser.write(frame(BINARY, deflated(bytes(1_000_000)), rsv=0x40))
        assert browser.closed_with() == 1009


def test_a_session_over_websocket_is_the_same_session() -> None:
    """P-13: the frames of the protocol, one per message, binary or text."""
    with Rig() as rig:
        browser = Browser(rig)
        browser.write(frame(TEXT, b'H{"v":1}'))
        opcode, welcome = browser.read()
        assert (opcode, welcome[:1]) == (BINARY, b"W")
        browser.write(frame(BINARY, b"A\0\0\0\x01x"), frame(BINARY, b"A\0\0\0\x02y", final=False), frame(0, b"z"))
        assert browser.read() == (BINARY, b"R\0\0\0\x01\0\0\0\x01x")
        assert browser.read() == (BINARY, b"R\0\0\0\x02\0\0\0\x02yz")
        browser.write(frame(BINARY, b""))
        assert browser.closed_with() == 4400


def test_an_idle_bare_websocket_is_pinged_and_closed() -> None:
    """P-11: bare mode pings with WebSocket's own frames."""
    with Rig(envelope=False, heartbeat=0.2, idle_timeout=0.5) as rig:
        browser = Browser(rig)
        assert browser.read() == (PING, b"")
        assert browser.closed_with() == 4410


def test_slow_handshakes_are_cut_and_others_are_served() -> None:
    """P-12, S2: one byte at a time does not stretch handshake_timeout."""
    with Rig(envelope=False, handshake_timeout=0.3) as rig:
        half = [rig.connect(Transport.WS) for _ in range(50)]
        for peer in half:
            peer.write(b"GET / HTTP/1.1\r\nHost: h\r\nX: ")
        for _ in range(20):
            for peer in half:
                if not peer.over:
                    try:
                        peer.sock.send(b"y")
                    except OSError:
                        peer.over = True
            rig.steps(0.03)
            for peer in half:
                peer.pull()
        assert all(peer.over for peer in half)
        assert all(b"408 Request Timeout" in peer.data for peer in half)
        browser = Browser(rig)
        browser.write(frame(TEXT, b"x"))
        assert browser.read() == (TEXT, b"x")
        rig.until(lambda: rig.engine.connections == 1)


def test_the_app_closes_with_a_close_frame(bare: Rig) -> None:
    """P-11: code and reason of the app, and the client's answer is awaited, not needed."""
    browser = Browser(bare)
    bare.until(lambda: bare.sessions)
    bare.shard.close_client(bare.sessions[0][4], 4600, b"over")
    assert browser.read() == (CLOSE, struct.pack(">H", 4600) + b"over")
    browser.write(frame(CLOSE, struct.pack(">H", 4600)))
    assert browser.peer.read(1) == b""
    browser.peer.sock.close()
    bare.until(lambda: bare.engine.connections == 0)
