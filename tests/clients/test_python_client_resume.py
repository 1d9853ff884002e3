"""The Python client on its way back, against a server of docs/protocol.md that loses connections on demand."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from typing import Any

import pytest
from session_keeper import Keeper

from shardpool.client import Closed, connect
from shardpool.client.reconnection import PAUSE_MAX, pauses
from shardpool.errors import DeadlineExceeded

TRANSPORTS = ["tcp", "ws"]


def run(test: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(limited())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_lost_connection_is_replaced_and_nothing_is_missed_or_doubled(make_server: Any, transport: str) -> None:
    """P-11, O-12: the client resumes by itself; what it had seen and gets again is dropped by number."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            async with connect(getattr(server, transport), auth={"user": "ann"}) as client:
                for n in range(3):
                    await keeper.push(n)
                assert [await anext(client) for _ in range(3)] == [0, 1, 2]
                await server.peers[0].end()
                await keeper.push(3, away=True)
                assert await anext(client) == 3
                hello = keeper.hellos[1]["resume"]
                assert hello == {"session": server.welcome["session"], "token": f"{1:032x}", "received": 3}
                assert client.resume_point.token == f"{2:032x}"
                keeper.server.peers[1].seq = 0
                await server.peers[1].write(keeper.kept[1][1])  # once more
                await keeper.push(4)
                assert await anext(client) == 4
                assert client.statistics().repeated == 1
                assert client.statistics().reconnects == 1
                assert await client.ask({"type": "echo"}) == {"type": "echo"}

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_open_ask_gets_the_reply_that_it_missed(make_server: Any, transport: str) -> None:
    """P-11, O-12: asks stay open over a lost connection, and their ids are not used anew meanwhile."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            async with connect(getattr(server, transport)) as client:
                asking = asyncio.create_task(client.ask({"type": "later", "n": 7}))
                peer = await server.peer()
                await peer.until(lambda: peer.kinds() == b"HA")
                await peer.end()
                await keeper.number(peer, b"R", struct.pack(">I", 1) + b'"done"', away=True)
                assert await asking == "done"
                assert await client.ask({"type": "echo"}) == {"type": "echo"}

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("taken", [0, 1, 100, 250, 300])
def test_what_the_server_did_not_take_is_sent_again_in_order(make_server: Any, transport: str, taken: int) -> None:
    """P-11, O-12: the welcome says how many messages were taken; the others follow, and none of these."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            async with connect(getattr(server, transport)) as client:
                for n in range(300):
                    await client.send({"type": "x", "n": n})
                peer = await server.peer()
                await peer.until(lambda: peer.kinds().count(b"S") == 300)
                settled = peer.kinds().count(b"P") * 64
                keeper.taken = keeper.taken[: max(taken, settled)]
                await peer.end()
                assert await client.ask({"type": "echo"}) == {"type": "echo"}
                numbers = [json.loads(frame[1:])["n"] for frame in keeper.taken if frame[:1] == b"S"]
                assert numbers == list(range(300))
                assert settled == 256

    run(test)


def test_sends_and_asks_wait_for_the_next_connection(make_server: Any) -> None:
    """O-12: while there is no connection a send waits, in order, and an ask as long as its timeout."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            keeper.silent = True
            async with connect(server.tcp) as client:
                await server.peers[0].end()
                while client.connected:
                    await asyncio.sleep(0.005)
                with pytest.raises(DeadlineExceeded, match="the connection is lost"):
                    await client.ask({"type": "echo"}, timeout=0.05)
                sending = [asyncio.create_task(client.send({"type": "x", "n": n})) for n in range(3)]
                await asyncio.sleep(0)
                peer = await server.peer(1)
                keeper.silent = False
                await peer.end()
                await asyncio.gather(*sending)
                last = server.peers[-1]
                await last.until(lambda: last.kinds() == b"HSSS")
                assert [json.loads(frame[1:])["n"] for frame in last.frames[1:]] == [0, 1, 2]

    run(test)


def test_a_refused_resume_is_the_end(make_server: Any) -> None:
    """P-6, O-12: 4404 ends the client with that code; waiting asks, sends and readers hear it."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            keeper.refuse = 4404
            client = await connect(server.tcp)
            asking = asyncio.create_task(client.ask({"type": "later"}))
            await server.peers[0].until(lambda: server.peers[0].kinds() == b"HA")
            await server.peers[0].end()
            for waiting in (asking, anext(client), client.send("x")):
                with pytest.raises(Closed) as caught:
                    await waiting
                assert caught.value.close_code == 4404
                assert caught.value.name == "resume_refused"
            assert client.closed is not None
            await client.close()

    run(test)


