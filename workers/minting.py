"""New sessions: their id, their home shard, their acceptor, their resume token (P-6)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

_ACCEPTOR_SHIFT = 56
_TOKEN_BYTES = 16


class Mint:
    """Makes session ids so that `session % shards` is the home shard; homes take turns.

    The acceptor is in the id, too: a client that comes back to another one is led to it (`acceptor_of`). It is in the
    top byte and no remainder, so that it stays readable whatever becomes of the number of shards.

    Args: shards: number of shards of the node; acceptor: whose sessions these are, from 0. The turn begins there, so
          that several acceptors do not all begin with the same shard.
    """

    def __init__(self, shards: int, acceptor: int = 0) -> None:
        self._shards = shards
        self._acceptor = acceptor
        self._homes: tuple[int, ...] = tuple(range(shards))
        self._turn = acceptor

    @property
    def acceptor(self) -> int:
        """Whose sessions these are."""
        return self._acceptor

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
        """A new id, not 0, below 2**63, whose home and acceptor these are."""
        number = self._acceptor << _ACCEPTOR_SHIFT | self._shards + secrets.randbits(_ACCEPTOR_SHIFT - 1)
        return number - number % self._shards + home


def acceptor_of(session: int) -> int:
    """The acceptor that minted a session, and keeps it."""
    return session >> _ACCEPTOR_SHIFT


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """128 random bits; a secret. Only the digest is kept: whoever reads the memory cannot resume with it."""

    value: bytes

    @classmethod
    def new(cls) -> Token:
        """A fresh one."""
        return cls(secrets.token_bytes(_TOKEN_BYTES))

    @classmethod
    def read(cls, text: str) -> Token | None:
        """As a client shows it; None: it cannot be one."""
        try:
            value = bytes.fromhex(text)
        except ValueError:
            return None
        return cls(value) if len(value) == _TOKEN_BYTES else None

    @property
    def digest(self) -> bytes:
        """32 bytes. Plain SHA-256: 128 random bits need no slow hash."""
        return hashlib.sha256(self.value).digest()

    @property
    def text(self) -> str:
        """As a client gets it."""
        return self.value.hex()
