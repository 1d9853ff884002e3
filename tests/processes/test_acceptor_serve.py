"""Acceptors of a real pool, seen from clients' sockets: what is normal, what is bad, how it ends."""

import json
import signal
import socket
import ssl
import struct
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from acceptor_pool import BARE, SESSIONS, Running, hit, pool, read, receive, send, wait_until

from shardpool.client import connect as client_connect  # noqa: F401  the package must import beside raw sockets

BAD = (
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\1\0\1S",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    b"\0\0\0\5H{bad",
    b"\0\0\0\3H\xff\xfe",
    b"\0\0\0\2Sx",
    b"\0\0\x40\0H" + b"x" * 5000,
)


def test_sessions_are_served_while_bad_clients_come_and_go() -> None:
    """P-12, P-13, P-30: every kind of bad first bytes gets a code, costs no memory, and disturbs nobody."""
    with pool(SESSIONS) as running:
        good = running.session()
        acceptor = running.worker("acceptor")
        hit(good, 1)
        before = acceptor.memory_info().rss
        for turn in range(20):
            for data in BAD:
                with running.connect() as bad:
                    bad.sendall(data)
                    frame = receive(bad)
                    assert json.loads(frame[1:])["code"] in (4400, 4413), (data, frame)
                    assert read(bad, 1) == b""
            assert hit(good, turn + 2)["count"] == turn + 2
        # a length that is cut, and one that comes byte by byte, hold what they sent and no more
        for _ in range(200):
            running.connect().sendall(b"\0\0")
        assert acceptor.memory_info().rss - before < 1 << 20
        assert acceptor.is_running()
        assert "Traceback" not in running.log.read_text()


def test_wrong_messages_are_answered_and_the_session_stays() -> None:
    """P-14: broken JSON, unknown messages and wrong types are errors of that message."""
    with pool(SESSIONS) as running:
        client = running.session()
        for number, body in enumerate(
            (b"{", b"\xff", b"[]", b'{"type":"nothing"}', b'{"type":"hit","n":"x"}', b""), start=1
        ):
            send(client, b"A" + struct.pack(">I", number) + body)
            frame = receive(client)
            assert frame[:1] == b"E", frame
            assert json.loads(frame[9:])["kind"] == "ProtocolError"
        assert hit(client, 99)["count"] == 1


def test_silent_connections_cost_no_cpu_and_little_memory() -> None:
    """P-12, M-12: connected clients that say nothing cost a struct each; nothing polls."""
    with pool(SESSIONS, "--connections-per-address", "2000") as running:
        acceptor = running.worker("acceptor")
        running.session()
        before = acceptor.memory_info().rss
        for _ in range(500):
            running.session()
        assert acceptor.memory_info().rss - before < 500 * 2048
        spent = sum(acceptor.cpu_times()[:2])
        started = time.monotonic()
        wait_until(lambda: time.monotonic() - started > 2.0, "time passes")
        assert sum(acceptor.cpu_times()[:2]) - spent <= 0.04


def test_sigterm_tells_every_client_and_loses_nothing_that_was_read() -> None:
    """P-17: idle clients get 1001, what was asked before is answered, and the exit code is 0."""
    with pool(SESSIONS) as running:
        clients = [running.session() for _ in range(100)]
        for client in clients:
            send(client, b"A\0\0\0\1" + b'{"type":"hit"}')
        for client in clients:
            assert receive(client)[:1] == b"R"
        started = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        for client in clients:
            frame = receive(client)
            assert json.loads(frame[1:])["code"] == 1001, frame
            assert read(client, 1) == b""
        assert running.process.wait(20) == 0
        assert time.monotonic() - started < 8


def test_a_killed_acceptor_is_replaced_and_its_sessions_end() -> None:
    """P-16: clients can connect again at once; sessions whose clients do not come back do not stay."""
    with pool(SESSIONS, "--resume-window", "1") as running:
        clients = [running.session() for _ in range(20)]
        running.worker("acceptor").kill()
        for client in clients:
            client.settimeout(10)
            assert read(client, 1) == b""
        assert hit(running.session(), 1)["count"] == 1
        wait_until(lambda: running.shard()["counters"]["sessions"] == 1, "the dead acceptor's sessions end")


def test_http_and_websocket_share_an_address(tmp_path: Path) -> None:
    """P-13: health, the app's files, and a WebSocket upgrade on the same port."""
    (tmp_path / "index.html").write_text("<p>hello</p>")
    big = bytes(range(256)) * 4096
    (tmp_path / "big.bin").write_bytes(big)
    with pool(SESSIONS, "--static-dir", str(tmp_path)) as running:
        host, port = running.addresses["ws"]
        base = f"http://{host}:{port}"
        assert urllib.request.urlopen(f"{base}/healthz").read() == b"ok\n"
        assert urllib.request.urlopen(f"{base}/readyz").read() == b"ready\n"
        assert urllib.request.urlopen(f"{base}/").read() == b"<p>hello</p>"
        assert urllib.request.urlopen(f"{base}/big.bin").read() == big
        sock = running.connect("ws")
        sock.sendall(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            b'\x81\x88\0\0\0\0H{"v":1}'
        )
        data = b""
        while b'"session"' not in data:
            piece = sock.recv(4096)
            assert piece, data
            data += piece
        assert data.startswith(b"HTTP/1.1 101")


def test_a_slow_reader_gets_the_whole_file_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    """P-12: a large file goes out piece by piece, as the client reads."""
    big = bytes(range(256)) * 32768  # 8 MiB
    (tmp_path / "big.bin").write_bytes(big)
    with pool(SESSIONS, "--static-dir", str(tmp_path)) as running:
        acceptor = running.worker("acceptor")
        before = acceptor.memory_info().rss
        slow = running.connect("ws")
        slow.sendall(b"GET /big.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        good = running.session()
        data = slow.recv(1000)
        for number in range(1, 20):
            hit(good, number)
            data += slow.recv(10_000)
        assert acceptor.memory_info().rss - before < 2 << 20
        while piece := slow.recv(1 << 20):
            data += piece
        assert data.partition(b"\r\n\r\n")[2] == big


def test_both_acceptors_serve() -> None:
    """P-1, P-2: several acceptors take connections from the same listening sockets."""
    with pool(BARE, "--acceptors", "2") as running:
        clients = [running.connect() for _ in range(64)]
        for index, client in enumerate(clients):
            send(client, b"%d" % index)
        assert [receive(client) for client in clients] == [b"%d" % index for index in range(64)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    where = tmp_path_factory.mktemp("tls")
    cert, key = where / "cert.pem", where / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key


def test_tls_and_wss_are_served_side_by_side(pair: tuple[Path, Path]) -> None:
    """P-13, P-30: real TLS clients on both addresses."""
    cert, key = pair
    trusted = ssl.create_default_context(cafile=str(cert))
    with pool(SESSIONS, "--tls-cert", str(cert), "--tls-key", str(key), binds=("tls", "wss")) as running:
        with trusted.wrap_socket(running.connect("tls"), server_hostname="localhost") as client:
            send(client, b'H{"v":1}')
            assert receive(client)[:1] == b"W"
            for number in range(1, 100):
                assert hit(client, number)["count"] == number
            send(client, b"B")
            assert json.loads(receive(client)[1:])["code"] == 1000
        port = running.addresses["wss"][1]
        with urllib.request.urlopen(f"https://localhost:{port}/healthz", context=trusted) as answer:
            assert answer.read() == b"ok\n"


def test_a_key_that_others_can_read_stops_the_start(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """P-30: one line with file and remedy, and the documented exit code."""
    key = tmp_path / "key.pem"
    key.write_bytes(pair[1].read_bytes())
    key.chmod(0o644)
    with (
        pytest.raises(AssertionError, match="chmod 600"),
        pool(SESSIONS, "--tls-cert", str(pair[0]), "--tls-key", str(key), binds=("tls",)),
    ):
        pass


def test_a_client_that_never_reads_is_cut_and_the_rest_go_on() -> None:
    """P-9: requests whose answers are not read stop being read, and nothing grows without bound."""
    with pool(
        BARE, "--outbound-bytes", "256KiB", "--send-timeout", "0.3", "--idle-timeout", "3", "--heartbeat", "1"
    ) as running:
        acceptor = running.worker("acceptor")
        before = acceptor.memory_info().rss
        deaf = [_deaf(running) for _ in range(20)]
        block = struct.pack(">I", 8192) + b"x" * 8192
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            for sock in deaf:
                _push(sock, block * 8)
        assert acceptor.memory_info().rss - before < 20 * (1 << 20)
        good = running.connect()
        send(good, b"still there?")
        assert receive(good) == b"still there?"


def _deaf(running: Running) -> socket.socket:
    sock = running.connect()
    sock.setblocking(False)
    return sock


def _push(sock: socket.socket, data: bytes) -> None:
    try:
        sock.send(data)
    except (BlockingIOError, ConnectionError):
        return
