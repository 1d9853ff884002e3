"""Peer: a WebSocket session server in one process with picows on uvloop."""

import argparse
import asyncio
import socket

import uvloop
from counter import Counter, session_type
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server
from process import end_at_once


class Session(WSListener):
    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.message = counter.message

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            transport.send(WSMsgType.BINARY, self.message(frame.get_payload_as_bytes()))
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code(), frame.get_close_message())
            transport.disconnect()


async def serve(port: int, loop: int) -> None:
    new_session = session_type(loop)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))

    def accept(request: WSUpgradeRequest) -> WSListener:
        return Session(new_session())

    server = await ws_create_server(accept, sock=listener, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--loop", type=int, default=0)
    options = parser.parse_args()
    end_at_once()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options.port, options.loop))


if __name__ == "__main__":
    main()
