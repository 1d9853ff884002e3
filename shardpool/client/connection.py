"""Connecting: an address, a handshake in time, a client."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from shardpool import wire
from shardpool.client.address import Address, parse_address
from shardpool.client.client import Client
from shardpool.client.lifeline import Lifeline
from shardpool.client.settings import ClientSettings, Reconnect
from shardpool.client.transports import StreamTransport, Transport, WebSocketTransport
from shardpool.errors import DeadlineExceeded, InvalidOperation, Unavailable


class Dialer:
    """Opens connections to one address.

    Args: ssl: context for encrypted ones; None: the system's certificates.
    """

    def __init__(self, address: Address, ssl: tls.SSLContext | None) -> None:
        self._address = address
        self._ssl = ssl

    async def __call__(self, line: Lifeline) -> None:
        """Give the line a transport and connect it. Raises: Unavailable: nobody answers there."""
        address = self._address
        transport = WebSocketTransport(line, address) if address.websocket else StreamTransport(line)
        line.attach(transport)
        try:
            await self._open(transport)
        except OSError as error:
            raise Unavailable(
                f"cannot connect to {address.text}: {error.strerror or error}; does the server run there?"
            ) from error

    async def _open(self, transport: Transport) -> None:
        loop = asyncio.get_running_loop()
        address = self._address
        if address.transport == "unix":
            await loop.create_unix_connection(lambda: transport, address.target)
        elif address.encrypted:
            context = self._ssl or tls.create_default_context()
            await loop.create_connection(
                lambda: transport, address.host, address.port, ssl=context, server_hostname=address.host
            )
        else:
            await loop.create_connection(lambda: transport, address.host, address.port)


class Connecting:
    """What `connect` returns: await it for a client, or `async with` it to have it closed.

    Args: line: makes the client's line, on the event loop.
    """

    def __init__(
        self, address: Address, line: Callable[[], Lifeline], settings: ClientSettings, timeout: float
    ) -> None:
        self._address = address
        self._line = line
        self._settings = settings
        self._timeout = timeout
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        line = self._line()
        try:
            async with asyncio.timeout(self._timeout):
                await line.connect()
        except TimeoutError:
            line.give_up()
            raise DeadlineExceeded(
                f"{self._address.text} did not bind a session within {self._timeout:g} s: is it a shardpool server?"
            ) from None
        except BaseException:
            line.give_up()
            raise
        return Client(line, self._settings)


def connect(
    address: str,
    *,
    auth: Any = None,
    codec: str | None = None,
    envelope: bool = True,
    resume: wire.Resume | None = None,
    reconnect: Reconnect = True,
    timeout: float = 10.0,
    ssl: tls.SSLContext | None = None,
    settings: ClientSettings | None = None,
) -> Connecting:
    """Connect to a server: `async with connect("tcp://127.0.0.1:7000") as client:` or `client = await connect(...)`.

    Args:
        address: tcp://host:port, tls://host:port, ws://host:port or wss://host:port.
        auth: any JSON value, for the app's `on_connect`.
        codec: refuse an app of another codec; default: follow the server's.
        envelope: False for an app made with `envelope=False`, see "Bare mode" in docs/protocol.md.
        resume: `resume_point` of a client of this or another program; the session goes on here.
        reconnect: True: a lost connection is replaced and the session resumed, within the server's resume_window; after
            that, or when the server refuses, the session is Closed. "anew": then a new session begins (`on_reconnect`
            tells, open asks fail), however long it takes. False: the first lost connection is the end.
        timeout: seconds until the session is bound.
        ssl: context for tls:// and wss://; default: the system's certificates.
        settings: bounds of the client.
    Raises: InvalidOperation: an address that is none; Unavailable: nobody answers there; DeadlineExceeded; Closed: the
        server refused, with its code and reason.
    """
    parsed = parse_address(address)
    if not envelope and (auth is not None or resume is not None or codec not in (None, "raw")):
        raise InvalidOperation('envelope=False goes without auth and resume, and with codec="raw": there is no hello')
    if timeout <= 0:
        raise InvalidOperation(f"timeout={timeout!r}: give seconds above 0")
    hello = wire.Hello(wire.VERSION, auth, resume) if envelope else None
    bounds = settings or ClientSettings()
    dialer = Dialer(parsed, ssl)
    return Connecting(parsed, lambda: Lifeline(hello, codec, bounds, envelope and reconnect, dialer), bounds, timeout)


def connect_local(path: str, *, timeout: float, settings: ClientSettings) -> Connecting:
    """Connect to a server's local socket. Args: path: of `local.sock`."""
    address = Address("unix", "", 0, path, f"unix:{path}")
    hello = wire.Hello(wire.VERSION, local=True)
    dialer = Dialer(address, None)
    return Connecting(address, lambda: Lifeline(hello, "msgpack", settings, False, dialer), settings, timeout)
