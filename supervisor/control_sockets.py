"""The supervisor's two ZeroMQ sockets: workers' control and the command line's requests, as typed messages.

Only this user reaches them (0700 directory); what does not decode is answered or dropped, and never raised.
"""

from collections.abc import Iterator

import msgspec
import zmq

from shardpool import control
from shardpool.control import FromWorker, Refused, Reply, Request, ToWorker
from shardpool.runtime_dir import RunDir

_BODY_MAX = 1 << 20
# Bounds one round of reading, so that a worker that floods the socket cannot keep the supervisor from its duties.
_MESSAGES_PER_ROUND = 256
_LINGER_MS = 500


class ControlSockets:
    """Both sockets and the poller that the supervisor waits in."""

    def __init__(self, run_dir: RunDir) -> None:
        self._context = zmq.Context(1)
        self._workers = self._bind(run_dir.control)
        # A restarted worker takes its identity over from the connection of its dead predecessor.
        self._admin = self._bind(run_dir.admin)
        self.poller = zmq.Poller()
        self.poller.register(self._workers, zmq.POLLIN)
        self.poller.register(self._admin, zmq.POLLIN)

    def close(self) -> None:
        """Close both; the last replies still go out."""
        self._context.destroy(linger=_LINGER_MS)

    def from_workers(self) -> Iterator[tuple[str, FromWorker]]:
        """What workers said: identity and message."""
        for identity, body in self._receive(self._workers):
            try:
                yield identity.decode("ascii", "replace"), control.decode_from_worker(body)
            except msgspec.DecodeError:
                continue

    def requests(self) -> Iterator[tuple[bytes, Request]]:
        """What the command line asks: return address and request."""
        for address, body in self._receive(self._admin):
            try:
                yield address, control.decode_request(body)
            except msgspec.DecodeError as error:
                self.reply(address, Refused(f"not a request of this version: {error}"))

    def wait_for_workers(self, timeout_ms: int) -> None:
        """Give a message that is under way this long to arrive."""
        self._workers.poll(timeout_ms, zmq.POLLIN)

    def send(self, identity: str, message: ToWorker) -> None:
        """To one worker; dropped when it is not connected."""
        self._send(self._workers, identity.encode(), control.encode(message))

    def reply(self, address: bytes, message: Reply) -> None:
        """To the command line."""
        self._send(self._admin, address, control.encode(message))

    def _bind(self, address: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        socket.set(zmq.MAXMSGSIZE, _BODY_MAX)
        socket.bind(address)
        return socket

    def _receive(self, socket: "zmq.Socket[bytes]") -> Iterator[tuple[bytes, bytes]]:
        for _ in range(_MESSAGES_PER_ROUND):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield frames[0], frames[-1]

    def _send(self, socket: "zmq.Socket[bytes]", address: bytes, body: bytes) -> None:
        try:
            socket.send_multipart([address, body], zmq.NOBLOCK)
        except zmq.Again:
            return  # it does not read; its deadline ends it
