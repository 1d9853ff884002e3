"""One worker process, watched through its pidfd, never through a pid that may be reused.

It is started by exec here, or forked for us from a warm process (nursery.py).
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardpool import _core
from shardpool.boot import HELD_BACK, Boot, write_boot
from shardpool.supervisor.death import Death, death_of


@dataclass(frozen=True, slots=True)
class Process:
    """A worker process that was started and not yet reaped; a child of this process, however it was started."""

    pid: int
    pidfd: int

    def kill(self, number: int) -> None:
        """Send a signal; one that is dead already does not mind."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def reap(self) -> Death | None:
        """Take its end from the kernel, None if it lives."""
        result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        if result is None:
            return None
        os.close(self.pidfd)
        return death_of(result)

    def abandon(self) -> None:
        """How it ends is nobody's business; the supervisor reaps it as it reaps orphans."""
        os.close(self.pidfd)


def spawn(command: Sequence[str], boot: Boot, environ: Mapping[str, str]) -> Process:
    """Start a worker. It dies with this process from its first instruction on, not only when it is up.

    Args:
        command: program and arguments; `--boot FD` is added.
        boot: what it is told; every descriptor in it is inherited under its number.
        environ: its environment.
    Raises: OSError.
    """
    boot_fd = write_boot(boot)
    try:
        pid = _core.spawn(
            os.fsencode(command[0]),
            [os.fsencode(each) for each in (*command, "--boot", str(boot_fd))],
            [os.fsencode(f"{name}={value}") for name, value in environ.items()],
            [boot_fd, *boot.descriptors],
            list(HELD_BACK),
        )
    finally:
        os.close(boot_fd)
    return Process(pid, os.pidfd_open(pid))
