"""The warm start process: everything is imported, nothing runs; a fork of it is a worker within milliseconds.

python -m shardpool.workers.warm --boot FD

One for each role: acceptors run no user code, so theirs has imported none. It has no thread, no event loop and no
ZeroMQ context: a fork copies the thread that forks and nothing of what others held. Each worker makes its own epoll.

    warm --fork--> go-between --fork--> worker
                   exits at once        waits until it is the supervisor's own child, then as if it had been exec'ed

The go-between is there for the worker's parent: an orphan becomes the child of the supervisor (its subreaper), which
gets its exit status, and whose death, not the warm process's, ends it.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys

import msgspec

from shardpool.app import Blueprint
from shardpool.birth import Warmed, announce, send_warmed
from shardpool.boot import Boot, become_worker, read_boot
from shardpool.loading import AppNotLoaded, load_app
from shardpool.workers import acceptor, logs, shard

_REQUEST_MAX = 1 << 20
_LOOK_SECONDS = 0.0005


class NotBorn(Exception):
    """This process is no worker after all, and ends."""


class WarmProcess:
    """Forks workers as long as it is asked to."""

    def __init__(self, boot: Boot, requests: socket.socket) -> None:
        self._supervisor = boot.supervisor_pid
        self._requests = requests

    def serve(self) -> Boot | None:
        """Fork one worker per request.

        Returns: in each worker, what it is to be; in the warm process itself, None when the supervisor has gone.
        """
        while True:
            body, descriptors, _, _ = socket.recv_fds(self._requests, _REQUEST_MAX, 1)
            if not body or len(descriptors) != 1:
                return None
            with socket.socket(fileno=descriptors[0]) as birth:
                if self._fork():
                    self._requests.close()
                    self._come_of_age(birth)
                    return msgspec.json.decode(body, type=Boot)

    def _fork(self) -> bool:
        """True in the worker."""
        try:
            between = os.fork()
        except OSError as error:
            # Its end of the birth socket closes: the supervisor falls back to exec, and says what that says.
            sys.stderr.write(f"shardpool: the warm start process cannot fork: {error.strerror}\n")
            return False
        if between:
            os.waitpid(between, 0)
            return False
        self._between = os.getpid()
        try:
            worker = os.fork()
        except OSError:
            os._exit(1)
        if worker:
            os._exit(0)
        return True

    def _come_of_age(self, birth: socket.socket) -> None:
        """Become the supervisor's own child, and get its word."""
        os.setpgid(0, 0)
        while os.getppid() == self._between:
            # Nothing comes before the announcement; readable means that the supervisor hung up.
            if select.select([birth], [], [], _LOOK_SECONDS)[0]:
                raise NotBorn
        if os.getppid() != self._supervisor or not announce(birth):
            raise NotBorn


def warm_up(boot: Boot) -> tuple[Warmed, Blueprint | None]:
    """Import what workers of the role need. Returns: whether this process is fit to be forked, and the app."""
    blueprint = None
    if boot.role == "shard":
        try:
            blueprint = load_app(boot.app)
        except AppNotLoaded as error:
            return Warmed(error.error, error.remedy), None
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return Warmed(
            f"{boot.app} starts threads at import ({threads - 1} found), and a process with threads cannot be forked",
            "start them in on_start, for restarts within milliseconds",
            loaded=True,
        ), None
    # What was imported stays: looking at it again in every worker would only unshare its pages.
    gc.collect()
    gc.freeze()
    return Warmed(), blueprint


def main() -> int:
    """Entry point of the process, and of every worker it forks."""
    boot = read_boot(sys.argv)
    become_worker(boot)
    logs.set_up(f"warm-{boot.role}", str(boot.settings.get("log_level", "info")))
    assert boot.requests is not None
    requests = socket.socket(fileno=boot.requests)
    warmed, blueprint = warm_up(boot)
    send_warmed(requests, warmed)
    if warmed.reason:
        return 0
    try:
        worker = WarmProcess(boot, requests).serve()
    except NotBorn:
        os._exit(0)
    if worker is None:
        return 0
    if worker.role == "shard":
        return shard.run(worker, blueprint)
    return acceptor.run(worker)


if __name__ == "__main__":
    sys.exit(main())
