"""What a worker gets from the supervisor at its start, and how it becomes a worker.

    supervisor:  fd = write_boot(boot)   exec python -m shardpool.workers.<role> --boot FD
    worker:      boot = read_boot(sys.argv); become_worker(boot)

All descriptors named in a Boot are inherited; their numbers are the same on both sides.
"""

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import setproctitle
from msgspec import Struct

_PR_SET_PDEATHSIG = 1

_LEFT_TO_SUPERVISOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Blocked in a worker from its first instruction until it handles them: an interpreter that starts would die of them.
HELD_BACK = (*_LEFT_TO_SUPERVISOR, signal.SIGUSR2)


class Listener(Struct, frozen=True):
    """One listening socket, bound by the supervisor and accepted from by every acceptor."""

    fd: int
    transport: str  # "tcp", "ws", "tls" (TCP frames in TLS), "wss", "local" (the Unix socket of trusted programs)
    address: str  # as shown to people


class Passage(Struct, frozen=True):
    """The socket pair by which an acceptor is given clients of others (workers/passages.py)."""

    into: int  # written to by the others
    out: int  # read by the acceptor itself


class Boot(Struct, frozen=True):
    """Everything a worker must know before it can do anything."""

    role: str  # "acceptor" or "shard"
    index: int  # number of the acceptor or shard, from 0
    process: int  # process index: 0 supervisor, 1..M acceptors, M+1..M+N shards
    acceptors: int
    shards: int
    segments: list[int]  # memfd of every process's segment, by process index
    doorbells: list[int]  # eventfd of every process, by process index
    listeners: list[Listener]  # acceptors only
    control: str  # ipc:// address of the supervisor's control socket
    app: str  # "module:attribute"
    app_name: str
    codec: str
    envelope: bool
    settings: dict[str, Any]  # the whole validated table of shardpool.settings, by name
    supervisor_pid: int
    cpu: int | None = None  # the CPU to bind to (--pin)
    passages: list[Passage] = []  # acceptors only, by number; empty where there is one acceptor
    requests: int | None = None  # socket of a warm start process, on which it is asked for workers (shardpool/birth.py)

    @property
    def descriptors(self) -> list[int]:
        """All that are named in it."""
        passages = (fd for passage in self.passages for fd in (passage.into, passage.out))
        listeners = (listener.fd for listener in self.listeners)
        requests = () if self.requests is None else (self.requests,)
        return [*self.segments, *self.doorbells, *listeners, *passages, *requests]

    @property
    def identity(self) -> str:
        """Name of this worker on the control socket."""
        return f"{self.role}-{self.index}"

    @property
    def log_name(self) -> str:
        """Name of this worker in its log lines: as people count, like the title, `status` and the supervisor."""
        return f"{self.role}-{self.index + 1}"

    @property
    def title(self) -> str:
        """Process title, as in `shardpool: shard 2/8 [arena]`; people count from 1, process lists too."""
        if self.requests is not None:
            return f"shardpool: warm start of {self.role}s [{self.app_name}]"
        count = self.shards if self.role == "shard" else self.acceptors
        return f"shardpool: {self.role} {self.index + 1}/{count} [{self.app_name}]"


def write_boot(boot: Boot) -> int:
    """Put a Boot where a child can read it.

    Returns: a memfd (close-on-exec here; whoever starts the child hands it over). The caller closes it.
    """
    fd = os.memfd_create("shardpool-boot", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(msgspec.json.encode(boot))
    return fd


def read_boot(argv: Sequence[str]) -> Boot:
    """Read the Boot that the command line names.

    Args: argv: the worker's whole command line, `[program, "--boot", FD]`.
    Raises: SystemExit(2) with one line when this process was not started by a supervisor.
    Called by: a worker, once, first thing.
    """
    if len(argv) != 3 or argv[1] != "--boot" or not argv[2].isdigit():
        sys.stderr.write("shardpool: workers are started by the supervisor: use `shardpool serve MODULE:APP`\n")
        raise SystemExit(2)
    try:
        fd = int(argv[2])
        with open(fd, "rb") as file:
            file.seek(0)
            return msgspec.json.decode(file.read(), type=Boot)
    except (OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"shardpool: --boot {argv[2]} is not from a supervisor of this version: {error}\n")
        raise SystemExit(2) from None


def become_worker(boot: Boot) -> None:
    """Tie this process to its supervisor, name it, leave signals to the supervisor, bind it to its CPU.

    Called by: a worker, once, before it starts threads or loads user code.
    """
    die_with_parent(boot.supervisor_pid)
    # They came over an exec; they go no further: a program that user code starts would keep the memory and the port.
    for fd in boot.descriptors:
        os.set_inheritable(fd, False)
    setproctitle.setproctitle(boot.title)
    # Ctrl-C and systemd's SIGTERM may reach the whole group. Draining is the supervisor's decision and comes as
    # a control message; what does not obey gets SIGKILL, which needs no handler here. Not SIG_IGN: programs that
    # user code starts would inherit that, and could not be terminated.
    for number in _LEFT_TO_SUPERVISOR:
        signal.signal(number, _leave_to_supervisor)
    # The supervisor asks a stalled worker for its stack with SIGUSR2; faulthandler answers from the signal
    # context, so that it works while a handler never returns.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    if boot.cpu is not None:
        os.sched_setaffinity(0, {boot.cpu})


def leave_worker() -> None:
    """Have no signal change the exit code: an interpreter that ends gives each its deadly default back.

    Called by: a worker, last thing.
    """
    faulthandler.unregister(signal.SIGUSR2)
    for number in HELD_BACK:
        signal.signal(number, signal.SIG_IGN)


def _leave_to_supervisor(number: int, frame: object) -> None:
    """A signal that is none of a worker's business."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies.

    Args: parent: pid of the process that started this one.
    Raises: SystemExit(1) when the parent is gone already: the signal is not sent for a death before the call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(1)
