"""Objects that killed their shard twice in a row (P-23): they are kept, and run nothing until they are released.

in shared memory   the slot's count of deaths: a successor finds it
here               a table that refuses every message, so that the executor stays as it is; timers do not run
"""

from __future__ import annotations

from typing import Any

from shardpool._core import QUARANTINE_DEATHS
from shardpool.app import ObjectType
from shardpool.codecs import encode_msgpack, value_decoder
from shardpool.dead_letters import Reason
from shardpool.errors import Condition
from shardpool.objects import TurnObject
from shardpool.spot import Spot
from shardpool.workers.context import ShardContext, log
from shardpool.workers.faults import Faults
from shardpool.workers.kinds import Kind
from shardpool.workers.letters import Letters
from shardpool.workers.lives import Lives
from shardpool.workers.peers import Operation, Peers
from shardpool.workers.tables import Tables
from shardpool.workers.travel import Record

_address = value_decoder(int)


class Quarantine:
    """The quarantined objects of a shard."""

    def __init__(
        self, context: ShardContext, tables: Tables, lives: Lives, peers: Peers, faults: Faults, letters: Letters
    ) -> None:
        self._context = context
        self._tables = tables
        self._lives = lives
        self._faults = faults
        self._letters = letters
        self._kinds: dict[int, ObjectType] = {}  # by address
        self.table = tables.refusing(_refuse, self._step)
        lives.on_end.append(self._forget)
        peers.serve(Operation.PARDON, lambda payload, _: encode_msgpack(self._pardon(_address(payload))))
        context.steps[Kind.PARDONED] = self._pardoned

    def park(self, kind: ObjectType, made: TurnObject, turn: int, queued: list[Record]) -> None:
        """Keep an object quiet. Args: queued: what waits for it; its senders are refused, the messages are kept."""
        seat = made._seat
        self._kinds[seat.address] = kind
        self._letters.keep((kind.name, seat.id), seat.address, turn, queued, Reason.QUARANTINED, 0, first=1)
        if isinstance(made, Spot):
            self._lives.spots[seat.address] = made
        self._count()
        log.error(
            "%s is quarantined: its shard died %d times in its handlers with none that ended well in between; see "
            "`shardpool dead-letters list`, and `shardpool dead-letters release %s %s` when the cause is mended",
            seat.label,
            QUARANTINE_DEATHS,
            seat.type_name,
            seat.id,
        )

    def _pardon(self, address: int) -> bool:
        kind = self._kinds.pop(address, None)
        if kind is None:
            return False
        self._context.shard.pardon(address, self._tables.of(kind))
        self._context.place(address, Kind.PARDONED)
        self._count()
        return True

    async def _pardoned(self, target: TurnObject, a: int, b: int, payload: bytes) -> None:
        await self._faults.guarded(target, "on_recover")
        self._lives.begin(self._context.blueprint.find(type(target)), target)

    def _forget(self, address: int) -> None:
        if self._kinds.pop(address, None) is not None:
            self._count()

    def _count(self) -> None:
        self._context.shard.note_quarantined(len(self._kinds))

    def _step(self, target: Any, kind: int, a: int, b: int, payload: bytes) -> Any:
        """What still happens to it: its end, without its own code; and nobody waits for its word."""
        match kind:
            case Kind.DISCONNECT | Kind.CLOSE:
                return self._lives.end_quietly(target)
            case Kind.DECIDE:
                knock = self._context.parcels.take(a)
                if knock is not None and not knock.future.done():
                    knock.future.set_exception(_error())
            case Kind.LEFT | Kind.JOINED:
                self._context.parcels.take(a)
        return None


def _error() -> Exception:
    return Condition.UNAVAILABLE.error("quarantined: it killed its shard twice; an operator must release it")


def _refuse(payload: bytes) -> Any:
    raise _error()
