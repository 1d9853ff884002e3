"""Where sessions lead while their actors change shards."""

from __future__ import annotations

import asyncio

from shardpool.workers.context import ShardContext

PATIENCE = 5.0  # where an actor has moved to, or by a successor there, its session is led there again and again
PAUSE = 0.005


async def led_away(context: ShardContext, session: int, address: int) -> bool:
    """Wait until a session leads elsewhere than to an actor's old address; until then that must stay sealed, so that
    the session's records wait, and its end finds the actor.

    Args: session: address of its slot. Returns: False: it does not, in time.
    """
    deadline = context.now() + PATIENCE
    while context.shard.route_of(session) in (None, address):
        if context.now() > deadline:
            return False
        await asyncio.sleep(PAUSE)
    return True
