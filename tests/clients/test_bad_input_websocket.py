"""WebSocket frames that break the rules or cost more than they weigh, sent to a real pool."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterator

import pytest
from acceptor_pool import SESSIONS, Running, hit, pool, read

MIB = 1 << 20
CONTINUATION, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9
HELLO = b'H{"v":1}'
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"


def frame(opcode: int, payload: bytes, final: bool = True, rsv: int = 0, mask: bool = True) -> bytes:
    """A client's frame."""
    head = bytes([opcode | final << 7 | rsv << 4])
    bit, size = mask << 7, len(payload)
    if size < 126:
        head += bytes([bit | size])
    elif size < 65536:
        head += struct.pack(">BH", bit | 126, size)
    else:
        head += struct.pack(">BQ", bit | 127, size)
    return head + bytes(4 * mask) + payload  # the key 0 changes nothing


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def opened(server: Running, headers: bytes = b"") -> socket.socket:
    """A WebSocket before its hello."""
    client = server.connect("ws")
    client.sendall(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + headers + b"\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += read(client, 1)
    assert head.startswith(b"HTTP/1.1 101 "), head
    return client


def received(client: socket.socket) -> tuple[int, bytes]:
    """The next frame of the server: opcode and payload."""
    first, size = read(client, 2)
    if size == 126:
        (size,) = struct.unpack(">H", read(client, 2))
    return first & 15, read(client, size)


def closing(client: socket.socket) -> tuple[int, str]:
    """Code and reason of the close frame, behind whatever else came; nothing follows it."""
    while True:
        opcode, payload = received(client)
        if opcode == CLOSE:
            assert client.recv(1) == b""
            return struct.unpack(">H", payload[:2])[0], payload[2:].decode()


@pytest.fixture(scope="module", params=["plain", "compression"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    flags = ["--compression"] if request.param == "compression" else []
    with pool(SESSIONS, *flags) as running:
        yield running


@pytest.fixture
def bystander(server: Running) -> Iterator[socket.socket]:
    """A session that goes on, in the same processes, whatever another client does."""
    client = server.session()
    pid = server.worker("acceptor").pid
    yield client
    assert hit(client, 1) == {"count": 1}
    assert server.worker("acceptor").pid == pid


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(BINARY, HELLO, mask=False)], 1002),
        ([frame(CONTINUATION, HELLO)], 1002),
        ([frame(BINARY, b"H", final=False), frame(BINARY, b"{")], 1002),
        ([frame(3, b"")], 1002),
        ([frame(BINARY, b"S{}", rsv=2)], 1002),
        ([frame(PING, b"", final=False)], 1002),
        ([frame(PING, b"x" * 126)], 1002),
        ([frame(CLOSE, b"x")], 1002),
        ([b"\x82\xff" + b"\xff" * 8], 1002),
        ([b"\x82\xfe\0\x01" + bytes(5)], 1002),
        ([frame(TEXT, b"S\xff\xfe")], 1007),
        ([b"\x82\xff" + struct.pack(">Q", 1 << 40)], 1009),
        ([frame(BINARY, b"S" * 40_000, final=False), frame(CONTINUATION, b"S" * 40_000)], 1009),
        ([frame(BINARY, b"")], 4400),
        ([frame(BINARY, b"Z")], 4400),
        ([frame(BINARY, HELLO)], 4400),
    ],
)
def test_a_frame_that_breaks_the_rules_ends_its_connection(
    server: Running, bystander: socket.socket, frames: list[bytes], code: int
) -> None:
    """P-13, P-30: a close frame with the code of the page and a sentence; nobody else notices."""
    client = opened(server)
    client.sendall(frame(BINARY, HELLO) + b"".join(frames))
    found, reason = closing(client)
    assert found == code
    assert len(reason) > 5


def test_a_hello_in_fragments_with_a_ping_between_is_a_hello(server: Running) -> None:
    """P-13: fragments are put together; control frames may stand between them."""
    client = opened(server)
    client.sendall(frame(BINARY, b'H{"v', final=False) + frame(PING, b"?") + frame(CONTINUATION, b'":1}'))
    answers = [received(client), received(client)]
    assert (10, b"?") in answers
    assert any(payload.startswith(b"W{") for _, payload in answers)


@pytest.mark.parametrize(
    ("length", "code"), [(b"\xfe" + struct.pack(">H", 60_000), 4413), (b"\xff" + struct.pack(">Q", 64 * MIB), 1009)]
)
def test_the_rest_of_a_hello_that_is_too_big_is_not_awaited(
    server: Running, bystander: socket.socket, length: bytes, code: int
) -> None:
    """P-12, P-30: it is refused once more than hello_bytes came, or was announced past every limit."""
    client = opened(server)
    client.sendall(b"\x82" + length + bytes(4) + b'H{"v":1,"auth":"' + b"a" * 4_096)
    assert closing(client)[0] == code


def test_fragments_without_content_cost_nothing(server: Running, bystander: socket.socket) -> None:
    """P-12: a message that never ends, in any number of pieces, weighs its bytes."""
    acceptor = server.worker("acceptor")
    client = opened(server)
    client.sendall(frame(BINARY, HELLO) + frame(BINARY, b"S", final=False))
    received(client)
    before = acceptor.memory_info().rss
    for _ in range(20):
        client.sendall(frame(CONTINUATION, b"", final=False) * 10_000)
    client.sendall(frame(PING, b"still there"))
    while received(client) != (10, b"still there"):
        pass
    assert acceptor.memory_info().rss - before < MIB


@pytest.mark.parametrize("pieces", [1, 5])
def test_a_compression_bomb_ends_before_it_is_inflated(server: Running, bystander: socket.socket, pieces: int) -> None:
    """P-30: 64 MiB in 64 KiB: 1009 where compression is on, 1002 where it is off, and no memory."""
    acceptor = server.worker("acceptor")
    bomb = deflated(b"S" + bytes(64 * MIB))
    size = -(-len(bomb) // pieces)
    parts = [bomb[start : start + size] for start in range(0, len(bomb), size)]
    before = acceptor.memory_info().rss
    client = opened(server, DEFLATE)
    client.sendall(frame(BINARY, HELLO))
    received(client)
    client.sendall(
        b"".join(
            frame(0 if index else BINARY, part, index == len(parts) - 1, 0 if index else 4)
            for index, part in enumerate(parts)
        )
    )
    code, reason = closing(client)
    assert code in (1002, 1009)
    assert reason not in ("", "error in extension")
    assert acceptor.memory_info().rss - before < 4 * MIB


def test_unfinished_messages_of_all_clients_together_are_bounded() -> None:
    """P-12: inbound_bytes counts fragments, too; who comes with more is told 4529, who was there is served."""
    with pool(SESSIONS, "--inbound-bytes", "1MiB") as running:
        acceptor = running.worker("acceptor")
        bystander = running.session()
        clients = [opened(running) for _ in range(100)]
        before = acceptor.memory_info().rss
        for client in clients:
            client.sendall(frame(BINARY, HELLO))
            received(client)
            client.sendall(frame(BINARY, b"S" + b"a" * 60_000, final=False) + frame(PING, b"?"))
        ends = [received(client) for client in clients]
        refused = [payload for opcode, payload in ends if opcode == CLOSE]
        assert 75 < len(refused) < 100
        assert all(payload[:2] == struct.pack(">H", 4529) and b"inbound_bytes" in payload for payload in refused)
        assert acceptor.memory_info().rss - before < 8 * MIB
        assert hit(bystander, 1) == {"count": 1}
