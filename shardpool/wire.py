"""The frames of docs/protocol.md: constants, encoding, splitting, parsing. Pure: nothing here does I/O.

    TCP        u32 length N, N bytes of frame          (1 <= N <= frame limit)
    WebSocket  N bytes of frame as one message
    frame      kind byte, then the u32s of the kind, then a body; integers big-endian

Clients, the local socket and tests use it; acceptors split in C and agree by docs/protocol.md.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Any, TypeVar

import msgspec

from shardpool.codecs import UNREADABLE, unreadable
from shardpool.errors import Condition, ErrorBody

VERSION = 1
FRAME_LIMIT = 65_536
HELLO_LIMIT = 4_096
PING_LIMIT = 125
ACK_FRAMES = 64
ACK_BYTES = 65_536
ACK_SECONDS = 1.0
RESUME_REFUSED = 4404
NUMBER_LIMIT = 0xFFFF_FFFF

HELLO, SEND, ASK, ACK, PING, PONG, BYE = b"H", b"S", b"A", b"K", b"P", b"O", b"B"
WELCOME, MESSAGE, REPLY, ERROR, CLOSE = b"W", b"M", b"R", b"E", b"C"

T = TypeVar("T")

_LENGTH = Layout(">I")
_KIND_NUMBER = Layout(">cI")
_KIND_NUMBERS = Layout(">cII")
_ONE_NUMBER = 5
_TWO_NUMBERS = 9

# RFC 6455's own codes; the others are the errors' table (O-18).
CLOSE_NAMES = {condition.row.close: condition.code for condition in Condition if condition.row.close} | {
    1000: "normal",
    1001: "going_away",
    1002: "websocket_protocol",
    1006: "lost",
    1007: "invalid_utf8",
    1009: "message_too_big",
}


class FrameError(ValueError):
    """Bytes that are no frames; `code` is the close code that answers them."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Resume(msgspec.Struct, frozen=True):
    """What a hello says about the session it wants back: `received` is the highest number seen."""

    session: str
    token: str
    received: int


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """Payload of H."""

    v: int
    auth: Any = None
    resume: Resume | None = None
    local: bool = False


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Payload of W; times in seconds, `max_frame` in bytes. A local one has no session.

    `resumed` has no default to be left out with: the page promises it, false included, in each but the local one.
    """

    v: int
    app: str
    codec: str
    session: str = ""
    token: str = ""
    resumed: bool | msgspec.UnsetType = msgspec.UNSET
    heartbeat: float = 15.0
    idle_timeout: float = 60.0
    resume_window: float = 0.0
    max_frame: int = FRAME_LIMIT
    local: bool = False
    taken: int = 0  # messages of this session's client that need not be sent again

    def __repr__(self) -> str:
        # The token is a secret (P-31): it must not reach a log by way of repr().
        return f"Welcome(app={self.app!r}, codec={self.codec!r}, session={self.session!r}, resumed={self.resumed})"


class CloseBody(msgspec.Struct, frozen=True):
    """Payload of C."""

    code: int
    name: str = ""
    reason: str = ""


class Send(msgspec.Struct, frozen=True, gc=False):
    body: bytes


class Ask(msgspec.Struct, frozen=True, gc=False):
    id: int
    body: bytes


class Ack(msgspec.Struct, frozen=True, gc=False):
    seq: int


class Ping(msgspec.Struct, frozen=True, gc=False):
    payload: bytes


class Pong(msgspec.Struct, frozen=True, gc=False):
    payload: bytes


class Bye(msgspec.Struct, frozen=True, gc=False):
    pass


class Message(msgspec.Struct, frozen=True, gc=False):
    seq: int
    body: bytes


class Reply(msgspec.Struct, frozen=True, gc=False):
    seq: int
    id: int
    body: bytes


class Failure(msgspec.Struct, frozen=True, gc=False):
    """An E frame; `id` 0 means that a send failed, not an ask."""

    seq: int
    id: int
    error: ErrorBody


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """A kind of a later version: a client ignores it."""

    kind: bytes


ClientFrame = Hello | Send | Ask | Ack | Ping | Pong | Bye
ServerFrame = Welcome | Message | Reply | Failure | Ping | Pong | CloseBody | Unknown

_hello_decoder = msgspec.json.Decoder(Hello)
_welcome_decoder = msgspec.json.Decoder(Welcome)
_error_decoder = msgspec.json.Decoder(ErrorBody)
_close_decoder = msgspec.json.Decoder(CloseBody)
_json_encode = msgspec.json.Encoder().encode


# --- encoding -------------------------------------------------------------------------------------


def prefixed(frame: bytes) -> bytes:
    """The frame behind its length, as TCP carries it."""
    return _LENGTH.pack(len(frame)) + frame


def hello(record: Hello) -> bytes:
    return HELLO + _json_encode(record)


def send(body: bytes) -> bytes:
    return SEND + body


def ask(number: int, body: bytes) -> bytes:
    return _KIND_NUMBER.pack(ASK, number) + body


def ack(seq: int) -> bytes:
    return _KIND_NUMBER.pack(ACK, seq)


def ping(payload: bytes = b"") -> bytes:
    return PING + payload


def pong(payload: bytes) -> bytes:
    return PONG + payload


def bye() -> bytes:
    return BYE


def welcome(record: Welcome) -> bytes:
    return WELCOME + _json_encode(record)


def message(seq: int, body: bytes) -> bytes:
    return _KIND_NUMBER.pack(MESSAGE, seq) + body


def reply(seq: int, number: int, body: bytes) -> bytes:
    return _KIND_NUMBERS.pack(REPLY, seq, number) + body


def error(seq: int, number: int, body: ErrorBody) -> bytes:
    return _KIND_NUMBERS.pack(ERROR, seq, number) + _json_encode(body)


def close(code: int, reason: str) -> bytes:
    return CLOSE + _json_encode(CloseBody(code, CLOSE_NAMES.get(code, ""), reason))


# --- splitting ------------------------------------------------------------------------------------


class Splitter:
    """Cuts a TCP byte stream into frames; holds at most one unfinished frame.

    Args:
        limit: longest frame in bytes; a longer one is refused as soon as its length is read.
    """

    __slots__ = ("_held", "limit")

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self.limit = limit
        self._held = b""

    @property
    def held(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that `data` completes, in order.

        Raises:
            FrameError: a length of 0 (4400) or above the limit (4413). Frames before it in the same call are
                lost with it: the connection has to end.
        """
        if self._held:
            data = self._held + data
        frames: list[bytes] = []
        position, end = 0, len(data)
        while end - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if length == 0 or length > self.limit:
                raise self._refused(length, data[position : position + 4])
            if end - position - 4 < length:
                break
            frames.append(data[position + 4 : position + 4 + length])
            position += 4 + length
        self._held = data[position:]
        return frames

    def _refused(self, length: int, head: bytes) -> FrameError:
        if length == 0:
            return FrameError(4400, "a frame of length 0: the shortest frame is its kind, 1 byte")
        if head in _FOREIGN:
            return FrameError(
                4400, f"the bytes {head!r} begin {_FOREIGN[head]}, not a frame length; see docs/protocol.md"
            )
        if head[:2] == b"\x16\x03":
            return FrameError(4400, "a TLS hello where plain frames are spoken: use the tls:// address")
        return FrameError(4413, f"a frame of {length} bytes: the limit is {self.limit}")


