"""WebSocket where the engine's plain case ends: the handshake, and every frame that needs the protocol's state.

wsproto is the authority on the protocol. It gets whole frames, one at a time, so that after each of them it stands
at the end of a frame; between the fragments of a message all frames come here, and the assembled message goes back.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11
from wsproto import WSConnection
from wsproto.connection import Connection, ConnectionType
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol
from wsproto.utilities import RemoteProtocolError

NO_STATUS = 1005


class UpgradeRefused(Exception):
    """A handshake that is refused, with the HTTP status that says so."""

    def __init__(self, status: int, reason: str, headers: list[tuple[str, str]] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers or []


class BoundedDeflate(PerMessageDeflate):
    """Compression whose output is bounded while it is inflated, and that keeps nothing between messages.

    Args: limit: longest inflated message, in bytes.
    """

    SLICE = 64  # deflate expands at most 1,032 times: one slice gives at most 66 KB

    def __init__(self, limit: int) -> None:
        super().__init__(client_no_context_takeover=True, server_no_context_takeover=True)
        self._limit = limit
        self._inflated = 0

    def frame_inbound_payload_data(self, proto: FrameDecoder | FrameProtocol, data: bytes) -> bytes | CloseReason:
        """Inflate a frame's payload slice by slice, and stop when the message is too long."""
        pieces = []
        for start in range(0, len(data), self.SLICE):
            piece = super().frame_inbound_payload_data(proto, data[start : start + self.SLICE])
            if isinstance(piece, CloseReason):
                return piece
            self._inflated += len(piece)
            if self._inflated > self._limit:
                return CloseReason.MESSAGE_TOO_BIG
            pieces.append(piece)
        return b"".join(pieces)

    def frame_inbound_complete(self, proto: FrameDecoder | FrameProtocol, fin: bool) -> bytes | CloseReason | None:
        """The end of a frame."""
        if fin:
            self._inflated = 0
        return super().frame_inbound_complete(proto, fin)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Decides about handshakes.

    Args: origins: what `Origin` may be besides the same host; "*": anything. limit: longest message, in bytes.
    """

    origins: tuple[str, ...]
    compression: bool
    limit: int

    def accept(self, request: h11.Request, secure: bool) -> tuple[bytes, Connection | None]:
        """Answer the request of a client that wants a WebSocket.

        Returns: the response, and the connection if it must exist from the start (compression).
        Raises: UpgradeRefused.
        """
        headers = {name.lower(): value for name, value in request.headers}
        if request.http_version != b"1.1":
            raise UpgradeRefused(400, "a WebSocket needs HTTP/1.1")
        if request.method != b"GET":
            raise UpgradeRefused(405, "a WebSocket is opened with GET", [("Allow", "GET")])
        if not valid_key(headers.get(b"sec-websocket-key", b"")):
            raise UpgradeRefused(400, "Sec-WebSocket-Key must be 16 bytes in base64")
        if not self.origin_allowed(headers.get(b"origin"), headers.get(b"host", b""), secure):
            raise UpgradeRefused(403, "this Origin may not connect; the setting origins lists those that may")
        handshake = WSConnection(ConnectionType.SERVER)
        try:
            handshake.initiate_upgrade_connection(list(request.headers), request.target)
        except RemoteProtocolError as error:
            if headers.get(b"sec-websocket-version", b"13") != b"13":
                version = [("Sec-WebSocket-Version", "13")]
                raise UpgradeRefused(426, "the WebSocket version is 13", version) from None
            raise UpgradeRefused(400, str(error)) from None
        except (h11.ProtocolError, UnicodeError) as error:
            raise UpgradeRefused(400, f"the handshake cannot be read: {error}") from None
        deflate = BoundedDeflate(self.limit) if self.compression else None
        try:
            response = handshake.send(AcceptConnection(extensions=[deflate] if deflate else []))
        except (ValueError, UnicodeError) as error:  # a malformed offer of compression
            raise UpgradeRefused(400, f"Sec-WebSocket-Extensions cannot be read: {error}") from None
        if deflate is None or not deflate.enabled():
            return response, None
        return response, Connection(ConnectionType.SERVER, [deflate])

    def origin_allowed(self, origin: bytes | None, host: bytes, secure: bool) -> bool:
        """Whether a page from `origin` may connect to `host`; no Origin: not a browser, so it may."""
        if origin is None or "*" in self.origins:
            return True
        text = origin.decode("ascii", "replace").lower()
        if text in (allowed.lower().rstrip("/") for allowed in self.origins):
            return True
        try:
            parts = urlsplit(text)
            own = urlsplit(f"//{host.decode('ascii', 'replace').lower()}")
            default = 443 if secure else 80
            same_port = (parts.port or (443 if parts.scheme == "https" else 80)) == (own.port or default)
        except ValueError:
            return False
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.hostname == own.hostname and same_port
        )


def session_stays(code: int) -> bool:
    """Whether a client that closes with this code may come back: it left a page or gave up, and did not say goodbye."""
    return code in (CloseReason.GOING_AWAY, 1011, 1012, 1013) or 3000 <= code < 4400


def valid_key(key: bytes) -> bool:
    """Whether a Sec-WebSocket-Key is 16 bytes in base64."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Step:
    """What one frame led to."""

    out: bytes = b""  # to be written at once
    message: bytes | None = None  # a message that is complete now
    text: bool = False
    fragmented: bool = False  # more fragments are to come
    end: tuple[int, str] | None = None  # the connection ends: code for the session, reason
    last: bytes = b""  # with `end`: the close frame


