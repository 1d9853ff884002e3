"""Which gate an object runs under, and what may wait for what (T-2, T-7, T-11)."""

from __future__ import annotations

from shardpool.errors import InvalidOperation
from shardpool.objects import Seat, TurnObject
from shardpool.spot import EntrySpot, Spot
from shardpool.workers.context import ShardContext


class Gates:
    """The gates of a shard's objects, as the rules name them; the executor holds them."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context

    def spot_gate(self, seat: Seat) -> int:
        """Address of the SpotWide Spot whose gate the object runs under; 0: a gate of its own."""
        spot = seat.spot
        if isinstance(spot, Spot) and not isinstance(spot, EntrySpot):
            return spot._seat.address
        return 0

    def gate(self, seat: Seat) -> int:
        """Address of the object that owns the gate."""
        return self.spot_gate(seat) or seat.address

    def needs_gate_of(self, address: int, seat: Seat) -> bool:
        """Whether what lives at an address can run only when this object's gate is free."""
        target = self._context.shard.target(address) if address >> 56 == self._context.number else None
        return isinstance(target, TurnObject) and self.gate(target._seat) == self.gate(seat)

    def check_yielding(self, seat: Seat, call: object) -> None:
        """Raise InvalidOperation where there is no shared gate to give back."""
        if not self.spot_gate(seat):
            where = f" in {seat.spot.id!r}, the entry Spot" if isinstance(seat.spot, EntrySpot) else ""
            raise InvalidOperation(
                f"{call}: {seat.label} is{where} under a gate of its own, so yielding() has nothing to give back; "
                "await the call plainly, or join a SpotWide Spot first"
            )

    def check_waiting(self, seat: Seat, address: int, call: object, yielding: bool) -> None:
        """Raise InvalidOperation if the wait could never end."""
        if address == seat.address:
            raise InvalidOperation(
                f"{call}: {seat.label} would wait for itself for ever; call the method, or send() without waiting"
            )
        if not yielding and self.needs_gate_of(address, seat):
            raise InvalidOperation(
                f"{call}: {seat.label} holds the gate that the answer needs, so it would wait for ever; "
                "use `await ….yielding()`, or touch the object directly: under one gate that is safe"
            )
