"""HTTP on a WebSocket address: requests in, actions out."""

from pathlib import Path

import pytest

from shardpool.workers.http import Conversation, Respond, Site, Upgraded
from shardpool.workers.static_files import StaticFiles
from shardpool.workers.websocket import Upgrade

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + KEY + b"\r\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "public"
    (root / "sub").mkdir(parents=True)
    (root / "index.html").write_text("<p>front</p>")
    (root / "sub" / "index.html").write_text("<p>sub</p>")
    (root / "app.js").write_text("let x = 1")
    (root / ".hidden").write_text("no")
    (root / "big.bin").write_bytes(b"b" * 200_000)
    (tmp_path / "secret.txt").write_text("secret")
    (root / "leak.txt").symlink_to(tmp_path / "secret.txt")
    return root


def conversation(
    root: Path | None = None, ready: bool = True, origins: tuple[str, ...] = (), compression: bool = False
) -> Conversation:
    files = StaticFiles(None if root is None else str(root))
    return Conversation(Site(files, Upgrade(origins, compression, 65536), lambda: ready, False))


def request(target: str, *headers: bytes, method: str = "GET") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: game.example:7001\r\n".encode()
    return head + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


def answer(talk: Conversation, data: bytes) -> tuple[int, bytes, bytes, bool]:
    """Status, head, body, and whether the connection is closed, of one whole answer."""
    (action, *rest) = talk.receive(data)
    assert isinstance(action, Respond)
    head, _, body = action.data.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body, action.close or any(isinstance(r, Respond) and r.close for r in rest)


def test_health_is_told_and_the_connection_stays() -> None:
    """P-13: /healthz says that the process serves, /readyz that sessions are taken."""
    talk = conversation()
    for _ in range(3):
        assert answer(talk, request("/healthz"))[::2] == (200, b"ok\n")
    assert answer(conversation(ready=True), request("/readyz"))[0] == 200
    assert answer(conversation(ready=False), request("/readyz"))[0] == 503


def test_pipelined_requests_are_answered_in_order() -> None:
    """P-12, P-13: requests may follow each other at once; the next is answered when the answer before it is out."""
    talk = conversation()
    actions = talk.receive(request("/healthz") + request("/nothing") + request("/readyz") + request("/")[:9])
    statuses = []
    while actions:
        (action,) = actions
        assert isinstance(action, Respond)
        statuses.append(action.data.split()[1])
        actions = talk.resume() if action.more else []
    assert statuses == [b"200", b"404", b"200"]
    assert answer(talk, request("/")[9:])[0] == 404


def test_files_are_sent_with_their_type_and_known_by_their_tag(root: Path) -> None:
    """P-13: content type, length, ETag; the same file again is 304."""
    status, head, body, _ = answer(conversation(root), request("/"))
    assert (status, body) == (200, b"<p>front</p>")
    assert b"Content-Type: text/html; charset=utf-8" in head
    assert b"nosniff" in head
    tag = next(line for line in head.split(b"\r\n") if line.startswith(b"ETag: ")).removeprefix(b"ETag: ")
    status, head, body, closed = answer(conversation(root), request("/", b"If-None-Match: " + tag))
    assert (status, body, closed) == (304, b"", False)
    assert answer(conversation(root), request("/sub/"))[2] == b"<p>sub</p>"
    assert b"text/javascript" in answer(conversation(root), request("/app.js?v=3"))[1]


def test_head_has_the_head_alone(root: Path) -> None:
    """P-13: HEAD is GET without the body."""
    talk = conversation(root)
    status, head, body, closed = answer(talk, request("/app.js", method="HEAD"))
    assert (status, body, closed) == (200, b"", False)
    assert b"Content-Length: 9" in head
    assert answer(talk, request("/healthz", method="HEAD"))[2] == b""


def test_a_large_file_is_sent_piece_by_piece(root: Path) -> None:
    """P-13, P-12: a large file is never in memory as a whole."""
    talk = conversation(root)
    (action,) = talk.receive(request("/big.bin"))
    assert isinstance(action, Respond)
    assert action.file is not None
    sent = b"".join(talk.file_piece(b"b" * 50_000, last) for last in (False, False, False, True))
    assert sent == b"b" * 200_000
    assert talk.resume() == []
    assert answer(talk, request("/healthz"))[0] == 200


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/sub/%2e%2e/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/leak.txt",
        "/.hidden",
        "/sub",
        "/%00",
        "/a%5c..%5csecret.txt",
        "/%ff",
        "//etc/passwd",
        "/index.html/",
        "/nothing",
    ],
)
def test_no_path_leads_out_of_the_directory(root: Path, target: str) -> None:
    """P-13, S12: dots, links, encodings, hidden files and directories are all the same: not found."""
    assert answer(conversation(root), request(target))[0] == 404


