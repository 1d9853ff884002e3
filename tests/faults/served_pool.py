"""A real `shardpool serve` in a directory of its own, and what can be seen of it from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 30.0

APP = """\
from msgspec import Struct
from shardpool import Actor, App, on

app = App("faults")


@app.actor
class Player(Actor):
    @on
    def hello(self) -> str:
        return "hello"
"""


def wait_for(condition: Callable[[], Any], what: Callable[[], str] | str, seconds: float = PATIENCE) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what if isinstance(what, str) else what()}")
        time.sleep(0.005)
    return result


def alive(pids: set[int]) -> set[int]:
    """Those that run."""
    found = set()
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
        except psutil.NoSuchProcess:
            continue
    return found


class ServedPool:
    """One pool. Args: directory: short, since socket paths are; app: text of the module `faulty`; prefix: runs it."""

    def __init__(
        self,
        directory: Path,
        app: str = APP,
        *flags: str,
        address: str = "tcp://127.0.0.1:0",
        prefix: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
    ) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        # Not the working directory: a directory named shardpool there would hide the package.
        (directory / "run").mkdir(mode=0o700, exist_ok=True)
        self.write(app)
        # Names that begin like settings are settings; those of the tests are none.
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("SHARDPOOL_")}
        self.environ |= {"XDG_RUNTIME_DIR": str(directory / "run"), "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})}
        self.out, self.err = directory / "out", directory / "err"
        command = [*prefix, *self.command_line, "serve", "faulty:app", "--bind", address, "--workers", "2", *flags]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                command, cwd=directory, env=self.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    command_line = (sys.executable, "-P", "-m", "shardpool.supervisor.cli")

    def write(self, app: str) -> None:
        """Change the app's module."""
        (self.directory / "faulty.py").write_text(app)

    def up(self) -> ServedPool:
        """Wait until it serves."""
        wait_for(lambda: "stop: Ctrl-C" in self.out.read_text() or self.process.poll() is not None, self.said)
        assert self.process.poll() is None, self.said()
        return self

    def warm(self) -> ServedPool:
        """Wait until both warm processes can be forked."""
        self.up()
        wait_for(lambda: self.status()["warm_ready"] == 2, self.said)
        return self

    def said(self) -> str:
        """All that it wrote to stderr."""
        return self.err.read_text()

    @property
    def address(self) -> str:
        """Of its first listener."""
        found = re.search(r"listening on (\S+)", self.out.read_text())
        assert found is not None
        return found[1]

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the same."""
        host, _, port = self.address.partition("://")[2].rpartition(":")
        return host, int(port)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a shardpool command beside it."""
        return subprocess.run(
            [*self.command_line, *arguments], env=self.environ, capture_output=True, text=True, timeout=120, check=False
        )

    def status(self) -> Any:
        """What `status --json` says."""
        answer = self.command("status", "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def pids(self) -> dict[str, int]:
        """Of its workers, by role and number from 0."""
        return {f"{row['role']}-{row['index']}": row["pid"] for row in self.status()["processes"]}

    def everybody(self) -> set[int]:
        """Pids of all its processes but the supervisor, warm ones and those being born too."""
        try:
            return {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            return set()

    def replaced(self, who: str, pid: int) -> int:
        """Wait until a place is filled again. Returns: the new pid."""

        def there() -> int:
            status = self.status()
            for row in status["processes"]:
                if f"{row['role']}-{row['index']}" == who and row["state"] == "ready" and row["pid"] != pid:
                    return int(row["pid"])
            return 0

        return int(wait_for(there, self.said))

    def stop(self, seconds: float = PATIENCE) -> int:
        """Have it drain. Returns: its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def end(self) -> None:
        """Whatever state it is in."""
        workers = self.everybody()
        self.process.kill()
        self.process.wait(PATIENCE)
        wait_for(lambda: not alive(workers), "all workers to die with their supervisor", 5.0)
