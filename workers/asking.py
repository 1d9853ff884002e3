"""Asks to objects by type and id, from a turn or from outside of one (T-5 to T-11)."""

from __future__ import annotations

import asyncio

from shardpool.app import ObjectType
from shardpool.errors import Condition
from shardpool.objects import Seat
from shardpool.workers.context import ShardContext
from shardpool.workers.gates import Gates
from shardpool.workers.kinds import Outcome, shard_of
from shardpool.workers.outbox import refusal
from shardpool.workers.places import Places
from shardpool.workers.replies import OpenAsk, OpenAsks
from shardpool.workers.turns import Turns

_PAUSE_FIRST = 0.001
_PAUSE_MAX = 0.02


class Asking:
    """The asks of a shard's objects."""

    def __init__(self, context: ShardContext, places: Places, asks: OpenAsks, gates: Gates, turns: Turns) -> None:
        self._context = context
        self._places = places
        self._asks = asks
        self._gates = gates
        self._turns = turns

    async def ask(
        self, seat: Seat | None, kind: ObjectType, id: str, payload: bytes, deadline: float, yielding: bool = False
    ) -> bytes:
        """Ask, within one deadline for finding, admission, handler and reply.

        Args: seat: the asking object, None from outside a turn. yielding: give its Spot's gate back meanwhile.
        Returns: the reply's MessagePack.
        Raises: the answering side's ShardpoolError; NotFound, CapacityExceeded, DeadlineExceeded, InvalidOperation.
        """
        described = f"ask {kind.name} {id!r}"
        ask = self._asks.begin(deadline, described)
        try:
            await self._submit(seat, kind, id, payload, ask, deadline, yielding)
            if not yielding or seat is None:
                return await ask.future
            self._context.shard.release_gate(seat.address)
            try:
                return await ask.future
            finally:
                await self._turns.regain(seat.address)
        finally:
            self._asks.abandon(ask)

    async def _submit(
        self,
        seat: Seat | None,
        kind: ObjectType,
        id: str,
        payload: bytes,
        ask: OpenAsk,
        deadline: float,
        yielding: bool,
    ) -> None:
        described = f"ask {kind.name} {id!r}"
        pause = _PAUSE_FIRST
        stale = False
        while True:
            address = self._places.find(kind.name, id)
            if not address:
                raise Condition.NOT_FOUND.error(f"{described}: there is no such object; create() or join() makes one")
            if seat is not None:
                self._gates.check_waiting(seat, address, described, yielding)
            # Before it is sent: a death in between is noticed, at worst for an ask that the successor answers.
            self._asks.aim(ask, shard_of(address))
            outcome = Outcome(self._context.shard.send(address, payload, ask.number))
            match outcome:
                case Outcome.ACCEPTED:
                    return
                case Outcome.STALE if not stale:
                    stale = True
                    self._places.remove(kind.name, id, address)
                case Outcome.SEALED if self._context.now() + pause < deadline:
                    # It moves: its entry is rewritten before it opens at its new place.
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _PAUSE_MAX)
                case _:
                    raise refusal(outcome, described)