def test_without_a_directory_there_are_no_files() -> None:
    """P-13: an app without static_dir serves health only."""
    assert answer(conversation(), request("/"))[0] == 404


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9000, 431),
        (request("/", method="DELETE"), 405),
        (request("/", b"Content-Length: 5", method="POST") + b"hello", 413),
        (request("/", b"Transfer-Encoding: chunked", method="POST"), 413),
        (request("/", b"Content-Length: 5"), 413),
        (request("http://[::1/"), 404),
        (request("nothing"), 400),
        (request("*"), 400),
    ],
)
def test_what_cannot_be_answered_is_refused_clearly(data: bytes, status: int) -> None:
    """P-13, S1: broken requests, bodies and long heads get a status and a sentence."""
    got, _, body, _ = answer(conversation(), data)
    assert got == status
    assert body.strip()


def test_a_head_in_pieces_is_the_same_head() -> None:
    """P-13: where the stream is cut does not matter, line ends included."""
    talk = conversation()
    data = request("/healthz", b"X-A: b")
    for position in range(len(data) - 1):
        assert talk.receive(data[position : position + 1]) == []
    assert answer(talk, data[-1:])[0] == 200


def upgraded(talk: Conversation, data: bytes) -> Upgraded:
    (action,) = talk.receive(data)
    assert isinstance(action, Upgraded)
    return action


def test_an_upgrade_is_accepted_and_what_follows_is_kept() -> None:
    """P-13: RFC 6455's own example of a key, frames in the same packet, and Firefox's Connection header."""
    frames = b"\x81\x82\n\n\n\n\n\n"
    done = upgraded(conversation(), request("/any/path?x=1", UPGRADE[:-2]) + frames)
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in done.response
    assert done.rest == frames
    assert done.connection is None
    both = UPGRADE[:-2].replace(b"Connection: Upgrade", b"Connection: keep-alive, Upgrade")
    assert upgraded(conversation(), request("/", both)).response.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (UPGRADE.replace(KEY, b"short"), 400),
        (UPGRADE.replace(KEY, b"not base64 at all!!!!!!!"), 400),
        (UPGRADE.replace(b"Version: 13", b"Version: 8"), 426),
        (UPGRADE.replace(b"Connection: Upgrade", b"Connection: close"), 400),
        (UPGRADE + b"Origin: https://evil.example\r\n", 403),
        (UPGRADE + b"Origin: null\r\n", 403),
        (UPGRADE + b"Origin: http://game.example:7001.evil.example\r\n", 403),
        (UPGRADE + b"Origin: http://evilgame.example:7001\r\n", 403),
        (UPGRADE + b"Origin: http://game.example:7002\r\n", 403),
        (UPGRADE + b"Origin: http://game.example:port\r\n", 403),
    ],
)
def test_a_handshake_that_is_wrong_is_refused(headers: bytes, status: int) -> None:
    """P-30, S4: keys, versions and origins are checked before anything is kept."""
    assert answer(conversation(), request("/", headers[:-2]))[0] == status


@pytest.mark.parametrize(
    ("origin", "origins"),
    [
        (b"http://game.example:7001", ()),
        (b"HTTP://Game.Example:7001", ()),
        (b"https://other.example", ("https://other.example",)),
        (b"null", ("*",)),
    ],
)
def test_origins_of_the_same_host_and_of_the_list_may_connect(origin: bytes, origins: tuple[str, ...]) -> None:
    """P-30: default the same host and port; the setting adds others."""
    talk = conversation(origins=origins)
    assert upgraded(talk, request("/", UPGRADE + b"Origin: " + origin))


def test_no_session_is_opened_while_not_ready() -> None:
    """P-17: a draining server refuses upgrades with 503."""
    assert answer(conversation(ready=False), request("/", UPGRADE[:-2]))[0] == 503


def test_compression_is_negotiated_only_where_it_is_switched_on() -> None:
    """P-13: off by default; on, nothing is kept between messages."""
    offer = UPGRADE + b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    assert b"Extensions" not in upgraded(conversation(), request("/", offer)).response
    done = upgraded(conversation(compression=True), request("/", offer))
    assert b"client_no_context_takeover" in done.response
    assert done.connection is not None
    broken = UPGRADE + b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=x"
    assert answer(conversation(compression=True), request("/", broken))[0] == 400
