"""The pool's warm start processes, one per role, and the workers that are being born of them (P-24).

Nothing here waits: a request is sent, and its worker announces itself on a socket of its own (shardpool/birth.py), or
does not in time. Whoever is not born is started by exec, so that a warm process can hang, die or never come to be, and
costs milliseconds only.
"""

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from signal import SIGKILL

import msgspec
import zmq

from shardpool.birth import Warmed, receive_birth, receive_warmed, socket_pair
from shardpool.boot import Boot
from shardpool.supervisor.child import Process
from shardpool.supervisor.child_spec import ChildSpec, Role
from shardpool.supervisor.console import Console, Level
from shardpool.supervisor.restart_policy import RestartPolicy

_BIRTH_PATIENCE = 1.0

Spawn = Callable[[Role, int], Process]  # starts a warm process; gets the descriptor of its request socket


@dataclass(slots=True)
class Warm:
    """One warm process."""

    process: Process
    requests: socket.socket
    started: float
    ready: bool = False


@dataclass(slots=True)
class Bed:
    """The place of one role's warm process."""

    role: Role
    now: Warm | None = None
    coming: Warm | None = None  # has newer code, takes over when it is ready
    due: float | None = None  # when one must be started
    deaths: tuple[float, ...] = ()


@dataclass(slots=True)
class Birth:
    """A worker that was asked for."""

    spec: ChildSpec
    warm: Warm
    socket: socket.socket
    deadline: float


@dataclass(frozen=True, slots=True)
class Born:
    """A worker lives; it is this process's child."""

    process: int
    worker: Process


@dataclass(frozen=True, slots=True)
class Unborn:
    """It will not come: start it by exec."""

    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class Renewed:
    """Workers of the role get the present code from now on; or not, for this reason."""

    warmed: Warmed = field(default_factory=Warmed)


Outcome = Born | Unborn | Renewed


