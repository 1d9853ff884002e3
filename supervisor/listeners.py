"""Listening sockets: made here, before privileges are dropped, and kept here, so that they outlive every acceptor."""

import difflib
import errno
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from shardpool.boot import Listener
from shardpool.exit_codes import ExitCode
from shardpool.runtime_dir import RunDir
from shardpool.supervisor.refusal import Refusal

TRANSPORTS = ("tcp", "ws", "tls", "wss")
_EXAMPLE = "give TRANSPORT://HOST:PORT, as in tcp://127.0.0.1:7000 or ws://[::1]:7001"
# The kernel cuts it to net.core.somaxconn.
_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """One address to listen on, as given."""

    transport: str
    host: str
    port: int  # 0: any free
    given: str


def parse_address(text: str) -> Address:
    """Read one --bind; raises Refusal saying what is wrong with it and how it is written."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Refusal(f"bind {text!r}: {error}", _EXAMPLE, ExitCode.CONFIG) from None
    if parts.scheme not in TRANSPORTS:
        near = difflib.get_close_matches(parts.scheme, TRANSPORTS, 1)
        hint = f"did you mean {near[0]}://?" if near else f"one of {', '.join(TRANSPORTS)}; {_EXAMPLE}"
        raise Refusal(f"bind {text!r}: {parts.scheme or 'nothing'} is no transport", hint, ExitCode.CONFIG)
    if not parts.hostname:
        raise Refusal(f"bind {text!r}: the host is missing (0.0.0.0 or [::] for all)", _EXAMPLE, ExitCode.CONFIG)
    if port is None:
        raise Refusal(f"bind {text!r}: the port is missing (0: any free one)", _EXAMPLE, ExitCode.CONFIG)
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise Refusal(f"bind {text!r}: something else than host and port", _EXAMPLE, ExitCode.CONFIG)
    return Address(parts.scheme, parts.hostname, port, text)


def open_listeners(addresses: Sequence[Address]) -> list[tuple[socket.socket, Listener]]:
    """Bind and listen on all addresses.

    Raises: Refusal (PORT) naming the address that cannot be bound; the others are closed again.
    """
    opened: list[tuple[socket.socket, Listener]] = []
    try:
        for address in addresses:
            opened.append(_open(address))
    except BaseException:
        for sock, _ in opened:
            sock.close()
        raise
    return opened


def open_local(run_dir: RunDir) -> tuple[socket.socket, Listener]:
    """The Unix socket of trusted programs; only this user can reach it (directory 0700, socket 0600)."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(run_dir.local))
        os.chmod(run_dir.local, 0o600)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise Refusal(
            f"cannot listen on {run_dir.local}: {error.strerror}", "give another --run-dir", ExitCode.PORT
        ) from None
    return sock, Listener(sock.fileno(), "local", f"unix:{run_dir.local}")


def check_key_file(path: str) -> None:
    """Refuse a private key that everybody on the host can read; raises Refusal."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        raise Refusal(f"tls_key {path}: {error.strerror}", "give the path of a PEM file", ExitCode.CONFIG) from None
    if mode & 0o037:
        raise Refusal(
            f"tls_key {path} can be read or changed by others (mode {mode:04o})", f"chmod 600 {path}", ExitCode.CONFIG
        )


def _open(address: Address) -> tuple[socket.socket, Listener]:
    family, endpoint = _resolve(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A pool that was stopped a moment ago left connections in TIME_WAIT; they do not take the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Accepted sockets inherit it: no system call per connection.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(endpoint)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise Refusal(
            f"cannot listen on {address.given}: {error.strerror}", _remedy(error.errno), ExitCode.PORT
        ) from None
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return sock, Listener(sock.fileno(), address.transport, f"{address.transport}://{shown}:{port}")


def _resolve(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refusal(f"cannot listen on {address.given}: {reason}", "check the host name", ExitCode.PORT) from None
    # One address per --bind; "localhost" means 127.0.0.1 first, as most clients try it.
    family, _, _, _, endpoint = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(endpoint[0]), int(endpoint[1]))


def _remedy(code: int | None) -> str:
    match code:
        case errno.EADDRINUSE:
            return "stop the program that uses the port (ss -ltnp shows it), or choose another port (0: any free one)"
        case errno.EACCES | errno.EPERM:
            return "ports below 1024 need root (start as root with --user NAME) or CAP_NET_BIND_SERVICE"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address (ip addr shows those it has; 0.0.0.0 is all)"
        case _:
            return "choose another address"
