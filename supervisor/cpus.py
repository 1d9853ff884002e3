"""How many CPUs this process may really use: affinity, and the CPU quota of its cgroups (v1 and v2).

`os.cpu_count` and `os.process_cpu_count` know nothing of quotas; a container limited to one CPU on a big machine
would get far too many workers.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

Read = Callable[[str], str | None]


def usable_cpus(affinity: int, read: Read) -> int:
    """Count the CPUs to use.

    Args:
        affinity: number of CPUs in the affinity mask.
        read: text of a file by absolute path, None if it cannot be read.
    Returns: the smaller of affinity and quota; quotas are rounded down, since more busy processes than quota are
        throttled together and the acceptors use the rest; at least 1.
    """
    quotas = list(_quotas(read))
    return max(1, min([affinity, *(int(quota) for quota in quotas)]))


def usable_cpus_here() -> int:
    """`usable_cpus` of this process."""
    return usable_cpus(len(os.sched_getaffinity(0)), read_file)


def read_file(path: str) -> str | None:
    """Text of a small file, None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _quotas(read: Read) -> Iterator[float]:
    """Every quota that holds for this process, in CPUs: its groups' and those of all groups above them."""
    mounts = list(_cgroup_mounts(read("/proc/self/mountinfo") or ""))
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for root, point, kind, options in mounts:
            if controllers == "" and kind == "cgroup2":
                for directory in _upwards(group, root, point):
                    yield from _quota_v2(read(f"{directory}/cpu.max"))
            elif "cpu" in controllers.split(",") and kind == "cgroup" and "cpu" in options:
                for directory in _upwards(group, root, point):
                    yield from _quota_v1(read(f"{directory}/cpu.cfs_quota_us"), read(f"{directory}/cpu.cfs_period_us"))


def _cgroup_mounts(mountinfo: str) -> Iterator[tuple[str, str, str, list[str]]]:
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


def _quota_v2(text: str | None) -> Iterator[float]:
    fields = (text or "").split()
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        yield int(fields[0]) / int(fields[1])


def _quota_v1(quota: str | None, period: str | None) -> Iterator[float]:
    quota, period = (quota or "").strip(), (period or "").strip()
    # -1: no limit
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        yield int(quota) / int(period)
