"""TLS in the acceptor: both transports, old versions, stalled handshakes, keys that others can read."""

import contextlib
import json
import ssl
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from acceptor_detour import detoured, elsewhere
from acceptor_rig import Peer, Rig, descriptors

from shardpool.workers.doors import Transport
from shardpool.workers.tls import TlsFileError, server_context


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


@pytest.fixture
def rig(pair: tuple[Path, Path]) -> Iterator[Rig]:
    with Rig(tls=server_context(str(pair[0]), str(pair[1])), handshake_timeout=0.5) as made:
        yield made


class SecurePeer:
    """A TLS client whose bytes go by hand."""

    def __init__(self, rig: Rig, transport: Transport, context: ssl.SSLContext) -> None:
        self._rig = rig
        self.peer: Peer = rig.connect(transport)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._run(self.tls.do_handshake)

    def _run(self, step: Callable[[], object]) -> object:
        """One TLS call, with whatever it needs from the other side."""
        result: list[object] = []

        def attempt() -> bool:
            with contextlib.suppress(ssl.SSLWantReadError):
                result.append(step())
            self.peer.write(self._out.read())
            self.peer.pull()
            if self.peer.data:
                self._in.write(self.peer.data)
                self.peer.data = b""
            elif self.peer.over:
                self._in.write_eof()
            return bool(result)

        self._rig.until(attempt)
        return result[0]

    def write(self, data: bytes) -> None:
        self._run(lambda: self.tls.write(data))

    def read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self._run(partial(self.tls.read, size - len(got)))
            assert isinstance(piece, bytes)
            if not piece:
                break
            got += piece
        return got

    def frame(self) -> bytes:
        return self.read(struct.unpack(">I", self.read(4))[0])


def trusting(pair: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pair[0]))


def test_a_session_inside_tls_is_the_same_session(rig: Rig, pair: tuple[Path, Path]) -> None:
    """P-13, P-30: hello, asks, a large message both ways, and a close with its code."""
    client = SecurePeer(rig, Transport.TLS, trusting(pair))
    client.write(b'\0\0\0\x08H{"v":1}')
    assert client.frame()[:1] == b"W"
    body = b"z" * 60_000
    client.write(struct.pack(">I", 5 + len(body)) + b"A\0\0\0\x01" + body)
    assert client.frame() == b"R\0\0\0\x01\0\0\0\x01" + body
    for number in range(50):
        rig.shard.push(rig.sessions[0][4], b"%d" % number)
    assert [client.frame()[5:] for _ in range(50)] == [b"%d" % number for number in range(50)]
    client.write(b"\0\0\0\x01?")
    assert b"4400" in client.frame()
    assert client.read(1) == b""
    rig.until(lambda: rig.sessions[0][1].detached == [4400])


@pytest.mark.parametrize("size", [10, 400_000])
def test_a_session_of_another_acceptor_is_relayed(pair: tuple[Path, Path], size: int) -> None:
    """P-6, P-30: TLS ends at the acceptor that was reached, its bytes go on to the one that keeps the session."""
    tls = server_context(str(pair[0]), str(pair[1]))
    with Rig(tls=tls, resume_window=30.0, frame_bytes=1 << 20, geometry={"link_bytes": 4 << 20}) as rig:
        peer = rig.session()
        welcome = json.loads(rig.welcome[1:])
        peer.sock.close()
        rig.until(lambda: rig.engine.detached == 1)
        rig.shard.push(rig.sessions[0][4], b"missed")
        detoured(rig)
        client = SecurePeer(rig, Transport.TLS, trusting(pair))
        resume = {key: elsewhere(welcome)[key] for key in ("session", "token")} | {"received": 0}
        hello = b"H" + json.dumps({"v": 1, "resume": resume}).encode()
        client.write(struct.pack(">I", len(hello)) + hello + b"\0\0\0\x06A\0\0\0\x01x")
        assert b'"resumed":true' in client.frame()
        assert client.frame() == b"M\0\0\0\x01missed"
        assert client.frame() == b"R\0\0\0\x02\0\0\0\x01x"
        for number in range(2, 6):  # both ways at once, far beyond what a relay holds
            client.write(struct.pack(">I", 5 + size) + b"A" + struct.pack(">I", number) + b"z" * size)
        for number in range(2, 6):
            assert client.frame() == b"R" + struct.pack(">II", number + 1, number) + b"z" * size
        client.write(b"\0\0\0\x01?")
        assert b"4400" in client.frame()
        assert client.read(1) == b""
        rig.until(lambda: rig.sessions[0][1].detached == [4400])
        rig.until(lambda: rig.engine.connections == 0)


