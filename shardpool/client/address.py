"""Server addresses as people write them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from shardpool.errors import InvalidOperation

TRANSPORTS = ("tcp", "tls", "ws", "wss", "unix")
_EXAMPLES = "write tcp://127.0.0.1:7000, ws://127.0.0.1:7001, tls://host:port or wss://host:port"


@dataclass(frozen=True, slots=True)
class Address:
    """One address, checked.

    `transport` is one of TRANSPORTS; `target` is the request path of a WebSocket address, or the path of a Unix socket.
    """

    transport: str
    host: str
    port: int
    target: str
    text: str

    @property
    def encrypted(self) -> bool:
        return self.transport in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        return self.transport in ("ws", "wss")

    @property
    def authority(self) -> str:
        """Host and port for a `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read an address.

    Raises: InvalidOperation: saying what is missing and how one is written.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidOperation(f"address {text!r}: {error}; {_EXAMPLES}") from None
    if parts.scheme not in TRANSPORTS:
        raise InvalidOperation(f"address {text!r}: unknown transport {parts.scheme!r}; {_EXAMPLES}")
    if parts.scheme == "unix":
        return Address("unix", "", 0, parts.path, text)
    if not parts.hostname:
        raise InvalidOperation(f"address {text!r}: the host is missing; {_EXAMPLES}")
    if parts.scheme in ("ws", "wss"):
        port = port or (443 if parts.scheme == "wss" else 80)
    if not port:
        raise InvalidOperation(f"address {text!r}: the port is missing; {_EXAMPLES}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(parts.scheme, parts.hostname, port, target, text)
