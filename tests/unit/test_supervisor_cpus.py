"""Tests of counting the CPUs that may be used, over made-up kernel files."""

import pytest

from shardpool.supervisor.cpus import usable_cpus, usable_cpus_here

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = (
    "33 32 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 32 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:12 - cgroup cgroup rw,memory\n"
)


def count(affinity: int, **files: str) -> int:
    named = {"/" + name.replace("__", "/"): text for name, text in files.items()}
    return usable_cpus(affinity, named.get)


def v2(affinity: int, group: str, **limits: str) -> int:
    files = {"/proc/self/mountinfo": V2_MOUNT, "/proc/self/cgroup": f"0::{group}\n"}
    files |= {f"/sys/fs/cgroup{path}/cpu.max".replace("//", "/"): text for path, text in limits.items()}
    return usable_cpus(affinity, files.get)


@pytest.mark.parametrize(
    ("limits", "cpus"),
    [
        ({"/pod/app": "max 100000\n"}, 8),
        ({"/pod/app": "200000 100000\n"}, 2),
        ({"/pod/app": "150000 100000\n"}, 1),
        ({"/pod/app": "50000 100000\n"}, 1),
        ({"/pod/app": "max 100000\n", "/pod": "300000 100000\n"}, 3),
        ({"/pod/app": "400000 100000\n", "/pod": "300000 100000\n", "": "200000 100000"}, 2),
        ({"/pod/app": "rubbish\n"}, 8),
        ({"/pod/app": "100 0\n"}, 8),
        ({}, 8),
    ],
)
def test_quota_of_cgroup_v2_counts_for_the_group_and_all_above(limits: dict[str, str], cpus: int) -> None:
    """P-1: the smallest quota on the way up, rounded down, at least 1."""
    assert v2(8, "/pod/app", **limits) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"), [("-1", "100000", 8), ("250000", "100000", 2), ("1", "100000", 1)]
)
def test_quota_of_cgroup_v1_counts(quota: str, period: str, cpus: int) -> None:
    """P-1: cgroup v1, where the controllers have mounts of their own."""
    files = {
        "/proc/self/mountinfo": V1_MOUNT,
        "/proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n",
        "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": quota + "\n",
        "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": period + "\n",
    }
    assert usable_cpus(8, files.get) == cpus


def test_container_without_namespace_sees_its_group_at_the_mount() -> None:
    """P-1: /proc/self/cgroup names the host's path, the mount shows only the container's part of it."""
    mount = V2_MOUNT.replace(" / /sys", " /docker/abc /sys")
    files = {
        "/proc/self/mountinfo": mount,
        "/proc/self/cgroup": "0::/docker/abc\n",
        "/sys/fs/cgroup/cpu.max": "100000 100000",
    }
    assert usable_cpus(8, files.get) == 1
    assert usable_cpus(8, (files | {"/proc/self/cgroup": "0::/elsewhere\n"}).get) == 1


def test_affinity_is_the_limit_without_quota() -> None:
    """P-1: affinity counts alone where no file can be read."""
    assert count(3) == 3
    assert usable_cpus_here() >= 1
