"""What the supervisor must know about the app; it loads no user code (P-2), so a child tells it."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from shardpool.boot import die_with_parent
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.death import Death
from shardpool.supervisor.refusal import Refusal

_PROGRESS_PERIOD = 2.0


class AppFacts(Struct, frozen=True):
    """What `python -m shardpool.check MODULE:APP --json` says about an app."""

    name: str
    codec: str
    envelope: bool = True
    static_dir: str | None = None
    origins: list[str] | None = None
    slow_client: str | None = None

    def settings(self) -> dict[str, Any]:
        """What the app says about settings; None where it says nothing."""
        return {"static_dir": self.static_dir, "origins": self.origins or None, "slow_client": self.slow_client}


class _Problem(Struct, frozen=True):
    error: str
    remedy: str = ""
    exit_code: int = int(ExitCode.APP)


def ask_app(app: str, timeout: float, waiting: Callable[[str], None], command: list[str] | None = None) -> AppFacts:
    """Import an app in a child process and return what it says about itself.

    Args:
        app: "module:attribute".
        timeout: seconds; an import that takes longer is refused.
        waiting: gets a line when it takes long.
        command: instead of `python -m shardpool.check` (tests).
    Raises: Refusal with the app's problem and its remedy.
    """
    argv = [*(command or [sys.executable, "-m", "shardpool.check"]), app, "--json"]
    parent = os.getpid()
    # Its own group: Ctrl-C is ours to answer. An import that hangs must not outlive a supervisor that is killed;
    # preexec_fn is safe here, before ZeroMQ has started its threads.
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,
            preexec_fn=lambda: die_with_parent(parent),
        )
    except OSError as error:
        raise Refusal(
            f"cannot run {argv[0]} as uid {os.geteuid()}: {error.strerror}",
            "install Python and the app where that user can read them",
            ExitCode.CONFIG,
        ) from None
    with child:
        try:
            output = _wait(child, app, timeout, waiting)
        finally:
            child.kill()
    line = output.strip().rsplit(b"\n", 1)[-1]
    try:
        if child.returncode == 0:
            return msgspec.json.decode(line, type=AppFacts)
        problem = msgspec.json.decode(line, type=_Problem)
    except msgspec.DecodeError:
        code, module = child.returncode, app.partition(":")[0]
        death = Death(exit_code=code) if code >= 0 else Death(signal=-code)
        raise Refusal(
            f"cannot load {app}: the process that imports it {death.text}",
            f"`python -X faulthandler -c 'import {module}'` shows where",
            ExitCode.APP,
        ) from None
    known = {int(code) for code in ExitCode} - {0}
    raise Refusal(
        problem.error, problem.remedy, ExitCode(problem.exit_code if problem.exit_code in known else ExitCode.APP)
    )


def _wait(child: "subprocess.Popen[bytes]", app: str, timeout: float, waiting: Callable[[str], None]) -> bytes:
    waited = 0.0
    while True:
        step = min(_PROGRESS_PERIOD, timeout - waited)
        try:
            return child.communicate(timeout=step)[0]
        except subprocess.TimeoutExpired:
            waited += step
        if waited >= timeout:
            raise Refusal(
                f"importing {app} took more than {timeout:g} s",
                "do slow work in on_start, not at import",
                ExitCode.APP,
            )
        waiting(f"importing {app}: {waited:.0f} s so far (pid {child.pid}, working directory {os.getcwd()})")
