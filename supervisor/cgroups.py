"""Where the limits of this process's cgroups are written (v1 and v2)."""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

Read = Callable[[str], str | None]


def read_file(path: str) -> str | None:
    """Text of a small file, None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def directories(read: Read, controller: str) -> Iterator[str]:
    """Directories of every group that a limit of this controller may come from: its own groups, and all above them.

    Args: read: text of a file by absolute path, None if it cannot be read.
    """
    mounts = list(_mounts(read("/proc/self/mountinfo") or ""))
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for root, point, kind, options in mounts:
            v2 = controllers == "" and kind == "cgroup2"
            if v2 or (controller in controllers.split(",") and kind == "cgroup" and controller in options):
                yield from _upwards(group, root, point)


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Root, mount point, file system type and super options of every cgroup mount."""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if separator and len(fields) >= 5 and len(kinds) >= 3 and kinds[0] in ("cgroup", "cgroup2"):
            yield fields[3], fields[4], kinds[0], kinds[2].split(",")


def _upwards(group: str, root: str, point: str) -> Iterator[str]:
    """Directories of a group and all above it, as they are seen through a mount of `root` at `point`."""
    try:
        inside = PurePosixPath(group).relative_to(root)
    except ValueError:
        # In a container without a cgroup namespace the group's path is the host's: its own directory is the mount.
        inside = PurePosixPath()
    parts = [part for part in inside.parts if part != ".."]
    for length in range(len(parts), -1, -1):
        yield "/".join([point.rstrip("/"), *parts[:length]])
