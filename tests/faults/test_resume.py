"""Clients of real pools over cut connections and killed acceptors: every one resumes, and every number is checked.

A failure prints the seed; SHARDPOOL_SEED=seed cuts at the same bytes again.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cutter import Cutter
from talkers import Served, Talking

CLIENTS = 100
KILLS = 3


@pytest.fixture
def serve() -> Iterator[Any]:
    pools: list[Served] = []

    def start(acceptors: int, *more: str, **how: Any) -> Served:
        directory = Path(f"/tmp/sp-resume-{os.getpid()}-{len(pools)}")
        directory.mkdir(mode=0o700)
        pools.append(Served(directory, acceptors, *more, **how))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()
        shutil.rmtree(pool.directory)


async def kill_acceptors(pool: Served, clients: list[Talking], kills: int) -> None:
    for kill in range(kills):
        answered = sum(len(client.answered) for client in clients)
        while sum(len(client.answered) for client in clients) < answered + 2 * len(clients):
            await asyncio.sleep(0.01)  # all of them are talking
        acceptors = pool.wait_for(lambda: up if len(up := pool.acceptors()) == pool.count else None)
        victim = acceptors[kill % len(acceptors)]
        victim.kill()
        async with asyncio.timeout(30):
            # which acceptor has how many clients is the kernel's choice: one may have none
            while victim in (up := pool.acceptors()) or len(up) < pool.count:
                await asyncio.sleep(0.02)


def through(pool: Served, kills: int, **how: Any) -> list[Talking]:
    """Talk while acceptors are killed; then every client is checked."""

    async def test() -> list[Talking]:
        addresses = list(pool.addresses.values())
        clients = [Talking(n, addresses[n % len(addresses)], **how) for n in range(CLIENTS)]
        await asyncio.gather(*(client.begin() for client in clients))
        over = asyncio.Event()
        talks = [asyncio.create_task(client.talk(over)) for client in clients]
        await kill_acceptors(pool, clients, kills)
        over.set()
        await asyncio.gather(*talks)
        for client in clients:
            await client.check()
        assert sum(client.reconnects for client in clients) >= CLIENTS  # each acceptor was killed at least once
        return clients

    return asyncio.run(test())


@pytest.mark.timeout(120)
def test_every_client_of_a_killed_acceptor_resumes_and_misses_nothing(serve: Any) -> None:
    """P-16, P-11, O-12: kill -9 while 100 clients are talking: no push lost, doubled or reordered, no session ended."""
    pool = serve(1)
    clients = through(pool, KILLS)
    assert all(client.reconnects >= 1 for client in clients)


@pytest.mark.timeout(120)
def test_clients_find_their_session_whichever_acceptor_they_come_back_to(serve: Any) -> None:
    """P-16, P-6: of three acceptors one is killed after the other; sockets are handed to that of the session."""
    pool = serve(3)
    through(pool, 3)


@pytest.mark.timeout(120)
def test_clients_with_tls_find_their_session_too(serve: Any, tmp_path: Path) -> None:
    """P-16, P-6, P-30: what TLS agreed on cannot move; the bytes are relayed to the acceptor of the session."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    key.chmod(0o600)
    pool = serve(3, "--tls-cert", str(cert), "--tls-key", str(key), binds=("tls", "wss"))
    through(pool, 3, ssl=ssl.create_default_context(cafile=str(cert)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_connections_cut_at_any_byte_lose_and_double_nothing(serve: Any, transport: str) -> None:
    """P-11, O-12: RST in the middle of frames, hellos and welcomes, hundreds of times: no number missed or repeated."""
    seed = int(os.environ.get("SHARDPOOL_SEED") or random.randrange(1 << 32))
    print(f"SHARDPOOL_SEED={seed}")
    address = serve(2, binds=(transport,)).addresses[transport]
    found = re.search(r":(\d+)/?$", address)
    assert found is not None

    async def test() -> None:
        async with Cutter("127.0.0.1", int(found[1]), seed, 3000) as cutter:
            clients = [Talking(n, f"{transport}://127.0.0.1:{cutter.port}") for n in range(20)]
            mean, cutter.mean = cutter.mean, 0
            await asyncio.gather(*(client.begin() for client in clients))
            for client in clients:
                await client.say()
            cutter.mean = mean
            for client in clients:
                client.client._line.transport.abort()
            over = asyncio.Event()
            talks = [asyncio.create_task(client.talk(over)) for client in clients]
            async with asyncio.timeout(60):
                while cutter.cuts < 300 or any(client.reconnects < 5 for client in clients):
                    await asyncio.sleep(0.01)
            over.set()
            cutter.mean = 0
            await asyncio.gather(*talks)
            for client in clients:
                await client.check()
                assert not client.unanswered  # what was on its way when the connection broke was sent again

    asyncio.run(test())
