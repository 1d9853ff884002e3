"""The clients against the real server: the arena, over every transport that a program can use."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardpool import InvalidOperation, NotFound, ProtocolError
from shardpool.client import Closed, ServerError, connect
from shardpool.examples.arena import Enter, Move
from shardpool.local import connect as connect_local

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("shardpool"))


@dataclass
class Server:
    run_dir: str
    tcp: str
    ws: str


@pytest.fixture(scope="module")
def arena() -> Iterator[Server]:
    directory = tempfile.mkdtemp(prefix="sp-")
    run_dir = f"{directory}/run"
    command = [PROGRAM, "serve", "shardpool.examples.arena:app", "--workers", "2", "--run-dir", run_dir]
    command += ["--bind", "tcp://127.0.0.1:0", "--bind", "ws://127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        addresses = wait_ready(process, run_dir)
        yield Server(run_dir, addresses["tcp"], addresses["ws"])
    finally:
        process.terminate()
        assert process.wait(20) == 0
        shutil.rmtree(directory)


def wait_ready(process: subprocess.Popen[bytes], run_dir: str) -> dict[str, str]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        done = subprocess.run([PROGRAM, "status", "--run-dir", run_dir, "--json"], capture_output=True)
        if done.returncode == 0:
            status = json.loads(done.stdout)
            if status["phase"] == "serving":
                return {each["transport"]: each["address"] for each in status["listeners"]}
    raise AssertionError(f"the server did not come up (code {process.poll()})")


async def entered(client: Any, room: str, name: str) -> dict[str, Any]:
    """Enter a room; returns the joined message."""
    joined: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    client.on("joined", joined.set_result)
    await client.send(Enter(room, name))
    return await joined


def run(test: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(limited())


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_a_player_enters_moves_and_sees_the_others(arena: Server, transport: str) -> None:
    """P-7, P-10, P-13, P-14, O-12: one over each transport, in one room."""

    async def test() -> None:
        room = f"both {transport}"
        async with connect(getattr(arena, transport)) as ann, connect(arena.tcp) as bob:
            assert re.fullmatch("[0-9a-f]{16}", ann.welcome.session)
            assert (await entered(ann, room, "ann"))["accepted"]
            assert (await entered(bob, room, "bob"))["accepted"]
            before = await ann.ask(Move(0.0, 0.0))
            assert await ann.ask(Move(1.0, -1.0)) == {"x": before["x"] + 1, "y": before["y"] - 1}
            async for message in bob:
                names = {name: (x, y) for name, x, y in message["players"].values()}
                if names.get("ann") == (before["x"] + 1, before["y"] - 1) and "bob" in names:
                    break

    run(test)


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_mistakes_are_answered_and_the_session_goes_on(arena: Server, transport: str) -> None:
    """P-14, O-1, O-2: unknown message, wrong type, wrong moment: an error each, with a sentence."""

    async def test() -> None:
        async with connect(getattr(arena, transport)) as client:
            with pytest.raises(ProtocolError, match="known are: enter, move") as caught:
                await client.ask("jump")
            assert isinstance(caught.value, ServerError)
            with pytest.raises(ServerError, match="dx"):
                await client.ask({"type": "move", "dx": "far", "dy": 0})
            with pytest.raises(InvalidOperation, match="not in a room"):
                await client.ask(Move(1, 1))
            assert (await entered(client, f"after mistakes {transport}", "ann"))["accepted"]
            assert await client.ask(Move(0, 0))

    run(test)


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_asks_at_once_come_back_each_to_its_own(arena: Server, transport: str) -> None:
    """P-8, P-11: order is kept, and acknowledgements keep a long session going."""

    async def test() -> None:
        async with connect(getattr(arena, transport)) as client:
            await entered(client, f"many {transport}", "ann")
            await client.ask(Move(-5.0, 0.0))
            replies = await asyncio.gather(*(client.ask(Move(0.0, 0.1)) for _ in range(300)))
            heights = [reply["y"] for reply in replies]
            assert heights == sorted(heights)
            assert client.statistics().late == 0

    run(test)


def test_trusted_programs_ask_find_list_and_publish(arena: Server) -> None:
    """P-26, P-27: over the local socket."""

    async def test() -> None:
        async with connect(arena.tcp) as client, connect_local(Path(arena.run_dir)) as pool:
            await entered(client, "local", "ann")
            assert pool.app == "arena"
            assert await pool.ask("Arena", "local", "limits") == {"w": 100.0, "h": 60.0}
            found = await pool.find("Arena", "local")
            assert found is not None
            assert found.id == "local"
            assert "local" in [room.id for room in await pool.list("Arena")]
            assert await pool.find("Arena", "nowhere") is None
            with pytest.raises(NotFound):
                await pool.ask("Arena", "nowhere", "limits")
            seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            client.on("news", seen.set_result)
            assert await pool.publish("Arena", "local", {"type": "news", "text": "hello"}) == 1
            assert (await seen)["text"] == "hello"

    run(test)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 4400),
        (b"\0\0\0\0", 4400),
        (b"\0\1\0\1", 4413),
        (b"\0\0\0\x02H{", 4400),
        (b"\0\0\0\x01S", 4400),
        (b'\0\0\0\x08H{"v":9}', 4400),
    ],
)
def test_what_is_no_protocol_gets_a_clear_close(arena: Server, data: bytes, code: int) -> None:
    """P-12, P-13, P-30: a C frame with code and sentence, then the end."""

    async def test() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(arena.tcp.rpartition(":")[2]))
        writer.write(data)
        answer = await reader.read()
        writer.close()
        assert answer[4:5] == b"C"
        body = json.loads(answer[5:])
        assert body["code"] == code
        assert len(body["reason"]) > 10

    run(test)


def test_the_welcome_has_every_field_of_the_page(arena: Server) -> None:
    """P-14: no more and no fewer; a client written from the page relies on them."""

    async def test() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(arena.tcp.rpartition(":")[2]))
        writer.write(b'\0\0\0\x08H{"v":1}')
        size = int.from_bytes(await reader.readexactly(4))
        welcome = json.loads((await reader.readexactly(size))[1:])
        writer.close()
        page = re.search(r"^W({.*?})\n```", (ROOT / "docs" / "protocol.md").read_text(), re.S | re.M)
        assert page is not None
        assert set(welcome) == set(json.loads(page[1].replace("…", "")))
        assert welcome["resumed"] is False

    run(test)


def test_rooms_that_nobody_is_in_do_not_add_up(arena: Server) -> None:
    """P-12, P-26: clients name the rooms, so one client could fill the directory with empty ones."""

    async def test() -> None:
        async with connect(arena.tcp) as client, connect_local(Path(arena.run_dir)) as pool:
            rooms: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            client.on("joined", rooms.put_nowait)
            for number in range(100):
                await client.send(Enter(f"room {number}", "ann"))
                assert (await rooms.get())["accepted"]
            while len(await pool.list("Arena")) > 1:
                await asyncio.sleep(0.05)

    run(test)


def test_the_fifteen_lines_of_the_page_work_with_the_server(arena: Server, tmp_path: Path) -> None:
    """P-14: as they stand, the move is refused outside a room; the exchange is the page's."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "protocol.md").read_text(), re.S)
    assert found is not None
    script = tmp_path / "plain.py"
    script.write_text(found[1].replace("7000", arena.tcp.rpartition(":")[2]))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert "'app': 'arena'" in done.stdout
    assert '"kind":"InvalidOperation"' in done.stdout


