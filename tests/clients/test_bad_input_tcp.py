"""Bytes that are no frames, and crowds of connections that say little, sent to a real pool."""

from __future__ import annotations

import contextlib
import json
import resource
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from acceptor_pool import PATIENCE, SESSIONS, Running, hit, pool, receive, wait_until

MIB = 1 << 20
HELLO = b"\0\0\0\x08" + b'H{"v":1}'


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with pool(
        SESSIONS, "--hello-timeout", "1", "--handshake-timeout", "1", "--connections-per-address", "5000"
    ) as made:
        yield made


@pytest.fixture
def bystander(server: Running) -> Iterator[socket.socket]:
    """A session that goes on, in the same processes, whatever the others do."""
    client = server.session()
    pid = server.worker("acceptor").pid
    yield client
    assert hit(client, 1_000_000)["count"] >= 1
    assert server.worker("acceptor").pid == pid


@contextlib.contextmanager
def many(server: Running, count: int, transport: str = "tcp") -> Iterator[list[socket.socket]]:
    """Connections all at once: none waits for another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 100:
        pytest.skip(f"only {hard} descriptors are permitted here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 100), hard))
    clients = [socket.socket() for _ in range(count)]
    try:
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.addresses[transport])
        for client in clients:
            client.settimeout(PATIENCE)
        yield clients
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("before", [b"", HELLO])
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\0\0\0\0", 4400),
        (struct.pack(">I", 70_000), 4413),
        (b"\x7f\xff\xff\xff", 4413),
        (b"\x80\0\0\0", 4413),
        (b"\xff\xff\xff\xff", 4413),
        (b"\0\0\0\x01Z", 4400),
        (b"\0\0\0\x01A", 4400),
        (b"\0\0\0\x07A\0\0\0\0{}", 4400),
        (b"\0\0\0\x05K\0\0\1\0", 4400),
        (b"\0\0\0\x7fP" + bytes(126), 4400),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 4413),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 4400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 4400),
    ],
)
def test_a_length_or_frame_that_cannot_be_ends_its_connection_at_once(
    server: Running, bystander: socket.socket, before: bytes, data: bytes, code: int
) -> None:
    """P-12, P-13, P-30: C with the code of the page and a sentence; nothing of what was announced is awaited."""
    client = server.connect()
    client.sendall(before + data)
    frames = []
    while frame := receive(client):
        frames.append(frame)
    assert len(frames) == (2 if before else 1)
    body = json.loads(frames[-1][1:])
    assert (frames[-1][:1], body["code"]) == (b"C", code)
    assert len(body["reason"]) > 10


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\x08", b"\0\0\0\x08H{", struct.pack(">I", 4000) + b"H{"])
def test_a_hello_that_is_cut_is_awaited_for_hello_timeout(
    server: Running, bystander: socket.socket, data: bytes
) -> None:
    """P-7, P-30: 4408, neither before nor long after."""
    client = server.connect()
    client.sendall(data)
    begun = time.monotonic()
    assert json.loads(receive(client)[1:])["code"] == 4408
    assert 0.7 < time.monotonic() - begun < 5


def test_a_hello_in_single_bytes_is_a_hello(server: Running) -> None:
    """P-13: slow is not wrong."""
    client = server.connect()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in HELLO:
        client.sendall(bytes([byte]))
    assert receive(client)[:1] == b"W"


@pytest.mark.parametrize(
    ("transport", "head"), [("tcp", struct.pack(">I", 4000) + b"H"), ("ws", b"GET / HTTP/1.1\r\nX: ")]
)
def test_a_thousand_that_drip_are_cut_and_cost_little(
    server: Running, bystander: socket.socket, transport: str, head: bytes
) -> None:
    """P-12, P-30: a byte now and then prolongs nothing; meanwhile a session is served."""
    acceptor = server.worker("acceptor")
    before = acceptor.memory_info().rss
    with many(server, 1000, transport) as clients, selectors.DefaultSelector() as selector:
        for client in clients:
            client.sendall(head)
            selector.register(client, selectors.EVENT_READ)
        ends: Counter[bytes] = Counter()
        begun = dripped = time.monotonic()
        number = 0
        while sum(ends.values()) < len(clients):
            assert time.monotonic() - begun < 15, ends
            for key, _ in selector.select(0.05):
                assert isinstance(key.fileobj, socket.socket)
                selector.unregister(key.fileobj)
                ends[b"4408" if b"4408" in (got := key.fileobj.recv(4096)) else got[9:12]] += 1
            if time.monotonic() - dripped > 0.2:
                dripped = time.monotonic()
                number += 1
                hit(bystander, number)
                assert time.monotonic() - dripped < 0.5
                for key in list(selector.get_map().values()):
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        key.fileobj.send(b"a")  # type: ignore[union-attr]
        assert acceptor.memory_info().rss - before < 8 * MIB
        assert set(ends) == ({b"4408"} if transport == "tcp" else {b"408"})


def test_two_thousand_at_once_are_all_let_in(server: Running, bystander: socket.socket) -> None:
    """P-12: handshakes_per_second makes them wait, not fail; a session is served meanwhile."""
    with many(server, 2000) as clients:
        begun = time.monotonic()
        hit(bystander, 1)
        assert time.monotonic() - begun < 0.5
        for client in clients:
            client.sendall(HELLO)
        assert Counter(receive(client)[:1] for client in clients) == {b"W": 2000}


def test_more_than_one_address_may_have_are_told_so() -> None:
    """P-12: 4529 and which limit it was; room again once some have gone."""
    with pool(SESSIONS, "--connections-per-address", "50") as running, many(running, 200) as clients:
        for client in clients:
            client.sendall(HELLO)
        answers = [receive(client) for client in clients]
        refused = [answer for answer in answers if answer[:1] == b"C"]
        assert len(refused) == 150
        assert all(b'"code":4529' in answer and b"connections_per_address" in answer for answer in refused)
        for client in clients:
            client.close()

        def let_in() -> bool:
            with socket.create_connection(running.addresses["tcp"], PATIENCE) as again:
                again.sendall(HELLO)
                return receive(again)[:1] == b"W"

        wait_until(let_in, "a place that was given back stays taken")


def test_a_client_that_writes_and_never_reads_holds_up_itself(server: Running, bystander: socket.socket) -> None:
    """P-9: its asks are not read any more once their answers find no room; memory stays, others are served."""
    acceptor, shard = server.worker("acceptor"), server.worker("shard")
    client = server.session()
    before = acceptor.memory_info().rss + shard.memory_info().rss
    client.settimeout(0.3)
    asks = b"".join(struct.pack(">IcI", 19, b"A", number) + b'{"type":"hit"}' for number in range(1, 3000))
    with pytest.raises(TimeoutError):
        client.sendall(asks * 2000)  # 138 MB, if the server takes them
    begun = time.monotonic()
    hit(bystander, 1)
    assert time.monotonic() - begun < 0.5
    assert acceptor.memory_info().rss + shard.memory_info().rss - before < 24 * MIB


def test_a_full_descriptor_table_keeps_who_is_there() -> None:
    """P-12: one line a second says how to raise the limit, no storm; those that wait are let in when others go."""
    with pool(SESSIONS, descriptors=64) as running:
        bystander = running.session()
        acceptor = running.worker("acceptor")
        with many(running, 150) as clients:
            wait_until(lambda: "accepting pauses: Too many open files" in running.log.read_text(), "no word about it")
            used, begun, number = sum(acceptor.cpu_times()[:2]), time.monotonic(), 0
            while time.monotonic() - begun < 1.5:
                hit(bystander, number := number + 1)
                time.sleep(0.02)  # a client's pace, not a wait for something
            assert sum(acceptor.cpu_times()[:2]) - used < 0.5
            assert running.log.read_text().count("accepting pauses") < 10
            for client in clients[:140]:
                client.close()
            clients[149].sendall(HELLO)
            assert receive(clients[149])[:1] == b"W"
