"""The Python client against a server written from docs/protocol.md, and against servers that break it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import ssl
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from shardpool import CapacityExceeded, DeadlineExceeded, InvalidOperation, ProtocolError, TypeMismatch
from shardpool import Request as TypedRequest
from shardpool.client import ClientSettings, Closed, Resume, ServerError, connect
from shardpool.errors import Unavailable

ROOT = Path(__file__).parents[2]
TRANSPORTS = ["tcp", "ws"]


class Echo(msgspec.Struct, tag="echo"):
    n: int


class Position(msgspec.Struct, tag="position"):
    x: float
    y: float


class TypedEcho(TypedRequest[Echo], tag="echo"):
    n: int


def run(test: Callable[[], Awaitable[None]]) -> None:
    """On both event loops: uvloop's transports are not asyncio's."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(limited())
    uvloop.run(limited())


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_ask_gets_its_reply_and_a_typed_one_its_type(make_server: Any, transport: str) -> None:
    """O-12, P-13, P-14: dicts, Structs and Requests."""

    async def test() -> None:
        async with make_server() as server, connect(getattr(server, transport)) as client:
            assert client.welcome.app == "fake"
            assert await client.ask({"type": "echo", "n": 1}) == {"type": "echo", "n": 1}
            assert await client.ask(Echo(2), reply=Echo) == Echo(2)
            assert await client.ask(TypedEcho(3)) == Echo(3)
            with pytest.raises(ProtocolError, match="Position"):
                await client.ask(Echo(4), reply=Position)
            replies = await asyncio.gather(*(client.ask(Echo(n), reply=Echo) for n in range(500)))
            assert [reply.n for reply in replies] == list(range(500))

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_hello_carries_auth_and_resume_and_bye_ends_the_session(make_server: Any, transport: str) -> None:
    """P-6, P-7: the first frame, and the last."""

    async def test() -> None:
        async with make_server() as server:
            resume = Resume("00000000000a41f3", "1" * 32, 7)
            async with connect(getattr(server, transport), auth={"user": "ann"}, resume=resume):
                peer = await server.peer()
            assert json.loads(peer.frames[0][1:]) == {
                "v": 1,
                "auth": {"user": "ann"},
                "resume": {"session": "00000000000a41f3", "token": "1" * 32, "received": 7},
            }
            await peer.until(lambda: peer.over)
            if transport == "tcp":
                assert peer.kinds()[-1:] == b"B"
            else:
                assert peer.connection.close_code == 1000

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_error_is_typed_and_the_connection_stays(make_server: Any, transport: str) -> None:
    """O-1, P-14: code, kind, message; caught as ServerError and as its kind."""

    async def test() -> None:
        async with make_server() as server, connect(getattr(server, transport)) as client:
            with pytest.raises(CapacityExceeded) as caught:
                await client.ask("fail")
            assert isinstance(caught.value, ServerError)
            assert (caught.value.code, caught.value.kind) == ("no_room", "CapacityExceeded")
            assert caught.value.message == "the room is full: try another"
            assert await client.ask(Echo(1), reply=Echo) == Echo(1)

    run(test)


