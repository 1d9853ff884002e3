"""Where objects live and where absent ones are made: the node's directory, and each type's placement (P-26, T-40).

The shard that an id is placed on decides about its creation, so that of two creates at once one factory runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardpool.app import ObjectType
from shardpool.codecs import encode_msgpack, value_decoder
from shardpool.directory import Entry, placement
from shardpool.objects import TurnObject
from shardpool.workers.context import ShardContext
from shardpool.workers.kinds import shard_of
from shardpool.workers.peers import Operation, Peers

LIST_MAX = 1000
IDENTITY = "@identity"  # the type of entries of identities, whose address is their session's

_SHARED = "\0"

_address = value_decoder(int)
_alive = value_decoder(bool)


class Places:
    """Finds objects by type and id, from this shard."""

    def __init__(self, context: ShardContext, peers: Peers) -> None:
        self._context = context
        self._directory = context.directory
        self._peers = peers
        peers.serve(Operation.ALIVE, lambda payload, _: encode_msgpack(self._is_here(_address(payload))))

    def home(self, type_name: str, id: str) -> int:
        """The shard that makes an absent id."""
        registered = self._context.blueprint.types.get(type_name)
        cls: type = registered.cls if registered is not None else TurnObject
        return placement(cls, id, self._context.shards)

    def find(self, type_name: str, id: str) -> int:
        """The address, 0 if there is no such object."""
        return self._directory.find(type_name, id)

    def claim(self, type_name: str, id: str, address: int) -> int:
        """Enter an address if the id is free. Returns: what is entered now; 0: ask again.

        Raises: CapacityExceeded: the directory is full.
        """
        return self._directory.claim(type_name, id, address)

    async def claim_over_dead(self, type_name: str, id: str, address: int, deadline: float) -> int:
        """As claim, also over an entry whose object died with its shard."""
        there = self.claim(type_name, id, address)
        if there in (0, address):
            return there
        described = f"look after {type_name} {id!r}"
        answer = await self._peers.ask(shard_of(there), Operation.ALIVE, encode_msgpack(there), deadline, described)
        if _alive(answer):
            return there
        self.remove(type_name, id, there)
        return self.claim(type_name, id, address)

    def move(self, type_name: str, id: str, old: int, new: int) -> bool:
        """Change an address, if it is still the old one."""
        return self._directory.move(type_name, id, old, new)

    def remove(self, type_name: str, id: str, address: int) -> None:
        """Take an entry out, if it still has this address."""
        self._directory.remove(type_name, id, address)

    def describe(self, type_name: str, id: str, address: int, properties: dict[str, Any]) -> bool:
        """Change what is listed with an entry."""
        return self._directory.describe(type_name, id, address, properties)

    def list(self, type_name: str, after: str, limit: int) -> list[Entry]:
        """Entries of a type in order of their ids, those after an id."""
        return self._directory.list(type_name, after, max(1, min(limit, LIST_MAX)))

    def everything(self) -> Iterator[tuple[str, str, int]]:
        """(type, id, address) of every entry; for a successor, once."""
        return self._directory.everything()

    def check_name(self, type_name: str, id: str) -> None:
        """As check_id, for what has no registered type."""
        self._directory.check_id(type_name, id)

    def check_id(self, kind: ObjectType, id: Any) -> None:
        """Raise TypeMismatch for what cannot be an id."""
        self._directory.check_id(kind.name, id)

    def _is_here(self, address: int) -> bool:
        return self._context.shard.target(address) is not None


def shared_identity(identity: str, session: str) -> str:
    """The id under which one of several sessions of an identity is entered."""
    return f"{identity}{_SHARED}{session}"


def identity_of(id: str) -> str:
    """The identity in the id of an entry."""
    return id.partition(_SHARED)[0]
