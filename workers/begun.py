"""The record that a shard's death cut off: skipped and answered, run again, or nobody's loss (M-16)."""

from __future__ import annotations

from enum import Enum, auto

from shardpool._core import FLAG_ASK, FLAG_BARE
from shardpool.codecs import encode_json, encode_msgpack
from shardpool.errors import Condition
from shardpool.workers.context import ShardContext
from shardpool.workers.faults import body_of
from shardpool.workers.kinds import Kind

Record = tuple[int, int, int, int, bytes]  # kind, flags, a, b, payload


class Fate(Enum):
    """What the executor does with it."""

    DROP = auto()
    AGAIN = auto()


class Begun:
    """Decides about the records that had begun and not ended."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context

    def settle(self, address: int, record: Record | None, turn: int) -> Fate:
        """Tell whoever asked, place what takes the record's part, and say what becomes of it."""
        if record is None:
            return Fate.DROP
        kind, _, a, b, payload = record
        match kind:
            case Kind.FRAME | Kind.CALL:
                self.answer(record)
                return Fate.DROP
            case Kind.JOIN | Kind.ARRIVE:
                # Whether it took place is seen from where the actor is by now.
                self._context.place(address, Kind.JOINED, payload=payload)
                return Fate.DROP
            case Kind.JOINED | Kind.DISCONNECT | Kind.DETACH | Kind.CLOSE | Kind.RESUMED:
                return Fate.AGAIN  # rather twice than never
            case Kind.OPERATION:
                error = Condition.UNAVAILABLE.error("the shard died while it handled this")
                self._context.shard.error_client(a, b, encode_json(body_of(error)))
                return Fate.DROP
        return Fate.DROP

    def answer(self, record: Record) -> None:
        """Unavailable to whoever asked."""
        kind, flags, a, b, _ = record
        shard = self._context.shard
        error = Condition.UNAVAILABLE.error("the shard died while it handled this; it may have taken effect in part")
        if kind == Kind.CALL and a:
            shard.reply_call(b, a, 1, encode_msgpack(body_of(error)))
        elif kind == Kind.FRAME and not flags & FLAG_BARE:
            shard.error_client(a, b if flags & FLAG_ASK else 0, encode_json(body_of(error)))
