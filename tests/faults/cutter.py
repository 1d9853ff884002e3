"""A TCP proxy between client and server that resets connections at bytes of its choice."""

from __future__ import annotations

import asyncio
import random
import socket
import struct


class Cutter:
    """Passes bytes on until a connection's share is used up, in the middle of whatever; then both sides get an RST.

    Args: mean: bytes, both ways together, that a connection lives for on average; 0: it is not cut.
    """

    def __init__(self, host: str, port: int, seed: int, mean: int) -> None:
        self.cuts = 0
        self.mean = mean
        self._target = (host, port)
        self._chance = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            reset(writer)
            return
        left = [int(self._chance.expovariate(1 / self.mean)) if self.mean else 1 << 60]
        pumps = [asyncio.create_task(self._pump(*pair, left)) for pair in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            cut = left[0] <= 0
            self.cuts += cut
            for side in (writer, far_writer):
                if cut:
                    reset(side)
                else:
                    side.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]) -> None:
        try:
            while left[0] > 0 and (data := await reader.read(4096)):
                writer.write(data[: left[0]])
                left[0] -= len(data)
                await writer.drain()
        except ConnectionError:
            pass


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with an RST: what is under way is thrown away."""
    sock = writer.transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