# All that wsproto says where BoundedDeflate refuses a frame, and what it means by its code.
_EXTENSION_FAILED = "error in extension"
_EXTENSION_REASONS = {
    1002: "a reserved bit that means nothing there",
    1007: "compressed data that cannot be inflated",
}


class Fragments:
    """Bytes of unfinished messages, of all connections together (inbound_bytes, as for what the engine holds)."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class WebSocketTail:
    """One connection's state beyond the plain case.

    Args: connection: of the handshake, or None. limit: longest message, fragments together. fragments: counts those of
        all connections; `release` when the connection is gone.
    """

    def __init__(self, connection: Connection | None, limit: int, fragments: Fragments) -> None:
        self.compressed = connection is not None
        self._connection = connection or Connection(ConnectionType.SERVER)
        self._limit = limit
        self._fragments = fragments
        # One buffer, not a list of parts: a part of two bytes costs fifty, and an empty one is not for nothing either.
        self._message_bytes = bytearray()
        self._open = False

    def receive(self, frame: bytes) -> Step:
        """Judge one whole frame, or the beginning of one whose header is illegal."""
        out = b""
        step: Step | None = None
        try:
            self._connection.receive_data(frame)
            for event in self._connection.events():
                match event:
                    case Ping():
                        out += self._connection.send(event.response())
                    case TextMessage() | BytesMessage():
                        step = self._message(event)
                    case CloseConnection():
                        step = self._closed(event)
                    case Pong():
                        pass
        except RemoteProtocolError as error:
            return self._failed(error)
        if step is None:
            step = Step(fragmented=self._open)
        return Step(out, step.message, step.text, self._open, step.end, step.last)

    def close(self, code: int, reason: str) -> bytes:
        """The close frame of the server's own wish."""
        return self._connection.send(CloseConnection(code, reason))

    def release(self) -> None:
        """What was held is not held any more."""
        self._fragments.held -= len(self._message_bytes)
        self._message_bytes = bytearray()

    def _message(self, event: TextMessage | BytesMessage) -> Step | None:
        text = isinstance(event, TextMessage)
        part = event.data.encode() if isinstance(event.data, str) else event.data
        if len(self._message_bytes) + len(part) > self._limit:
            return self._ended(1009, f"the message is longer than {self._limit} bytes")
        self._open = not event.message_finished
        if self._open:
            self._message_bytes += part
            self._fragments.held += len(part)
            if self._fragments.held > self._fragments.limit:
                return self._ended(4529, "the server holds as much unfinished input as it may (inbound_bytes)")
            return None
        message = bytes(self._message_bytes) + part
        self.release()
        return Step(message=message, text=text)

    def _ended(self, code: int, reason: str) -> Step:
        return Step(end=(code, reason), last=self.close(code, reason))

    def _closed(self, event: CloseConnection) -> Step:
        """The client closes; or it broke the protocol, which wsproto words in the same event."""
        code, reason = int(event.code), event.reason or ""
        if reason == _EXTENSION_FAILED:
            reason = _EXTENSION_REASONS.get(code, f"the message is longer than {self._limit} bytes")
        return self._ended(code, reason)

    def _failed(self, error: RemoteProtocolError) -> Step:
        hint = error.event_hint
        code, reason = 1002, str(error)
        if isinstance(hint, CloseConnection):
            code, reason = int(hint.code), hint.reason or reason
        if code == CloseReason.MESSAGE_TOO_BIG:
            reason = f"the message is longer than {self._limit} bytes"
        return Step(end=(code, reason), last=self.close(code, reason))
