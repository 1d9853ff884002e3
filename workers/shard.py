"""The shard process: one event loop, one executor, the app's objects.

python -m shardpool.workers.shard --boot FD

doorbell ──▶ wake ──▶ run(time budget) ──▶ more is ready: the loop has a look, then again
                          ▲               └▶ nothing is: park; asleep until the doorbell or a task's poke
timers, tasks, sockets ───┘ poke
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from asyncio import tasks as asyncio_tasks
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from shardpool import _core, dead_letters
from shardpool._core import Node, Shard, Table
from shardpool.app import Blueprint
from shardpool.boot import Boot, become_worker, leave_worker, read_boot
from shardpool.control import Drain, Drained, Failed, FromWorker, HandOver, Ready, Register, Stop, ToWorker
from shardpool.dead_letters import DeadLetterFile
from shardpool.directory import Directory
from shardpool.errors import Condition
from shardpool.exit_codes import ExitCode
from shardpool.loading import AppNotLoaded, load_app
from shardpool.workers import logs
from shardpool.workers.context import ShardContext, ShardSettings, log
from shardpool.workers.control_link import ControlLink
from shardpool.workers.runtime import Hooks, ShardRuntime
from shardpool.workers.turns import Stub

STOP_SHARE = 0.8  # of stop_timeout, for ending well; then comes SIGKILL
POLL_SECONDS = 0.01
LOOK_SECONDS = 0.002
HELD_SECONDS = 0.05


class ShardProcess:
    """One shard's life."""

    def __init__(self, boot: Boot, loop: asyncio.AbstractEventLoop) -> None:
        self._boot = boot
        self._loop = loop
        self._exit: asyncio.Future[int] = loop.create_future()
        self._control = ControlLink(boot.control, boot.identity)
        loop.add_reader(self._control.fd, self._look_at_control)
        self._settings = ShardSettings.of(boot.settings)
        self._budget_ns = int(self._settings.time_budget * 1e9)
        self._pump_planned = False
        self._idle = False
        self._drain_asked = False
        self._stopping: asyncio.Task[None] | None = None
        self._handing_over = False
        self._holding = False  # no turn begins
        self._runtime: ShardRuntime | None = None

    async def live(self, blueprint: Blueprint | None = None) -> int:
        """Start, serve, end. Args: blueprint: the app, where it is loaded already. Returns: the exit code."""
        self._say(Register("shard", self._boot.index, os.getpid()))
        try:
            try:
                blueprint = blueprint or load_app(self._boot.app)
            except AppNotLoaded as error:
                return self._failed(error.error, error.remedy)
            self._build(blueprint)
            try:
                await run_hooks(blueprint.app.start_hooks, self._boot.index)
            except Exception as error:
                log.error("on_start raised", exc_info=error)
                reason = f"on_start of app {blueprint.app.name!r} raised {type(error).__name__}: {error}"
                return self._failed(reason, "The traceback is in the log; correct it and start again")
            assert self._runtime is not None
            self._runtime.take_over()
            self._loop.add_reader(self._boot.doorbells[self._boot.process], self._ring)
            self._say(Ready())
            self._plan_pump()
            return await self._exit
        finally:
            self._loop.remove_reader(self._control.fd)
            self._control.close()

    def _build(self, blueprint: Blueprint) -> None:
        boot = self._boot
        node = Node(boot.process, boot.segments, boot.doorbells)
        hooks = Hooks(self._loop, self._plan_pump, *task_hooks())
        shard = Shard(node, boot.index, hooks, self._budget_ns)
        context = ShardContext(
            shard=shard,
            loop=self._loop,
            number=boot.index,
            shards=boot.shards,
            acceptors=boot.acceptors,
            blueprint=blueprint,
            settings=self._settings,
            directory=Directory(_core.Directory(node), blueprint.app.name),
        )
        hooks.runtime = self._runtime = ShardRuntime(context, Table, self._dead_letters())

    def _dead_letters(self) -> DeadLetterFile | None:
        settings = self._boot.settings
        if "dead_letter_bytes" not in settings:
            return None
        # Beside the control socket: in the pool's private directory.
        default = Path(self._boot.control.removeprefix("ipc://")).with_name(dead_letters.NAME)
        return DeadLetterFile(Path(settings.get("dead_letters") or default), settings["dead_letter_bytes"])

    def _failed(self, reason: str, remedy: str) -> int:
        self._say(Failed(reason, remedy, int(ExitCode.APP)))
        return int(ExitCode.APP)

    def _plan_pump(self) -> None:
        if not self._pump_planned:
            self._pump_planned = True
            self._loop.call_soon(self._pump)

    def _ring(self) -> None:
        self._shard.wake()
        assert self._runtime is not None
        self._runtime.deaths.look()
        self._plan_pump()

    @property
    def _shard(self) -> Shard:
        assert self._runtime is not None
        return self._runtime.context.shard

    def _pump(self) -> None:
        self._pump_planned = False
        if self._holding:
            return
        try:
            self._idle = False
            # Not parked with work left: the loop gets its look first (M-14), then it goes on.
            if self._shard.run(self._budget_ns) or not self._shard.park():
                self._plan_pump()
                return
            self._idle = True
        except Exception as error:
            # The executor's own failure: a shard that cannot run its queue must not look alive.
            log.critical("the executor failed; this shard ends", exc_info=error)
            self._end(int(ExitCode.INTERNAL))
            return
        if self._drain_asked and not self._busy():
            self._drain_asked = False
            self._say(Drained())

    def _busy(self) -> bool:
        assert self._runtime is not None
        return self._runtime.busy

    def _say(self, message: FromWorker) -> None:
        self._control.send(message)
        self._loop.call_soon(self._look_at_control)

    def _look_at_control(self) -> None:
        if not self._exit.done():
            for message in self._control.receive():
                self._receive(message)

    def _receive(self, message: ToWorker) -> None:
        match message:
            case Drain():
                self._drain_asked = True
                if self._runtime is not None:
                    self._runtime.context.draining = True
                    self._loop.create_task(self._watch_drain())
            case HandOver(timeout):
                if self._stopping is None:
                    self._stopping = self._loop.create_task(self._hand_over(timeout))
            case Stop():
                if self._stopping is None or self._handing_over:
                    self._handing_over = self._holding = False
                    self._stopping = self._loop.create_task(self._stop())

    async def _watch_drain(self) -> None:
        # Suspended turns end in tasks, not in the pump: look at them until nothing is left.
        while self._drain_asked:
            self._plan_pump()
            await asyncio.sleep(POLL_SECONDS)

    async def _hand_over(self, timeout: float) -> None:
        """Leave between two turns; what waits is the successor's.

        Suspended turns get their time. Where they do not end by themselves others run for a moment: those may be what
        they wait for. Running on all the while, a shard with much to do would never be without one.
        """
        self._handing_over = self._holding = True
        deadline = self._loop.time() + timeout
        look = self._loop.time() + HELD_SECONDS
        while self._runtime is not None and self._busy() and self._loop.time() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._handing_over:
                return  # the pool stops meanwhile
            if self._loop.time() >= look:
                self._holding = False
                self._pump()
                self._holding = True
                look = self._loop.time() + HELD_SECONDS
        self._handing_over = False
        if self._runtime is not None:
            try:
                async with asyncio.timeout(self._end_limit):
                    await self._run_stop_hooks(self._runtime)
            except TimeoutError:
                log.warning("on_stop took more than %.1f s; leaving anyway", self._end_limit)
            self._shard.hand_over()
        self._end(int(ExitCode.OK))

    async def _stop(self) -> None:
        if self._runtime is None:
            self._end(int(ExitCode.OK))
            return
        limit = self._end_limit
        try:
            async with asyncio.timeout(limit):
                await self._end_well(self._runtime)
        except TimeoutError:
            log.warning("on_disconnect, on_close and on_stop took more than %.1f s together; ending anyway", limit)
        except Exception as error:
            log.error("ending failed", exc_info=error)
        self._end(int(ExitCode.OK))

    async def _end_well(self, runtime: ShardRuntime) -> None:
        runtime.context.draining = True
        runtime.asks.fail_all(Condition.SHUTTING_DOWN, "the pool is stopping")
        await runtime.sessions.end_all("going_away")
        self._plan_pump()
        await asyncio.sleep(0)
        while not self._idle or len(runtime.turns) or len(runtime.insistence):
            self._plan_pump()
            await asyncio.sleep(POLL_SECONDS)
        await runtime.lives.close_all("shutdown")
        await self._run_stop_hooks(runtime)

    @property
    def _end_limit(self) -> float:
        return float(self._boot.settings.get("stop_timeout", 5.0)) * STOP_SHARE

    async def _run_stop_hooks(self, runtime: ShardRuntime) -> None:
        for hook in runtime.context.blueprint.app.stop_hooks:
            try:
                await run_hooks([hook], self._boot.index)
            except Exception as error:
                log.error("on_stop raised", exc_info=error)

    def _end(self, code: int) -> None:
        self._holding = True  # turns that are cancelled when the loop ends are not followed by others
        if not self._exit.done():
            self._exit.set_result(code)


