"""A small server that speaks docs/protocol.md, apart from shardpool's own code: clients are tested by the page."""

from __future__ import annotations

import asyncio
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

WELCOME = {
    "v": 1,
    "session": "00000000000a41f3",
    "token": "0" * 32,
    "resumed": False,
    "app": "fake",
    "codec": "json",
    "heartbeat": 15.0,
    "idle_timeout": 60.0,
    "resume_window": 0.0,  # a lost connection is the end, unless a test says otherwise
    "max_frame": 65536,
}


class Peer(ABC):
    """One connection of the fake server: frames in, frames out, everything noted."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.frames: list[bytes] = []
        self.seq = 0
        self.news = asyncio.Condition()
        self.over = False

    @abstractmethod
    async def read(self) -> bytes | None: ...

    @abstractmethod
    async def write(self, frame: bytes) -> None: ...

    @abstractmethod
    async def raw(self, data: bytes) -> None:
        """Bytes that are no frames."""

    @abstractmethod
    async def end(self, code: int = 1006, reason: str = "") -> None: ...

    def number(self) -> int:
        self.seq += 1
        return self.seq

    async def push(self, value: Any) -> None:
        await self.write(b"M" + struct.pack(">I", self.number()) + json.dumps(value).encode())

    async def reply(self, ask: int, value: Any) -> None:
        await self.write(b"R" + struct.pack(">II", self.number(), ask) + json.dumps(value).encode())

    async def error(self, ask: int, code: str, kind: str, message: str) -> None:
        body = json.dumps({"code": code, "kind": kind, "message": message}).encode()
        await self.write(b"E" + struct.pack(">II", self.number(), ask) + body)

    async def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait until what was received satisfies the condition."""
        async with asyncio.timeout(seconds), self.news:
            await self.news.wait_for(condition)

    def kinds(self) -> bytes:
        return b"".join(frame[:1] for frame in self.frames)

    async def run(self) -> None:
        while (frame := await self.read()) is not None:
            async with self.news:
                self.frames.append(frame)
                self.news.notify_all()
            if self.server.on_frame is not None:
                await self.server.on_frame(self, frame)
        async with self.news:
            self.over = True
            self.news.notify_all()


class TcpPeer(Peer):
    def __init__(self, server: FakeServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(server)
        self.reader, self.writer = reader, writer

    async def read(self) -> bytes | None:
        try:
            (size,) = struct.unpack(">I", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def write(self, frame: bytes) -> None:
        await self.raw(struct.pack(">I", len(frame)) + frame)

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def end(self, code: int = 1006, reason: str = "") -> None:
        if code != 1006:
            await self.write(b"C" + json.dumps({"code": code, "name": "", "reason": reason}).encode())
        self.writer.close()


class WebSocketPeer(Peer):
    def __init__(self, server: FakeServer, connection: ServerConnection) -> None:
        super().__init__(server)
        self.connection = connection

    async def read(self) -> bytes | None:
        try:
            data = await self.connection.recv()
        except ConnectionClosed:
            return None
        return data.encode() if isinstance(data, str) else data

    async def write(self, frame: bytes) -> None:
        await self.connection.send(frame)

    async def raw(self, data: bytes) -> None:
        self.connection.transport.write(data)

    async def end(self, code: int = 1006, reason: str = "") -> None:
        if code == 1006:
            self.connection.transport.abort()
        else:
            await self.connection.close(code, reason)


class FakeServer:
    """Listens for both transports; by default welcomes, answers pings and bye, and asks of type "echo"."""

    def __init__(self) -> None:
        self.welcome = dict(WELCOME)
        self.peers: list[Peer] = []
        self.on_frame: Callable[[Peer, bytes], Awaitable[None]] | None = self.behave
        self.arrived = asyncio.Condition()
        self.tcp = ""
        self.ws = ""
        self.tls = ""
        self.page: Callable[[Any, Any], Any] | None = None

    async def behave(self, peer: Peer, frame: bytes) -> None:
        match frame[:1]:
            case b"H":
                await peer.write(b"W" + json.dumps(self.welcome).encode())
            case b"P":
                await peer.write(b"O" + frame[1:])
            case b"B":
                await peer.end(1000, "bye")
            case b"A":
                (ask,) = struct.unpack_from(">I", frame, 1)
                message = json.loads(frame[5:])
                if message["type"] == "echo":
                    await peer.reply(ask, message)
                elif message["type"] == "fail":
                    await peer.error(ask, "no_room", "CapacityExceeded", "the room is full: try another")

    async def peer(self, index: int = 0) -> Peer:
        async with asyncio.timeout(10), self.arrived:
            await self.arrived.wait_for(lambda: len(self.peers) > index)
        return self.peers[index]

    async def _run(self, peer: Peer) -> None:
        async with self.arrived:
            self.peers.append(peer)
            self.arrived.notify_all()
        await peer.run()

    async def _tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._run(TcpPeer(self, reader, writer))
        except ConnectionError:
            pass  # the test's client went away while this server was writing
        finally:
            writer.close()

    async def _ws(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await self._run(WebSocketPeer(self, connection))


@asynccontextmanager
async def fake_server(tls: Any = None) -> AsyncIterator[FakeServer]:
    server = FakeServer()
    tcp = await asyncio.start_server(server._tcp, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    server.tcp = f"tcp://127.0.0.1:{port}"
    secure = None
    if tls is not None:
        secure = await asyncio.start_server(server._tcp, "127.0.0.1", 0, ssl=tls)
        server.tls = f"tls://localhost:{secure.sockets[0].getsockname()[1]}"
    async with serve(
        server._ws, "127.0.0.1", 0, compression=None, process_request=lambda c, r: server.page and server.page(c, r)
    ) as ws:
        server.ws = f"ws://127.0.0.1:{next(iter(ws.sockets)).getsockname()[1]}/"
        try:
            yield server
        finally:
            for peer in server.peers:
                if isinstance(peer, TcpPeer):
                    peer.writer.close()
            tcp.close()
            if secure is not None:
                secure.close()


@pytest.fixture
def make_server() -> Callable[..., Any]:
    return fake_server
