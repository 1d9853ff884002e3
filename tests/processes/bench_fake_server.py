"""A counter server without shardpool, for the load generator's tests: prints its port, serves until it is killed.

`--fault` makes it a bad one: wrong-counter, wrong-payload, silent (answers nothing), late (stalls 300 ms once), error
(E for every ask), vanish (closes after 10 messages), refuse (C instead of W), reorder (pairs, the later one first),
ticks (right, but pushes besides, whether asked or not).
"""

import argparse
import asyncio
import base64
import hashlib
import struct
from collections.abc import AsyncIterator

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Wire:
    """Frames of one connection, over TCP or WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, websocket: bool) -> None:
        self.reader, self.writer, self.websocket = reader, writer, websocket

    async def upgrade(self) -> None:
        head = await self.reader.readuntil(b"\r\n\r\n")
        key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")).split()[1]
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        self.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )

    async def frames(self) -> AsyncIterator[bytes]:
        while True:
            if not self.websocket:
                (length,) = struct.unpack(">I", await self.reader.readexactly(4))
                yield await self.reader.readexactly(length)
                continue
            first, second = await self.reader.readexactly(2)
            assert first == 0x82, first
            assert second & 0x80, "clients mask"
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", await self.reader.readexactly(8))
            key = await self.reader.readexactly(4)
            body = await self.reader.readexactly(length)
            yield bytes(byte ^ key[index & 3] for index, byte in enumerate(body))

    def send(self, body: bytes) -> None:
        if not self.websocket:
            head = struct.pack(">I", len(body))
        elif len(body) < 126:
            head = bytes((0x82, len(body)))
        elif len(body) < 65536:
            head = struct.pack(">BBH", 0x82, 126, len(body))
        else:
            head = struct.pack(">BBQ", 0x82, 127, len(body))
        self.writer.write(head + body)


class Session:
    """One client, bare or in session framing."""

    def __init__(self, wire: Wire, framing: str, fault: str) -> None:
        self.wire, self.framing, self.fault = wire, framing, fault
        self.count = self.seq = self.acknowledged = 0
        self.held: list[tuple[int, bytes]] = []

    async def serve(self) -> None:
        async for frame in self.wire.frames():
            if self.framing == "bare":
                await self.answer(0, frame)
                continue
            kind = frame[:1]
            if kind == b"H":
                refused = self.fault == "refuse"
                self.wire.send(
                    b'C{"code":4401,"reason":"no entry"}' if refused else b'W{"v":1,"codec":"raw","app":"fake"}'
                )
                self.wire.send(b"Pare you there")
                if self.fault == "ticks":
                    asyncio.get_running_loop().call_later(0.01, self.tick)
            elif kind == b"A":
                await self.answer(struct.unpack_from(">I", frame, 1)[0], frame[5:])
            elif kind == b"K":
                self.acknowledged = struct.unpack_from(">I", frame, 1)[0]
                assert self.acknowledged <= self.seq
            elif kind == b"B":
                return
            else:
                assert frame == b"Oare you there", frame
            assert self.seq - self.acknowledged < 64 + 32, "acknowledgements stay away"

    async def answer(self, request: int, data: bytes) -> None:
        self.count += 1
        if self.fault == "silent":
            return
        if self.fault == "vanish" and self.count > 10:
            raise ConnectionError
        if self.fault == "late" and self.count == 20:
            await asyncio.sleep(0.3)
        value = self.count + (1 if self.fault == "wrong-counter" and self.count == 5 else 0)
        body = struct.pack("<Q", value) + (data[8:-1] + b"?" if self.fault == "wrong-payload" else data[8:])
        self.held.append((request, body))
        if self.fault == "reorder" and len(self.held) < 2:
            return
        for held_request, held in reversed(self.held):
            self.reply(held_request, held)
        self.held.clear()

    def tick(self) -> None:
        if not self.wire.writer.is_closing():
            self.seq += 1
            self.wire.send(struct.pack(">cI", b"M", self.seq) + b"tick")
            asyncio.get_running_loop().call_later(0.01, self.tick)

    def reply(self, request: int, body: bytes) -> None:
        if self.framing == "bare":
            self.wire.send(body)
            return
        self.seq += 1
        if self.fault == "error":
            self.wire.send(struct.pack(">cII", b"E", self.seq, request) + b'{"code":"saturated"}')
        else:
            self.wire.send(struct.pack(">cII", b"R", self.seq, request) + body)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--framing", default="session")
    parser.add_argument("--fault", default="none")
    options = parser.parse_args()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer, options.transport == "ws")
        try:
            if wire.websocket:
                await wire.upgrade()
            await Session(wire, options.framing, options.fault).serve()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
