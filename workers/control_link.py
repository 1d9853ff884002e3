"""A worker's end of the control socket, on its event loop: typed messages to and from the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import zmq

from shardpool import control
from shardpool.boot import Boot
from shardpool.control import FromWorker, ToWorker

LINGER_MS = 1000


class ControlLink:
    """Args: receive: called with each message, on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, boot: Boot, receive: Callable[[ToWorker], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._context = zmq.Context(1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, boot.identity.encode())
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.connect(boot.control)
        self._fd = int(self._socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._read)

    def send(self, message: FromWorker) -> None:
        """Queue a message; it leaves in the background."""
        self._socket.send(control.encode(message))
        # ZeroMQ's descriptor tells of changes only: what arrived during the send would not show again.
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """Close; what was queued still goes out, for a second at most."""
        self._loop.remove_reader(self._fd)
        self._context.destroy(linger=LINGER_MS)

    def _read(self) -> None:
        while not self._socket.closed and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            body = self._socket.recv(zmq.NOBLOCK)
            try:
                message = control.decode_to_worker(body)
            except msgspec.DecodeError:
                continue  # of a version that knows more than this one
            self._receive(message)
