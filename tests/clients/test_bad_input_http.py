"""Clients that ask for more than they take, over HTTP, from a real pool: bounded memory, and nobody else notices."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from acceptor_pool import SESSIONS, Running, hit, pool

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    files = tmp_path_factory.mktemp("files")
    (files / "mid.bin").write_bytes(bytes(60_000))
    (files / "big.bin").write_bytes(bytes(64 * MIB))
    with pool(SESSIONS, "--static-dir", str(files)) as running:
        yield running


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize("first", [b"", get("/big.bin")])
def test_requests_without_end_and_no_answer_taken_cost_bounded_memory(server: Running, first: bytes) -> None:
    """P-9, P-12: a request waits until the answer before it is out, unread; meanwhile others are served."""
    acceptor = server.worker("acceptor")
    bystander = server.session()
    hit(bystander, 1)
    before = acceptor.memory_info().rss
    client = server.connect("ws")
    client.sendall(first)
    client.settimeout(0.2)
    slowest = 0.0
    with contextlib.suppress(TimeoutError):
        for number in range(2, 100):  # 64 MiB, if the server takes them
            client.sendall(get("/mid.bin") * 18_000)
            begun = time.monotonic()
            hit(bystander, number)
            slowest = max(slowest, time.monotonic() - begun)
    hit(bystander, 100)
    assert acceptor.memory_info().rss - before < 8 * MIB
    assert slowest < 0.5


def test_many_requests_at_once_are_all_answered_in_order(server: Running) -> None:
    """P-13: pipelining works for a client that reads."""
    client = server.connect("ws")
    client.sendall(b"".join(get(path) for path in ("/mid.bin", "/healthz", "/big.bin", "/nothing", "/readyz")))
    with client.makefile("rb") as stream:
        sizes = []
        for _ in range(5):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += stream.readline()
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert len(stream.read(size)) == size
            sizes.append((int(head.split()[1]), size))
    assert [status for status, _ in sizes] == [200, 200, 200, 404, 200]
    assert [sizes[0][1], sizes[2][1]] == [60_000, 64 * MIB]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\0\0\0\x08" + b'H{"v":1}', b"400"),
        (b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3" + bytes(200), b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nx", b"413"),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"GET / HTTP/1.1\r\nHost: \xff\r\nConnection: Upgrade\r\nUpgrade: websocket\xff\r\n\r\n", b"400"),
    ],
)
def test_foreign_and_broken_requests_get_a_status_and_a_sentence(server: Running, data: bytes, status: bytes) -> None:
    """P-13, P-30: TCP frames, TLS and nonsense on a WebSocket address; the acceptor that got them goes on."""
    pid = server.worker("acceptor").pid
    client = server.connect("ws")
    client.sendall(data)
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"\n"):
        piece = client.recv(4096)
        assert piece, answer
        answer += piece
    assert answer.split()[:2] == [b"HTTP/1.1", status]
    assert len(answer.partition(b"\r\n\r\n")[2]) > 10
    client.shutdown(socket.SHUT_WR)
    hit(server.session(), 1)
    assert server.worker("acceptor").pid == pid
