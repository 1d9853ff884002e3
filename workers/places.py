"""Where objects live: each id is entered at its home shard, which also decides who creates it (P-26, T-40).

The home of an id is its placement, a hash unless the type says otherwise, so every shard knows whom to ask without a
table of its own. Addresses found are remembered; a stale one is forgotten when the mailbox says so.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from msgspec import Struct

from shardpool.app import ObjectType
from shardpool.codecs import encode_msgpack, value_decoder
from shardpool.directory import placement
from shardpool.errors import Condition
from shardpool.objects import TurnObject
from shardpool.workers.context import ShardContext
from shardpool.workers.kinds import shard_of
from shardpool.workers.peers import Operation, Peers

KEY_BYTES_MAX = 127
REMEMBERED_MAX = 16384
LIST_MAX = 1000
IDENTITY = "@identity"


class Key(Struct, frozen=True, array_like=True):
    """What is looked for."""

    type: str
    id: str


class Claim(Struct, frozen=True, array_like=True):
    """Enter `new`, if the id has `old` (0: is free)."""

    type: str
    id: str
    old: int
    new: int


class Page(Struct, frozen=True, array_like=True):
    """A part of a type's ids, in order."""

    type: str
    after: str
    limit: int


_key = value_decoder(Key)
_claim = value_decoder(Claim)
_page = value_decoder(Page)
_address = value_decoder(int)
_alive = value_decoder(bool)
_entries = value_decoder(list[tuple[str, int]])


class Places:
    """Finds objects by type and id, from this shard."""

    def __init__(self, context: ShardContext, peers: Peers) -> None:
        self._context = context
        self._peers = peers
        self._entered: dict[tuple[str, str], int] = {}  # ids whose home is here
        self._remembered: OrderedDict[tuple[str, str], int] = OrderedDict()
        peers.serve(Operation.FIND, lambda payload, _: encode_msgpack(self._find_entered(_key(payload))))
        peers.serve(Operation.CLAIM, lambda payload, _: encode_msgpack(self._enter(_claim(payload))))
        peers.serve(Operation.REMOVE, self._remove)
        peers.serve(Operation.LIST, self._list)
        peers.serve(
            Operation.ALIVE, lambda payload, _: encode_msgpack(context.shard.target(_address(payload)) is not None)
        )

    def home(self, type_name: str, id: str) -> int:
        """The shard where an id is entered, and made if it is absent."""
        registered = self._context.blueprint.types.get(type_name)
        cls: type = registered.cls if registered is not None else TurnObject
        if type_name == IDENTITY:
            return placement(_Identity, id, self._context.shards)
        return placement(cls, id, self._context.shards)

    def known(self, type_name: str, id: str) -> int:
        """The address if it can be told without asking anyone, else 0."""
        key = (type_name, id)
        return self._entered.get(key, 0) or self._remembered.get(key, 0)

    async def find(self, type_name: str, id: str, deadline: float) -> int:
        """The address, 0 if there is no such object."""
        known = self.known(type_name, id)
        if known:
            return known
        home = self.home(type_name, id)
        if home == self._context.number:
            return 0
        payload = encode_msgpack(Key(type_name, id))
        answer = await self._peers.ask(home, Operation.FIND, payload, deadline, f"find {type_name} {id!r}")
        address: int = _address(answer)
        if address:
            self._remember(type_name, id, address)
        return address

    async def claim(self, type_name: str, id: str, old: int, new: int, deadline: float) -> int:
        """Enter an address if the id has the old one (0: is free). Returns: what is entered now."""
        home = self.home(type_name, id)
        claim = Claim(type_name, id, old, new)
        if home == self._context.number:
            return self._enter(claim)
        described = f"enter {type_name} {id!r}"
        answer = await self._peers.ask(home, Operation.CLAIM, encode_msgpack(claim), deadline, described)
        address: int = _address(answer)
        return address

    async def claim_over_dead(self, type_name: str, id: str, new: int, deadline: float) -> int:
        """Enter an address if the id is free or what is entered died with its shard. Returns: what is entered now."""
        there = await self.claim(type_name, id, 0, new, deadline)
        if there == new:
            return there
        described = f"look after {type_name} {id!r}"
        answer = await self._peers.ask(shard_of(there), Operation.ALIVE, encode_msgpack(there), deadline, described)
        return there if _alive(answer) else await self.claim(type_name, id, there, new, deadline)

    def claim_here(self, type_name: str, id: str, old: int, new: int) -> int:
        """As claim, for ids whose home is here."""
        return self._enter(Claim(type_name, id, old, new))

    def remove(self, type_name: str, id: str, address: int) -> None:
        """Take an entry out, if it still has this address."""
        self.forget(type_name, id)
        payload = encode_msgpack(Claim(type_name, id, address, 0))
        home = self.home(type_name, id)
        if home == self._context.number:
            self._remove(payload, home)
        else:
            self._peers.tell(home, Operation.REMOVE, payload)

    def forget(self, type_name: str, id: str) -> None:
        """Ask again next time: the remembered address was stale."""
        self._remembered.pop((type_name, id), None)

    async def list(self, type_name: str, after: str, limit: int, deadline: float) -> list[tuple[str, int]]:
        """Ids of a type with the shard of each, in order, those after an id; over all shards."""
        payload = encode_msgpack(Page(type_name, after, min(limit, LIST_MAX)))
        found: list[tuple[str, int]] = []
        for shard in range(self._context.shards):
            answer = await self._peers.ask(shard, Operation.LIST, payload, deadline, f"list {type_name}")
            found += _entries(answer)
        return sorted(found)[:limit]

    def _remember(self, type_name: str, id: str, address: int) -> None:
        self._remembered[(type_name, id)] = address
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _find_entered(self, key: Key) -> int:
        return self._entered.get((key.type, key.id), 0)

    def _enter(self, claim: Claim) -> int:
        key = (claim.type, claim.id)
        there = self._entered.get(key, 0)
        if there == claim.old:
            self._entered[key] = there = claim.new
        return there

    def _remove(self, payload: bytes, shard: int) -> bytes:
        claim: Claim = _claim(payload)
        key = (claim.type, claim.id)
        if self._entered.get(key) == claim.old:
            del self._entered[key]
        return b""

    def _list(self, payload: bytes, shard: int) -> bytes:
        page: Page = _page(payload)
        found = [
            (id, shard_of(address))
            for (type_name, id), address in self._entered.items()
            if type_name == page.type and id > page.after
        ]
        return encode_msgpack(sorted(found)[: page.limit])


class _Identity:
    """Stands for identities in placement."""


def check_id(kind: ObjectType, id: Any) -> None:
    """Raise TypeMismatch for what cannot be an id."""
    if not isinstance(id, str) or not id:
        raise Condition.TYPE_MISMATCH.error(f"{kind.name} {id!r}: an id is a text that is not empty")
    if len(kind.name.encode()) + 1 + len(id.encode()) > KEY_BYTES_MAX:
        room = KEY_BYTES_MAX - 1 - len(kind.name.encode())
        raise Condition.TYPE_MISMATCH.error(f"{kind.name} {id[:20]!r}…: an id of this type has {room} bytes at most")