def test_an_error_of_an_unknown_kind_is_an_internal_failure(make_server: Any) -> None:
    """O-1: a later server's kinds do not break an old client."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp) as client:
            ask = asyncio.create_task(client.ask("slow"))
            peer = await server.peer()
            await peer.until(lambda: b"A" in peer.kinds())
            await peer.error(1, "odd", "Strange", "something new")
            with pytest.raises(ServerError, match="something new"):
                await ask

    run(test)


def test_a_failed_send_is_reported_and_disturbs_nothing(make_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """O-3, P-14: errors with id 0."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp) as client:
            peer = await server.peer()
            await client.send({"type": "nonsense"})
            with caplog.at_level(logging.WARNING, "shardpool.client"):
                await peer.error(0, "unknown_message", "ProtocolError", "no handler takes nonsense")
                await until(lambda: client.statistics().errors == 1)
            assert "no handler takes nonsense" in caplog.text
            failures: list[Exception] = []
            client.on_send_failed(failures.append)
            await peer.error(0, "unknown_message", "ProtocolError", "again")
            await until(lambda: len(failures) == 1)
            assert isinstance(failures[0], ServerError)

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pushes_reach_handlers_in_order_and_the_rest_the_loop(make_server: Any, transport: str) -> None:
    """O-12: by Struct, by name, plain and async, and what has no handler by `async for`."""

    async def test() -> None:
        async with make_server() as server, connect(getattr(server, transport)) as client:
            seen: list[Any] = []

            @client.on(Position)
            def position(message: Position) -> None:
                seen.append(message)

            @client.on("slow")
            async def slow(message: dict[str, Any]) -> None:
                await client.ask(Echo(1))
                seen.append(message["n"])

            peer = await server.peer()
            for n in range(5):
                await peer.push({"type": "slow", "n": n})
                await peer.push({"type": "position", "x": n, "y": 0})
                await peer.push({"anything": n})
            await peer.push([1, 2])
            rest = [await anext(client) for _ in range(6)]
            assert rest == [*({"anything": n} for n in range(5)), [1, 2]]
            await until(lambda: len(seen) == 10)
            assert [s for s in seen if isinstance(s, int)] == [0, 1, 2, 3, 4]
            assert seen[0] == 0
            assert seen[1] == Position(0.0, 0.0)
            await peer.end(1000, "over")
            assert [message async for message in client] == []

    run(test)


