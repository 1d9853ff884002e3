"""TLS that is none, stops half way, or is spoilt later, sent to a real pool."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator

import pytest
from acceptor_pool import SESSIONS, Running, hit, pool, receive, send


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    where = tmp_path_factory.mktemp("tls")
    cert, key = where / "cert.pem", where / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    key.chmod(0o600)
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--handshake-timeout", "0.5")
    with pool(SESSIONS, *flags, binds=("tcp", "tls", "wss")) as running:
        yield running


@pytest.fixture
def bystander(server: Running) -> Iterator[ssl.SSLSocket]:
    """A session inside TLS that goes on; after it, a new one can be opened."""
    pid = server.worker("acceptor").pid
    client = session(server)
    yield client
    assert hit(client, 1) == {"count": 1}
    assert hit(session(server), 1) == {"count": 1}
    assert server.worker("acceptor").pid == pid


def session(server: Running) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_socket(server.connect("tls"))
    server.sockets.append(client)
    send(client, b'H{"v":1}')
    assert receive(client)[:1] == b"W"
    return client


def end_of(client: socket.socket) -> bytes:
    """All that comes until the server closes."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(4096):
            got += piece
    return got


@pytest.mark.parametrize("transport", ["tls", "wss"])
@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x08" + b'H{"v":1}',
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x40\x00" + bytes(3000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"\x16",
        b"",
    ],
)
def test_what_is_no_handshake_ends_in_time(
    server: Running, bystander: ssl.SSLSocket, transport: str, data: bytes
) -> None:
    """P-30, P-13: foreign bytes at once, silent and cut handshakes after handshake_timeout; at most an alert."""
    client = server.connect(transport)
    client.sendall(data)
    assert len(end_of(client)) < 50


@pytest.mark.parametrize(
    "spoilt", [b"\x17\x03\x03\x00\x20" + bytes(32), os.urandom(2000), b"\x15\x03\x03\x00\x02\x02\x28"]
)
def test_a_record_that_is_spoilt_ends_its_own_connection(
    server: Running, bystander: ssl.SSLSocket, spoilt: bytes
) -> None:
    """P-30: after the handshake, too; the acceptor holds the others' connections and must not stumble over one."""
    client = session(server)
    with socket.socket(fileno=os.dup(client.fileno())) as beneath:
        beneath.settimeout(30)
        beneath.sendall(spoilt)
        end_of(beneath)


def test_a_client_that_ends_tls_and_goes_on_sending_is_just_gone(server: Running, bystander: ssl.SSLSocket) -> None:
    """P-30: close_notify, then more of anything."""
    client = session(server)
    with socket.socket(fileno=os.dup(client.fileno())) as beneath:
        client.setblocking(False)
        with contextlib.suppress(ssl.SSLError):
            client.unwrap()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            beneath.settimeout(30)
            beneath.sendall(os.urandom(500))
            end_of(beneath)


def test_a_frame_that_is_too_big_is_refused_inside_tls(server: Running, bystander: ssl.SSLSocket) -> None:
    """P-12: with the code and the sentence of plain TCP."""
    client = session(server)
    client.sendall(struct.pack(">I", 70_000))
    assert b'"code":4413' in receive(client)


def test_a_tls_hello_on_a_plain_address_is_told_what_it_is(server: Running) -> None:
    """P-13: 4400 and the address to use."""
    client = server.connect("tcp")
    client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
    closing = receive(client)
    assert b'"code":4400' in closing
    assert b"tls://" in closing
