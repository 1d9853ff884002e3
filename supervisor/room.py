"""How much memory this process may still take: what the machine has left, and the limits of its cgroups (v1 and v2).

Shared memory is reserved in full at the start. Past a limit, the kernel does not refuse it: it kills somebody.
"""

from collections.abc import Iterator

from shardpool.supervisor.cgroups import Read, directories, read_file

_UNLIMITED = 1 << 60  # v1 shows "no limit" as a number of about this size


def room(read: Read = read_file) -> int | None:
    """Bytes that can still be taken, None if the kernel does not tell.

    Args: read: text of a file by absolute path, None if it cannot be read.
    """
    return min(_rooms(read), default=None)


def _rooms(read: Read) -> Iterator[int]:
    yield from _available(read("/proc/meminfo"))
    for directory in directories(read, "memory"):
        # Pages of files count as used here, and are given back when memory is short.
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, now = _number(read(f"{directory}/{limit}")), _number(read(f"{directory}/{used}"))
            if most is not None and now is not None and most < _UNLIMITED:
                yield max(0, most - now + _line(read(f"{directory}/memory.stat"), cached))


def _available(meminfo: str | None) -> Iterator[int]:
    kilobytes = _line((meminfo or "").replace(":", ""), "MemAvailable")
    if kilobytes:
        yield kilobytes * 1024


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdigit() else None


def _line(text: str | None, name: str) -> int:
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == name and fields[1].isdigit():
            return int(fields[1])
    return 0
