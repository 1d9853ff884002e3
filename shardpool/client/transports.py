"""Bytes in, frames out: one asyncio Protocol per transport, all calls on the event loop.

    socket ──data_received──▶ splitter / wsproto ──frame──▶ Receiver
    socket ◀──────write────── prefix / wsproto ◀───frame─── write()

wsproto, and not `websockets`: it is sans-I/O, so both transports are the same hundred lines, reading can be paused per
connection, and the package depends on it already. Its messages come in pieces, so that the frame limit holds before a
message is in memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol, cast

import wsproto
from wsproto import events
from wsproto.connection import ConnectionState
from wsproto.utilities import RemoteProtocolError

from shardpool.client.address import Address
from shardpool.wire import FRAME_LIMIT, FrameError, Splitter, bye, prefixed

_REFUSAL_BODY_MAX = 300
_CLOSE_REASON_MAX = 123


class Receiver(Protocol):
    """Who a transport reports to."""

    def opened(self) -> None:
        """Frames may be written."""

    def received(self, frame: bytes) -> None:
        """A whole frame came."""

    def touched(self) -> None:
        """Some bytes came."""

    def lost(self, code: int, reason: str) -> None:
        """It is over; called once or more, the first counts."""


class Nobody:
    """Receiver of a transport that its client has given up."""

    def opened(self) -> None: ...

    def received(self, frame: bytes) -> None: ...

    def touched(self) -> None: ...

    def lost(self, code: int, reason: str) -> None: ...


class Transport(asyncio.Protocol, ABC):
    """What both have in common: writing with back pressure, pausing, closing."""

    def __init__(self, receiver: Receiver, limit: int = FRAME_LIMIT) -> None:
        self.limit = limit
        self._receiver = receiver
        self._made = False
        self._socket: asyncio.Transport
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        self._socket = cast(asyncio.Transport, transport)
        self._made = True
        self._receiver.opened()

    def connection_lost(self, error: Exception | None) -> None:
        self._writable.set()
        self._receiver.lost(1006, f"the connection broke: {error or 'the server closed it without saying why'}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drain(self) -> None:
        """Wait while more than the high-water mark is unsent."""
        await self._writable.wait()

    @property
    def writable(self) -> bool:
        return self._writable.is_set()

    def set_limit(self, limit: int) -> None:
        """Longest frame taken from here on, in bytes."""
        self.limit = limit

    def pause_reading(self) -> None:
        if self._made and not self._socket.is_closing():
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._made and not self._socket.is_closing():
            self._socket.resume_reading()

    def info(self, name: str) -> object:
        """asyncio's `get_extra_info`."""
        return self._socket.get_extra_info(name)

    def abort(self) -> None:
        if self._made:
            self._socket.abort()

    def give_up(self) -> None:
        """Abort, and report nothing any more."""
        self._receiver = Nobody()
        self.abort()

    def close(self) -> None:
        """Close behind what was written."""
        self._socket.close()

    @abstractmethod
    def write(self, frame: bytes) -> None:
        """Hand one frame to the socket."""

    @abstractmethod
    def say_bye(self) -> None:
        """Tell the server that the session is over; its answer is the end of the connection."""


class StreamTransport(Transport):
    """Length-prefixed frames: TCP, TLS, Unix sockets."""

    def __init__(self, receiver: Receiver, limit: int = FRAME_LIMIT) -> None:
        super().__init__(receiver, limit)
        self._splitter = Splitter(limit)

    def set_limit(self, limit: int) -> None:
        super().set_limit(limit)
        self._splitter.limit = limit

    def data_received(self, data: bytes) -> None:
        self._receiver.touched()
        try:
            frames = self._splitter.feed(data)
        except FrameError as error:
            self._receiver.lost(error.code, f"the server sent {error.reason}")
            self._socket.abort()
            return
        for frame in frames:
            self._receiver.received(frame)

    def write(self, frame: bytes) -> None:
        self._socket.write(prefixed(frame))

    def say_bye(self) -> None:
        self.write(bye())


class WebSocketTransport(Transport):
    """One frame per WebSocket message."""

    def __init__(self, receiver: Receiver, address: Address, limit: int = FRAME_LIMIT) -> None:
        super().__init__(receiver, limit)
        self._address = address
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._parts: list[bytes] = []
        self._held = 0
        self._refusal: tuple[int, bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        self._socket = cast(asyncio.Transport, transport)
        self._made = True
        self._socket.write(self._ws.send(events.Request(host=self._address.authority, target=self._address.target)))

    def data_received(self, data: bytes) -> None:
        self._receiver.touched()
        try:
            self._ws.receive_data(data)
            for event in self._ws.events():
                self._take(event)
        except FrameError as error:
            self._fail(error.code, error.reason)
        except RemoteProtocolError as error:
            self._fail(1002, f"the server broke the WebSocket protocol: {error}")

    def write(self, frame: bytes) -> None:
        if not self._socket.is_closing() and self._ws.state is ConnectionState.OPEN:
            self._socket.write(self._ws.send(events.BytesMessage(frame)))

    def say_bye(self) -> None:
        for data in self._closing(1000, ""):
            self._socket.write(data)

    def close(self) -> None:
        self.say_bye()
        super().close()

    def _take(self, event: events.Event) -> None:
        match event:
            case events.BytesMessage(data=data, message_finished=finished):
                self._piece(bytes(data), finished)
            case events.TextMessage(data=text, message_finished=finished):
                self._piece(text.encode(), finished)
            case events.Ping():
                self._socket.write(self._ws.send(event.response()))
            case events.CloseConnection(code=code, reason=reason):
                self._receiver.lost(code, reason or "")
                if self._ws.state is ConnectionState.REMOTE_CLOSING:
                    self._socket.write(self._ws.send(event.response()))
                self._socket.close()
            case events.AcceptConnection():
                self._receiver.opened()
            case events.RejectConnection(status_code=status, has_body=has_body):
                self._refusal = (status, b"")
                if not has_body:
                    self._refused()
            case events.RejectData(data=data, body_finished=finished):
                status, body = self._refusal or (0, b"")
                self._refusal = (status, (body + bytes(data))[:_REFUSAL_BODY_MAX])
                if finished:
                    self._refused()

    def _piece(self, data: bytes, finished: bool) -> None:
        self._held += len(data)
        if self._held > self.limit:
            raise FrameError(1009, f"the server sent a message of more than {self.limit} bytes")
        if finished and not self._parts:
            whole = data
        else:
            self._parts.append(data)
            if not finished:
                return
            whole = b"".join(self._parts)
            self._parts.clear()
        self._held = 0
        self._receiver.received(whole)

    def connection_lost(self, error: Exception | None) -> None:
        if self._refusal is not None:
            self._refused()
        super().connection_lost(error)

    def _refused(self) -> None:
        status, body = self._refusal or (0, b"")
        text = body.decode("utf-8", "replace").strip()
        self._fail(1006, f"the server refused the WebSocket handshake with HTTP {status}{': ' if text else ''}{text}")

    def _fail(self, code: int, reason: str) -> None:
        self._receiver.lost(code, reason)
        short = reason.encode()[:_CLOSE_REASON_MAX].decode("utf-8", "ignore")
        for data in self._closing(code, short):
            self._socket.write(data)
        self._socket.close()

    def _closing(self, code: int, reason: str) -> Iterator[bytes]:
        if self._ws.state is ConnectionState.OPEN and not self._socket.is_closing():
            yield self._ws.send(events.CloseConnection(code, reason))
