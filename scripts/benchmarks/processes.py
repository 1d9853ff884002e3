"""CPU time and memory of a server's processes, read from outside."""

import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Usage:
    """CPU seconds by process, named by what ps shows, at one moment."""

    seconds: dict[str, float]

    def since(self, earlier: "Usage") -> dict[str, float]:
        """What was used in between, by process."""
        return {name: value - earlier.seconds.get(name, 0.0) for name, value in self.seconds.items()}


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it that live."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def read_usage(pid: int) -> Usage:
    """CPU of a whole process tree; nanosecond clocks of the kernel, not the ticks of /proc/PID/stat."""
    seconds: dict[str, float] = {}
    for process in tree(pid):
        try:
            title = " ".join(process.cmdline())[:60] or process.name()
            seconds[f"{process.pid} {title}"] = time.clock_gettime(_cpu_clock(process.pid))
        except (psutil.NoSuchProcess, OSError):
            continue
    return Usage(seconds)


def read_memory(pid: int) -> int:
    """Bytes of a process tree, memory that they share counted once (proportional set size)."""
    total = 0
    for process in tree(pid):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def _cpu_clock(pid: int) -> int:
    """clock_getcpuclockid(3): the number is part of the kernel's interface."""
    return (~pid << 3) | 2
