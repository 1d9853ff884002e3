"""One worker process, watched through its pidfd, never through a pid that may be reused.

It is started by exec here, or forked for us from a warm process (nursery.py).
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardpool.boot import HELD_BACK, Boot, write_boot
from shardpool.supervisor.death import Death, death_of

# Python ignores these, or the supervisor handles them; a worker starts with the kernel's defaults.
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


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
    """Start a worker.

    Args:
        command: program and arguments; `--boot FD` is added.
        boot: what it is told; every descriptor in it is inherited under its number.
        environ: its environment.
    Raises: OSError.
    """
    boot_fd = write_boot(boot)
    try:
        inherited = {boot_fd, *boot.segments, *boot.doorbells, *(listener.fd for listener in boot.listeners)}
        inherited.update(fd for passage in boot.passages for fd in (passage.into, passage.out))
        if boot.requests is not None:
            inherited.add(boot.requests)
        # dup2 of a descriptor onto itself clears close-on-exec in the child only; everything else stays closed.
        actions: list[tuple[int, int, int]] = [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in sorted(inherited)]
        pid = os.posix_spawn(
            command[0],
            [*command, "--boot", str(boot_fd)],
            environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), *actions],
            # Its own group: Ctrl-C reaches the supervisor alone, which drains.
            setpgroup=0,
            setsigmask=HELD_BACK,
            setsigdef=_DEFAULT_SIGNALS,
        )
    finally:
        os.close(boot_fd)
    return Process(pid, os.pidfd_open(pid))
