"""What is said when a worker is forked from a warm start process instead of being started by exec (P-24).

    supervisor --Boot, one end of a birth socket--> warm process      its request socket
               <--Warmed, once: it may be asked--
    supervisor <--pid, pidfd-- worker                                  the birth socket, one per start
               --go-->

Both are SOCK_SEQPACKET: a message is whole or not there, and the end of either side is seen by the other. The worker
does nothing before `go`: whatever happens to the warm process or to a message, a place in the pool never gets two
processes. A supervisor that has lost its patience closes its end, and the worker that may still come leaves.
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


_warmed = msgspec.json.Decoder(Warmed)


def send_warmed(requests: socket.socket, warmed: Warmed) -> None:
    """Tell the supervisor how the import ended."""
    requests.send(msgspec.json.encode(warmed))


def receive_warmed(requests: socket.socket) -> Warmed | None:
    """What the warm process tells, None when nothing has come. Raises: OSError, EOFError: it is gone."""
    try:
        body = requests.recv(_SIZE_MAX, socket.MSG_DONTWAIT)
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
        body, descriptors, _, _ = socket.recv_fds(birth, 32, 1, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    if len(descriptors) != 1:
        raise EOFError
    try:
        birth.send(_GO)
    except OSError:
        os.close(descriptors[0])
        raise
    return int(body), descriptors[0]
