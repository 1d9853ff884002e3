"""What a restarted shard does with the objects of its predecessor: their slots survived, their state did not (P-4).

Sessions whose home or actor was here are closed with 4503, so that their clients come back; everything else ends. The
system object is taken over: attaches that wait in it are served.
"""

from __future__ import annotations

from typing import Any

from shardpool.workers.context import ShardContext, log
from shardpool.workers.insist import Insistence
from shardpool.workers.kinds import Kind, SlotKind, shard_of
from shardpool.workers.tables import Tables

CLOSE_UNAVAILABLE = 4503


class SystemObject:
    """The tenant of slot 0: records that are for the shard and no object of it yet."""

    def __repr__(self) -> str:
        return "the system object"


class Succession:
    """Takes the segment over, before anything is allocated in it."""

    def __init__(self, context: ShardContext, tables: Tables) -> None:
        self._context = context
        self._left = context.shard.adopt()
        system = SystemObject()
        for address, kind, *_ in self._left:
            if kind == SlotKind.SYSTEM:
                context.shard.restore(address, system, tables.system(), True)
                return
        # Slot 0 goes to the first: acceptors post attaches to it without asking.
        context.shard.allocate(SlotKind.SYSTEM, system, tables.system())

    def end_predecessors(self, insistence: Insistence) -> None:
        """End what the predecessor left, and the connections that are worth nothing without it."""
        ended = 0
        for address, kind, _, client, route, _ in self._left:
            if kind == SlotKind.SYSTEM:
                continue
            ended += 1
            if client:
                self._context.shard.close_client(client, CLOSE_UNAVAILABLE, b"the session's shard was restarted")
            if kind == SlotKind.SESSION and route and shard_of(route) != self._context.number:
                insistence.post(_at(route), Kind.DISCONNECT, payload=b"unavailable")
            self._context.shard.release(address)
        self._left = []
        if ended:
            log.warning("restarted: %d sessions, actors and Spots of the predecessor ended", ended)


def _at(address: int) -> Any:
    return lambda: address
