"""What a client reads last: the close code and a sentence, in the form its protocol has for that."""

import struct

from shardpool import wire
from shardpool.workers.doors import Framing

REASON_BYTES_MAX = 123  # of a WebSocket close frame: 125 less the code


def closing(framing: Framing, envelope: bool, code: int, reason: str) -> bytes:
    """The bytes before the end of a connection.

    Args: framing: how far the connection had come. envelope: False in bare mode, which has no C on TCP.
    """
    match framing:
        case Framing.WEBSOCKET:
            return close_frame(code, reason)
        case Framing.TCP:
            return wire.prefixed(wire.close(code, reason)) if envelope else b""
        case Framing.RAW:
            return http_refusal(code, reason)


def close_frame(code: int, reason: str) -> bytes:
    """A WebSocket close frame; the reason is cut at a character's end."""
    text = reason.encode()[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
    return struct.pack(">BBH", 0x88, 2 + len(text), code) + text


_STATUS = {
    1001: "503 Service Unavailable",
    4408: "408 Request Timeout",
    4429: "429 Too Many Requests",
    4500: "500 Internal Server Error",
}


def http_refusal(code: int, reason: str) -> bytes:
    """The HTTP answer of a connection that ends before it was a WebSocket."""
    status = _STATUS.get(code, "503 Service Unavailable" if code >= 4500 else "400 Bad Request")
    body = reason.encode() + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
