"""Peer: a session server in one process (or several with SO_REUSEPORT) as an asyncio Protocol, on uvloop or asyncio.

A read is split into frames, each goes to the session's handler, and all replies leave in one write.
"""

import argparse
import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

import uvloop
from counter import Counter, session_type
from process import end_at_once, fork

unpack_length = struct.Struct(">I").unpack_from
pack_length = struct.Struct(">I").pack


class EchoProtocol(asyncio.Protocol):
    __slots__ = ("message", "rest", "write")

    def __init__(self, new_session: Callable[[], Counter]) -> None:
        self.message = new_session().message
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no asyncio.Transport by isinstance.
        self.write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        at, have = 0, len(data)
        message = self.message
        replies: list[bytes] = []
        add = replies.append
        while have - at >= 4:
            body = at + 4
            end = body + unpack_length(data, at)[0]
            if end > have:
                break
            reply = message(data[body:end])
            add(pack_length(len(reply)))
            add(reply)
            at = end
        self.rest = data[at:]
        if replies:
            self.write(b"".join(replies))


def listen(port: int, reuse: bool) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    return listener


async def serve(listener: socket.socket, new_session: Callable[[], Counter]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EchoProtocol(new_session), sock=listener, backlog=4096)
    await server.serve_forever()


def run(options: argparse.Namespace) -> None:
    listener = listen(options.port, options.processes > 1)
    factory = uvloop.new_event_loop if options.engine == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(listener, session_type(options.loop)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--loop", type=int, default=0)
    options = parser.parse_args()
    end_at_once()
    for _ in range(options.processes - 1):
        fork(lambda: run(options))
    run(options)


if __name__ == "__main__":
    main()