def test_the_page_and_its_client_are_served(arena: Server) -> None:
    """P-13: over HTTP, on the WebSocket port."""
    base = "http" + arena.ws.removeprefix("ws").rstrip("/")
    for path, kind, words in [
        ("/", "text/html", b"arena.js"),
        ("/arena.js", "text/javascript", b"/shardpool.js"),
        ("/shardpool.js", "text/javascript", b"export async function connect"),
    ]:
        with urllib.request.urlopen(base + path, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith(kind)
            assert words in answer.read()


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_the_javascript_client_plays(arena: Server, transport: str, tmp_path: Path) -> None:
    """O-12: enter, move, see oneself, leave."""
    script = tmp_path / "play.mjs"
    script.write_text(
        """
        const { connect } = await import(process.env.SHARDPOOL_JS);
        const client = await connect(process.argv[2]);
        const joined = new Promise((resolve) => client.on("joined", resolve));
        const seen = new Promise((resolve) => client.on("positions", resolve));
        await client.send({ type: "enter", room: "js " + process.argv[2], name: "jo" });
        const { you } = await joined;
        const { x } = await client.ask({ type: "move", dx: 2, dy: 0 });
        const rtt = await client.ping();
        console.log(JSON.stringify({ x, name: (await seen).players[you][0], pinged: rtt >= 0 }));
        client.close();
        """
    )
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    flag = ["--experimental-websocket"] if int(version[1:].split(".")[0]) < 22 else []
    environment = {**os.environ, "SHARDPOOL_JS": (ROOT / "shardpool" / "client" / "shardpool.js").as_uri()}
    done = subprocess.run(
        ["node", *flag, script, getattr(arena, transport)], capture_output=True, text=True, env=environment, timeout=20
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"x": 52, "name": "jo", "pinged": True}


def test_a_server_that_stops_says_so(arena: Server) -> None:
    """P-17: 1001, to both transports; a server of its own, since it ends."""
    directory = tempfile.mkdtemp(prefix="sp-")
    command = [PROGRAM, "serve", "shardpool.examples.arena:app", "--workers", "1", "--run-dir", f"{directory}/run"]
    command += ["--bind", "tcp://127.0.0.1:0", "--bind", "ws://127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    async def test() -> None:
        addresses = await asyncio.to_thread(wait_ready, process, f"{directory}/run")
        async with connect(addresses["tcp"]) as one, connect(addresses["ws"]) as two:
            process.terminate()
            for client in (one, two):
                with pytest.raises(Closed) as caught:
                    await anext(client)
                assert caught.value.close_code == 1001

    try:
        run(test)
        assert process.wait(20) == 0
    finally:
        process.kill()
        shutil.rmtree(directory)
