"""A real pool (`shardpool serve`) with a small app of the test's, for tests that look at it from a client's socket."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PROGRAM = str(Path(sys.executable).with_name("shardpool"))
PATIENCE = 30.0

SESSIONS = """\
from msgspec import Struct
from shardpool import Actor, App, on

app = App("small")

class Hit(Struct, tag="hit"):
    n: int = 0

@app.actor
class Counter(Actor):
    count = 0

    @on
    def hit(self, msg: Hit) -> dict:
        self.count += 1
        return {"count": self.count}
"""

BARE = """\
from shardpool import Actor, App, on

app = App("small", codec="raw", envelope=False)

@app.actor
class Echo(Actor):
    @on
    def any(self, msg: bytes) -> bytes:
        return msg
"""


@dataclass
class Running:
    """A pool that serves."""

    process: subprocess.Popen[str]
    run_dir: str
    addresses: dict[str, tuple[str, int]]
    log: Path
    sockets: list[socket.socket] = field(default_factory=list)

    def connect(self, transport: str = "tcp") -> socket.socket:
        """A client's socket, closed with the pool."""
        sock = socket.create_connection(self.addresses[transport], timeout=PATIENCE)
        self.sockets.append(sock)
        return sock

    def session(self) -> socket.socket:
        """A client whose welcome is read."""
        sock = self.connect()
        send(sock, b'H{"v":1}')
        assert receive(sock)[:1] == b"W"
        return sock

    def worker(self, role: str) -> psutil.Process:
        """The first worker of a role."""
        for child in psutil.Process(self.process.pid).children():
            if f"shardpool: {role} 1/" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"no {role} among the children")

    def status(self) -> dict[str, Any]:
        """What `shardpool status --json` says."""
        done = subprocess.run([PROGRAM, "status", "--json", "--run-dir", self.run_dir], capture_output=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def shard(self) -> dict[str, Any]:
        """The first shard's part of the status."""
        found: dict[str, Any] = next(each for each in self.status()["processes"] if each["role"] == "shard")
        return found


@contextlib.contextmanager
def pool(
    app: str, *flags: str, binds: tuple[str, ...] = ("tcp", "ws"), descriptors: int | None = None
) -> Iterator[Running]:
    """Serve an app; it must stop by itself when told to. Args: descriptors: as many open ones are permitted."""
    with tempfile.TemporaryDirectory(prefix="sp-") as directory:
        where = Path(directory)
        (where / "small_app.py").write_text(app)
        run_dir = f"{directory}/run"
        limited = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        command = [*limited, PROGRAM, "serve", "small_app:app", "--workers", "1", "--run-dir", run_dir]
        for transport in binds:
            command += ["--bind", f"{transport}://127.0.0.1:0"]
        with (where / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, *flags], cwd=where, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        running = Running(process, run_dir, {}, where / "log")
        try:
            running.addresses = _addresses(running, len(binds))
            yield running
        finally:
            for sock in running.sockets:
                sock.close()
            process.terminate()
            code = process.wait(PATIENCE)
            assert process.stdout is not None
            process.stdout.close()
        assert code == 0, running.log.read_text()


def _addresses(running: Running, count: int) -> dict[str, tuple[str, int]]:
    assert running.process.stdout is not None
    found: dict[str, tuple[str, int]] = {}
    for line in running.process.stdout:
        match = re.search(r"listening on (\w+)://([\d.]+):(\d+)", line)
        if match:
            found[match[1]] = (match[2], int(match[3]))
        if len(found) == count:
            return found
    raise AssertionError(f"the pool did not come up: {running.log.read_text()}")


def send(sock: socket.socket, *frames: bytes) -> None:
    """Frames, each behind its length."""
    sock.sendall(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))


def read(sock: socket.socket, size: int) -> bytes:
    """Exactly so many bytes; fewer at the end of the stream."""
    got = b""
    while len(got) < size:
        piece = sock.recv(size - len(got))
        if not piece:
            break
        got += piece
    return got


def receive(sock: socket.socket) -> bytes:
    """The next frame; b"" at the end of the stream."""
    head = read(sock, 4)
    return read(sock, struct.unpack(">I", head)[0]) if len(head) == 4 else b""


def hit(sock: socket.socket, number: int) -> dict[str, Any]:
    """One ask of the small app."""
    send(sock, b"A" + struct.pack(">I", number) + b'{"type":"hit"}')
    frame = receive(sock)
    assert frame[:1] == b"R", frame
    assert struct.unpack(">I", frame[5:9])[0] == number
    found: dict[str, Any] = json.loads(frame[9:])
    return found


def wait_until(condition: Any, why: str) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)
