"""What travels between shards when an actor moves, and how its Joins name their Spots in records."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from shardpool.errors import ErrorBody

Record = tuple[int, int, int, int, bytes]  # kind, flags, a, b, payload


class Intent(Struct, frozen=True, array_like=True):
    """A registered Join."""

    turn: int
    type: str
    id: str
    request: bytes
    deadline: float  # monotonic, the same clock on every shard of the host


class SessionState(Struct, frozen=True, array_like=True):
    """What a SessionRef needs at its new place."""

    number: int
    client: int
    seat_address: int
    identity: str | None


class Arrival(Struct, frozen=True, array_like=True):
    """An actor on its way."""

    type: str
    id: str
    source: int
    state: bytes
    session: SessionState | None
    intent: Intent
    rest: list[Intent]
    records: list[Record]
    source_life: int  # the how manieth process of the source shard asks
    target_life: int  # ... of the target shard is asked


class Answer(Struct, frozen=True, array_like=True):
    """The target's word. address 0: it does not take the actor."""

    address: int
    reply: Any = None
    error: ErrorBody | None = None


class Rebind(Struct, frozen=True, array_like=True):
    """To the session's home shard: its actor lives there now."""

    session: int
    actor: int


def named(type_name: str, id: str) -> bytes:
    """A type and id as a record's payload."""
    return f"{type_name}\0{id}".encode()


def read_name(payload: bytes) -> tuple[str, str]:
    """What `named` made."""
    type_name, _, id = payload.decode().partition("\0")
    return type_name, id
