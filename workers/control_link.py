"""A worker's end of the control socket, for a loop that is not asyncio's.

The socket's descriptor is edge-triggered: it becomes readable when something may have changed, and looking at the
socket takes that away. So after every send and every wake, `receive` is called until it says that nothing is there.
"""

from collections.abc import Iterator

import msgspec
import zmq

from shardpool.control import FromWorker, ToWorker, decode_to_worker, encode


class ControlLink:
    """Messages to and from the supervisor.

    Args: address: of its socket (ipc://). identity: the worker's, as in Boot.identity.
    """

    def __init__(self, address: str, identity: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.connect(address)

    @property
    def fd(self) -> int:
        """What to watch for reading."""
        return int(self._socket.getsockopt(zmq.FD))

    def send(self, message: FromWorker) -> None:
        """Send; `receive` must be called afterwards."""
        self._socket.send(encode(message))

    def receive(self) -> Iterator[ToWorker]:
        """Everything that has come; what is not understood is skipped. Nothing comes after `close`."""
        while not self._socket.closed:
            try:
                body = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield decode_to_worker(body)
            except msgspec.DecodeError:
                continue

    def close(self) -> None:
        """Send what waits, for at most half a second."""
        self._socket.close()
        self._context.term()
