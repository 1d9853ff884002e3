"""Hellos and messages that cannot be read, sent to a real pool: an answer that says why, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from acceptor_pool import SESSIONS, Running, hit, pool, receive, send

from shardpool import NotFound
from shardpool.local import connect as connect_local

FRAME_BYTES = 65_536


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with pool(SESSIONS) as running:
        yield running


@pytest.fixture
def bystander(server: Running) -> Iterator[socket.socket]:
    """A session that goes on, whatever another client does."""
    client = server.session()
    before = server.worker("acceptor").pid, server.worker("shard").pid
    count = hit(client, 1)["count"]
    yield client
    assert hit(client, 2)["count"] > count
    assert (server.worker("acceptor").pid, server.worker("shard").pid) == before


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (b"H", "truncated"),
        (b"H{", "truncated"),
        (b"H[]", "object"),
        (b'H{"v":"1"}', "$.v"),
        (b'H{"v":2}', "version"),
        (b'H{"v":1,"auth":"\xff"}', "UTF-8"),
        (b'H{"v":1,"resume":5}', "$.resume"),
        (b'H{"v":1,"local":true}', "local"),
        # deep enough for the interpreter's stack, in half of what a hello may have
        (b'H{"v":1,"auth":' + deep(2000) + b"}", "nested"),
    ],
)
def test_a_hello_that_cannot_be_read_ends_its_own_connection(
    server: Running, bystander: socket.socket, hello: bytes, words: str
) -> None:
    """P-12, P-30, O-2: 4400 and a sentence that says what is wrong; the acceptor and its clients go on."""
    client = server.connect()
    send(client, hello)
    closing = receive(client)
    assert closing[:1] == b"C", closing
    body = json.loads(closing[1:])
    assert (body["code"], body["name"]) == (4400, "protocol_error")
    assert words in body["reason"]
    assert receive(client) == b""


def test_no_depth_of_a_hello_is_a_fault_of_the_server(server: Running, bystander: socket.socket) -> None:
    """P-30: acceptor and shard read it at different depths of their own; between the two there is no gap."""
    for levels in (*range(900, 1000, 7), *range(200, 900, 50)):
        client = server.connect()
        send(client, b'H{"v":1,"auth":' + deep(levels) + b"}")
        answer = receive(client)
        assert answer[:1] == b"W" or json.loads(answer[1:])["code"] == 4400, (levels, answer)
        client.close()


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", "bad_message", "truncated"),
        (b"{", "bad_message", "truncated"),
        (b"[]", "bad_message", "object"),
        (b"null", "bad_message", "object"),
        (b"\xff\xfe", "bad_message", "malformed"),
        (b'{"type":"\xff"}', "bad_message", "UTF-8"),
        (b'{"n":1}', "bad_message", "type"),
        (b'{"type":5}', "bad_message", "$.type"),
        (b'{"type":"nope"}', "unknown_message", "hit"),
        (b'{"type":"hit","n":"x"}', "bad_message", "$.n"),
        (b'{"type":"hit","n":1e999}', "bad_message", "$.n"),
        (b'{"type":"hit","x":' + deep(20_000) + b"}", "bad_message", "nested"),
        (deep(20_000), "bad_message", "object"),
    ],
)
def test_a_message_that_cannot_be_read_is_an_error_of_that_message(
    server: Running, bystander: socket.socket, body: bytes, code: str, words: str
) -> None:
    """P-14, O-1: an E with code, kind and sentence, whether it was asked or sent; the session goes on."""
    client = server.session()
    for frame, number in ((b"A" + struct.pack(">I", 7) + body, 7), (b"S" + body, 0)):
        send(client, frame)
        answer = receive(client)
        assert answer[:1] == b"E", answer
        assert struct.unpack(">I", answer[5:9])[0] == number
        error = json.loads(answer[9:])
        assert (error["code"], error["kind"]) == (code, "ProtocolError")
        assert words in error["message"]
    assert hit(client, 8) == {"count": 1}


RAISING = """\
from msgspec import Struct
from shardpool import Actor, App, Rejected, Refuse, Session, on

app = App("raising")

@app.session
class Door(Session):
    def on_connect(self, hello):
        if hello.auth is not None:
            return Refuse(f"no entry for {hello.auth}")

class Look(Struct, tag="look"):
    id: str

@app.actor
class Player(Actor):
    @on
    async def look(self, msg: Look) -> None:
        await self.ask(Player, msg.id, "fail")

    @on
    def fail(self) -> None:
        raise KeyError("a secret of the server")

    @on
    def refuse(self) -> None:
        raise Rejected("the room is full", code="room_full")

    @on
    async def later(self) -> None:
        raise Rejected("later", code="later")
