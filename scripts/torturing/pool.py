"""A real pool in processes of its own, and what its supervisor says about it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import zmq

from shardpool import control, dead_letters

SCRIPTS = Path(__file__).resolve().parents[1]
T = TypeVar("T")

# What is counted in a shard and must be nothing when nobody is connected any more.
RESUME_WINDOW = 20
COUNTED = ("permits_used", "sessions", "ready")


class PoolError(Exception):
    """The pool did not do what it must for the run to go on."""


def wait_for(condition: Callable[[], T], seconds: float, what: str) -> T:
    """Look until it is true, and give it; raises PoolError when it is not in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise PoolError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)
    return found


class Pool:
    """`shardpool serve` of the victims, with a run directory of its own."""

    def __init__(
        self,
        directory: Path,
        shards: int,
        acceptors: int,
        environ: Mapping[str, str],
        app: str = "torturing.victims:app",
        modules: Path = SCRIPTS,
    ) -> None:
        self.run_dir = directory / "run"
        self.log = directory / "pool.log"
        # A death is no reason to wait: many are wanted, and each counts for itself.
        unlimited = {"SHARDPOOL_RESTART_INTENSITY": "1000", "SHARDPOOL_RESTART_PERIOD": "0.1"}
        unlimited["SHARDPOOL_DEAD_LETTER_BYTES"] = str(1 << 28)
        unlimited |= {"SHARDPOOL_RESUME_WINDOW": str(RESUME_WINDOW)}
        self.environ = {**os.environ, **unlimited, **environ}
        command = [sys.executable, "-m", "shardpool.supervisor.cli", "serve", app]
        command += ["--run-dir", str(self.run_dir), "--bind", "tcp://127.0.0.1:0", "--bind", "ws://127.0.0.1:0"]
        command += ["--workers", str(shards), "--acceptors", str(acceptors)]
        with open(self.log, "wb") as log:
            self.process = psutil.Popen(
                command, cwd=modules, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{self.run_dir / 'admin.sock'}")
        wait_for(self.is_serving, 60.0, "the pool is serving")
        # what is open later is compared with what is open now, warm start processes included
        wait_for(lambda: self.status()["warm_ready"] == 2, 60.0, "the warm start processes are ready")
        found = {each["transport"]: each["address"] for each in self.status()["listeners"]}
        self.addresses = (found["tcp"], found["ws"])

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """What `shardpool status` shows; raises PoolError when the supervisor does not answer."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise PoolError(f"the pool ended with code {self.process.returncode}:\n{self.last_words()}")
            self._socket.send(control.encode(control.StatusRequest()))
            if self._socket.poll(1000, zmq.POLLIN):
                reply = control.decode_reply(self._socket.recv_multipart()[-1])
                while self._socket.poll(0, zmq.POLLIN):  # an answer to an earlier question
                    reply = control.decode_reply(self._socket.recv_multipart()[-1])
                if isinstance(reply, control.StatusReply):
                    return reply.status
        raise PoolError(f"the supervisor did not answer within {timeout:g} s:\n{self.last_words()}")

    def processes(self) -> list[dict[str, Any]]:
        """One row per worker."""
        rows: list[dict[str, Any]] = self.status()["processes"]
        return rows

    def is_serving(self) -> bool:
        """Whether every worker is ready."""
        status = self.status(60.0)
        return status["phase"] == "serving" and all(row["state"] == "ready" for row in status["processes"])

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    def dead(self) -> tuple[frozenset[int], frozenset[int]]:
        """Numbers of the messages that the dead letters name: those of clients, those between shards."""
        path = self.run_dir / "dead-letters.jsonl"
        letters = dead_letters.read(path) if path.exists() else []
        decode = {"json": msgspec.json.decode, "msgpack": msgspec.msgpack.decode}
        named: tuple[set[int], set[int]] = (set(), set())
        for letter in letters:
            body = decode[letter.codec](letter.payload)
            if isinstance(body, dict) and "number" in body:
                named[body["type"] == "hop"].add(body["number"])
        return frozenset(named[0]), frozenset(named[1])

    def left(self) -> list[str]:
        """What shards still hold; empty when all clients are gone and nothing leaked."""
        shards = [row for row in self.processes() if row["role"] == "shard"]
        return [
            f"shard {row['index']}: {name} {row['counters'][name]}"
            for row in shards
            for name in COUNTED
            if row["counters"][name]
        ]

    def stop(self, seconds: float = 40.0) -> int:
        """SIGTERM, the way an operator ends it; returns its exit code."""
        self._socket.close()
        self._context.term()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return int(self.process.wait(seconds))
        except psutil.TimeoutExpired:
            self.kill()
            return -1

    def kill(self) -> None:
        """End it at once, and its workers with it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
