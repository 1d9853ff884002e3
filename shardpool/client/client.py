"""A session with a shardpool server, as a program uses it; connections come and go beneath it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self, TypeVar, overload

import msgspec

from shardpool import wire
from shardpool.client.bodies import Message
from shardpool.client.errors import Closed
from shardpool.client.lifeline import Lifeline
from shardpool.client.pushes import Handler
from shardpool.client.settings import ClientSettings, Statistics
from shardpool.codecs import Request, reply_type
from shardpool.errors import DeadlineExceeded, InvalidOperation

T = TypeVar("T")
H = TypeVar("H", bound=Handler)
R = TypeVar("R")


class Client:
    """A bound session; made by `connect`. Its methods are for the event loop it was made on.

    Iterating over it gives the pushed messages that have no handler, until the session ends: a close with 1000
    ends the loop, anything else raises Closed. A lost connection is no end where the client may reconnect.
    """

    def __init__(self, line: Lifeline, settings: ClientSettings) -> None:
        self._line = line
        self._settings = settings

    @property
    def welcome(self) -> wire.Welcome:
        """What the server said last. Raises: InvalidOperation: a bare server says nothing."""
        if self._line.welcome is None:
            raise InvalidOperation("a bare server (envelope=False) sends no welcome")
        return self._line.welcome

    @property
    def closed(self) -> Closed | None:
        """Why the session is over, or None while it is not."""
        return self._line.closed

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; without one, `send` and `ask` wait for the next."""
        return self._line.up.is_set() and self._line.closed is None

    @property
    def resume_point(self) -> wire.Resume:
        """What `connect(resume=...)` needs to go on with this session. The token in it is a secret."""
        return wire.Resume(self.welcome.session, self.welcome.token, self._line.numbers.seen)

    async def send(self, message: Message) -> None:
        """Send a message; returns once it is on its way; waits for a server that reads nothing, or a connection.

        What was on its way when the connection broke may get lost: an ask would tell.

        Args: message: tagged Struct, dict with "type", or the name of a message without fields; bytes for raw.
        Raises: Closed; TypeMismatch; CapacityExceeded: longer than the server's frames.
        """
        body = self._line.bodies.encode(message)
        await self._line.write(body if self._line.hello is None else wire.send(body))

    @overload
    async def ask(self, message: Request[R], *, timeout: float | None = None) -> R: ...
    @overload
    async def ask(self, message: Message, *, timeout: float | None = None, reply: type[T]) -> T: ...
    @overload
    async def ask(self, message: Message, *, timeout: float | None = None) -> Any: ...
    async def ask(self, message: Any, *, timeout: float | None = None, reply: Any = None) -> Any:
        """Send a message and wait for its reply.

        Args:
            message: as for send.
            timeout: seconds for all of it; default: the settings' ask_timeout.
            reply: type of the reply; default: what `Request[R]` says, else plain values.
        Raises: the server's error (a ServerError and one of the family); DeadlineExceeded, a late reply is dropped and
            counted; Closed; CapacityExceeded: too many open asks; ProtocolError: the reply has another type.
        """
        if self._line.hello is None:
            raise InvalidOperation("a bare server (envelope=False) knows no asks: send, and read what comes")
        timeout = self._settings.ask_timeout if timeout is None else timeout
        if self._line.closed is not None:
            raise self._line.again()
        number, future = self._line.asks.begin()
        try:
            frame = wire.ask(number, self._line.bodies.encode(message))
            async with asyncio.timeout(timeout):
                await self._line.write(frame)
                body = await future
        except TimeoutError:
            raise DeadlineExceeded(f"no reply to {message!r:.100} within {timeout:g} s{self._line.excuse()}") from None
        finally:
            self._line.asks.give_up(number)
        return self._line.bodies.decode(body, reply or reply_type(type(message)))

    @overload
    def on(self, key: type[msgspec.Struct] | str | None, handler: H) -> H: ...
    @overload
    def on(self, key: type[msgspec.Struct] | str | None) -> Callable[[H], H]: ...
    def on(self, key: Any, handler: Any = None) -> Any:
        """Register a handler for pushed messages; also as a decorator.

        Args:
            key: a tagged Struct (the handler gets one), a message's name, or None for all that have no other.
            handler: plain, called at once, or async, then one at a time in order; what it raises is logged. An async
                handler that asks must be quicker than the pushes: a full inbox stops the replies, too.
        """
        if handler is None:

            def register(handler: H) -> H:
                self._line.pushes.on(key, handler)
                return handler

            return register
        self._line.pushes.on(key, handler)
        return handler

    def on_send_failed(self, handler: Callable[[Exception], None]) -> None:
        """Register what gets the server's errors for sends; default: a warning in the log."""
        self._line.asks.on_send_failed = handler

    def on_reconnect(self, handler: Callable[[wire.Welcome], None]) -> None:
        """Register what is called after each return; `welcome.resumed` False: with a new session (reconnect="anew")."""
        self._line.on_reconnect = handler

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._line.inbox.get()
        except Closed as closed:
            if closed.close_code == 1000:
                raise StopAsyncIteration from None
            raise

    def statistics(self) -> Statistics:
        """A snapshot of this client's counts."""
        return Statistics(
            **self._line.counts,
            late=self._line.asks.late,
            dropped=self._line.inbox.dropped,
            handler_failures=self._line.pushes.failures,
            open_asks=len(self._line.asks),
        )

    async def close(self) -> None:
        """End the session: say bye, wait a moment for the server's answer, close the socket. Never raises."""
        await self._line.close()

    def transport_info(self, name: str) -> Any:
        """asyncio's `get_extra_info` of the connection: "peername", "ssl_object", "socket" …"""
        return self._line.transport.info(name)