def task_hooks() -> tuple[Any, Any, Callable[[], Any] | None]:
    """asyncio's way to name the current task, for coroutines stepped without one; Nones where it is missing."""
    enter = getattr(asyncio_tasks, "_enter_task", None)
    leave = getattr(asyncio_tasks, "_leave_task", None)
    if enter is None or leave is None:
        return None, None, None
    return enter, leave, Stub


async def run_hooks(hooks: list[Callable[..., Any]], shard: int) -> None:
    """Run the app's on_start or on_stop functions, in the order they were registered."""
    for hook in hooks:
        result = hook(shard) if inspect.signature(hook).parameters else hook()
        if isinstance(result, Coroutine) or inspect.isawaitable(result):
            await result


def main(argv: list[str]) -> int:
    """Become the shard that the command line's boot record names. Returns: the exit code."""
    return run(read_boot(argv))


def run(boot: Boot, blueprint: Blueprint | None = None) -> int:
    """Become a shard. Args: blueprint: the app, where it is loaded already. Returns: the exit code."""
    become_worker(boot)
    logs.set_up(boot.log_name, str(boot.settings.get("log_level", "info")))

    async def live() -> int:
        return await ShardProcess(boot, asyncio.get_running_loop()).live(blueprint)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(live())
    leave_worker()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
