"""Tests of how much memory may still be taken, over made-up kernel files."""

import pytest

from shardpool.settings import load
from shardpool.supervisor.memory import Memory
from shardpool.supervisor.refusal import Refusal
from shardpool.supervisor.room import room

MEMINFO = {"/proc/meminfo": "MemTotal:       16000 kB\nMemAvailable:    8000 kB\n"}
V2 = {
    "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n",
    "/proc/self/cgroup": "0::/pod/app\n",
}
V1 = {
    "/proc/self/mountinfo": "34 32 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "/proc/self/cgroup": "5:memory:/x\n",
}


def test_what_the_machine_has_left_counts() -> None:
    """P-1: caches that can be given back are left, too."""
    assert room(MEMINFO.get) == 8000 * 1024
    assert room({}.get) is None


@pytest.mark.parametrize(("group", "left"), [("/pod/app", 3500), ("/pod", 3500), ("", 3500)])
def test_limit_of_cgroup_v2_counts_for_the_group_and_all_above(group: str, left: int) -> None:
    """P-1: the smallest room on the way up; pages of files are given back when memory is short."""
    limits = {
        f"/sys/fs/cgroup{group}/memory.max": "5000\n",
        f"/sys/fs/cgroup{group}/memory.current": "2000\n",
        f"/sys/fs/cgroup{group}/memory.stat": "anon 1500\ninactive_file 500\n",
    }
    assert room((MEMINFO | V2 | limits).get) == left
    assert room((MEMINFO | V2 | limits | {f"/sys/fs/cgroup{group}/memory.max": "max\n"}).get) == 8000 * 1024


def test_limit_of_cgroup_v1_counts() -> None:
    """P-1: where the controllers have mounts of their own."""
    limits = {
        "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000\n",
        "/sys/fs/cgroup/memory/x/memory.usage_in_bytes": "6000\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "6000\n",
    }
    assert room((MEMINFO | V1 | limits).get) == 0


def test_a_pool_that_does_not_fit_is_refused_before_the_kernel_kills_somebody() -> None:
    """P-1, O-2: a full shared memory (shadow#2266): sizes and remedy, nothing is reserved, never SIGBUS."""
    values = load(None, {}, {"arena_bytes": 1 << 35, "workers": 16, "acceptors": 16}).with_processes(2).values
    with pytest.raises(Refusal, match=r"need \d+ MiB, and \d+ MiB of memory are left.*\n?.*"):
        Memory.create(values)
