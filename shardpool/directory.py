"""Where ids live on the node (P-26): (type, id) -> object address; and where an absent one would be made."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from shardpool.errors import NotConfigured

ID_BYTES_MAX = 120


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object."""

    id: str
    shard: int
    properties: dict[str, Any]


class Directory(Protocol):
    """The node's directory as one process sees it; every method answers at once."""

    def find(self, type_name: str, id: str) -> int:
        """Address of the object, 0 if there is none."""

    def claim(self, type_name: str, id: str, address: int) -> int:
        """Enter an address if the id is free. Returns: 0, or the address that is there already."""

    def move(self, type_name: str, id: str, old: int, new: int) -> bool:
        """Replace an address, if the old one is still there."""

    def remove(self, type_name: str, id: str, address: int) -> bool:
        """Take an entry out, if it still has this address."""

    def list(self, type_name: str, after: str, limit: int) -> list[Entry]:
        """Entries of a type by id, those after an id."""


def placement(cls: type, id: str, shards: int) -> int:
    """The shard on which an absent id is made.

    Args: cls: its type; a `shard_of(id)` of its own (static or class method, any int) decides, else a hash of
          type and id, which is the same in every process. shards: how many there are.
    Raises: NotConfigured: `shard_of` gave no whole number.
    """
    policy = getattr(cls, "shard_of", None)
    if policy is not None:
        chosen = policy(id)
        if not isinstance(chosen, int):
            raise NotConfigured(f"{cls.__name__}.shard_of({id!r}) gave {chosen!r}; it gives a whole number")
        return chosen % shards
    digest = blake2b(f"{cls.__name__}\0{id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % shards
