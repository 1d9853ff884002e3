"""Starting and stopping what is measured: our servers and the peers."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardpool._load import Load

HERE = Path(__file__).resolve().parent
START_SECONDS = 20.0
STOP_SECONDS = 10.0
Transport = Literal["tcp", "ws"]
Framing = Literal["bare", "session"]
Check = Literal["echo", "counter"]


class ServerError(Exception):
    """A server did not start, or answered wrongly."""


@dataclass(frozen=True)
class Contender:
    """One server under test. Args: command: {python} and {port} are filled in when it starts."""

    name: str
    command: tuple[str, ...]
    transport: Transport = "tcp"
    framing: Framing = "bare"
    check: Check = "counter"


def ours(app: str, *, transport: Transport = "tcp", framing: Framing = "bare", workers: int = 1) -> Contender:
    """`shardpool serve` with one acceptor; limits raised so that none is measured."""
    attribute = app if framing == "session" or app == "room" else f"{app}_bare"
    main = "from shardpool.supervisor.cli import main; raise SystemExit(main())"
    command = (sys.executable, "-c", main, "serve", f"apps:{attribute}", "--bind", f"{transport}://127.0.0.1:{{port}}")
    limits = ("--connections", "4000", "--connections-per-address", "4000", "--handshakes-per-second", "100000")
    size = ("--workers", str(workers), "--acceptors", "1", "--name", "bench-{port}", "--log-level", "warning")
    name = "shardpool" if framing == "bare" else "shardpool (session protocol)"
    return Contender(name, (*command, *size, *limits), transport, framing)


def peer(name: str, script: str, *arguments: str, transport: Transport = "tcp") -> Contender:
    """A script of peers/, run by their own interpreter."""
    return Contender(name, ("{python}", str(HERE / "peers" / script), "--port", "{port}", *arguments), transport)


class Server:
    """A running contender."""

    def __init__(self, contender: Contender, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.contender, self.process, self.port, self.log = contender, process, port, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def load(self, connections: int) -> Load:
        """Connections to it, open."""
        load = Load(
            "127.0.0.1",
            self.port,
            connections=connections,
            transport=self.contender.transport,
            framing=self.contender.framing,
            hello=b'{"v":1}',
            check=self.contender.check,
        )
        load.connect(20.0)
        return load

    def wait_ready(self) -> None:
        """Until it answers one message. Raises: ServerError: with its last words."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                load = self.load(1)
                result = load.run(0.05)
                load.close()
                if result["messages"] and not result["errors"]:
                    return
                reason = result["error"] or "no reply"
            except (ConnectionError, TimeoutError) as error:
                reason = str(error)
            if self.process.poll() is not None or time.monotonic() > deadline:
                words = self.log.read_text(errors="replace").strip()[-600:]
                raise ServerError(f"{self.contender.name} does not serve: {reason}. {words}")
            time.sleep(0.05)

    def stop(self) -> None:
        """By SIGTERM, then SIGKILL to its whole process group."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """A loopback port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(contender: Contender, python: Path) -> Iterator[Server]:
    """Start a contender, wait until it answers, stop it at the end. Args: python: the peers' interpreter."""
    port = free_port()
    command = [part.format(python=python, port=port) for part in contender.command]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
            )
        server = Server(contender, process, port, log)
        try:
            server.wait_ready()
            yield server
        finally:
            server.stop()
