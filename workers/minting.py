"""New sessions: their id, their home shard, their resume token (P-6)."""

import secrets
from collections.abc import Sequence


class Mint:
    """Makes session ids so that `session % shards` is the home shard; homes take turns.

    Args: shards: number of shards of the node; start: where the turn begins, so that several acceptors do not
          all begin with the same shard.
    """

    def __init__(self, shards: int, start: int = 0) -> None:
        self._shards = shards
        self._homes: tuple[int, ...] = tuple(range(shards))
        self._turn = start

    @property
    def homes(self) -> tuple[int, ...]:
        """The shards that new sessions may live on."""
        return self._homes

    def set_homes(self, shards: Sequence[int]) -> None:
        """Say which shards are in service; none: no session is minted."""
        self._homes = tuple(shard for shard in shards if 0 <= shard < self._shards)

    def home(self) -> int | None:
        """The next shard in turn, None if none is in service."""
        if not self._homes:
            return None
        self._turn += 1
        return self._homes[self._turn % len(self._homes)]

    def session(self, home: int) -> int:
        """A new id, not 0, below 2**63, whose home that is."""
        number = secrets.randbits(62)
        return number - number % self._shards + self._shards + home


def token() -> str:
    """128 random bits in hexadecimal; a secret."""
    return secrets.token_hex(16)
