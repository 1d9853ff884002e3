"""What keeps a session with a server: one connection after the other, and all that outlives each of them.

Client (programs) ─▶ Lifeline ─▶ Transport      one at a time
                     ├ Asks, Numbers, Pushes    of the session
                     └ Reconnection             when the connection is lost
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shardpool import wire
from shardpool.client.asks import Asks
from shardpool.client.bodies import Bodies
from shardpool.client.errors import Closed, server_error
from shardpool.client.numbering import Numbers
from shardpool.client.outgoing import Outgoing
from shardpool.client.pulse import Pulse
from shardpool.client.pushes import Inbox, Pushes
from shardpool.client.reconnection import Reconnection
from shardpool.client.settings import ClientSettings, Reconnect
from shardpool.client.transports import Transport
from shardpool.errors import CapacityExceeded, NotConfigured, ProtocolError

_CLOSE_PATIENCE = 2.0


class Lifeline:
    """A session in the making, bound, on its way back, or over.

    Args:
        codec: refuse an app of another one; None: follow the server's.
        dial: gives this a transport (`attach`) and connects it.
    """

    def __init__(
        self,
        hello: wire.Hello | None,
        codec: str | None,
        settings: ClientSettings,
        reconnect: Reconnect,
        dial: Callable[[Lifeline], Awaitable[None]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.hello = hello
        self._expected_codec = codec
        self._settings = settings
        self._dial = dial
        self.transport: Transport
        self._bound: asyncio.Future[None] = self._loop.create_future()
        self.up = asyncio.Event()  # bound, or closed
        self._gone = asyncio.Event()
        self.closed: Closed | None = None
        self.asks = Asks(self._loop, settings.open_asks)
        seen = 0 if hello is None or hello.resume is None else hello.resume.received
        self.numbers = Numbers(self._loop, self._acknowledge, seen)
        self._outgoing = Outgoing(lambda payload: self.transport.write(wire.ping(payload)))
        self.welcome: wire.Welcome | None = None
        self.bodies = Bodies("raw")
        self.inbox = Inbox(settings.inbox, self._stop_reading, self._go_on_reading)
        self._handler_queue = Inbox(settings.inbox, self._stop_reading, self._go_on_reading, wanted=True)
        self.pushes = Pushes(self.bodies, self.inbox, self._handler_queue)
        self.stops = 0
        self._pulse = Pulse(self._loop, self._beat, self._half_open)
        self._order = asyncio.Lock()
        self._held_up = 0  # writers that wait for a connection
        self._reconnection = Reconnection(reconnect, self._attempt, self._lapsed, self._not_back)
        self.on_reconnect: Callable[[wire.Welcome], None] | None = None
        self.counts = dict.fromkeys(("sent", "messages", "replies", "errors", "repeated", "reconnects"), 0)

    def attach(self, transport: Transport) -> None:
        """Called by `dial`, before the connection is made."""
        self.transport = transport

    async def connect(self) -> None:
        """Connect and wait for the welcome (bare: for the connection). Raises: Closed, and what `dial` raises."""
        await self._dial(self)
        await self._bound

    def give_up(self) -> None:
        """Forget a connection that was not made."""
        self._over(Closed(1006, "gave up connecting"))
        self.transport.give_up()

    async def close(self) -> None:
        """Say bye, wait a moment for the server's answer, close the socket."""
        if self.closed is None:
            self._reconnection.stop()
            if self.welcome is None:
                self.transport.close()
            elif self.up.is_set():
                self.transport.say_bye()
            else:
                self._gone.set()  # on its way back: there is nobody to say it to, the session ends with its window
            self._over(Closed(1000, "closed by this program"))
            # Read on until the server's end: closing over unread bytes resets the connection, and the bye with it.
            self.transport.resume_reading()
        try:
            async with asyncio.timeout(_CLOSE_PATIENCE):
                await self._gone.wait()
        except TimeoutError:
            self.transport.abort()

    def opened(self) -> None:
        """Receiver: say hello."""
        if self.hello is not None:
            self.transport.write(wire.hello(self.hello))
        elif not self._bound.done():
            self.up.set()
            self._bound.set_result(None)

    def touched(self) -> None:
        """Receiver: the server lives."""
        self._pulse.touch()

    def received(self, frame: bytes) -> None:
        """Receiver: act on a frame; what breaks the protocol ends the connection."""
        if self.closed is not None:
            return
        try:
            if self.hello is None:
                self.counts["messages"] += 1
                self.pushes.take(frame)
            else:
                self._act(wire.parse_server(frame))
        except wire.FrameError as error:
            self._give_up(error.code, f"the server sent {error.reason}")
        except (ProtocolError, NotConfigured) as error:
            self._give_up(4400, str(error))

    def lost(self, code: int, reason: str) -> None:
        """Receiver: the connection is over; the first reason counts."""
        closed = Closed(code, reason)
        if self.closed is not None:
            self._gone.set()
        elif self.welcome is None:
            self._over(closed)
        elif not self.up.is_set():
            if not self._bound.done():  # an attempt to come back
                self._bound.set_exception(closed)
                self._bound.exception()
        elif self._reconnection.wanted(code, self.welcome.resume_window):
            self.up.clear()
            self._forget_connection()
            self._reconnection.begin(closed, self.welcome.resume_window)
        else:
            self._over(closed)

    # --- inside ---

    def _forget_connection(self) -> None:
        self._pulse.stop()
        self.numbers.pause()
        self.transport.give_up()

    async def _attempt(self, resume: bool) -> None:
        """For Reconnection."""
        assert self.hello is not None
        assert self.welcome is not None
        self._bound = self._loop.create_future()
        self.hello = wire.Hello(
            wire.VERSION,
            self.hello.auth,
            wire.Resume(self.welcome.session, self.welcome.token, self.numbers.seen) if resume else None,
        )
        try:
            await self.connect()
        except BaseException:
            self.transport.give_up()
            raise

    def _lapsed(self, why: Closed) -> None:
        """For Reconnection: a new session is next; nothing of the old one will be answered."""
        self.asks.fail(lambda: Closed(why.close_code, why.reason))

    def _not_back(self, why: Closed) -> None:
        """For Reconnection."""
        self._over(why)
        self._gone.set()

    def _over(self, closed: Closed) -> None:
        """The end, for whoever waits and asks from here on."""
        if self.closed is not None:
            return
        self.closed = closed
        self._pulse.stop()
        self.numbers.pause()
        self.asks.fail(self.again)
        self.inbox.end(closed)
        self._handler_queue.end(closed)
        self.up.set()
        if not self._bound.done():
            self._bound.set_exception(closed)
            self._bound.exception()
        if closed.close_code == 1006:
            self._gone.set()

    def _act(self, frame: wire.ServerFrame) -> None:
        match frame:
            case wire.Message(seq=seq, body=body):
                if self._is_new(seq, len(body)):
                    self.counts["messages"] += 1
                    self.pushes.take(body)
            case wire.Reply(seq=seq, id=number, body=body):
                if self._is_new(seq, len(body)):
                    self.counts["replies"] += 1
                    self.asks.complete(number, body, None)
            case wire.Failure(seq=seq, id=number, error=body):
                if self._is_new(seq, len(body.message)):
                    self.counts["errors"] += 1
                    self.asks.complete(number, b"", server_error(body))
            case wire.Ping(payload=payload):
                self.transport.write(wire.pong(payload))
            case wire.CloseBody(code=code, reason=reason):
                self.lost(code, reason)
                self.transport.close()
            case wire.Welcome():
                self._bind(frame)
            case wire.Pong(payload=payload):
                self._outgoing.pong(payload)
            case wire.Unknown():
                pass

    def _bind(self, welcome: wire.Welcome) -> None:
        if self._bound.done():
            raise wire.FrameError(4400, "a second welcome")
        if welcome.v != wire.VERSION:
            raise wire.FrameError(4400, f"a welcome of version {welcome.v}: this client speaks {wire.VERSION}")
        if self._expected_codec not in (None, welcome.codec):
            raise NotConfigured(
                f"the app {welcome.app!r} speaks {welcome.codec}, not {self._expected_codec}: "
                "leave codec out to follow it"
            )
        back = self.welcome is not None
        if back and not welcome.resumed and self.hello is not None and self.hello.resume is not None:
            self._bound.set_exception(Closed(wire.RESUME_REFUSED, "the server began a new session instead"))
            return
        self.bodies.switch(welcome.codec)
        self.welcome = welcome
        if not welcome.resumed:
            self.numbers.restart()
        if not (back and welcome.resumed):
            self._outgoing.restart(welcome.taken)
        self.transport.set_limit(welcome.max_frame)
        heartbeat = self._settings.heartbeat
        self._pulse.start(welcome.heartbeat if heartbeat is None else heartbeat)
        if self.stops > 0:
            self.transport.pause_reading()
        for frame in self._outgoing.resume(welcome.taken):
            self.transport.write(frame)
        self.up.set()
        self._bound.set_result(None)
        if back:
            self.counts["reconnects"] += 1
            if self.on_reconnect is not None:
                self.on_reconnect(welcome)

    def _is_new(self, number: int, size: int) -> bool:
        """Whether a numbered frame was not seen before; also sees to the acknowledgement."""
        if self.welcome is None or not self.up.is_set():
            raise wire.FrameError(4400, "a message before the welcome")
        if self.welcome.local:
            return True
        if self.numbers.take(number, size):
            return True
        self.counts["repeated"] += 1
        return False

    def _acknowledge(self, number: int) -> None:
        if self.closed is None and self.up.is_set():
            self.transport.write(wire.ack(number))

    async def write(self, frame: bytes) -> None:
        if self._held_up or not self.up.is_set():
            await self._wait_for_connection()
        if self.closed is not None:
            raise self.again()
        if len(frame) > self.transport.limit:
            raise CapacityExceeded(
                f"a frame of {len(frame)} bytes: the server takes {self.transport.limit} at most", code="too_big"
            )
        self.counts["sent"] += 1
        self.transport.write(frame)
        if self.welcome is not None and self.welcome.resume_window > 0:
            self._outgoing.note(frame)
        if not self.transport.writable:
            await self.transport.drain()
            if self.closed is not None:
                raise self.again()

    async def _wait_for_connection(self) -> None:
        """In the order of the calls: who comes right after the connection must not overtake who waited for it."""
        self._held_up += 1
        try:
            async with self._order:
                await self.up.wait()
        finally:
            self._held_up -= 1

    def excuse(self) -> str:
        if self.stops:
            return "; this client's inbox is full, so nothing is read: read its messages faster"
        return "" if self.up.is_set() else "; the connection is lost, and there is no new one yet"

    def again(self) -> Closed:
        # A fresh exception per caller: a shared one would collect everybody's traceback.
        assert self.closed is not None
        return Closed(self.closed.close_code, self.closed.reason)

    def _give_up(self, code: int, reason: str) -> None:
        self.lost(code, reason)
        self.transport.abort()

    def _beat(self) -> None:
        self.transport.write(wire.ping())

    def _half_open(self, silence: float) -> None:
        self._give_up(1006, f"half-open: nothing came from the server for {silence:.1f} s")

    def _stop_reading(self) -> None:
        self.stops += 1
        self._pulse.hold()
        self.transport.pause_reading()

    def _go_on_reading(self) -> None:
        self.stops -= 1
        if self.stops == 0:
            self._pulse.go_on()
            self.transport.resume_reading()
