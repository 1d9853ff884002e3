"""Deaths of other shards, as this one sees them: a process that is settled after its death has rung every doorbell.

Who asked the dead one and waits gets Unavailable at once; what its successor runs of that, it answers to nobody.
"""

from __future__ import annotations

from shardpool.workers.context import ShardContext, log
from shardpool.workers.kinds import Kind, shard_of
from shardpool.workers.lives import Lives
from shardpool.workers.peers import Peers
from shardpool.workers.replies import OpenAsks


class Deaths:
    """Looks after the other shards whenever the doorbell rings."""

    def __init__(self, context: ShardContext, asks: OpenAsks, peers: Peers, lives: Lives) -> None:
        self._context = context
        self._asks = asks
        self._peers = peers
        self._lives = lives
        self._others = [shard for shard in range(context.shards) if shard != context.number]
        self._seen = {shard: context.incarnation(shard) for shard in self._others}

    def look(self) -> None:
        """Take in the deaths since the last look."""
        for shard in self._others:
            incarnation = self._context.incarnation(shard)
            if incarnation != self._seen[shard]:
                self._seen[shard] = incarnation
                self._died(shard, incarnation)

    def _died(self, shard: int, incarnation: int) -> None:
        handed_over = self._context.shard.was_handed_over(self._context.process_of_shard(shard))
        if not handed_over:
            log.info("shard %d died; who waits for its answers is told", shard)
        self._asks.lost(shard, incarnation, handed_over)
        self._peers.forget(shard)
        # It may have died between the end of a session and telling the session's actor here.
        for actor in self._lives.actors():
            session = actor._seat.session
            if self._context.shard.target(actor._seat.address) is not actor:
                continue  # it ended in the middle of a Join
            if session is None or shard_of(session.seat_address) != shard:
                continue
            if self._context.shard.route_of(session.seat_address) is None:
                self._context.place(actor._seat.address, Kind.DISCONNECT, payload=b"unavailable")
