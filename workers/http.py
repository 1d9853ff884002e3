"""HTTP/1.1 on a WebSocket address: health, files, and the upgrade. Bytes in, actions out; nothing here does I/O.

h11 is the parser. One request at a time: what follows a request waits until its answer is out, and nothing is read
meanwhile. So a request's head (8,192 bytes at most), one read behind it and one answer are all that is ever held,
however many requests a client sends and however few answers it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus

import h11
from wsproto.connection import Connection as WebSocketConnection

from shardpool.workers.static_files import StaticFile, StaticFiles
from shardpool.workers.websocket import Upgrade, UpgradeRefused

HEAD_BYTES_MAX = 8192
WHOLE_BYTES_MAX = 65536  # a larger file is sent piece by piece


@dataclass(frozen=True, slots=True)
class Respond:
    """Write these bytes. `close`: nothing follows; `file`: its bytes do; `more`: call `resume` once they are out."""

    data: bytes
    close: bool
    file: StaticFile | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The connection is a WebSocket from here on; `rest` came behind the request."""

    response: bytes
    rest: bytes
    connection: WebSocketConnection | None  # needed from the start only with compression


@dataclass(frozen=True, slots=True)
class Site:
    """What is served: files, health, and who may open a WebSocket."""

    files: StaticFiles
    upgrade: Upgrade
    ready: Callable[[], bool]
    secure: bool


class Conversation:
    """One client's HTTP."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._head_only = False
        self._tail = b""  # the last bytes, for what straddles two reads

    def receive(self, data: bytes) -> list[Respond | Upgraded]:
        """Take bytes of the client; returns what is to be done, in order: at most one answer."""
        try:
            self._check_lines(data)
            self._h11.receive_data(data)
            return self._answers()
        except h11.RemoteProtocolError as error:
            return [self._refused(error)]

    def _refused(self, error: h11.RemoteProtocolError) -> Respond:
        status = error.error_status_hint or 400
        reason = "the request's head is longer than 8192 bytes" if status == 431 else str(error)
        return self._plain(status, reason, close=True)

    def resume(self) -> list[Respond | Upgraded]:
        """Go on after an answer is out, with what came behind its request."""
        if self._h11.our_state is not h11.IDLE and not self._again():
            return [Respond(b"", close=True)]
        try:
            return self._answers()
        except h11.RemoteProtocolError as error:
            return [self._refused(error)]

    def _check_lines(self, data: bytes) -> None:
        # h11 takes a bare LF for an end of line; a proxy in front of us may not, and then they disagree about where a
        # request ends. What follows the head is not looked at: it may be WebSocket frames.
        seen = self._tail + data
        end = seen.find(b"\r\n\r\n")
        head = seen if end < 0 else seen[: end + 4]
        if head.count(b"\n") != head.count(b"\r\n") + head.startswith(b"\n") * (len(self._tail) == 3):
            raise h11.RemoteProtocolError("lines must end with CR LF", error_status_hint=400)
        self._tail = seen[-3:]

    def _answers(self) -> list[Respond | Upgraded]:
        event = self._h11.next_event()
        if not isinstance(event, h11.Request):
            return []  # NEED_DATA, PAUSED, ConnectionClosed
        action = self._answer(event)
        if isinstance(action, Upgraded) or action.close or action.file is not None:
            return [action]
        if not self._again():
            return [action, Respond(b"", close=True)]
        return [replace(action, more=True)] if self._h11.trailing_data[0] else [action]

    def _again(self) -> bool:
        """Make ready for the next request on this connection, if it may have one."""
        while self._h11.their_state is h11.SEND_BODY:
            if self._h11.next_event() is h11.NEED_DATA:
                return False
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            return True
        return False

    def _answer(self, request: h11.Request) -> Respond | Upgraded:
        self._head_only = request.method == b"HEAD"
        headers = {name.lower(): value for name, value in request.headers}
        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
            return self._plain(413, "requests have no body here", close=True)
        if b"websocket" in headers.get(b"upgrade", b"").lower():
            return self._upgraded(request)
        if request.method not in (b"GET", b"HEAD"):
            return self._plain(405, "only GET and HEAD", headers=[("Allow", "GET, HEAD")])
        path = request.target.decode("ascii", "replace").partition("?")[0]
        if not path.startswith("/"):
            # the form that proxies are sent: http://host/path. What the host is does not matter here.
            _, absolute, rest = path.partition("://")
            if not absolute:
                return self._plain(400, "a request names a path that starts with /", close=True)
            path = "/" + rest.partition("/")[2]
        if path == "/healthz":
            return self._plain(200, "ok")
        if path == "/readyz":
            return self._plain(200, "ready") if self._site.ready() else self._plain(503, "not ready")
        return self._file(path, headers.get(b"if-none-match", b""))

    def _upgraded(self, request: h11.Request) -> Respond | Upgraded:
        if not self._site.ready():
            return self._plain(503, "the server takes no new sessions", close=True)
        try:
            response, connection = self._site.upgrade.accept(request, self._site.secure)
        except UpgradeRefused as refused:
            return self._plain(refused.status, refused.reason, headers=refused.headers, close=True)
        return Upgraded(response, self._h11.trailing_data[0], connection)

    def _file(self, path: str, known: bytes) -> Respond:
        file = self._site.files.find(path)
        if file is None:
            return self._plain(404, "there is nothing at this path")
        common = [("ETag", file.etag), ("Cache-Control", "no-cache"), ("X-Content-Type-Options", "nosniff")]
        if known and file.etag.encode() in [tag.strip() for tag in known.split(b",")]:
            return Respond(self._sent(304, common, b""), self._closes)
        headers = [*common, ("Content-Type", file.type), ("Content-Length", str(file.size))]
        head = self._h11.send(h11.Response(status_code=200, headers=headers, reason="OK"))
        if self._head_only:
            return Respond(head + self._h11.send(h11.EndOfMessage()), self._closes)
        if file.size > WHOLE_BYTES_MAX:
            return Respond(head, close=False, file=file)
        try:
            body = file.path.read_bytes()
        except OSError:
            body = b""
        if len(body) != file.size:
            return Respond(b"", close=True)  # it changed under our hands; the head was not sent yet
        return Respond(head + self._h11.send(h11.Data(body)) + self._h11.send(h11.EndOfMessage()), self._closes)

    def file_piece(self, piece: bytes, last: bool) -> bytes:
        """The next bytes of a file that is sent piece by piece. Raises: h11.LocalProtocolError: more than announced."""
        data = self._h11.send(h11.Data(piece))
        return data + self._h11.send(h11.EndOfMessage()) if last else data

    @property
    def _closes(self) -> bool:
        return self._h11.our_state is h11.MUST_CLOSE

    def _plain(
        self, status: int, text: str, headers: list[tuple[str, str]] | None = None, close: bool = False
    ) -> Respond:
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return Respond(b"", close=True)
        fields = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"), *(headers or [])]
        if close:
            fields.append(("Connection", "close"))
        return Respond(self._sent(status, fields, f"{text}\n".encode()), close or self._closes)

    def _sent(self, status: int, headers: list[tuple[str, str]], body: bytes) -> bytes:
        fields = headers if status == 304 else [*headers, ("Content-Length", str(len(body)))]
        head: bytes = self._h11.send(h11.Response(status_code=status, headers=fields, reason=HTTPStatus(status).phrase))
        if not self._head_only:
            head += self._h11.send(h11.Data(body))
        return head + self._h11.send(h11.EndOfMessage())