def test_a_relay_ends_with_its_client(pair: tuple[Path, Path]) -> None:
    """P-6, P-30: the connection breaks; the session waits for its client again, and no descriptor is left."""
    with Rig(tls=server_context(str(pair[0]), str(pair[1])), resume_window=30.0) as rig:
        rig.session().sock.close()
        welcome = json.loads(rig.welcome[1:])
        rig.until(lambda: rig.engine.detached == 1)
        detoured(rig)
        before = descriptors()
        client = SecurePeer(rig, Transport.TLS, trusting(pair))
        resume = {key: elsewhere(welcome)[key] for key in ("session", "token")} | {"received": 0}
        hello = b"H" + json.dumps({"v": 1, "resume": resume}).encode()
        client.write(struct.pack(">I", len(hello)) + hello)
        assert b'"resumed":true' in client.frame()
        assert rig.engine.detached == 0
        client.peer.sock.close()
        rig.until(lambda: rig.engine.detached == 1)
        rig.until(lambda: rig.engine.connections == 0)
        assert descriptors() == before


def test_health_and_websocket_inside_tls(rig: Rig, pair: tuple[Path, Path]) -> None:
    """P-13: HTTP on wss:// addresses, and the upgrade behind it."""
    client = SecurePeer(rig, Transport.WSS, trusting(pair))
    client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.read(15) == b"HTTP/1.1 200 OK"
    client = SecurePeer(rig, Transport.WSS, trusting(pair))
    client.write(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Origin: https://localhost\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.read(1)
    assert head.startswith(b"HTTP/1.1 101")
    client.write(b'\x82\x88\0\0\0\0H{"v":1}')
    assert client.read(1) == b"\x82"
    client.write(b"\x88\x80\0\0\0\0")
    rig.until(lambda: rig.sessions[0][1].detached)


def test_versions_below_1_2_are_refused(pair: tuple[Path, Path]) -> None:
    """P-30, S5: the context speaks TLS 1.2 and later, without renegotiation."""
    context = server_context(str(pair[0]), str(pair[1]))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_a_client_of_an_old_version_is_cut(rig: Rig) -> None:
    """P-30, S5: the handshake of TLS 1.1 ends with an alert, and the connection with it."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    try:
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
    except ValueError:
        pytest.skip("this OpenSSL does not speak TLS 1.1 at all")
    with pytest.raises(ssl.SSLError):
        SecurePeer(rig, Transport.TLS, old)
    rig.until(lambda: rig.engine.connections == 0 or _closed(rig))


def _closed(rig: Rig) -> bool:
    for peer in rig.peers:
        peer.sock.close()
    return rig.engine.connections == 0


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00", b"\x16"])
def test_a_stalled_handshake_is_cut_in_time(rig: Rig, data: bytes) -> None:
    """P-30: handshake_timeout holds for TLS, silent or half-way."""
    peer = rig.connect(Transport.TLS)
    peer.write(data)
    assert peer.rest() == b""


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x08H{}", b"\xff" * 100])
def test_plain_bytes_on_a_tls_address_end_at_once(rig: Rig, data: bytes) -> None:
    """P-13: another protocol's bytes fail the handshake; nobody else notices."""
    peer = rig.connect(Transport.TLS)
    peer.write(data)
    peer.rest()
    rig.session()


def test_a_key_that_others_can_read_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """P-30: the message names file, mode and remedy."""
    key = tmp_path / "key.pem"
    key.write_bytes(pair[1].read_bytes())
    key.chmod(0o644)
    with pytest.raises(TlsFileError, match="0644") as refused:
        server_context(str(pair[0]), str(key))
    assert refused.value.remedy == f"chmod 600 {key}"


def test_files_that_are_no_pair_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """P-30: missing, not PEM, and not belonging together."""
    with pytest.raises(TlsFileError, match="No such file"):
        server_context(str(pair[0]), str(tmp_path / "nothing.pem"))
    broken = tmp_path / "broken.pem"
    broken.write_text("no PEM")
    broken.chmod(0o600)
    with pytest.raises(TlsFileError, match="cannot be used"):
        server_context(str(pair[0]), str(broken))
