"""The supervisor's one loop: collect events, let `decide` judge them, perform its actions.

It waits for nothing but this poll: no worker, no user code, no thread, no asyncio.

    pidfds ------------.                          .--> exec, SIGKILL
    control.sock ------+--> event --> decide -----+--> control messages
    admin.sock --------+        (decisions.py)    +--> settle shared memory after a death
    signals, clock ----'                          '--> lines for people, sd_notify
"""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

import msgspec
import zmq

from shardpool.control import (
    AuditReply,
    AuditRequest,
    Drained,
    DrainRequest,
    Failed,
    Ready,
    Refused,
    Register,
    RestartReply,
    RestartRequest,
    StatusReply,
    StatusRequest,
    StopReply,
    StopRequest,
)
from shardpool.exit_codes import ExitCode
from shardpool.supervisor import decisions, rolling
from shardpool.supervisor.answers import Answers
from shardpool.supervisor.child import Process
from shardpool.supervisor.child_spec import ChildSpec, Role, child_specs
from shardpool.supervisor.console import Console, Level
from shardpool.supervisor.control_sockets import ControlSockets
from shardpool.supervisor.death import Death
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.notify import Notify
from shardpool.supervisor.nursery import Born, Renewed
from shardpool.supervisor.plan import Plan
from shardpool.supervisor.pool_state import (
    REACHABLE,
    Action,
    Announce,
    BecameReady,
    Died,
    DrainAsked,
    Emptied,
    Event,
    Kill,
    Limits,
    Phase,
    Refresh,
    Refreshed,
    Registered,
    RestartAsked,
    Say,
    Send,
    Settle,
    Settled,
    Spawned,
    SpawnFailed,
    Start,
    Status,
    StopAsked,
    Tick,
    WorkerDrained,
    WorkerFailed,
)
from shardpool.supervisor.recovery import Recovery
from shardpool.supervisor.restart_policy import RestartPolicy
from shardpool.supervisor.signals import Signals
from shardpool.supervisor.stall import STACK_SECONDS, Progress, observe
from shardpool.supervisor.starter import NotStarted, Outcome, Starter
from shardpool.supervisor.welcome import welcome

_WATCH_PERIOD = 1.0
_EMPTYING_PERIOD = 0.1
_LAST_WORDS_MS = 100