class Nursery:
    """Warm processes and births.

    Args: spawn: starts one by exec. patience: seconds that an import may take. policy: for their own deaths.
    """

    def __init__(
        self, spawn: Spawn, poller: zmq.Poller, console: Console, policy: RestartPolicy, patience: float
    ) -> None:
        self._spawn = spawn
        self._poller = poller
        self._console = console
        self._policy = policy
        self._patience = patience
        self._beds: dict[Role, Bed] = {}
        self._births: dict[int, Birth] = {}  # by process index

    def open(self) -> None:
        """Start a warm process per role; until it is ready, workers are started by exec."""
        for role in Role:
            self._beds[role] = Bed(role, due=time.monotonic())

    def close(self) -> None:
        """No worker will be started any more."""
        for bed in self._beds.values():
            for warm in (bed.now, bed.coming):
                if warm is not None:
                    self._dismiss(warm)
        self._beds.clear()
        for process in list(self._births):
            self.cancel(process)

    @property
    def pids(self) -> set[int]:
        """The warm processes'."""
        return {warm.process.pid for bed in self._beds.values() for warm in (bed.now, bed.coming) if warm is not None}

    @property
    def ready(self) -> int:
        """How many of them are in service."""
        return sum(bed.now is not None and bed.now.ready for bed in self._beds.values())

    @property
    def expecting(self) -> bool:
        """A child may exist whose pid is not known here yet."""
        return bool(self._births)

    def ask(self, spec: ChildSpec, boot: Boot) -> bool:
        """Ask for a worker. Returns: False: nobody can be asked; else Born or Unborn follows from `look`."""
        bed = self._beds.get(spec.role)
        if bed is None or bed.now is None or not bed.now.ready:
            return False
        ours, theirs = socket_pair()
        try:
            socket.send_fds(bed.now.requests, [msgspec.json.encode(boot)], [theirs.fileno()])
        except OSError:
            ours.close()
            return False
        finally:
            theirs.close()
        self._births[spec.process] = Birth(spec, bed.now, ours, time.monotonic() + _BIRTH_PATIENCE)
        self._poller.register(ours.fileno(), zmq.POLLIN)
        return True

    def cancel(self, process: int) -> bool:
        """Give up a birth; the worker leaves if it comes. Returns: False: there is none."""
        birth = self._births.pop(process, None)
        if birth is not None:
            self._poller.unregister(birth.socket.fileno())
            birth.socket.close()
        return birth is not None

    def renew(self, role: Role) -> bool:
        """Start a warm process that has the present code; Renewed follows from `look`.

        Returns: False: the pool has no warm processes; exec takes the present code anyway.
        """
        bed = self._beds.get(role)
        if bed is None:
            return False
        if bed.coming is not None:
            self._dismiss(bed.coming)
        bed.coming = self._begin(role)
        return bed.coming is not None

    def wait(self, now: float) -> float | None:
        """Seconds until `look` must be called though no descriptor is ready; None: never."""
        times = [birth.deadline for birth in self._births.values()]
        times += [bed.due for bed in self._beds.values() if bed.due is not None]
        importing = (warm for bed in self._beds.values() for warm in (bed.now, bed.coming) if warm is not None)
        times += [warm.started + self._patience for warm in importing if not warm.ready]
        return max(0.0, min(times) - now) if times else None

    def look(self) -> Iterable[Outcome]:
        """What has happened since the last call."""
        now = time.monotonic()
        outcomes: list[Outcome] = []
        for birth in list(self._births.values()):
            outcomes += self._look_at_birth(birth, now)
        for bed in self._beds.values():
            if bed.coming is not None:
                outcomes += self._look_at_coming(bed, bed.coming, now)
            if bed.now is not None:
                self._look_at_present(bed, bed.now, now)
            if bed.due is not None and bed.due <= now:
                bed.due = None
                bed.now = self._begin(bed.role)
        return outcomes

    def _look_at_birth(self, birth: Birth, now: float) -> list[Outcome]:
        try:
            born = receive_birth(birth.socket)
        except (OSError, EOFError, ValueError):
            self.cancel(birth.spec.process)
            return [Unborn(birth.spec)]
        if born is not None:
            self.cancel(birth.spec.process)
            return [Born(birth.spec.process, Process(*born))]
        if now < birth.deadline:
            return []
        self.cancel(birth.spec.process)
        # Stopped, or stuck in somebody's at-fork handler: the next one would wait as long.
        if birth.warm.ready:
            birth.warm.ready = False
            if self._is_present(birth.warm):
                self._console.log(
                    Level.WARNING,
                    f"the warm start of {birth.spec.role}s (pid {birth.warm.process.pid}) does not answer: killed; "
                    f"{birth.spec.label} is started by exec",
                )
                birth.warm.process.kill(SIGKILL)
        return [Unborn(birth.spec)]

    def _look_at_coming(self, bed: Bed, warm: Warm, now: float) -> list[Outcome]:
        warmed = self._warmed(warm, now)
        if warmed is None:
            return []
        bed.coming = None
        if warmed.reason and not warmed.loaded:
            self._dismiss(warm)
            return [Renewed(warmed)]
        if bed.now is not None:
            self._dismiss(bed.now)
        bed.now, bed.due, bed.deaths = warm, None, ()
        if warmed.reason:
            self._do_without(bed, warm, warmed)
        return [Renewed()]

    def _look_at_present(self, bed: Bed, warm: Warm, now: float) -> None:
        warmed = None if warm.ready else self._warmed(warm, now)
        if warmed is not None and warmed.reason:
            self._do_without(bed, warm, warmed)
            return
        death = warm.process.reap()
        if death is None:
            return
        self._forget(warm)
        bed.now = None
        bed.deaths, delay = self._policy.after_death(bed.deaths, now)
        bed.due = None if delay is None else now + delay
        then = "not any more" if delay is None else "now" if delay == 0 else f"in {delay:g} s"
        self._console.log(
            Level.WARNING,
            f"the warm start of {bed.role}s (pid {warm.process.pid}) {death.text}; it is started again {then}",
        )

    def _do_without(self, bed: Bed, warm: Warm, why: Warmed) -> None:
        self._console.log(Level.WARNING, f"{bed.role}s will be restarted by exec, slowly: {why.reason}: {why.remedy}")
        self._dismiss(warm)
        bed.now = None

    def _warmed(self, warm: Warm, now: float) -> Warmed | None:
        """What it says; its end without a word is a reason, too, for one that is not in service; so is silence."""
        try:
            warmed = receive_warmed(warm.requests)
        except (OSError, EOFError, msgspec.DecodeError):
            return None if warm.ready or self._is_present(warm) else Warmed("it died while it imported", "see the log")
        if warmed is None and now - warm.started >= self._patience:
            return Warmed(f"the import took more than {self._patience:g} s", "do slow work in on_start, not at import")
        warm.ready = warmed is not None and not warmed.reason
        return warmed

    def _is_present(self, warm: Warm) -> bool:
        return any(bed.now is warm for bed in self._beds.values())

    def _begin(self, role: Role) -> Warm | None:
        ours, theirs = socket_pair()
        try:
            process = self._spawn(role, theirs.fileno())
        except OSError as error:
            ours.close()
            self._console.log(Level.WARNING, f"the warm start of {role}s could not be started: {error.strerror}")
            return None
        finally:
            theirs.close()
        self._poller.register(ours.fileno(), zmq.POLLIN)
        return Warm(process, ours, time.monotonic())

    def _dismiss(self, warm: Warm) -> None:
        warm.process.kill(SIGKILL)
        warm.process.abandon()
        self._forget(warm)

    def _forget(self, warm: Warm) -> None:
        self._poller.unregister(warm.requests.fileno())
        warm.requests.close()
