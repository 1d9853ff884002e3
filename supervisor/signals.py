"""Signals as a descriptor to poll: handlers do nothing, the interpreter writes each number into a socket."""

import faulthandler
import signal
import socket
from collections.abc import Iterator

_CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Signals:
    """Caught signals of this process, in the order they came."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        for number in _CAUGHT:
            signal.signal(number, _nothing)
        # A full socket loses a number that is in it many times already.
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        faulthandler.register(signal.SIGUSR2, all_threads=True)

    @property
    def fd(self) -> int:
        """Readable when a signal came."""
        return self._reader.fileno()

    def read(self) -> Iterator[signal.Signals]:
        """The signals since the last call."""
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            yield signal.Signals(number)

    def close(self) -> None:
        """The process ends: no signal has anything left to ask for.

        Not given back: one that comes while the interpreter ends would make its exit code that of a signal.
        """
        signal.set_wakeup_fd(self._before_fd)
        for number in _CAUGHT:
            signal.signal(number, signal.SIG_DFL if number is signal.SIGCHLD else signal.SIG_IGN)
        self._reader.close()
        self._writer.close()


def _nothing(number: int, frame: object) -> None:
    """The wakeup descriptor has it."""