class Supervisor:
    """Runs one pool from its first process to its last."""

    def __init__(self, plan: Plan, memory: Memory, console: Console, notify: Notify) -> None:
        self._plan = plan
        self._memory = memory
        self._console = console
        self._notify = notify
        settings = plan.settings
        self._specs = child_specs(settings["acceptors"], settings["workers"])
        self._by_identity = {spec.identity: spec for spec in self._specs}
        self._started = time.monotonic()
        limits = Limits(
            settings["drain_timeout"],
            settings["stop_timeout"],
            RestartPolicy(settings["restart_intensity"], settings["restart_period"]),
        )
        self._state = decisions.initial_state(self._specs, limits, self._started)
        self._recovery = Recovery(memory)
        self._processes: dict[int, Process] = {}  # by process index
        self._registered: set[int] = set()  # process indices whose present process has registered
        self._progress: dict[int, Progress] = {}
        self._condemned: dict[int, str] = {}  # why we killed it
        self._answers = Answers(plan, memory)
        self._watch_due = self._started + _WATCH_PERIOD

    def run(self) -> ExitCode:
        """Start the pool and stay until it has ended.

        Returns: the exit code of `serve`. Called by: the main thread, once.
        """
        self._signals = Signals()
        self._sockets = ControlSockets(self._plan.run_dir)
        self._starter = Starter(self._plan, self._memory, self._sockets.poller, self._console)
        try:
            self._sockets.poller.register(self._signals.fd, zmq.POLLIN)
            self._take(Tick())
            while self._state.phase is not Phase.ENDED:
                self._sockets.poller.poll(self._timeout_ms())
                self._read_workers()
                self._read_requests()
                self._read_signals()
                self._reap()
                self._look_after_births()
                self._settle()
                self._watch()
                self._take(Tick())
            return self._state.exit_code
        finally:
            # Reached with processes only by a bug here; they would die with us anyway, but this is at once.
            for process in self._processes.values():
                process.kill(signal.SIGKILL)
            self._starter.close()
            self._sockets.close()
            self._signals.close()

    def _timeout_ms(self) -> int:
        now = time.monotonic()
        waits = (
            self._watch_due - now,
            decisions.next_wake(self._state, now),
            self._recovery.wait(now),
            self._starter.wait(now),
        )
        # Rounded up: waking a fraction of a millisecond early would spin until the time has come.
        return int(max(0.0, min(wait for wait in waits if wait is not None)) * 1000) + 1

    # Events in

    def _take(self, event: Event) -> None:
        events = deque([event])
        while events:
            self._state, actions = decisions.decide(self._state, events.popleft(), time.monotonic())
            for action in actions:
                events.extend(self._perform(action))

    def _read_workers(self) -> None:
        for identity, message in self._sockets.from_workers():
            spec = self._by_identity.get(identity)
            if spec is None:
                continue
            process = self._processes.get(spec.process)
            if isinstance(message, Register):
                # A predecessor's words may still be under way when it is dead and replaced.
                if process is not None and process.pid == message.pid:
                    self._registered.add(spec.process)
                    self._take(Registered(spec.process))
                else:
                    self._registered.discard(spec.process)
            elif spec.process in self._registered:
                self._take(_event_of(spec, message))

    def _read_requests(self) -> None:
        for address, request in self._sockets.requests():
            match request:
                case StatusRequest():
                    status: dict[str, Any] = msgspec.to_builtins(self._answers.status(self._state, self._starter))
                    self._sockets.reply(address, StatusReply(status))
                case AuditRequest(pause):
                    books = self._answers.books(self._state, self._processes, pause)
                    self._sockets.reply(address, AuditReply(msgspec.to_builtins(books)))
                case StopRequest(timeout):
                    shown = self._plan.settings["drain_timeout"] if timeout is None else timeout
                    self._sockets.reply(address, StopReply(os.getpid(), shown))
                    self._take(StopAsked("shardpool stop", timeout))
                case DrainRequest(timeout):
                    refusal = rolling.refusal(self._state)
                    if refusal:
                        self._refuse(address, refusal)
                        continue
                    shown = self._plan.settings["drain_timeout"] if timeout is None else timeout
                    self._sockets.reply(address, StopReply(os.getpid(), shown))
                    self._take(DrainAsked("shardpool drain", timeout))
                case RestartRequest():
                    refusal = rolling.refusal(self._state)
                    if refusal:
                        self._refuse(address, refusal)
                        continue
                    self._take(RestartAsked("shardpool restart"))
                    assert self._state.restart is not None
                    self._sockets.reply(address, RestartReply(self._state.restart.number))
                case _:
                    assert_never(request)

    def _refuse(self, address: bytes, reason: str) -> None:
        remedy = "wait until that is over; shardpool status shows it"
        self._sockets.reply(address, Refused(reason, remedy, int(ExitCode.REFUSED)))

    def _read_signals(self) -> None:
        for number in self._signals.read():
            match number:
                case signal.SIGTERM | signal.SIGINT:
                    self._take(StopAsked(number.name))
                case signal.SIGHUP if self._plan.stop_on_hangup:
                    self._take(StopAsked(number.name))
                case signal.SIGHUP:
                    self._console.log(Level.WARNING, "SIGHUP: this version cannot reload; nothing was changed")
                case _:
                    pass  # SIGCHLD: _reap looks by itself

    def _reap(self) -> None:
        """Take dead children in, and as PID 1 whatever else died in our care."""
        for index, process in list(self._processes.items()):
            death = process.reap()
            if death is None:
                continue
            self._sockets.poller.unregister(process.pidfd)
            if self._state.phase is Phase.STARTING and death.exit_code:
                # Its reason travels through another descriptor than its death, and says more.
                self._sockets.wait_for_workers(_LAST_WORDS_MS)
                self._read_workers()
            del self._processes[index]
            self._registered.discard(index)
            self._progress.pop(index, None)
            self._take(Died(index, replace(death, cause=self._condemned.pop(index, ""))))
        self._reap_orphans()

    def _reap_orphans(self) -> None:
        if self._starter.expecting:
            return  # one of them may be ours, and not known yet; births are over within a second
        ours = {process.pid for process in self._processes.values()} | self._starter.pids
        with contextlib.suppress(ChildProcessError):
            while (result := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if result.si_pid in ours:
                    return  # died since _reap looked; it comes first next time
                os.waitid(os.P_PID, result.si_pid, os.WEXITED | os.WNOHANG)

    def _look_after_births(self) -> None:
        for event in self._started_by(self._starter.look()):
            self._take(event)

    def _settle(self) -> None:
        """Remove what dead processes left in shared memory; their successors wait for it."""
        now = time.monotonic()
        for process in self._recovery.attempt(now):
            self._take(Settled(process))
        for process in self._recovery.overdue(now):
            self._console.log(
                Level.WARNING,
                f"{self._state.child(process).spec.label} cannot be started again yet: its last message waits for "
                "room in the link to a shard that does not read; see `shardpool status` for the stuck one",
            )

    def _watch(self) -> None:
        now = time.monotonic()
        if now < self._watch_due:
            return
        emptying = self._state.phase is Phase.EMPTYING
        self._watch_due = now + (_EMPTYING_PERIOD if emptying else _WATCH_PERIOD)
        acceptors = [child.spec.process for child in self._state.of(Role.ACCEPTOR) if child.status in REACHABLE]
        if emptying and not any(self._memory.counters(index)["connections"] for index in acceptors):
            self._take(Emptied())
        for child in self._state.of(Role.SHARD):
            index = child.spec.process
            process = self._processes.get(index)
            if child.status is not Status.READY or process is None:
                continue
            counters = self._memory.counters(index)
            after = self._plan.settings["stall_after"]
            self._progress[index], stall = observe(self._progress.get(index), counters, now, after)
            restart = self._plan.settings["stall_policy"] == "restart"
            if stall is None or (stall.again and not restart):
                continue
            where = f"in one handler (object slot {stall.slot})" if stall.slot else "without taking up waiting work"
            then = "killed" if stall.again else "its stack follows"
            self._console.log(
                Level.WARNING,
                f"{child.spec.label} (pid {child.pid}) has been {where} for {stall.seconds:.1f} s: {then}",
            )
            if stall.again:
                self._condemned[index] = f"stalled for {stall.seconds:.1f} s"
            process.kill(signal.SIGKILL if stall.again else signal.SIGUSR2)
            self._watch_due = now + STACK_SECONDS

    # Actions out

    def _perform(self, action: Action) -> Sequence[Event]:
        match action:
            case Start(spec):
                return self._start(spec)
            case Settle(process):
                self._recovery.begin(process, time.monotonic())
            case Send(spec, message):
                self._sockets.send(spec.identity, message)
            case Kill(process):
                if process in self._processes:
                    self._processes[process].kill(signal.SIGKILL)
                elif self._starter.cancel(process):
                    return [Died(process, Death(signal=signal.SIGKILL))]
            case Refresh():
                if not self._starter.renew():
                    return [Refreshed()]
            case Say(line, error):
                self._console.log(Level.ERROR if error else Level.INFO, line)
            case Announce(phase):
                self._announce(phase)
            case _:
                assert_never(action)
        return []

    def _start(self, spec: ChildSpec) -> Sequence[Event]:
        return self._started_by(self._starter.start(spec))

    def _started_by(self, outcomes: Sequence[Outcome]) -> Sequence[Event]:
        events: list[Event] = []
        for outcome in outcomes:
            match outcome:
                case Born(index, process):
                    self._processes[index] = process
                    self._sockets.poller.register(process.pidfd, zmq.POLLIN)
                    events.append(Spawned(index, process.pid))
                case NotStarted(index, reason):
                    events.append(SpawnFailed(index, reason))
                case Renewed(warmed):
                    events.append(Refreshed(warmed.reason, warmed.remedy))
                case _:
                    assert_never(outcome)
        return events

    def _announce(self, phase: Phase) -> None:
        match phase:
            case Phase.SERVING:
                for line in welcome(self._plan):
                    self._console.answer(line)
                self._notify.ready(f"{self._plan.name}: {len(self._state.of(Role.SHARD))} shards")
                # Only now: importing once more must not slow the first start down.
                self._starter.warm_up()
            case Phase.ENDED:
                self._console.log(Level.INFO, "stopped")
            case _:
                # Acceptors stop accepting now; with ours open too, clients would wait in the backlog for nobody.
                # The same holds for those of a warm process.
                self._plan.close_listeners()
                self._starter.close()
                self._notify.stopping()


def _event_of(spec: ChildSpec, message: Ready | Failed | Drained) -> Event:
    match message:
        case Ready():
            return BecameReady(spec.process)
        case Failed(reason, remedy, exit_code):
            return WorkerFailed(spec.process, reason, remedy, exit_code)
        case Drained():
            return WorkerDrained(spec.process)
        case _:
            assert_never(message)