def test_a_handler_that_raises_is_logged_and_the_next_message_arrives(
    make_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """O-12."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp) as client:
            seen: list[int] = []

            def handler(message: dict[str, int]) -> None:
                seen.append(10 // message["n"])

            client.on(None, handler)
            peer = await server.peer()
            await peer.push({"n": 0})
            await peer.push({"n": 5})
            await until(lambda: seen == [2])
            assert client.statistics().handler_failures == 1
            assert "ZeroDivisionError" in caplog.text

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_numbered_frames_are_acknowledged_by_count_and_by_time(make_server: Any, transport: str) -> None:
    """P-11: at the latest every 64 frames or 1 s."""

    async def test() -> None:
        async with make_server() as server, connect(getattr(server, transport)):
            peer = await server.peer()

            def acks() -> list[int]:
                return [struct.unpack(">I", frame[1:])[0] for frame in peer.frames if frame[:1] == b"K"]

            for n in range(130):
                await peer.push(n)
            await peer.until(lambda: acks()[:2] == [64, 128])
            await peer.until(lambda: acks() == [64, 128, 130], 1.5)

    run(test)


def test_a_resumed_session_drops_what_it_has_seen(make_server: Any) -> None:
    """P-11: numbers go on where they were."""

    async def test() -> None:
        async with make_server() as server:
            server.welcome["resumed"] = True
            async with connect(server.tcp, resume=Resume("00000000000a41f3", "1" * 32, 2)) as client:
                peer = await server.peer()
                peer.seq = 1
                for n in (2, 3, 4):
                    await peer.push(n)
                assert [await anext(client), await anext(client)] == [3, 4]
                assert client.resume_point.received == 4

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pings_are_answered_and_sent_and_a_dead_server_is_noticed(make_server: Any, transport: str) -> None:
    """P-11: heartbeat and half-open detection."""

    async def test() -> None:
        async with make_server() as server:
            server.welcome["heartbeat"] = 0.2
            async with connect(getattr(server, transport)) as client:
                peer = await server.peer()
                await peer.write(b"Pabc")
                await peer.until(lambda: b"Oabc" in peer.frames)
                await peer.until(lambda: peer.kinds().count(b"P") >= 2)
                assert client.closed is None
                server.on_frame = None
                ask = asyncio.create_task(client.ask("slow"))
                with pytest.raises(Closed, match="half-open") as caught:
                    await ask
                assert caught.value.close_code == 1006

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("code", "name"), [(1001, "going_away"), (4453, "slow_client"), (4601, "")])
def test_a_close_carries_code_and_reason_to_everyone_who_waits(
    make_server: Any, transport: str, code: int, name: str
) -> None:
    """P-11: close codes with reasons; open asks, the loop and later calls."""

    async def test() -> None:
        async with make_server() as server, connect(getattr(server, transport)) as client:
            ask = asyncio.create_task(client.ask("slow"))
            loop = asyncio.create_task(anext(client))
            peer = await server.peer()
            await peer.until(lambda: b"A" in peer.kinds())
            await peer.end(code, "because")
            for waiting in (ask, loop):
                with pytest.raises(Closed) as caught:
                    await waiting
                assert (caught.value.close_code, caught.value.name, caught.value.reason) == (code, name, "because")
            with pytest.raises(Closed, match="because"):
                await client.send("more")
            with pytest.raises(Closed, match="because"):
                await client.ask("more")

    run(test)


def test_a_late_reply_is_dropped_and_counted(make_server: Any) -> None:
    """T-10, O-12: an ask completes once."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp) as client:
            with pytest.raises(DeadlineExceeded, match="slow"):
                await client.ask("slow", timeout=0.05)
            peer = await server.peer()
            await peer.reply(1, "late")
            await until(lambda: client.statistics().late == 1)
            assert await client.ask(Echo(1), reply=Echo) == Echo(1)
            assert client.statistics().open_asks == 0

    run(test)


def test_open_asks_are_bounded(make_server: Any) -> None:
    """O-12: refused at once, before anything is sent."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp, settings=ClientSettings(open_asks=2)) as client:
            asks = [asyncio.create_task(client.ask("slow")) for _ in range(2)]
            await until(lambda: client.statistics().open_asks == 2)
            with pytest.raises(CapacityExceeded, match="open_asks"):
                await client.ask("slow")
            for ask in asks:
                ask.cancel()

    run(test)


def test_unread_pushes_are_bounded_without_a_reader(make_server: Any) -> None:
    """O-12: a program that only asks is not stopped by pushes; the oldest go, counted."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp, settings=ClientSettings(inbox=10)) as client:
            peer = await server.peer()
            for n in range(100):
                await peer.push(n)
            assert await client.ask(Echo(1), reply=Echo) == Echo(1)
            assert client.statistics().dropped == 90
            assert await anext(client) == 90

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_slow_reader_stops_the_server_and_loses_nothing(make_server: Any, transport: str) -> None:
    """P-9 at the client's end: a full inbox stops reading."""

    async def test() -> None:
        settings = ClientSettings(inbox=20)
        async with make_server() as server, connect(getattr(server, transport), settings=settings) as client:
            peer = await server.peer()
            first = asyncio.create_task(anext(client))
            count = 3000
            sent = 0

            async def pour() -> None:
                nonlocal sent
                for n in range(count):
                    await peer.push({"n": n, "fill": "x" * 4000})
                    sent = n

            pouring = asyncio.create_task(pour())
            assert (await first)["n"] == 0
            stalled = -1
            while stalled != sent:
                stalled = sent
                await asyncio.sleep(0.1)
            assert sent < count - 1
            assert len(client._line.inbox) < 200
            for n in range(1, count):
                assert (await anext(client))["n"] == n
            await pouring

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_send_waits_while_the_server_does_not_read(make_server: Any, transport: str) -> None:
    """P-9: back pressure reaches the program."""

    async def test() -> None:
        async with make_server() as server, connect(getattr(server, transport)) as client:
            peer = await server.peer()
            blocked = asyncio.Event()

            async def stuck(peer: Any, frame: bytes) -> None:
                await blocked.wait()

            server.on_frame = stuck

            async def fill() -> None:
                while True:
                    await client.send({"type": "fill", "data": "x" * 60_000})

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fill(), 1)
            sent = client.statistics().sent
            blocked.set()
            await peer.until(lambda: peer.kinds().count(b"S") == sent)
            server.on_frame = server.behave

    run(test)


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x03M\0\0",
        b"\0\0\0\x06M\0\0\0\x01{",
        b"\0\0\0\x06M\0\0\0\x09" + b"1",
        b"\0\0\0\x0aE\0\0\0\x01\0\0\0\0x",
        b'\0\0\0\x08W{"v":1}',
        b"\0\0\0\x80P" + b"x" * 127,
        b"\0\0\0\x02C{",
    ],
)
def test_a_server_that_breaks_the_protocol_is_left(make_server: Any, bad: bytes) -> None:
    """P-30 from the other side: garbage, oversized and cut frames end the connection with a reason, nothing hangs."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp) as client:
            ask = asyncio.create_task(client.ask("slow"))
            peer = await server.peer()
            await peer.until(lambda: b"A" in peer.kinds())
            await peer.raw(bad)
            with pytest.raises(Closed) as caught:
                await ask
            assert caught.value.close_code in (4400, 4413)
            assert caught.value.reason

    run(test)


def test_a_stream_cut_in_a_frame_is_a_lost_connection(make_server: Any) -> None:
    """P-11: 1006."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp) as client:
            peer = await server.peer()
            await peer.raw(b"\0\0\0\x20M\0\0")
            await peer.end()
            with pytest.raises(Closed) as caught:
                await anext(client)
            assert caught.value.close_code == 1006

    run(test)


