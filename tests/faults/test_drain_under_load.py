"""SIGTERM while clients send as fast as they can: what was accepted is run and answered, and the pool ends well.

SHARDPOOL_LONG=1 does it 20 times.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable

import pytest
from counted_load import ACCEPTORS, APP, SHARDS, Load, Memory
from served_pool import ServedPool, wait_for

Serve = Callable[..., ServedPool]

LONG = os.environ.get("SHARDPOOL_LONG") == "1"
ROUNDS = 20 if LONG else 2
FLAGS = ("--acceptors", str(ACCEPTORS), "--workers", str(SHARDS))


def restart(pool: ServedPool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*pool.command_line, "restart", "--rolling"],
        env=pool.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.timeout(60 * ROUNDS)
def test_sigterm_under_load_loses_nothing_accepted(serve: Serve) -> None:
    """P-17, P-29, M-9: every message that an acceptor took in is run once and in order, every ask answered; exit 0."""
    for _ in range(ROUNDS):
        pool = serve(*FLAGS, app=APP).up()
        memory, load = Memory(pool), Load()

        async def stop_at_work(pool: ServedPool = pool, memory: Memory = memory, load: Load = load) -> int:
            clients = asyncio.ensure_future(load.run(pool.address))
            await asyncio.to_thread(wait_for, lambda: memory.run() > 3000, "load")
            code = await asyncio.to_thread(pool.stop)
            await asyncio.wait_for(clients, 30)
            return code

        assert asyncio.run(stop_at_work()) == 0, pool.said()
        load.judge(pool, memory)
        assert memory.run() == memory.published()
        memory.close()


@pytest.mark.timeout(180)
def test_rolling_restart_under_load_loses_nothing(serve: Serve) -> None:
    """P-18, P-15, M-16: every connection stays, every message is run once and in order, every ask answered."""
    pool = serve(*FLAGS, app=APP).warm()
    memory, load = Memory(pool), Load()

    async def restart_at_work() -> int:
        clients = asyncio.ensure_future(load.run(pool.address))
        await asyncio.to_thread(wait_for, lambda: memory.run() > 1000, "load")
        for _ in range(3 if LONG else 1):
            command = restart(pool)
            said = await asyncio.to_thread(command.communicate)
            assert command.returncode == 0, (said, pool.said())
        published = memory.published()
        await asyncio.to_thread(wait_for, lambda: memory.published() > published + 1000, "load after it")
        assert not clients.done()
        code = await asyncio.to_thread(pool.stop)
        await asyncio.wait_for(clients, 30)
        return code

    assert asyncio.run(restart_at_work()) == 0, pool.said()
    load.judge(pool, memory)
    assert "was killed" not in pool.said()
    memory.close()


@pytest.mark.timeout(60 * ROUNDS)
def test_sigterm_during_a_rolling_restart_loses_nothing(serve: Serve) -> None:
    """P-17, P-18, P-29: a shard that has left is replaced first: what waits for it was accepted, too."""
    for round_ in range(ROUNDS):
        pool = serve(*FLAGS, app=APP).warm()
        memory, load = Memory(pool), Load()
        when = ("restarting 2 shards", "serves again")[round_ % 2]

        async def stop_at_work(
            pool: ServedPool = pool, memory: Memory = memory, load: Load = load, when: str = when
        ) -> int:
            clients = asyncio.ensure_future(load.run(pool.address))
            await asyncio.to_thread(wait_for, lambda: memory.run() > 1000, "load")
            command = restart(pool)
            await asyncio.to_thread(wait_for, lambda: when in pool.said(), pool.said)
            code = await asyncio.to_thread(pool.stop)
            await asyncio.wait_for(clients, 30)
            await asyncio.to_thread(command.communicate)
            return code

        assert asyncio.run(stop_at_work()) == 0, pool.said()
        load.judge(pool, memory)
        memory.close()
