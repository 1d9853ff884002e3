"""Frames of docs/protocol.md: what is encoded comes back, in any cut of the stream; what is no frame is named."""

from __future__ import annotations

import json
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardpool import wire
from shardpool.errors import ErrorBody

numbers = st.integers(1, wire.NUMBER_LIMIT)
bodies = st.binary(max_size=300)
frames = st.lists(st.binary(min_size=1, max_size=300), max_size=20)


@given(frames, st.data())
def test_a_stream_cut_anywhere_gives_the_same_frames(sent: list[bytes], data: st.DataObject) -> None:
    """P-13: reads may end anywhere."""
    stream = b"".join(wire.prefixed(frame) for frame in sent)
    splitter = wire.Splitter()
    got: list[bytes] = []
    position = 0
    while position < len(stream):
        step = data.draw(st.integers(1, len(stream) - position))
        got += splitter.feed(stream[position : position + step])
        position += step
    assert got == sent
    assert splitter.held == 0


@given(st.binary(max_size=2000))
def test_any_bytes_give_frames_or_a_frame_error(data: bytes) -> None:
    """P-30: nothing but FrameError, and never more held than one frame."""
    splitter = wire.Splitter(limit=100)
    got: list[bytes] = []
    refused = 4400
    try:
        got = splitter.feed(data)
    except wire.FrameError as error:
        refused = error.code
    assert refused in (4400, 4413)
    assert splitter.held < 104
    assert all(1 <= len(frame) <= 100 for frame in got)


@pytest.mark.parametrize(
    ("head", "code", "words"),
    [
        (b"\0\0\0\0", 4400, "length 0"),
        (struct.pack(">I", 65_537), 4413, "65536"),
        (b"\xff\xff\xff\xff", 4413, "limit"),
        (b"GET / HTTP/1.1\r\n", 4400, "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", 4400, "tls://"),
        (b"SSH-2.0-x", 4400, "SSH"),
    ],
)
def test_a_wrong_length_is_refused_as_soon_as_it_is_read(head: bytes, code: int, words: str) -> None:
    """P-12, P-13, P-30: before any of the frame came, with the mistake named."""
    with pytest.raises(wire.FrameError, match=words) as caught:
        wire.Splitter().feed(head)
    assert caught.value.code == code


def test_the_longest_frame_is_taken() -> None:
    """P-12: the limit itself is allowed."""
    assert wire.Splitter(8).feed(wire.prefixed(b"x" * 8)) == [b"x" * 8]


@given(numbers, numbers, bodies)
def test_frames_come_back_as_they_were_encoded(seq: int, number: int, body: bytes) -> None:
    """P-14."""
    assert wire.parse_client(wire.send(body)) == wire.Send(body)
    assert wire.parse_client(wire.ask(number, body)) == wire.Ask(number, body)
    assert wire.parse_client(wire.ack(seq)) == wire.Ack(seq)
    assert wire.parse_client(wire.bye()) == wire.Bye()
    assert wire.parse_server(wire.message(seq, body)) == wire.Message(seq, body)
    assert wire.parse_server(wire.reply(seq, number, body)) == wire.Reply(seq, number, body)


@given(st.binary(max_size=wire.PING_LIMIT))
def test_pings_are_the_same_both_ways(payload: bytes) -> None:
    """P-11."""
    for parse in (wire.parse_client, wire.parse_server):
        assert parse(wire.ping(payload)) == wire.Ping(payload)
        assert parse(wire.pong(payload)) == wire.Pong(payload)


@given(st.text(max_size=50), st.text(max_size=50), numbers)
def test_json_frames_come_back(code: str, message: str, number: int) -> None:
    """P-14."""
    body = ErrorBody(code, "NotFound", message)
    assert wire.parse_server(wire.error(1, number, body)) == wire.Failure(1, number, body)
    assert wire.parse_server(wire.close(4400, message)) == wire.CloseBody(4400, "protocol_error", message)
    hello = wire.Hello(1, {"user": message}, wire.Resume("00", "11", number))
    assert wire.parse_client(wire.hello(hello)) == hello
    welcome = wire.Welcome(1, "app", "json", "00", "11", heartbeat=1.5)
    assert wire.parse_server(wire.welcome(welcome)) == welcome


def test_the_smallest_hello_is_the_one_of_the_page() -> None:
    """P-14: what is optional is left out."""
    assert wire.hello(wire.Hello(1)) == b'H{"v":1}'
    assert json.loads(wire.hello(wire.Hello(1, local=True))[1:]) == {"v": 1, "local": True}


def test_a_welcome_says_that_nothing_was_resumed() -> None:
    """P-14: the page shows `"resumed":false`; clients written from it may rely on the field."""
    sent = json.loads(wire.welcome(wire.Welcome(1, "app", "json", "00", "11", resumed=False))[1:])
    assert sent["resumed"] is False
    assert "resumed" not in json.loads(wire.welcome(wire.Welcome(1, "app", "msgpack", local=True))[1:])


def test_unknown_fields_and_kinds_of_a_later_server_are_ignored() -> None:
    """P-14."""
    assert wire.parse_server(b'W{"v":1,"app":"a","codec":"json","later":[1]}') == wire.Welcome(1, "a", "json")
    assert wire.parse_server(b"Zxyz") == wire.Unknown(b"Z")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"Z",
        b"A",
        b"A\0\0\0",
        b"A\0\0\0\0x",
        b"K\0\0\0",
        b"K\0\0\0\0\0",
        b"P" + b"x" * 126,
        b"H",
        b"H[]",
        b"H{}",
        b"H\xff",
    ],
)
def test_a_broken_client_frame_is_a_protocol_error(frame: bytes) -> None:
    """P-14: with a sentence."""
    with pytest.raises(wire.FrameError) as caught:
        wire.parse_client(frame)
    assert caught.value.code == 4400
    assert len(caught.value.reason) > 10


def test_a_long_hello_is_refused() -> None:
    """P-12."""
    with pytest.raises(wire.FrameError) as caught:
        wire.parse_client(b"H" + b" " * 4097)
    assert caught.value.code == 4413


@given(st.binary(max_size=200))
def test_any_frame_parses_or_is_a_frame_error(frame: bytes) -> None:
    """P-30, P-31: garbage raises nothing else."""
    for parse in (wire.parse_client, wire.parse_server):
        for kind in (b"", b"H", b"W", b"E", b"C", b"R", b"M"):
            with suppress(wire.FrameError):
                parse(kind + frame)


def test_a_welcome_does_not_show_its_token() -> None:
    """P-31: no secret in logs."""
    assert "5ecret" not in repr(wire.Welcome(1, "a", "json", "00", "5ecret"))