_FOREIGN = {
    b"GET ": "an HTTP request (use the ws:// address)",
    b"POST": "an HTTP request (use the ws:// address)",
    b"HEAD": "an HTTP request (use the ws:// address)",
    b"PUT ": "an HTTP request (use the ws:// address)",
    b"OPTI": "an HTTP request (use the ws:// address)",
    b"HTTP": "an HTTP answer (this is a web server: use ws://)",
    b"SSH-": "an SSH greeting",
}


# --- parsing --------------------------------------------------------------------------------------


def parse_client(frame: bytes) -> ClientFrame:
    """What a client sent, as a record.

    Raises:
        FrameError: 4400 with what is wrong; 4413 for a hello above its limit.
    """
    kind = frame[:1]
    if kind == SEND:
        return Send(frame[1:])
    if kind == ASK:
        number = _number(frame, "an ask")
        if number == 0:
            raise FrameError(4400, "an ask with id 0: ids start at 1")
        return Ask(number, frame[_ONE_NUMBER:])
    if kind == ACK:
        return Ack(_number(frame, "an acknowledgement", exact=True))
    if kind == PING:
        return Ping(_ping_payload(frame))
    if kind == PONG:
        return Pong(_ping_payload(frame))
    if kind == BYE:
        return Bye()
    if kind == HELLO:
        if len(frame) - 1 > HELLO_LIMIT:
            raise FrameError(4413, f"a hello of {len(frame) - 1} bytes: the limit is {HELLO_LIMIT}")
        return _decoded(_hello_decoder, frame, "hello")
    raise FrameError(4400, f"unknown frame kind {kind!r}: a client sends H, S, A, K, P, O or B")


def parse_server(frame: bytes) -> ServerFrame:
    """What a server sent, as a record.

    Raises:
        FrameError: 4400 with what is wrong.
    """
    kind = frame[:1]
    if kind == MESSAGE:
        return Message(_number(frame, "a message"), frame[_ONE_NUMBER:])
    if kind == REPLY:
        return Reply(*_numbers(frame, "a reply"), frame[_TWO_NUMBERS:])
    if kind == ERROR:
        seq, number = _numbers(frame, "an error")
        return Failure(seq, number, _decoded(_error_decoder, frame, "error", _TWO_NUMBERS))
    if kind == PING:
        return Ping(_ping_payload(frame))
    if kind == PONG:
        return Pong(_ping_payload(frame))
    if kind == WELCOME:
        return _decoded(_welcome_decoder, frame, "welcome")
    if kind == CLOSE:
        return _decoded(_close_decoder, frame, "close")
    if not kind:
        raise FrameError(4400, "an empty frame")
    return Unknown(kind)


def _number(frame: bytes, what: str, exact: bool = False) -> int:
    if len(frame) < _ONE_NUMBER or (exact and len(frame) != _ONE_NUMBER):
        raise FrameError(4400, f"{what} of {len(frame)} bytes: the kind and 4 bytes of number are {_ONE_NUMBER}")
    return int.from_bytes(frame[1:_ONE_NUMBER], "big")


def _numbers(frame: bytes, what: str) -> tuple[int, int]:
    if len(frame) < _TWO_NUMBERS:
        raise FrameError(4400, f"{what} of {len(frame)} bytes: the kind, seq and id are {_TWO_NUMBERS}")
    return int.from_bytes(frame[1:_ONE_NUMBER], "big"), int.from_bytes(frame[_ONE_NUMBER:_TWO_NUMBERS], "big")


def _ping_payload(frame: bytes) -> bytes:
    if len(frame) - 1 > PING_LIMIT:
        raise FrameError(4400, f"a ping or pong of {len(frame) - 1} bytes: the limit is {PING_LIMIT}")
    return frame[1:]


def _decoded(decoder: msgspec.json.Decoder[T], frame: bytes, what: str, start: int = 1) -> T:
    try:
        return decoder.decode(frame[start:])
    except UNREADABLE as error:
        raise FrameError(4400, f"the {what} is not what docs/protocol.md says: {unreadable(error)}") from None
