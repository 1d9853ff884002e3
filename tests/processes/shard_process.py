"""One real shard process, with the test as its supervisor (control socket) and its acceptor (links)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from shardpool import _core, control
from shardpool.boot import Boot
from shardpool.control import FromWorker, ToWorker

PATIENCE = 20.0


class _NoHooks:
    loop = enter_task = leave_task = stub = None

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class ShardProcess:
    """A `python -m shardpool.workers.shard` of its own."""

    def __init__(self, directory: Path, app: str, **settings: Any) -> None:
        geometry = _core.Geometry(1, 2, slots=4096, permits=1024, arena_bytes=8 << 20, directory_entries=1024)
        self.segments = [_core.create_segment(geometry, process) for process in range(4)]
        self.doorbells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(4)]
        self.acceptor = _core.Node(1, self.segments, self.doorbells)
        self._driver = _core.Shard(_core.Node(3, self.segments, self.doorbells), 1, _NoHooks())
        self._zmq = zmq.Context(1)
        self._router = self._zmq.socket(zmq.ROUTER)
        address = f"ipc://{directory}/control.sock"
        self._router.bind(address)
        boot = Boot(
            role="shard",
            index=0,
            process=2,
            acceptors=1,
            shards=1,
            segments=self.segments,
            doorbells=self.doorbells,
            listeners=[],
            control=address,
            app=app,
            app_name="test",
            codec="json",
            envelope=True,
            settings=settings,
            supervisor_pid=os.getpid(),
        )
        fd = os.memfd_create("boot", 0)
        os.write(fd, msgspec.json.encode(boot))
        self.err = directory / "err"
        with open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shardpool.workers.shard", "--boot", str(fd)],
                pass_fds=[fd, *self.segments, *self.doorbells],
                cwd=directory,
                stderr=err,
                stdin=subprocess.DEVNULL,
            )
        os.close(fd)

    def expect(self, of: type[FromWorker]) -> Any:
        """The worker's next control message of a type."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._router.poll(100):
                message = control.decode_from_worker(self._router.recv_multipart()[-1])
                if isinstance(message, of):
                    return message
        raise AssertionError(f"no {of.__name__} in {PATIENCE} s; stderr: {self.err.read_text()}")

    def tell(self, message: ToWorker) -> None:
        """Send it a control message."""
        self._router.send_multipart([b"shard-0", control.encode(message)])

    def post(self, address: int, kind: int, a: int, b: int, payload: bytes = b"") -> None:
        """A lifecycle record to an object."""
        assert self._driver.post(address, kind, a, b, payload) == 0
        self._driver.park()

    def frame(self, address: int, message: Any, flags: int = 0) -> None:
        """A client's frame."""
        assert _core.publish_frames(self.acceptor, address, 1 << 32, json.dumps(message).encode(), 1, flags) == 0

    def record(self, kind: int) -> tuple[int, int, int, int, int, bytes]:
        """The next record of a kind that comes for the acceptor."""
        found: list[Any] = []

        def there() -> bool:
            found.extend(r for r in _core.drain_links(self.acceptor, True) if r[0] == kind)
            return bool(found)

        self.until(there, f"a record of kind {kind}")
        first: tuple[int, int, int, int, int, bytes] = found[0]
        return first

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}; stderr: {self.err.read_text()}"
            time.sleep(0.002)

    def close(self) -> None:
        """Kill it if it lives, close everything."""
        self.process.kill()
        self.process.wait()
        self._zmq.destroy(linger=0)
        for fd in (*self.segments, *self.doorbells):
            os.close(fd)
