"""Numbers of the records that a shard's Python half reads and writes; those of layout.h are pinned by a test."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Records of shardpool._core (1 to 6 and from 32) and, between them, the shard's own to its objects."""

    FRAME = 1
    CALL = 2
    TIMER = 3
    ATTACH = 4
    DETACH = 5
    OPERATION = 6  # KIND_CUSTOM, to the system object: a trusted program's request; a: client, b: ask id

    CREATE = 7  # to a new object: decide about yourself
    JOIN = 8  # to an actor: run the Joins that turn `a` registered
    DECIDE = 9  # to a Spot: an actor wants in
    ARRIVE = 10  # to an actor that came from another shard
    JOINED = 11  # to an actor: a Join ended while it was sealed
    DISCONNECT = 12  # to a session's actor; payload: reason
    REPLACED = 13  # to a session: the same identity came in again
    CLOSE = 14  # to an object: end
    LEFT = 15  # to a Spot: an actor went to another shard
    RESUMED = 16  # to a session, then to its actor: the client came back
    RECOVER = 17  # an adopted object's first turn, placed by the executor
    PARDONED = 18  # to an object that was quarantined

    BOUND = 32
    REFUSED = 33
    ROUTE = 34
    XOFF = 48
    XON = 49

    PEER_PART = 64  # between shards: piece of a request or answer that is longer than a record
    PEER_ASK = 65
    PEER_ANSWER = 66


class Outcome(IntEnum):
    """What an admission answers."""

    ACCEPTED = 0
    LANE_FULL = 1
    SATURATED = 2
    SEALED = 3
    STALE = 4
    SHUTTING_DOWN = 5
    LINK_FULL = 6
    TOO_BIG = 7


class SlotKind(IntEnum):
    """What lives in a slot, for status."""

    SYSTEM = 1
    SESSION = 2
    ACTOR = 3
    SPOT = 4
    OPERATION = 5  # an open request of a trusted program; client and, as session, its ask id


class Life(IntEnum):
    """What a successor must know about a sealed slot, or one that is being filled."""

    OPEN = 0
    LEAVING = 1
    ARRIVING = 2
    ENDING = 3


FLAG_LIFECYCLE = 0x8000  # of a record in the lifecycle lane


def shard_of(address: int) -> int:
    """Number of the shard that an object address names."""
    return address >> 56