@pytest.mark.parametrize("bad", [b"\x82\x7f" + struct.pack(">Q", 1 << 40) + b"x" * 70_000, b"\xf2\x01x", b"garbage"])
def test_a_broken_websocket_is_left(make_server: Any, bad: bytes) -> None:
    """P-30 from the other side: oversized messages before they are whole, reserved bits, text."""

    async def test() -> None:
        async with make_server() as server, connect(server.ws) as client:
            peer = await server.peer()
            await peer.raw(bad)
            with pytest.raises(Closed) as caught:
                await anext(client)
            assert caught.value.close_code in (1002, 1009)

    run(test)


def test_a_refused_handshake_says_why(make_server: Any) -> None:
    """P-13: the HTTP status and the server's line."""

    async def test() -> None:
        async with make_server() as server:
            server.page = lambda connection, request: connection.respond(HTTPStatus.FORBIDDEN, "origin not allowed\n")
            with pytest.raises(Closed, match=r"403.*origin not allowed"):
                await connect(server.ws)

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_refused_hello_raises_with_code_and_reason(make_server: Any, transport: str) -> None:
    """P-7: 4401."""

    async def test() -> None:
        async with make_server() as server:

            async def refuse(peer: Any, frame: bytes) -> None:
                await peer.end(4401, "unknown ticket")

            server.on_frame = refuse
            with pytest.raises(Closed, match="unknown ticket") as caught:
                await connect(getattr(server, transport), auth="x")
            assert caught.value.close_code == 4401

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_silent_server_and_a_missing_one_are_told_apart(make_server: Any, transport: str) -> None:
    """O-2: what was tried, what was found."""

    async def test() -> None:
        async with make_server() as server:
            server.on_frame = None
            with pytest.raises(DeadlineExceeded, match="did not bind"):
                await connect(getattr(server, transport), timeout=0.1)
            address = getattr(server, transport)
        with pytest.raises(Unavailable, match="cannot connect"):
            await connect(address)

    run(test)


def test_codec_and_version_are_checked(make_server: Any) -> None:
    """P-13."""

    async def test() -> None:
        async with make_server() as server:
            with pytest.raises(Closed, match="speaks json, not msgpack"):
                await connect(server.tcp, codec="msgpack")
            server.welcome["codec"] = "xml"
            with pytest.raises(Closed, match="xml"):
                await connect(server.tcp)
            server.welcome.update(codec="json", v=2)
            with pytest.raises(Closed, match="version 2"):
                await connect(server.tcp)

    run(test)


def test_what_cannot_be_sent_is_refused_before_anything_is_sent(make_server: Any) -> None:
    """O-2: names the value and the remedy."""

    class Untagged(msgspec.Struct):
        n: int

    async def test() -> None:
        async with make_server() as server:
            server.welcome["max_frame"] = 100
            async with connect(server.tcp) as client:
                with pytest.raises(TypeMismatch, match="tag='untagged'"):
                    await client.send(Untagged(1))
                with pytest.raises(TypeMismatch, match="tag"):
                    client.on(Untagged, print)
                with pytest.raises(TypeMismatch, match="list"):
                    await client.send([1])  # type: ignore[arg-type]
                with pytest.raises(TypeMismatch, match="encoded"):
                    await client.send({"type": "x", "value": object()})
                with pytest.raises(CapacityExceeded, match="100"):
                    await client.send({"type": "x", "value": "y" * 200})
                assert client.statistics().sent == 0

    run(test)


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1:7000", "http://x:1", "tcp://127.0.0.1", "tcp://:7000", "tcp://h:99999"]
)
def test_a_wrong_address_says_how_one_is_written(text: str) -> None:
    """O-2."""
    with pytest.raises(InvalidOperation, match=r"tcp://127\.0\.0\.1:7000"):
        connect(text)


