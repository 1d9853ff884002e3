"""The acceptor process: client sockets on one side, shards' mailboxes on the other. It runs no user code.

    engine (C, shardpool._core.Acceptor)   reads, splits, admits, writes; one epoll
        events  ->  Clients                handshakes, hellos, TLS, last words: calls back into the engine
    control socket  ->  this module        which shards are in service, drain, stop

Started by the supervisor: python -m shardpool.workers.acceptor --boot FD
"""

from __future__ import annotations

import logging
import os
import sys
import time
from enum import Enum, auto

import msgspec

from shardpool._core import Acceptor, Node
from shardpool.boot import Boot, become_worker, leave_worker, read_boot
from shardpool.control import CloseDoors, Drain, Drained, Failed, Homes, Ready, Register, Stop
from shardpool.errors import Condition, ErrorBody
from shardpool.exit_codes import ExitCode
from shardpool.workers import logs
from shardpool.workers.acceptor_settings import AcceptorSettings
from shardpool.workers.clients import AppFacts, Clients
from shardpool.workers.control_link import ControlLink
from shardpool.workers.doors import Event, Transport
from shardpool.workers.http import Site
from shardpool.workers.kinds import SlotKind
from shardpool.workers.minting import Mint
from shardpool.workers.passages import Passages
from shardpool.workers.static_files import StaticFiles
from shardpool.workers.tls import TlsFileError, server_context
from shardpool.workers.websocket import Upgrade

log = logging.getLogger("shardpool.acceptor")

# How long a client may take for its close frame once the pool stops; the supervisor's stop_timeout is longer.
STOP_SECONDS = 2.0

_REFUSALS = {
    Condition.SATURATED: "the shard runs as many objects as it may (permits); try again",
    Condition.STALE: "the object behind this session has ended",
}


class Phase(Enum):
    """How far the process is on its way down."""

    SERVING = auto()
    DRAINING = auto()  # what was read is being published
    DRAINED = auto()
    STOPPING = auto()


class AcceptorProcess:
    """Joins engine, clients and control."""

    def __init__(self, boot: Boot, link: ControlLink) -> None:
        settings = AcceptorSettings.of(boot.settings)
        self._link = link
        self._phase = Phase.SERVING
        self._doors = [listener.fd for listener in boot.listeners]
        self._deadline = 0.0
        self._mint = Mint(boot.shards, boot.index)
        transports = [Transport[listener.transport.upper()] for listener in boot.listeners]
        secure = any(transport.secure for transport in transports)
        tls = server_context(settings.tls_cert or "", settings.tls_key or "") if secure else None
        self._node = Node(boot.process, boot.segments, boot.doorbells)
        self._engine = Acceptor(self._node, boot.index, settings.engine(boot.envelope))
        files = StaticFiles(settings.static_dir)
        upgrade = Upgrade(settings.origins, settings.compression, settings.frame_bytes)
        sites = {kind: Site(files, upgrade, self._ready, kind) for kind in (False, True)}
        self._passages = Passages(boot.passages, boot.index)
        app = AppFacts(boot.app_name, boot.codec, boot.envelope)
        self._clients = Clients(self._engine, settings, app, self._mint, sites, transports, tls, self._passages)
        self._take_over()
        self._listen(boot, transports)

    def _take_over(self) -> None:
        kept, ended = self._engine.take_over(SlotKind.SESSION)
        if kept or ended:
            log.warning("restarted: %d sessions of the predecessor wait for their clients, %d ended", kept, ended)

    def _listen(self, boot: Boot, transports: list[Transport]) -> None:
        for condition, sentence in _REFUSALS.items():
            self._engine.set_error(condition.row.number, error_body(condition, sentence))
        self._engine.watch(self._link.fd)
        if self._passages.fd is not None:
            self._engine.watch(self._passages.fd)
        for listener, transport in zip(boot.listeners, transports, strict=True):
            os.set_blocking(listener.fd, False)
            self._engine.listen(listener.fd, transport)

    def _ready(self) -> bool:
        return self._phase is Phase.SERVING and bool(self._doors) and bool(self._mint.homes)

    def run(self) -> None:
        """Serve until the supervisor says stop."""
        self._control()
        while not self._over():
            for kind, client, a, b, payload in self._engine.poll(self._wait_ms()):
                self._handle(kind, client, a, b, payload)
            self._clients.settle()
            if self._phase is Phase.DRAINING and self._engine.settled:
                self._phase = Phase.DRAINED
                self._link.send(Drained())
                self._control()

    def _wait_ms(self) -> int:
        if self._phase is Phase.DRAINING:
            return 50
        if self._phase is Phase.STOPPING:
            return max(0, min(100, int((self._deadline - time.monotonic()) * 1000)))
        return -1

    def _over(self) -> bool:
        if self._phase is not Phase.STOPPING:
            return False
        return self._engine.connections == 0 or time.monotonic() >= self._deadline

    def _handle(self, kind: int, client: int, a: int, b: int, payload: bytes) -> None:
        if self._clients.handle(kind, client, a, b, payload):
            return
        if kind == Event.READY and client == self._passages.fd:
            self._clients.receive()
        elif kind == Event.READY:
            self._control()
        else:
            report(kind, client, a, b)

    def _control(self) -> None:
        for message in self._link.receive():
            match message:
                case Homes(shards):
                    self._mint.set_homes(shards)
                case CloseDoors():
                    self._close_doors()
                case Drain():
                    self._drain()
                case Stop():
                    self._stop()

    def _close_doors(self) -> None:
        """Clients are refused by the kernel once nobody has the sockets open; else they would wait for nobody."""
        self._engine.stop_accepting()
        while self._doors:
            os.close(self._doors.pop())

    def _drain(self) -> None:
        if self._phase is Phase.SERVING:
            self._phase = Phase.DRAINING
            self._close_doors()
            self._engine.stop_reading()

    def _stop(self) -> None:
        if self._phase is Phase.STOPPING:
            return
        self._phase = Phase.STOPPING
        self._deadline = time.monotonic() + STOP_SECONDS
        self._close_doors()
        self._engine.end_all(1001, b"the server is going down")


def error_body(condition: Condition, sentence: str) -> bytes:
    """Body of an E frame."""
    return msgspec.json.encode(ErrorBody(condition.code, condition.row.kind.__name__, sentence))


def report(kind: int, client: int, a: int, b: int) -> None:
    """What concerns no client, for the operator's log."""
    match kind:
        case Event.STARVED:
            log.error(
                "accepting pauses: %s; raise the limit of open files (ulimit -n) or lower connections", os.strerror(a)
            )
        case Event.CORRUPT:
            log.error("the ring of process %d (stream %d) makes no sense and is left alone; restart that worker", a, b)
        case _:
            log.warning("a record of kind %d, which nothing here reads", client)


def run(boot: Boot) -> int:
    """Become an acceptor. Returns: the exit code."""
    become_worker(boot)
    logs.set_up(boot.log_name, str(boot.settings["log_level"]))
    link = ControlLink(boot.control, boot.identity)
    link.send(Register(boot.role, boot.index, os.getpid()))
    try:
        process = AcceptorProcess(boot, link)
    except TlsFileError as error:
        link.send(Failed(error.reason, error.remedy, int(ExitCode.CONFIG)))
        link.close()
        return int(ExitCode.CONFIG)
    link.send(Ready())
    process.run()
    link.close()
    leave_worker()
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(run(read_boot(sys.argv)))
