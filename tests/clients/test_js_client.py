"""The JavaScript client in Node.js against a server written from docs/protocol.md, and against some that break it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CLIENT = HERE.parents[1] / "shardpool" / "client" / "shardpool.js"
TRANSPORTS = ["tcp", "ws"]
Behaviour = Callable[[Any, bytes], Awaitable[None]]

node = shutil.which("node")
pytestmark = pytest.mark.skipif(node is None, reason="no node here")


async def drive(case: str, address: str) -> None:
    """Run one case of js_client.mjs to its end."""
    assert node is not None
    process = await asyncio.create_subprocess_exec(
        node,
        *(["--experimental-websocket"] if needs_websocket_flag() else []),
        str(HERE / "js_client.mjs"),
        case,
        address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SHARDPOOL_JS": CLIENT.as_uri(), "NODE_NO_WARNINGS": "1"},
    )
    async with asyncio.timeout(30):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert json.loads(output) == {"ok": case}


def needs_websocket_flag() -> bool:
    """Node.js 20 has the global WebSocket behind a flag, 22 without."""
    assert node is not None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)", version)
    return found is not None and int(found[1]) < 22


def check(make_server: Any, case: str, transport: str, behaviour: Callable[[Any], Behaviour] | None = None) -> Any:
    """Run a case against a server; returns the server's peer."""

    async def test() -> Any:
        async with make_server() as server:
            server.welcome["heartbeat"] = 0.3 if case == "heartbeat" else 15.0
            if behaviour is not None:
                server.on_frame = behaviour(server)
            await drive(case, getattr(server, transport))
            return await server.peer()

    return asyncio.run(test())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_asks_errors_timeouts_and_bye(make_server: Any, transport: str) -> None:
    """O-12, P-13, P-14."""
    peer = check(make_server, "asks", transport)
    assert json.loads(peer.frames[0][1:]) == {"v": 1, "auth": {"user": "ann"}}
    if transport == "tcp":
        assert peer.kinds()[-1:] == b"B"
    else:
        assert peer.connection.close_code == 1000


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pushes_arrive_in_order_and_are_acknowledged(make_server: Any, transport: str) -> None:
    """P-11, O-12: by count and by time."""

    def behaviour(server: Any) -> Behaviour:
        async def act(peer: Any, frame: bytes) -> None:
            if frame[:1] == b"S":
                for n in range(130):
                    await peer.push({"type": "position", "x": n})
                await peer.push([1, 2])
            else:
                await server.behave(peer, frame)

        return act

    peer = check(make_server, "pushes", transport, behaviour)
    acks = [struct.unpack(">I", frame[1:])[0] for frame in peer.frames if frame[:1] == b"K"]
    assert acks == [64, 128, 131]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_dead_server_is_noticed_and_pings_are_answered(make_server: Any, transport: str) -> None:
    """P-11: half-open."""

    def behaviour(server: Any) -> Behaviour:
        async def act(peer: Any, frame: bytes) -> None:
            if frame[:1] == b"H":
                await server.behave(peer, frame)
                await peer.write(b"Pabc")

        return act

    peer = check(make_server, "heartbeat", transport, behaviour)
    assert b"Oabc" in peer.frames
    assert b"P\x01" in peer.frames


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_close_carries_code_and_reason(make_server: Any, transport: str) -> None:
    """P-11."""

    def behaviour(server: Any) -> Behaviour:
        async def act(peer: Any, frame: bytes) -> None:
            if frame[:1] == b"A":
                await peer.end(4453, "because")
            else:
                await server.behave(peer, frame)

        return act

    check(make_server, "closes", transport, behaviour)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_refused_hello_rejects_with_code_and_reason(make_server: Any, transport: str) -> None:
    """P-7: 4401."""

    def behaviour(server: Any) -> Behaviour:
        async def act(peer: Any, frame: bytes) -> None:
            await peer.end(4401, "unknown ticket")

        return act

    check(make_server, "refused", transport, behaviour)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_silent_server_times_out(make_server: Any, transport: str) -> None:
    """O-12."""

    def behaviour(server: Any) -> Behaviour:
        async def act(peer: Any, frame: bytes) -> None:
            pass

        return act

    check(make_server, "silent", transport, behaviour)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nobody_there(transport: str) -> None:
    """O-12: port 1 is nobody's."""
    asyncio.run(drive("unreachable", f"{transport}://127.0.0.1:1"))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_late_reply_is_dropped_and_counted(make_server: Any, transport: str) -> None:
    """T-10, O-12."""

    def behaviour(server: Any) -> Behaviour:
        async def act(peer: Any, frame: bytes) -> None:
            if frame[:1] == b"S":
                await peer.reply(1, "late")
            else:
                await server.behave(peer, frame)

        return act

    check(make_server, "late", transport, behaviour)


GARBAGE_TCP = [
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x03M\0\0",
    b"\0\0\0\x06M\0\0\0\x01{",
    b"\0\0\0\x06M\0\0\0\x091",
]
GARBAGE_WS = [b"\xf2\x01x", b"\x82\x03M\0\0", b"\x82\x06M\0\0\0\x01\xff", b"\x82\x00"]


@pytest.mark.parametrize(
    ("transport", "bad"), [*(("tcp", bad) for bad in GARBAGE_TCP), *(("ws", bad) for bad in GARBAGE_WS)]
)
def test_a_server_that_breaks_the_protocol_is_left(make_server: Any, transport: str, bad: bytes) -> None:
    """P-30 from the other side: nothing hangs, nothing is thrown past the caller."""

    def behaviour(server: Any) -> Behaviour:
        async def act(peer: Any, frame: bytes) -> None:
            if frame[:1] == b"A":
                await peer.raw(bad)
            else:
                await server.behave(peer, frame)

        return act

    check(make_server, "garbage", transport, behaviour)