def test_msgpack_and_raw_bodies(make_server: Any) -> None:
    """P-13: the other codecs."""

    async def test() -> None:
        async with make_server() as server:

            async def echo(peer: Any, frame: bytes) -> None:
                if frame[:1] == b"A":
                    await peer.write(b"R" + struct.pack(">I", peer.number()) + frame[1:])
                else:
                    await server.behave(peer, frame)

            server.on_frame = echo
            server.welcome["codec"] = "msgpack"
            async with connect(server.tcp) as client:
                assert await client.ask(Echo(5), reply=Echo) == Echo(5)
            server.welcome["codec"] = "raw"
            async with connect(server.tcp, codec="raw") as client:
                assert await client.ask(b"\0\xff") == b"\0\xff"
                with pytest.raises(TypeMismatch, match="bytes"):
                    await client.send({"type": "x"})

    run(test)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_bare_server_is_spoken_to_without_hello(make_server: Any, transport: str) -> None:
    """P-14: envelope=False."""

    async def test() -> None:
        async with make_server() as server:

            async def echo(peer: Any, frame: bytes) -> None:
                await peer.write(frame)

            server.on_frame = echo
            async with connect(getattr(server, transport), envelope=False) as client:
                await client.send(b"H is no hello here")
                assert await anext(client) == b"H is no hello here"
                with pytest.raises(InvalidOperation, match="no asks"):
                    await client.ask(b"x")
                with pytest.raises(InvalidOperation, match="welcome"):
                    _ = client.welcome
            peer = await server.peer()
            assert peer.frames == [b"H is no hello here"]
        with pytest.raises(InvalidOperation, match="no hello"):
            connect("tcp://127.0.0.1:1", envelope=False, auth=1)

    run(test)


def test_tls(make_server: Any, tmp_path: Path) -> None:
    """P-13, P-30: the certificate is checked."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate, key)
    trusted = ssl.create_default_context(cafile=certificate)

    async def test() -> None:
        async with make_server(served) as server:
            async with connect(server.tls, ssl=trusted) as client:
                assert await client.ask(Echo(1), reply=Echo) == Echo(1)
            with pytest.raises(Unavailable, match="certificate"):
                await connect(server.tls)

    run(test)


def test_two_readers_are_refused(make_server: Any) -> None:
    """O-12."""

    async def test() -> None:
        async with make_server() as server, connect(server.tcp) as client:
            first = asyncio.create_task(anext(client))
            await asyncio.sleep(0)
            with pytest.raises(InvalidOperation, match="one `async for`"):
                await anext(client)
            peer = await server.peer()
            await peer.push(1)
            assert await first == 1

    run(test)


def test_fragments_and_text_from_a_websocket_server(make_server: Any) -> None:
    """P-13: put together; the bytes count, not the opcode."""

    async def test() -> None:
        async with make_server() as server, connect(server.ws) as client:
            peer = await server.peer()
            await peer.connection.send([b"M\0\0", b"\0\x01", b'{"n":', b"1}"])
            assert await anext(client) == {"n": 1}
            await peer.connection.send("M\0\0\0\x02[2]")
            assert await anext(client) == [2]
            await peer.connection.ping()
            await (await peer.connection.ping())

    run(test)


def test_the_fifteen_lines_of_the_page_work(make_server: Any, tmp_path: Path) -> None:
    """P-14: a client written from docs/protocol.md alone."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.S)
    assert found is not None

    async def test() -> None:
        async with make_server() as server:

            async def move(peer: Any, frame: bytes) -> None:
                if frame[:1] == b"A":
                    await peer.push({"type": "news"})
                    await peer.reply(struct.unpack_from(">I", frame, 1)[0], json.loads(frame[5:]))
                else:
                    await server.behave(peer, frame)

            server.on_frame = move
            script = tmp_path / "plain.py"
            script.write_text(found[1].replace("7000", server.tcp.rpartition(":")[2]))
            process = await asyncio.create_subprocess_exec(
                sys.executable, script, stdout=asyncio.subprocess.PIPE, env=dict(os.environ, PYTHONWARNINGS="ignore")
            )
            output, _ = await process.communicate()
            assert process.returncode == 0
            assert b"'app': 'fake'" in output
            assert output.splitlines()[-1] == b"""b'R' b'{"type": "move", "dx": 1.0, "dy": 0.0}'"""

    run(test)
