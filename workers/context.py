"""What every part of a shard's Python half needs: the C executor, the loop, the app, the settings."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from shardpool.app import Blueprint
from shardpool.directory import Directory
from shardpool.workers.kinds import FLAG_LIFECYCLE, Kind

if TYPE_CHECKING:
    from shardpool._core import Shard

log = logging.getLogger("shardpool.shard")

# (target, a, b, payload) -> None or a coroutine: one record of a kind that is no message.
Step = Callable[[Any, int, int, bytes], Any]


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What a shard takes from the settings table; seconds, bytes, counts."""

    ask_timeout: float = 30.0
    send_timeout: float = 1.0
    open_asks: int = 4096
    time_budget: float = 0.010
    frame_bytes: int = 65536
    infra_bytes: int = 262144

    @classmethod
    def of(cls, table: dict[str, Any]) -> ShardSettings:
        """Args: table: the whole settings table of the boot record."""
        return cls(**{name: table[name] for name in cls.__slots__ if name in table})


@dataclass(slots=True)
class Counts:
    """What this half counts for status; the C half counts its own."""

    late_replies: int = 0
    dropped_sends: int = 0
    skipped_ticks: int = 0
    timeouts: int = 0
    failed: int = 0
    dead_letters: int = 0


class Parcel:
    """Base of parcels for which somebody waits."""

    __slots__ = ()

    def lost(self) -> None:
        """The object that was to get it ended first."""


# Records whose `a` is the number of a parcel.
_CARRIERS = frozenset({Kind.CREATE, Kind.DECIDE, Kind.ARRIVE, Kind.JOINED, Kind.REPLACED, Kind.LEFT})


class Parcels:
    """Python objects that travel by number in records within this shard."""

    def __init__(self) -> None:
        # Not from 1: records of a predecessor, whose parcels are gone, must not find this process's.
        self._next = itertools.count(time_ns())
        self._held: dict[int, Any] = {}

    def put(self, parcel: Any) -> int:
        """Returns: the number to put into a record; never reused."""
        number = next(self._next)
        self._held[number] = parcel
        return number

    def take(self, number: int) -> Any:
        """The parcel, once; None if it is not there any more."""
        return self._held.pop(number, None)

    def lose(self, kind: int, number: int) -> None:
        """A record came to nobody: if it carried a parcel, whoever waits for that is told."""
        if kind in _CARRIERS:
            parcel = self.take(number)
            if isinstance(parcel, Parcel):
                parcel.lost()


@dataclass(slots=True, eq=False)
class ShardContext:
    """The shard, as its parts see it. All of them run on its one thread."""

    shard: Shard
    loop: asyncio.AbstractEventLoop
    number: int
    shards: int
    acceptors: int
    blueprint: Blueprint
    settings: ShardSettings
    directory: Directory
    parcels: Parcels = field(default_factory=Parcels)
    counts: Counts = field(default_factory=Counts)
    steps: dict[int, Step] = field(default_factory=dict)
    draining: bool = False
    clock: Callable[[], float] = monotonic  # shardpool.testing has one of its own

    def process_of_shard(self, shard: int) -> int:
        """Process index of a shard."""
        return 1 + self.acceptors + shard

    def process_of_client(self, client: int) -> int:
        """Process index of a client's acceptor."""
        return 1 + (client >> 56)

    def incarnation(self, shard: int) -> int:
        """How many processes have died in a shard's place."""
        return self.shard.incarnation(self.process_of_shard(shard))

    def lives_answered_for(self) -> set[int]:
        """Incarnations whose unanswered requests are this process's: its own, and one's that handed over to it."""
        own = self.incarnation(self.number)
        return {own, own - 1} if self.shard.was_handed_over(self.process_of_shard(self.number)) else {own}

    def step(self, target: Any, kind: int, a: int, b: int, payload: bytes) -> Any:
        """The executor's way in for every record that is no message; in the object's turn."""
        found = self.steps.get(kind)
        if found is None:
            log.error("%s got a record of kind %d, which nothing here sends: ignored", target, kind)
            return None
        return found(target, a, b, payload)

    def place(self, address: int, kind: Kind, a: int = 0, payload: bytes = b"") -> bool:
        """Put a lifecycle record straight into the lane of an object of this shard.

        A posted one comes through this shard's own link, behind the application records that are in the lane by then;
        what a turn does to its own object must come before them. Returns: False: no memory, or nobody lives there.
        """
        return self.shard.place(address, [(int(kind), FLAG_LIFECYCLE, a, 0, payload)])

    def now(self) -> float:
        """Seconds of the monotonic clock, the same in all processes of the host."""
        return self.clock()


async def settled(value: Any) -> Any:
    """The result of a callback that may be plain or async."""
    return await value if inspect.isawaitable(value) else value


def kind_name(kind: int) -> str:
    """For logs."""
    try:
        return Kind(kind).name.lower()
    except ValueError:
        return str(kind)
