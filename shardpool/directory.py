"""Where ids live on the node (P-26): (app, type, id) -> object address, in memory that every process shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from shardpool.codecs import decode_msgpack, encode_msgpack
from shardpool.errors import Condition, NotConfigured

if TYPE_CHECKING:
    from shardpool import _core

# shardpool._core's DIRECTORY_CREATING, DIRECTORY_FULL, DIRECTORY_KEY_BYTES and DIRECTORY_PROPERTIES_BYTES.
CREATING = 1
FULL = 2
KEY_BYTES = 128
PROPERTIES_BYTES = 96

_ALL = 1 << 31


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object: its id, the number of its shard, and what it published about itself."""

    id: str
    shard: int
    properties: dict[str, Any]


class Directory:
    """The directory as one process sees it; every method answers at once.

    Args: core: `shardpool._core.Directory`. app: name of the app whose ids these are.
    """

    def __init__(self, core: _core.Directory, app: str) -> None:
        self._core = core
        self._app = app.encode()

    def find(self, type_name: str, id: str) -> int:
        """Address of the object; 0 if there is none, or none yet. Ids come from clients: one too long names nothing."""
        key = self._key(type_name, id)
        if len(key) > KEY_BYTES:
            return 0
        address = self._core.find(key)
        return 0 if address == CREATING else address

    def claim(self, type_name: str, id: str, address: int) -> int:
        """Enter an address if the id is free.

        Returns: what is entered now: `address`, another object's, or 0: somebody else is entering one, ask again.
        Raises: CapacityExceeded: the directory is full.
        """
        key = self._key(type_name, id)
        mine, there = self._core.claim(key)
        if mine:
            self._core.publish(key, address)
            return address
        if there == FULL:
            raise Condition.CAPACITY.error(f"{type_name} {id!r}: the directory of ids is full; raise directory_entries")
        return 0 if there == CREATING else there

    def describe(self, type_name: str, id: str, address: int, properties: dict[str, Any]) -> bool:
        """Change the properties that are listed with an entry. Returns: False: it is another object's.

        Raises: TypeMismatch: they cannot be encoded, or have more than 96 bytes as MessagePack.
        """
        try:
            packed = encode_msgpack(properties)
        except (TypeError, ValueError, OverflowError) as error:
            raise Condition.TYPE_MISMATCH.error(f"properties of {type_name} {id!r}: {error}") from None
        if len(packed) > PROPERTIES_BYTES:
            raise Condition.TYPE_MISMATCH.error(
                f"properties of {type_name} {id!r}: {len(packed)} bytes as MessagePack, {PROPERTIES_BYTES} is the most"
            )
        return self._core.publish(self._key(type_name, id), address, packed)

    def move(self, type_name: str, id: str, old: int, new: int) -> bool:
        """Change the address, if it is still the old one."""
        return self._core.move(self._key(type_name, id), old, new)

    def remove(self, type_name: str, id: str, address: int) -> bool:
        """Take an entry out, if it still has this address."""
        key = self._key(type_name, id)
        return len(key) <= KEY_BYTES and self._core.remove(key, address)

    def list(self, type_name: str, after: str, limit: int) -> list[Entry]:
        """Entries of a type in order of their ids, those after an id."""
        prefix = self._key(type_name, "")
        # Cut, it leaves out the same: no key is longer than KEY_BYTES.
        found = self._core.list(prefix, limit, (prefix + after.encode())[:KEY_BYTES] if after else b"")
        return [
            Entry(key[len(prefix) :].decode(), address >> 56, decode_msgpack(properties) if properties else {})
            for key, address, properties in found
        ]

    def everything(self) -> Iterator[tuple[str, str, int]]:
        """(type, id, address) of every entry of this app, as they are now."""
        prefix = self._app + b"\0"
        for key, address, _ in self._core.list(prefix, _ALL):
            type_name, _, id = key[len(prefix) :].partition(b"\0")
            yield type_name.decode(), id.decode(), address

    def check_id(self, type_name: str, id: Any) -> None:
        """Raise TypeMismatch for what cannot be an id."""
        if not isinstance(id, str) or not id:
            raise Condition.TYPE_MISMATCH.error(f"{type_name} {id!r}: an id is a text that is not empty")
        over = len(self._key(type_name, id)) - KEY_BYTES
        if over > 0:
            room = len(id.encode()) - over
            raise Condition.TYPE_MISMATCH.error(f"{type_name} {id[:20]!r}…: an id here has {room} bytes at most")

    def _key(self, type_name: str, id: str) -> bytes:
        return b"%b\0%b\0%b" % (self._app, type_name.encode(), id.encode())


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
