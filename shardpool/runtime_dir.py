"""The private directory of a running pool: where its sockets are and how one tells that it runs.

    $XDG_RUNTIME_DIR/shardpool/<name>/     or   <temp>/shardpool-<uid>/<name>/     or   --run-dir
        lock           held (flock) by the supervisor for its lifetime; contains its pid
        control.sock   workers
        admin.sock     command line
        local.sock     trusted programs (shardpool.connect)

The lock, not the files, says whether a pool runs: the kernel releases it at any death, so that what a SIGKILL left
behind is recognised and replaced at the next start.
"""

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardpool.errors import AlreadyExists, NotConfigured, Unavailable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SOCKETS = ("control.sock", "admin.sock", "local.sock")
# sockaddr_un.sun_path has 108 bytes with the final zero.
_PATH_MAX = 107
_LOCK_PATIENCE = 0.2


class RunDirError(NotConfigured):
    """The directory cannot be used; says which, why, and what to do."""


class AlreadyRunning(AlreadyExists):
    """Another supervisor holds the directory."""


class NotRunning(Unavailable):
    """No pool runs there."""


class Ambiguous(Unavailable):
    """Several pools run and none was named."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one pool."""

    path: Path

    @property
    def control(self) -> str:
        """ZeroMQ address for workers."""
        return f"ipc://{self.path / 'control.sock'}"

    @property
    def admin(self) -> str:
        """ZeroMQ address for the command line."""
        return f"ipc://{self.path / 'admin.sock'}"

    @property
    def local(self) -> Path:
        """Unix socket for trusted programs."""
        return self.path / "local.sock"

    @property
    def lock(self) -> Path:
        """Lock file of the supervisor."""
        return self.path / "lock"

    def pid(self) -> int | None:
        """Pid of the supervisor that holds this directory, or None when none runs."""
        try:
            with open(self.lock, "rb") as file:
                if _try_lock(file.fileno(), fcntl.LOCK_SH):
                    return None
                # Between taking the lock and writing its pid a supervisor is starting: it is not up yet.
                text = file.read(32).strip()
                return int(text) if text.isdigit() else None
        except OSError:
            return None


def base_dir(environ: Mapping[str, str]) -> Path:
    """Directory that holds one directory per pool of this user."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.geteuid():
        return Path(runtime) / "shardpool"
    return Path(tempfile.gettempdir()) / f"shardpool-{os.geteuid()}"


def create(name: str, run_dir: str | None, environ: Mapping[str, str]) -> tuple[RunDir, int]:
    """Make (or take over) the directory of a pool that starts.

    Args:
        name: the pool's name.
        run_dir: exact directory, or None for the default place.
    Returns: the directory, emptied of what an earlier pool left, and the lock's descriptor, to be kept open.
    Raises: AlreadyRunning; RunDirError when name or place cannot be used.
    """
    check_name(name)
    if run_dir is None:
        base = base_dir(environ)
        _private(base)
        found = RunDir(base / name)
    else:
        found = RunDir(Path(run_dir).absolute())
    longest = len(os.fsencode(found.path / "control.sock"))
    if longest > _PATH_MAX:
        raise RunDirError(
            f"{found.path} is too long for a Unix socket ({longest} > {_PATH_MAX} bytes): give a shorter --run-dir"
        )
    _private(found.path)
    lock = _lock(found, name)
    for socket in _SOCKETS:
        with contextlib.suppress(FileNotFoundError):
            (found.path / socket).unlink()
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return found, lock


def remove(run_dir: RunDir) -> None:
    """Remove the directory of a pool that stops; what cannot be removed is left for the next start."""
    for name in (*_SOCKETS, "lock"):
        with contextlib.suppress(OSError):
            (run_dir.path / name).unlink()
    with contextlib.suppress(OSError):
        run_dir.path.rmdir()


def find(name: str | None, run_dir: str | None, environ: Mapping[str, str]) -> tuple[RunDir, int]:
    """Find a running pool.

    Args: name, run_dir: as the user gave them; both None: the only pool that runs.
    Returns: its directory and its supervisor's pid.
    Raises: NotRunning, Ambiguous.
    """
    if run_dir is not None:
        found = RunDir(Path(run_dir).absolute())
        pid = found.pid()
        if pid is None:
            raise NotRunning(
                f"no pool runs in {found.path}: start one with `shardpool serve MODULE:APP --run-dir {run_dir}`"
            )
        return found, pid
    running = list_running(environ)
    if name is not None:
        check_name(name)
        for candidate, pid in running:
            if candidate.path.name == name:
                return candidate, pid
    elif len(running) == 1:
        return running[0]
    names = ", ".join(sorted(candidate.path.name for candidate, _ in running))
    if name is None and running:
        raise Ambiguous(f"several pools are running: {names}: say which with --name")
    wanted = f'no pool named "{name}" is running' if name else "no pool is running"
    rest = f"; running: {names}" if names else ""
    raise NotRunning(
        f"{wanted} for this user{rest}: start one with `shardpool serve MODULE:APP`, or give its --run-dir "
        f"(looked in {base_dir(environ)})"
    )


def list_running(environ: Mapping[str, str]) -> list[tuple[RunDir, int]]:
    """All pools of this user that run in the default place, with their supervisors' pids."""
    try:
        candidates = [RunDir(path) for path in sorted(base_dir(environ).iterdir()) if path.is_dir()]
    except OSError:
        return []
    return [(candidate, pid) for candidate in candidates if (pid := candidate.pid()) is not None]


def check_name(name: str) -> None:
    """Refuse a pool name that is no plain file name; raises RunDirError."""
    if not _NAME.fullmatch(name):
        raise RunDirError(
            f"name {name!r} is not usable: 1 to 40 letters, digits, '.', '_', '-', beginning with a letter or digit"
        )


def _lock(run_dir: RunDir, name: str) -> int:
    """Take the lock for this process's lifetime; raises AlreadyRunning."""
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        lock = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if _try_lock(lock, fcntl.LOCK_EX):
            # A pool that stops removes its lock file: this may be the lock of a file that has no name any more.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(run_dir.lock)):
                    return lock
        os.close(lock)
        if time.monotonic() > deadline:
            raise AlreadyRunning(
                f'a pool named "{name}" is already running (pid {run_dir.pid()}, {run_dir.path}): stop it with '
                "`shardpool stop`, or start this one with another --name"
            )
        # Whoever asks whether a pool runs holds the lock for an instant too.
        time.sleep(0.01)


def _private(path: Path) -> None:
    """Make a directory that only this user can enter, or refuse the one that is there."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise RunDirError(
            f"cannot make the private directory {path}: {error.strerror}: give another --run-dir"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RunDirError(
            f"{path} is not a directory of this user (uid {os.geteuid()}): remove it, or give another --run-dir"
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        raise RunDirError(f"{path} can be entered by others (mode {stat.S_IMODE(found.st_mode):04o}): chmod 700 {path}")


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