def test_anew_begins_a_new_session_when_the_old_one_is_gone(make_server: Any) -> None:
    """P-6, O-12: reconnect="anew": open asks fail, the hello carries auth and no resume, numbers start again."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            keeper.refuse = 4404
            returns: list[bool] = []
            async with connect(server.tcp, auth=["ann"], reconnect="anew") as client:
                client.on_reconnect(lambda welcome: returns.append(bool(welcome.resumed)))
                await keeper.push("old")
                assert await anext(client) == "old"
                asking = asyncio.create_task(client.ask({"type": "later"}))
                await server.peers[0].until(lambda: b"A" in server.peers[0].kinds())
                await server.peers[0].end()
                with pytest.raises(Closed):
                    await asking
                assert await client.ask({"type": "echo"}) == {"type": "echo"}
                assert keeper.hellos[-1] == {"v": 1, "auth": ["ann"]}
                assert returns == [False]
                assert client.resume_point.received == 1

    run(test)


def test_without_reconnect_the_first_loss_is_the_end(make_server: Any) -> None:
    """O-12: reconnect=False leaves it to the program, which has the resume point."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            client = await connect(server.tcp, reconnect=False)
            await keeper.push("seen")
            assert await anext(client) == "seen"
            await server.peers[0].end()
            with pytest.raises(Closed) as caught:
                await anext(client)
            assert caught.value.close_code == 1006
            async with connect(server.tcp, resume=client.resume_point) as again:
                assert keeper.hellos[-1]["resume"]["received"] == 1
                assert await again.ask({"type": "echo"}) == {"type": "echo"}

    run(test)


def test_the_window_ends_the_attempts(make_server: Any) -> None:
    """P-6, O-12: what the server keeps for 0.5 s is not asked for longer; the error says what happened."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            server.welcome["resume_window"] = 0.5
            keeper.refuse = 4503
            client = await connect(server.tcp)
            await server.peers[0].end()
            with pytest.raises(Closed, match=r"kept for 0\.5 s") as caught:
                await client.ask({"type": "echo"})
            assert caught.value.close_code == 1006
            assert 2 <= len(keeper.hellos) < 20

    run(test)


@pytest.mark.parametrize("code", [1000, 1001, 4400, 4401, 4409, 4500, 4601])
def test_codes_that_end_the_session_are_no_reason_to_come_back(make_server: Any, code: int) -> None:
    """P-11, O-12: only a lost connection and 4410, 4453 and 4503 leave a session behind."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            client = await connect(server.tcp)
            await server.peers[0].end(code, "that is it")
            with pytest.raises(Closed) as caught:
                await client.ask({"type": "echo"})
            assert caught.value.close_code == code
            assert len(keeper.hellos) == 1

    run(test)


@pytest.mark.parametrize("code", [4410, 4453, 4503])
def test_codes_that_leave_the_session_lead_to_a_resume(make_server: Any, code: int) -> None:
    """P-11, O-12: idle, slow and unavailable are told, and the client comes back."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            async with connect(server.tcp) as client:
                await server.peers[0].end(code, "come back")
                while client.statistics().reconnects == 0:
                    await asyncio.sleep(0.005)
                assert await client.ask({"type": "echo"}) == {"type": "echo"}
                assert len(keeper.hellos) == 2

    run(test)


def test_closing_on_the_way_back_stops_the_attempts(make_server: Any) -> None:
    """O-12: close() does not wait for a connection that is not there."""

    async def test() -> None:
        async with make_server() as server:
            keeper = Keeper(server)
            keeper.silent = True
            client = await connect(server.tcp)
            await server.peers[0].end()
            await server.peer(1)
            await client.close()
            assert client.closed is not None
            assert client.closed.close_code == 1000
            await server.peers[1].until(lambda: server.peers[1].over)

    run(test)


def test_a_crowd_comes_back_spread_and_later_and_later() -> None:
    """O-12: the first pause is short and random, the others grow to a bound, each with some chance in it."""
    crowd = [[following() for _ in range(12)] for following in (pauses(random.Random(n)) for n in range(200))]
    firsts = sorted(pauses_of_one[0] for pauses_of_one in crowd)
    assert firsts[0] < 0.01 < 0.09 < firsts[-1] <= 0.1
    for one in crowd:
        for n, pause in enumerate(one[1:]):
            full = min(PAUSE_MAX, 0.25 * 2**n)
            assert full / 2 <= pause <= full
