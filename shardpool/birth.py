"""What is said when a worker is forked from a warm start process instead of being started by exec (P-24).

    supervisor --Boot, one end of a birth socket--> warm process      its request socket
               <--Warmed, once: it may be asked--
    supervisor <--pid, pidfd-- worker                                  the birth socket, one per start
               --go-->

Both are SOCK_SEQPACKET: a message is whole or not there, and the end of either side is seen by the other. The worker
does nothing before `go`: whatever happens to the warm process or to a message, a place in the pool never gets two
processes. A supervisor that has lost its patience closes its end, and the worker that may still come leaves.

The supervisor's ends do not block. (`socket.send_fds` and `recv_fds` take flags and ignore them, up to Python 3.13.)
"""

import os
import socket

import msgspec
from msgspec import Struct

_GO = b"go"
_SIZE_MAX = 1 << 16


class Warmed(Struct, frozen=True):
    """A warm process has imported everything, or tells why it is of no use."""

    reason: str = ""  # what was found; empty: it is ready
    remedy: str = ""
    loaded: bool = False  # the app can be imported; what is wrong concerns forking only


_warmed = msgspec.json.Decoder(Warmed)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end and the other one, which the caller passes on and closes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def send_warmed(requests: socket.socket, warmed: Warmed) -> None:
    """Tell the supervisor how the import ended."""
    requests.send(msgspec.json.encode(warmed))


def receive_warmed(requests: socket.socket) -> Warmed | None:
    """What the warm process tells, None when nothing has come. Raises: OSError, EOFError: it is gone."""
    try:
        body = requests.recv(_SIZE_MAX)
    except BlockingIOError:
        return None
    if not body:
        raise EOFError
    return _warmed.decode(body)


def announce(birth: socket.socket) -> bool:
    """Tell the supervisor who was born, and wait for its word.

    Returns: False: nobody waits any more.
    """
    pidfd = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(birth, [str(os.getpid()).encode()], [pidfd])
        return birth.recv(len(_GO)) == _GO
    except OSError:
        return False
    finally:
        os.close(pidfd)


def receive_birth(birth: socket.socket) -> tuple[int, int] | None:
    """Take the worker in.

    Returns: pid and pidfd (the caller's to close); None when nothing has come.
    Raises: OSError, EOFError: there will be no worker.
    """
    try:
        body, descriptors, _, _ = socket.recv_fds(birth, 32, 1)
    except BlockingIOError:
        return None
    if len(descriptors) != 1:
        raise EOFError
    os.set_inheritable(descriptors[0], False)
    try:
        birth.send(_GO)
    except OSError:
        os.close(descriptors[0])
        raise
    return int(body), descriptors[0]
