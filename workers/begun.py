"""The record that a shard's death cut off: kept as a dead letter, run again, or nobody's loss (M-16)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from shardpool._core import FLAG_ASK, FLAG_BARE
from shardpool.codecs import encode_json, encode_msgpack
from shardpool.dead_letters import Reason
from shardpool.delivery import Policy
from shardpool.errors import Condition
from shardpool.workers.context import ShardContext
from shardpool.workers.faults import body_of
from shardpool.workers.kinds import Kind
from shardpool.workers.letters import Letters
from shardpool.workers.travel import Record


class Fate(Enum):
    """What the executor does with it."""

    DROP = auto()
    AGAIN = auto()


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An object whose turn was cut off. attempts: how often the record had been cut off before."""

    name: tuple[str, str]  # type and id
    address: int
    turn: int
    attempts: int
    policy: Policy
    quarantined: bool


class Begun:
    """Decides about the records that had begun and not ended."""

    def __init__(self, context: ShardContext, letters: Letters) -> None:
        self._context = context
        self._letters = letters

    def settle(self, owner: Interrupted, record: Record) -> Fate:
        """Tell whoever asked, place what takes the record's part, and say what becomes of it."""
        kind, _, a, b, payload = record
        match kind:
            case Kind.FRAME | Kind.CALL:
                return self._message(owner, record)
            case Kind.JOIN | Kind.ARRIVE:
                # Whether it took place is seen from where the actor is by now.
                self._context.place(owner.address, Kind.JOINED, payload=payload)
            case Kind.JOINED | Kind.DISCONNECT | Kind.DETACH | Kind.CLOSE | Kind.RESUMED | Kind.PARDONED:
                return Fate.AGAIN  # rather twice than never
            case Kind.OPERATION:
                error = Condition.UNAVAILABLE.error("the shard died while it handled this")
                self._context.shard.error_client(a, b, encode_json(body_of(error)))
        return Fate.DROP

    def _message(self, owner: Interrupted, record: Record) -> Fate:
        begun = owner.attempts + 1
        if begun < owner.policy.attempts and not owner.quarantined:
            return Fate.AGAIN
        # Before the mark is cleared: killed in between, the next successor writes it under the same id again.
        reason = Reason.QUARANTINED if owner.quarantined else Reason.SHARD_DIED
        self._letters.keep(owner.name, owner.address, owner.turn, [record], reason, begun)
        self._answer(record)
        return Fate.DROP

    def _answer(self, record: Record) -> None:
        kind, flags, a, b, _ = record
        shard = self._context.shard
        error = Condition.UNAVAILABLE.error("the shard died while it handled this; it may have taken effect in part")
        if kind == Kind.CALL and a:
            shard.reply_call(b, a, 1, encode_msgpack(body_of(error)))
        elif kind == Kind.FRAME and not flags & FLAG_BARE:
            shard.error_client(a, b if flags & FLAG_ASK else 0, encode_json(body_of(error)))