"""


@pytest.fixture(scope="module")
def raising() -> Iterator[Running]:
    with pool(RAISING) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        (b"fail", "handler_raised", "InternalFailure"),
        (b"refuse", "room_full", "Rejected"),
        (b"later", "later", "Rejected"),
    ],
)
def test_a_handler_that_raises_is_an_error_of_its_ask_or_send(
    raising: Running, name: bytes, code: str, kind: str
) -> None:
    """P-14, T-27, O-1: the page promises it for both; what an unforeseen exception said stays in the log."""
    client = raising.session()
    for number, head in ((7, b"A" + struct.pack(">I", 7)), (0, b"S")):
        send(client, head + b'{"type":"' + name + b'"}')
        answer = receive(client)
        assert (answer[:1], struct.unpack(">I", answer[5:9])[0]) == (b"E", number), answer
        error = json.loads(answer[9:])
        assert (error["code"], error["kind"]) == (code, kind)
        assert "secret" not in error["message"]
    assert "a secret of the server" in raising.log.read_text() or name != b"fail"


@pytest.mark.parametrize("id", ["", "nobody", "x" * 60_000, "\0", "a\nb"])
def test_an_id_that_a_client_made_up_is_not_found(raising: Running, id: str) -> None:
    """O-1, P-26: whatever it is, an object that is asked by it is not there; no traceback for it."""
    client = raising.session()
    body = json.dumps({"type": "look", "id": id}).encode()
    send(client, b"A" + struct.pack(">I", 7) + body)
    answer = receive(client)
    assert (answer[:1], json.loads(answer[9:])["kind"]) == (b"E", "NotFound")

    async def locally() -> None:
        async with connect_local(raising.run_dir) as local:
            with pytest.raises(NotFound):
                await local.ask("Player", id, "fail")
            assert await local.find("Player", id) is None
            assert isinstance(await local.list("Player", after=id), list)

    asyncio.run(locally())


def test_a_refusal_that_quotes_the_client_is_escaped_in_the_log(raising: Running) -> None:
    """P-31: 4401 with the app's reason; the log keeps to one line."""
    client = raising.connect()
    send(client, b'H{"v":1,"auth":"\\u001b[31m\\nFAKE LINE"}')
    closing = json.loads(receive(client)[1:])
    assert (closing["code"], closing["reason"]) == (4401, "no entry for \x1b[31m\nFAKE LINE")
    log = raising.log.read_text()
    assert "refused with 4401" in log
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if line.startswith("FAKE")]


def test_a_server_without_room_for_one_more_says_so() -> None:
    """P-12, P-26: 4529, come back later, and not 4503, the shard is down; those that are in stay."""
    with pool(SESSIONS, "--directory-entries", "64") as running:
        clients = [running.connect() for _ in range(70)]
        for client in clients:
            send(client, b'H{"v":1}')
        answers = [receive(client) for client in clients]
        refused = [json.loads(answer[1:]) for answer in answers if answer[:1] == b"C"]
        assert refused
        assert {each["code"] for each in refused} == {4529}
        assert "directory_entries" in refused[0]["reason"]
        inside = next(client for client, answer in zip(clients, answers, strict=True) if answer[:1] == b"W")
        assert hit(inside, 1) == {"count": 1}


def test_what_clients_wrote_is_escaped_and_cut_in_the_log(server: Running) -> None:
    """P-31: no line of the log is the client's."""
    client = server.session()
    send(client, b"S\x1b[31m\nFAKE LINE", b'S{"type":"' + b"Z" * 60_000 + b'"}')
    receive(client)
    receive(client)
    log = server.log.read_text()
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if line.startswith("FAKE") or len(line) > 600]


def test_a_flood_of_bad_messages_fills_no_disk_and_delays_nobody_long(
    bystander: socket.socket, server: Running
) -> None:
    """P-12, P-31: a client cannot make the log grow as fast as it can send; the bystander is answered meanwhile."""
    client = server.session()
    before = server.log.stat().st_size
    reader = threading.Thread(target=_read_away, args=(client,))
    reader.start()
    slowest, until = 0.0, time.monotonic() + 2.0
    number = 10
    while time.monotonic() < until:
        send(client, *[b"S{"] * 500)
        begun = time.monotonic()
        hit(bystander, number := number + 1)
        slowest = max(slowest, time.monotonic() - begun)
    client.shutdown(socket.SHUT_RDWR)
    reader.join()
    assert server.log.stat().st_size - before < 100_000
    assert slowest < 1.0


def _read_away(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass
