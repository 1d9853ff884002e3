"""The pool's shared memory, doorbells and passages; made by the supervisor, so that they outlive every worker.

They have no names: the kernel frees them with the last process that holds them.
"""

import os
import resource
import socket
from collections.abc import Mapping
from typing import Any

from shardpool._core import Geometry, Node, audit, create_segment
from shardpool.boot import Passage
from shardpool.exit_codes import ExitCode
from shardpool.supervisor.child_spec import SUPERVISOR_PROCESS
from shardpool.supervisor.refusal import Refusal
from shardpool.supervisor.room import room

_GEOMETRY_SETTINGS = (
    "slots",
    "permits",
    "link_bytes",
    "infra_bytes",
    "arena_bytes",
    "lane_records",
    "lane_bytes",
    "lifecycle_records",
    "lifecycle_bytes",
    "directory_entries",
)
_SIZES = "arena_bytes, link_bytes, slots or workers"

_ARENA_PAGE = 65536


class Memory:
    """One segment and one doorbell per process, by process index."""

    def __init__(self, segments: list[int], doorbells: list[int], passages: list[Passage], node: Node) -> None:
        self.segments = segments
        self.doorbells = doorbells
        self.passages = passages  # one per acceptor; none for a single one
        self.node = node

    @classmethod
    def create(cls, settings: Mapping[str, Any]) -> "Memory":
        """Make the memory of a pool.

        Args: settings: the validated table, process counts filled in.
        Raises: Refusal when the sizes do not fit together or the kernel has no room.
        """
        sizes = {name: settings[name] for name in _GEOMETRY_SETTINGS}
        if settings["resume_window"] > 0:
            sizes["resume_bytes"] = -(-settings["resume_bytes"] // _ARENA_PAGE) * _ARENA_PAGE
            sizes["resume_entries"] = settings["connections"]
        processes = 1 + settings["acceptors"] + settings["workers"]
        _check_descriptors(processes)
        try:
            geometry = Geometry(settings["acceptors"], settings["workers"], **sizes)
        except ValueError as error:
            raise Refusal(f"shared memory: {error}", "see docs/settings.md", ExitCode.CONFIG) from None
        total = sum(geometry.segment_size(process) for process in range(processes))
        available = room()
        if available is not None and total > available:
            raise Refusal(
                f"shared memory: {processes} processes need {_mib(total)}, and {_mib(available)} of memory are left",
                f"lower {_SIZES}, or give this machine, container or unit more memory",
                ExitCode.CONFIG,
            )
        try:
            segments = [create_segment(geometry, process) for process in range(processes)]
            doorbells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(processes)]
            acceptors = settings["acceptors"]
            passages = [_passage() for _ in range(acceptors)] if acceptors > 1 else []
            return cls(segments, doorbells, passages, Node(SUPERVISOR_PROCESS, segments, doorbells))
        except (OSError, MemoryError) as error:
            raise Refusal(
                f"shared memory ({_mib(total)} for {processes} processes): {error}", f"lower {_SIZES}", ExitCode.CONFIG
            ) from None

    def counters(self, process: int) -> dict[str, int]:
        """What a process counted; readable while it is stuck, and after its death."""
        return self.node.counters(process)

    def audit(self, shard: int) -> dict[str, int]:
        """What a shard's books, lanes, links and permits say; its process may be anywhere, or dead."""
        return audit(self.node, shard)


def _passage() -> Passage:
    # SEQPACKET: a parcel stays whole, and what waits is bounded by the writers' buffer.
    into, out = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Passage(into.detach(), out.detach())


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"


def _check_descriptors(processes: int) -> None:
    # Each holds a segment and a doorbell of every process, the supervisor a pidfd as well; ZeroMQ, sockets and event
    # loops take the rest, and do not all fail in words.
    needed = 3 * processes + 32
    permitted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if permitted < needed:
        raise Refusal(
            f"{processes} processes need {needed} open descriptors each, and {permitted} are permitted",
            f"ulimit -n {needed}, and one more for each client (LimitNOFILE= for systemd); or fewer workers",
            ExitCode.CONFIG,
        )
