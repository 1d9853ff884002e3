"""One connection to a shardpool server, as a program uses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Self, TypeVar, overload

import msgspec

from shardpool import wire
from shardpool.client.bodies import Bodies, Message
from shardpool.client.errors import Closed, server_error
from shardpool.client.pulse import Pulse
from shardpool.client.pushes import Handler, Inbox, Pushes
from shardpool.client.transports import Transport
from shardpool.codecs import Request, reply_type
from shardpool.errors import CapacityExceeded, DeadlineExceeded, InvalidOperation, NotConfigured, ProtocolError

logger = logging.getLogger("shardpool.client")

T = TypeVar("T")
H = TypeVar("H", bound=Handler)
R = TypeVar("R")

_CLOSE_PATIENCE = 2.0


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a client. `heartbeat` None: as the server says; 0: none."""

    ask_timeout: float = 30.0
    open_asks: int = 4096
    inbox: int = 1024
    heartbeat: float | None = None


class Statistics(msgspec.Struct, frozen=True):
    """Counts of one client since it connected."""

    sent: int
    messages: int
    replies: int
    errors: int
    late: int  # replies whose ask had given up
    dropped: int  # pushes nobody had asked for
    handler_failures: int
    open_asks: int


class Client:
    """A bound session; made by `connect`. Its methods are for the event loop it was made on.

    Iterating over it gives the pushed messages that have no handler, until the connection ends: a close with 1000
    ends the loop, anything else raises Closed.
    """

    def __init__(self, hello: wire.Hello | None, codec: str | None, settings: ClientSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._hello = hello
        self._expected_codec = codec
        self._settings = settings
        self._transport: Transport
        self._bound: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._closed: Closed | None = None
        self._asks: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0
        self._seen = 0 if hello is None or hello.resume is None else hello.resume.received
        self._unacknowledged = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._welcome: wire.Welcome | None = None
        self._bodies = Bodies("raw")
        self._inbox = Inbox(settings.inbox, self._stop_reading, self._go_on_reading)
        self._handler_queue = Inbox(settings.inbox, self._stop_reading, self._go_on_reading, wanted=True)
        self._pushes = Pushes(self._bodies, self._inbox, self._handler_queue)
        self._stops = 0
        self._pulse = Pulse(self._loop, self._beat, self._half_open)
        self._on_send_failed: Callable[[Exception], None] | None = None
        self._counts = dict.fromkeys(("sent", "messages", "replies", "errors", "late"), 0)

    # --- for programs ---

    @property
    def welcome(self) -> wire.Welcome:
        """What the server said when the session was bound. Raises: InvalidOperation: a bare server says nothing."""
        if self._welcome is None:
            raise InvalidOperation("a bare server (envelope=False) sends no welcome")
        return self._welcome

    @property
    def closed(self) -> Closed | None:
        """Why the connection is over, or None while it is up."""
        return self._closed

    @property
    def resume_point(self) -> wire.Resume:
        """What `connect(resume=...)` needs to go on with this session. The token in it is a secret."""
        return wire.Resume(self.welcome.session, self.welcome.token, self._seen)

    async def send(self, message: Message) -> None:
        """Send a message; returns once it is on its way, and waits while the server does not read.

        Args: message: tagged Struct, dict with "type", or the name of a message without fields; bytes for raw.
        Raises: Closed; TypeMismatch; CapacityExceeded: longer than the server's frames.
        """
        body = self._bodies.encode(message)
        await self._write(body if self._hello is None else wire.send(body))

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
        if self._hello is None:
            raise InvalidOperation("a bare server (envelope=False) knows no asks: send, and read what comes")
        timeout = self._settings.ask_timeout if timeout is None else timeout
        number = self._next_id()
        future: asyncio.Future[bytes] = self._loop.create_future()
        frame = wire.ask(number, self._bodies.encode(message))
        self._asks[number] = future
        try:
            async with asyncio.timeout(timeout):
                await self._write(frame)
                body = await future
        except TimeoutError:
            why = "; this client's inbox is full, so nothing is read: read its messages faster" if self._stops else ""
            raise DeadlineExceeded(f"no reply to {message!r:.100} within {timeout:g} s{why}") from None
        finally:
            self._asks.pop(number, None)
            future.cancel()
        return self._bodies.decode(body, reply or reply_type(type(message)))

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
                self._pushes.on(key, handler)
                return handler

            return register
        self._pushes.on(key, handler)
        return handler

    def on_send_failed(self, handler: Callable[[Exception], None]) -> None:
        """Register what gets the server's errors for sends; default: a warning in the log."""
        self._on_send_failed = handler

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inbox.get()
        except Closed as closed:
            if closed.close_code == 1000:
                raise StopAsyncIteration from None
            raise

    def statistics(self) -> Statistics:
        """A snapshot of this client's counts."""
        return Statistics(
            **self._counts,
            dropped=self._inbox.dropped,
            handler_failures=self._pushes.failures,
            open_asks=len(self._asks),
        )

    async def close(self) -> None:
        """End the session: say bye, wait a moment for the server's answer, close the socket. Never raises."""
        if self._closed is None:
            if self._welcome is not None:
                self._transport.say_bye()
            else:
                self._transport.close()
            self.lost(1000, "closed by this program")
            # Read on until the server's end: closing over unread bytes resets the connection, and the bye with it.
            self._transport.resume_reading()
        try:
            async with asyncio.timeout(_CLOSE_PATIENCE):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    def transport_info(self, name: str) -> Any:
        """asyncio's `get_extra_info` of the connection: "peername", "ssl_object", "socket" …"""
        return self._transport.info(name)

    # --- for the transport ---

    def attach(self, transport: Transport) -> None:
        """Called once, before the connection is made."""
        self._transport = transport

    async def bound(self) -> None:
        """Wait for the welcome (bare: for the connection). Raises: Closed."""
        await self._bound

    def opened(self) -> None:
        """Receiver: say hello."""
        if self._hello is not None:
            self._transport.write(wire.hello(self._hello))
        elif not self._bound.done():
            self._bound.set_result(None)

    def touched(self) -> None:
        """Receiver: the server lives."""
        self._pulse.touch()

    def received(self, frame: bytes) -> None:
        """Receiver: act on a frame; what breaks the protocol ends the connection."""
        if self._closed is not None:
            return
        try:
            if self._hello is None:
                self._counts["messages"] += 1
                self._pushes.take(frame)
            else:
                self._act(wire.parse_server(frame))
        except wire.FrameError as error:
            self._give_up(error.code, f"the server sent {error.reason}")
        except (ProtocolError, NotConfigured) as error:
            self._give_up(4400, str(error))

    def lost(self, code: int, reason: str) -> None:
        """Receiver: the connection is over; the first reason counts."""
        if self._closed is not None:
            self._gone.set()
            return
        closed = self._closed = Closed(code, reason)
        self._pulse.stop()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        for future in self._asks.values():
            if not future.done():
                future.set_exception(self._again())
                future.exception()  # an ask that is still writing never looks at it: no warning about that
        self._inbox.end(closed)
        self._handler_queue.end(closed)
        if not self._bound.done():
            self._bound.set_exception(closed)
            self._bound.exception()
        if code == 1006:
            self._gone.set()

    # --- inside ---

    def _act(self, frame: wire.ServerFrame) -> None:
        match frame:
            case wire.Message(seq=seq, body=body):
                if self._numbered(seq):
                    self._counts["messages"] += 1
                    self._pushes.take(body)
            case wire.Reply(seq=seq, id=number, body=body):
                if self._numbered(seq):
                    self._counts["replies"] += 1
                    self._complete(number, body, None)
            case wire.Failure(seq=seq, id=number, error=body):
                if self._numbered(seq):
                    self._counts["errors"] += 1
                    self._complete(number, b"", server_error(body))
            case wire.Ping(payload=payload):
                self._transport.write(wire.pong(payload))
            case wire.CloseBody(code=code, reason=reason):
                self.lost(code, reason)
                self._transport.close()
            case wire.Welcome():
                self._bind(frame)
            case wire.Pong() | wire.Unknown():
                pass

    def _bind(self, welcome: wire.Welcome) -> None:
        if self._welcome is not None:
            raise wire.FrameError(4400, "a second welcome")
        if welcome.v != wire.VERSION:
            raise wire.FrameError(4400, f"a welcome of version {welcome.v}: this client speaks {wire.VERSION}")
        if self._expected_codec not in (None, welcome.codec):
            raise NotConfigured(
                f"the app {welcome.app!r} speaks {welcome.codec}, not {self._expected_codec}: "
                "leave codec out to follow it"
            )
        self._bodies.switch(welcome.codec)
        self._welcome = welcome
        if not welcome.resumed:
            self._seen = 0
        self._transport.set_limit(welcome.max_frame)
        heartbeat = self._settings.heartbeat
        self._pulse.start(welcome.heartbeat if heartbeat is None else heartbeat)
        if not self._bound.done():
            self._bound.set_result(None)

    def _numbered(self, seq: int) -> bool:
        """Whether the frame is new; also sees to the acknowledgement."""
        if self._welcome is None:
            raise wire.FrameError(4400, "a message before the welcome")
        if self._welcome.local:
            return True
        expected = self._seen % wire.NUMBER_LIMIT + 1
        if seq != expected:
            if (self._seen - seq) & wire.NUMBER_LIMIT < 1 << 31:
                return False
            raise wire.FrameError(4400, f"number {seq} where {expected} was due")
        self._seen = seq
        self._unacknowledged += 1
        if self._unacknowledged >= wire.ACK_FRAMES:
            self._acknowledge()
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(wire.ACK_SECONDS / 2, self._acknowledge)
        return True

    def _acknowledge(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._unacknowledged = 0
        if self._closed is None:
            self._transport.write(wire.ack(self._seen))

    def _complete(self, number: int, body: bytes, error: Exception | None) -> None:
        if number == 0 and error is not None:
            if self._on_send_failed is not None:
                self._on_send_failed(error)
            else:
                logger.warning("a message that was sent failed at the server: %s", error)
            return
        future = self._asks.get(number)
        if future is None or future.done():
            self._counts["late"] += 1
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(body)

    def _next_id(self) -> int:
        if self._closed is not None:
            raise self._again()
        if len(self._asks) >= self._settings.open_asks:
            raise CapacityExceeded(
                f"{len(self._asks)} asks are open on this client: wait for some, or raise open_asks", code="asks_full"
            )
        while True:
            self._last_id = self._last_id % wire.NUMBER_LIMIT + 1
            if self._last_id not in self._asks:
                return self._last_id

    async def _write(self, frame: bytes) -> None:
        if self._closed is not None:
            raise self._again()
        if len(frame) > self._transport.limit:
            raise CapacityExceeded(
                f"a frame of {len(frame)} bytes: the server takes {self._transport.limit} at most", code="too_big"
            )
        self._counts["sent"] += 1
        self._transport.write(frame)
        if not self._transport.writable:
            await self._transport.drain()
            if self._closed is not None:
                raise self._again()

    def _again(self) -> Closed:
        # A fresh exception per caller: a shared one would collect everybody's traceback.
        assert self._closed is not None
        return Closed(self._closed.close_code, self._closed.reason)

    def _give_up(self, code: int, reason: str) -> None:
        self.lost(code, reason)
        self._transport.abort()

    def _beat(self) -> None:
        self._transport.write(wire.ping())

    def _half_open(self, silence: float) -> None:
        self._give_up(1006, f"half-open: nothing came from the server for {silence:.1f} s")

    def _stop_reading(self) -> None:
        self._stops += 1
        self._pulse.hold()
        self._transport.pause_reading()

    def _go_on_reading(self) -> None:
        self._stops -= 1
        if self._stops == 0:
            self._pulse.go_on()
            self._transport.resume_reading()
