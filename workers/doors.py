"""Numbers that the acceptor's engine (shardpool._core) shares with its Python half; pinned by a test."""

from enum import IntEnum


class Event(IntEnum):
    """What the engine reports, as (kind, client, a, b, payload)."""

    OPENED = 1  # a: listener; payload: the peer's address
    BYTES = 2  # a: 1 encrypted; payload: bytes of a handshake or of HTTP, or ciphertext
    HELLO = 3  # payload: what H carried
    BOUND = 4  # a: session
    FRAME = 5  # payload: a WebSocket frame that the library must judge
    PLAIN = 6  # payload: to be encrypted
    ENDING = 7  # a: close code; b: foreign | framing << 4 | transport << 8; payload: reason
    CLOSED = 8  # a: close code
    READY = 9  # client: the watched descriptor
    STARVED = 10  # a: errno
    CORRUPT = 11  # a: process; b: stream
    RECORD = 12  # client: record kind; a, b, payload: the record's
    DRAINED = 13


class Transport(IntEnum):
    """How a listener's clients come in; names as in the boot record."""

    TCP = 0
    WS = 1
    TLS = 2
    WSS = 3
    LOCAL = 4

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return self in (Transport.TLS, Transport.WSS)

    @property
    def http(self) -> bool:
        """Whether HTTP comes first."""
        return self in (Transport.WS, Transport.WSS)


class Framing(IntEnum):
    """What a connection's bytes are divided into."""

    TCP = 0
    WEBSOCKET = 1
    RAW = 2


class SlowClient(IntEnum):
    """What happens when outbound_bytes wait for one connection."""

    WAIT = 0
    DROP_OLDEST = 1
    CLOSE = 2

    @classmethod
    def of(cls, name: str) -> "SlowClient":
        """Args: name: as in the settings table."""
        return cls[name.replace("-", "_").upper()]
