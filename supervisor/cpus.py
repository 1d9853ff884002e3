"""How many CPUs this process may really use: affinity, and the CPU quota of its cgroups (v1 and v2).

`os.cpu_count` and `os.process_cpu_count` know nothing of quotas; a container limited to one CPU on a big machine
would get far too many workers.
"""

import os
from collections.abc import Iterator

from shardpool.supervisor.cgroups import Read, directories, read_file


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


def _quotas(read: Read) -> Iterator[float]:
    """Every quota that holds for this process, in CPUs: its groups' and those of all groups above them."""
    for directory in directories(read, "cpu"):
        yield from _quota_v2(read(f"{directory}/cpu.max"))
        yield from _quota_v1(read(f"{directory}/cpu.cfs_quota_us"), read(f"{directory}/cpu.cfs_period_us"))


def _quota_v2(text: str | None) -> Iterator[float]:
    fields = (text or "").split()
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        yield int(fields[0]) / int(fields[1])


def _quota_v1(quota: str | None, period: str | None) -> Iterator[float]:
    quota, period = (quota or "").strip(), (period or "").strip()
    # -1: no limit
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        yield int(quota) / int(period)
