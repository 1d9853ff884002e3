"""Sessions that outlive their connection and their acceptor: the engine with one shard, frame by frame."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from acceptor_detour import detoured, elsewhere
from acceptor_rig import Peer, Rig

from shardpool import _core
from shardpool.workers.doors import Transport
from shardpool.workers.resumption import Resumed

WINDOW = 30.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(resume_window=WINDOW) as made:
        yield made


def ask(number: int, body: bytes) -> bytes:
    return b"A" + struct.pack(">I", number) + body


def reply(sequence: int, number: int, body: bytes) -> bytes:
    return b"R" + struct.pack(">II", sequence, number) + body


def push(sequence: int, body: bytes) -> bytes:
    return b"M" + struct.pack(">I", sequence) + body


def ack(sequence: int) -> bytes:
    return b"K" + struct.pack(">I", sequence)


def login(rig: Rig) -> tuple[Peer, dict[str, Any]]:
    """A client and its welcome."""
    peer = rig.connect()
    peer.send(b'H{"v":1}')
    return peer, json.loads(peer.frame()[1:])


def hello(welcome: dict[str, Any], received: int = 0, changes: dict[str, Any] | None = None) -> bytes:
    resume = {"session": welcome["session"], "token": welcome["token"], "received": received} | (changes or {})
    return b"H" + json.dumps({"v": 1, "resume": resume}).encode()


def come_back(rig: Rig, welcome: dict[str, Any], received: int, *frames: bytes) -> tuple[Peer, dict[str, Any]]:
    """Resume; the new welcome is read."""
    peer = rig.connect()
    peer.send(hello(welcome, received), *frames)
    frame = peer.frame()
    assert frame[:1] == b"W", frame
    again = json.loads(frame[1:])
    assert again["resumed"] is True
    assert again["session"] == welcome["session"]
    assert again["token"] != welcome["token"]
    return peer, again


def lose(rig: Rig, peer: Peer) -> None:
    """The connection breaks, and the acceptor has noticed."""
    before = rig.engine.detached
    peer.sock.close()
    rig.until(lambda: rig.engine.detached == before + 1)


def ended(rig: Rig, which: int = 0) -> list[int]:
    return rig.sessions[which][1].detached


def test_numbers_of_the_outcomes_are_those_of_python() -> None:
    """P-6: what C calls the outcome of a resume, Python calls the same."""
    assert Resumed.RESUMED == _core.RESUMED
    assert (Resumed.GONE, Resumed.REFUSED, Resumed.TOO_OLD) == (
        _core.RESUME_GONE,
        _core.RESUME_REFUSED,
        _core.RESUME_TOO_OLD,
    )


def test_a_lost_connection_leaves_the_session_and_a_resume_goes_on_with_it(rig: Rig) -> None:
    """P-6, P-11: same session, same actor; what was missed follows in order with the numbers it had."""
    peer, welcome = login(rig)
    client = rig.sessions[0][4]
    peer.send(ask(1, b"one"))
    assert peer.frame() == reply(1, 1, b"one")
    lose(rig, peer)
    for body in (b"a", b"b"):
        rig.shard.push(client, body)
    rig.steps(0.05)
    assert ended(rig) == []
    peer, welcome = come_back(rig, welcome, 1, ask(2, b"two"))
    assert [peer.frame() for _ in range(3)] == [push(2, b"a"), push(3, b"b"), reply(4, 2, b"two")]
    assert rig.sessions[0][3].seen == [b"one", b"two"]
    rig.until(lambda: rig.sessions[0][1].resumed)
    assert len(rig.sessions) == 1
    assert rig.engine.detached == 0
    assert rig.engine.connections == 1


def test_what_was_sent_and_not_acknowledged_comes_again(rig: Rig) -> None:
    """P-11: frames behind `received` are sent again, acknowledged ones are not kept."""
    peer, welcome = login(rig)
    client = rig.sessions[0][4]
    for number in range(1, 11):
        rig.shard.push(client, b"%d" % number)
    assert [peer.frame() for _ in range(10)][-1] == push(10, b"10")
    peer.send(ack(6), b"Pdone")
    assert peer.frame() == b"Odone"
    lose(rig, peer)
    peer, welcome = come_back(rig, welcome, 8)
    assert [peer.frame() for _ in range(2)] == [push(9, b"9"), push(10, b"10")]
    lose(rig, peer)
    refused = rig.connect()
    refused.send(hello(welcome, 5))
    assert refused.close_code() == 4404
    rig.until(lambda: ended(rig) == [4453])


def test_the_welcome_says_how_many_messages_were_taken(rig: Rig) -> None:
    """P-11: over lost connections and a death; what was read and found no room is not among them, a refused one is."""
    peer, welcome = login(rig)
    peer.send(ask(1, b"one"), b"Stwo", b"Pbehind", ask(3, b"three"))
    assert sorted(peer.frame()[:1] for _ in range(3)) == [b"O", b"R", b"R"]
    lose(rig, peer)
    peer, welcome = come_back(rig, welcome, 2)
    assert welcome["taken"] == 3
    rig.shard.release(rig.sessions[0][2])
    rig.steps(0.02)
    peer.send(ask(4, b"refused"))
    assert peer.frame()[:1] == b"E"
    assert rig.succeed() == (1, 0)
    peer, welcome = come_back(rig, welcome, 3)
    assert welcome["taken"] == 4


def test_messages_that_found_no_room_are_not_taken() -> None:
    """P-9, P-11: what waits at the acceptor for a full queue goes with its connection, and is to be sent again."""
    with Rig(resume_window=WINDOW, geometry={"lane_records": 8}) as rig:
        peer, welcome = login(rig)
        rig.shard_runs = False
        peer.send(*(b"S%02d" % n for n in range(30)))
        rig.steps(0.1)
        peer, welcome = come_back(rig, welcome, 0)  # the old connection is still held back
        rig.shard_runs = True
        seen = rig.sessions[0][3].seen
        assert 0 < welcome["taken"] < 30
        peer.send(*(b"S%02d" % n for n in range(welcome["taken"], 30)))
        rig.until(lambda: len(seen) == 30)
        assert seen == [b"%02d" % n for n in range(30)]


def test_the_window_ends_the_session_once() -> None:
    """P-6, P-11: after resume_window DETACH comes, exactly once, and the token is worth nothing."""
    with Rig(resume_window=0.2) as rig:
        peer, welcome = login(rig)
        assert welcome["resume_window"] == 0.2
        lose(rig, peer)
        rig.until(lambda: ended(rig))
        rig.steps(0.2)
        assert ended(rig) == [1006]
        assert rig.engine.detached == 0
        late = rig.connect()
        late.send(hello(welcome, 0))
        assert late.close_code() == 4404


@pytest.mark.parametrize("goodbye", [b"B", b"Z"])
def test_a_goodbye_ends_the_session_at_once(rig: Rig, goodbye: bytes) -> None:
    """P-11: after bye, or a broken protocol, nothing is kept."""
    peer, welcome = login(rig)
    peer.send(goodbye)
    peer.close_code()
    rig.until(lambda: ended(rig))
    again = rig.connect()
    again.send(hello(welcome, 0))
    assert again.close_code() == 4404
    assert rig.engine.detached == 0


def test_the_app_ends_a_session_whose_client_is_away(rig: Rig) -> None:
    """P-11: a close of the app does not wait for the client."""
    peer, _ = login(rig)
    lose(rig, peer)
    rig.shard.close_client(rig.sessions[0][4], 4600, b"banned")
    rig.until(lambda: ended(rig) == [4600])
    assert rig.engine.detached == 0


def test_without_a_window_nothing_is_kept() -> None:
    """P-6: resume_window = 0 ends sessions with their connection, and refuses resumes."""
    with Rig(resume_window=0.0) as rig:
        peer, welcome = login(rig)
        assert welcome["resume_window"] == 0
        peer.sock.close()
        rig.until(lambda: ended(rig) == [1006])
        again = rig.connect()
        again.send(hello(welcome, 0))
        assert again.close_code() == 4404


def test_a_thousand_wrong_tokens_then_the_right_one(rig: Rig) -> None:
    """P-6: wrong, foreign, malformed and used-up tokens change nothing; the right one works, and nothing is left."""
    peer, welcome = login(rig)
    other_peer, other = login(rig)
    used = welcome
    for _ in range(2):
        lose(rig, peer)
        peer, welcome = come_back(rig, welcome, 0)
    peer.send(ask(1, b"x"))
    assert peer.frame() == reply(1, 1, b"x")
    lose(rig, peer)
    rng = random.Random(14)
    guesses: list[Callable[[], dict[str, Any]]] = [
        lambda: {"token": used["token"]},
        lambda: {"token": rng.randbytes(16).hex()},
        lambda: {"token": other["token"]},
        lambda: {"token": ""},
        lambda: {"token": welcome["token"][:-2]},
        lambda: {"token": "zz" * 16},
        lambda: {"session": other["session"]},
        lambda: {"session": f"{rng.getrandbits(62):016x}"},
        lambda: {"session": "-1"},
        lambda: {"received": 2},
        lambda: {"received": 1 << 40},
    ]
    for n in range(1000):
        intruder = rig.connect()
        intruder.send(hello(welcome, 0, guesses[n % len(guesses)]()))
        assert intruder.close_code() == 4404
        intruder.sock.close()
    assert ended(rig) == ended(rig, 1) == []
    peer, welcome = come_back(rig, welcome, 0)
    assert peer.frame() == reply(1, 1, b"x")
    peer.send(b"B")
    other_peer.send(b"B")
    rig.until(lambda: ended(rig) == ended(rig, 1) == [1000])
    rig.until(lambda: rig.engine.connections == 0)
    assert rig.engine.detached == 0


def test_the_old_token_is_good_until_the_new_one_was_used(rig: Rig) -> None:
    """P-6: a welcome that got lost locks nobody out; once its token was used, the old one is worth nothing."""
    peer, first = login(rig)
    lose(rig, peer)
    peer, second = come_back(rig, first, 0)
    lose(rig, peer)
    peer, third = come_back(rig, first, 0)  # the second welcome never arrived
    lose(rig, peer)
    used_up = rig.connect()
    used_up.send(hello(second, 0))
    assert used_up.close_code() == 4404
    peer, _ = come_back(rig, third, 0)
    replaced = rig.connect()
    replaced.send(hello(first, 0))
    assert replaced.close_code() == 4404
    peer.send(b"Pstill")
    assert peer.frame() == b"Ostill"


def test_a_resume_takes_the_session_from_a_half_open_connection(rig: Rig) -> None:
    """P-11: the client may come back before the server has noticed; the old connection is told 4409."""
    old, welcome = login(rig)
    old.send(ask(1, b"x"))
    assert old.frame() == reply(1, 1, b"x")
    new, welcome = come_back(rig, welcome, 0)
    assert new.frame() == reply(1, 1, b"x")
    assert old.close_code() == 4409
    assert ended(rig) == []
    new.send(ask(2, b"y"))
    assert new.frame() == reply(2, 2, b"y")
    rig.until(lambda: rig.engine.connections == 1)


def test_a_websocket_and_a_tcp_connection_may_follow_each_other(rig: Rig) -> None:
    """P-11: a session is not bound to the transport it came by; what Python knows of a socket goes with it."""
    page = rig.connect(Transport.WS)
    page.write(UPGRADE)
    rig.until(lambda: (page.pull(), b"\r\n\r\n" in page.data)[1])
    page.data = b""
    page.write(masked(b'H{"v":1}'))
    rig.until(lambda: (page.pull(), b'"v":1' in page.data)[1])
    welcome = json.loads(page.data[page.data.index(b"{") :])
    peer, welcome = come_back(rig, welcome, 0)
    rig.until(lambda: (page.pull(), page.data.endswith(b"connection"))[1])
    assert b"\x0f\xa0" not in page.data
    assert struct.pack(">H", 4409) in page.data
    peer.send(ask(1, b"x"))
    assert peer.frame() == reply(1, 1, b"x")


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


def masked(payload: bytes) -> bytes:
    """A binary WebSocket message of a client, with the key 0."""
    return struct.pack(">BB", 0x82, 0x80 | len(payload)) + bytes(4) + payload


@pytest.mark.parametrize(("code", "kept"), [(1000, False), (1001, True), (1002, False), (3500, True), (1011, True)])
def test_a_websocket_that_closes_says_whether_it_comes_back(rig: Rig, code: int, kept: bool) -> None:
    """P-11: 1000 is goodbye; a page that was left (1001) and clients that gave up may resume."""
    page = rig.connect(Transport.WS)
    page.write(UPGRADE)
    page.write(masked(b'H{"v":1}'))
    rig.until(lambda: (page.pull(), b'"v":1' in page.data)[1])
    page.write(struct.pack(">BB4xH", 0x88, 0x82, code))
    page.rest()
    page.sock.close()
    rig.until(lambda: rig.engine.connections == 0)
    rig.steps(0.02)
    assert rig.engine.detached == int(kept)
    assert len(ended(rig)) == int(not kept)


def test_what_a_session_misses_beyond_its_bound_ends_it() -> None:
    """P-11, P-12: a session holds resume_bytes_per_session at most; what no longer fits ends it, and nobody waits."""
    with Rig(resume_window=WINDOW, resume_bytes_per_session=8192) as rig:
        peer, welcome = login(rig)
        client = rig.sessions[0][4]
        lose(rig, peer)
        pushed = 0
        while not ended(rig):
            rig.shard.push(client, b"x" * 500)
            pushed += 1
            rig.step()
            assert pushed < 100
        assert ended(rig) == [4453]
        assert rig.hooks.controls == []
        again = rig.connect()
        again.send(hello(welcome, 0))
        assert again.close_code() == 4404


def test_all_sessions_together_hold_resume_bytes_at_most() -> None:
    """P-12: one acceptor's kept frames are bounded in all; a session that comes away empty is refused, others go on."""
    with Rig(resume_window=WINDOW, geometry={"resume_bytes": 4 * 65536}) as rig:
        peers = [login(rig) for _ in range(8)]
        for _ in range(80):
            for session in rig.sessions:
                rig.shard.push(session[4], b"y" * 900)
            rig.step()
        for peer, _ in peers:
            lose(rig, peer)
        outcomes = []
        for _, welcome in peers:
            peer = rig.connect()
            peer.send(hello(welcome, 0))
            outcomes.append(peer.frame()[:1])
        assert set(outcomes) == {b"C"}  # 8 x 80 KB do not fit into 256 KiB, and the oldest went first
        rig.until(lambda: all(session[1].detached for session in rig.sessions))
        peer, welcome = login(rig)
        rig.shard.push(rig.sessions[-1][4], b"z" * 900)
        rig.step()
        lose(rig, peer)
        peer, _ = come_back(rig, welcome, 0)
        assert peer.frame() == push(1, b"z" * 900)


def test_sessions_beyond_the_places_are_told_that_they_are_not_kept() -> None:
    """P-12: where no place is left, the welcome says resume_window 0, and the session ends with its connection."""
    with Rig(resume_window=WINDOW, geometry={"resume_entries": 1}) as rig:
        _, first = login(rig)
        peer, second = login(rig)
        assert first["resume_window"] == WINDOW
        assert second["resume_window"] == 0
        peer.sock.close()
        rig.until(lambda: ended(rig, 1) == [1006])


@pytest.mark.parametrize("session_bytes", [1 << 20, 6000])
def test_dropped_messages_of_a_slow_client_are_not_replayed(session_bytes: int) -> None:
    """P-9, P-11: drop-oldest renumbers what was never sent; a resume then sees the numbers without a gap."""
    with Rig(
        resume_window=WINDOW, outbound_bytes=20_000, slow_client="drop-oldest", resume_bytes_per_session=session_bytes
    ) as rig:
        peer = rig.connect(narrow=True)
        peer.send(b'H{"v":1}')
        welcome = json.loads(peer.frame()[1:])
        client = rig.sessions[0][4]
        for number in range(6000):
            rig.shard.push(client, b"%08d" % number + b"x" * 800)
            rig.step()
        assert rig.counters["dropped"] > 100
        seen = [peer.frame() for _ in range(5)]
        assert [struct.unpack(">I", frame[1:5])[0] for frame in seen] == [1, 2, 3, 4, 5]
        while True:  # read all: what comes last is what the shard said last
            frame = peer.frame()
            seen.append(frame)
            if frame[5:13] == b"%08d" % 5999:
                break
        numbers = [struct.unpack(">I", frame[1:5])[0] for frame in seen]
        assert numbers == list(range(1, len(numbers) + 1))
        lose(rig, peer)
        last = len(seen)
        again, _ = come_back(rig, welcome, last - 3)
        assert [again.frame() for _ in range(3)] == seen[-3:]


def test_a_successor_adopts_the_kept_sessions(rig: Rig) -> None:
    """P-16: an acceptor killed: its clients resume at its successor, with what they missed, under the same address."""
    peer, welcome = login(rig)
    away, away_welcome = login(rig)
    client, away_client = rig.sessions[0][4], rig.sessions[1][4]
    lose(rig, away)
    rig.shard.push(client, b"sent")
    rig.shard.push(away_client, b"kept")
    assert peer.frame() == push(1, b"sent")
    assert rig.succeed() == (2, 0)
    rig.shard.push(client, b"while nobody was there")
    peer, welcome = come_back(rig, welcome, 1)
    assert peer.frame() == push(2, b"while nobody was there")
    peer.send(ask(7, b"again"))
    assert peer.frame() == reply(3, 7, b"again")
    away, _ = come_back(rig, away_welcome, 0)
    assert away.frame() == push(1, b"kept")
    assert ended(rig) == ended(rig, 1) == []
    fresh, _ = login(rig)
    assert rig.sessions[2][4] not in (client, away_client)
    for one in (peer, away, fresh):
        one.send(b"B")
    rig.until(lambda: all(session[1].detached == [1000] for session in rig.sessions))


def test_a_second_successor_adopts_what_the_first_adopted(rig: Rig) -> None:
    """P-16: deaths in a row, with a resume between some of them."""
    peer, welcome = login(rig)
    client = rig.sessions[0][4]
    received = 0
    for death in range(5):
        rig.shard.push(client, b"%d" % death)
        rig.step()
        assert rig.succeed() == (1, 0)
        if death % 2:
            peer, welcome = come_back(rig, welcome, received)
            frames = [peer.frame() for _ in range(2)]
            assert frames == [push(received + 1, b"%d" % (death - 1)), push(received + 2, b"%d" % death)]
            received += 2
    assert ended(rig) == []


def test_a_record_whose_frame_was_kept_is_not_made_twice(rig: Rig) -> None:
    """P-16: killed between keeping a frame and saying so, the successor takes the record up again and finds it done."""
    peer, welcome = login(rig)
    _, other = login(rig)
    rig.shard.publish([rig.sessions[0][4], rig.sessions[1][4]], b"both!")
    assert peer.frame() == push(1, b"both!")
    size = 32 + 8 + 2 * 8 + 8
    assert rig.succeed(rewind=size) == (2, 0)
    rig.shard.push(rig.sessions[0][4], b"next")
    for record, rest in ((welcome, [push(2, b"next")]), (other, [])):
        back, _ = come_back(rig, record, 0, b"Pend")
        assert [back.frame() for _ in range(len(rest) + 2)] == [push(1, b"both!"), *rest, b"Oend"]


def test_a_successor_goes_on_behind_records_whose_room_was_not_given_back(rig: Rig) -> None:
    """P-16: killed in the middle of a batch, after records were done and before their room was free again."""
    peer, welcome = login(rig)
    for text in (b"one", b"two", b"six"):
        rig.shard.push(rig.sessions[0][4], text)
    assert [peer.frame() for _ in range(3)] == [push(1, b"one"), push(2, b"two"), push(3, b"six")]
    assert rig.succeed(rewind=2 * (32 + 8), given_back=False) == (1, 0)
    rig.shard.push(rig.sessions[0][4], b"next")
    back, _ = come_back(rig, welcome, 3)
    assert back.frame() == push(4, b"next")


def test_a_refusal_made_between_records_does_not_hide_the_next_one(rig: Rig) -> None:
    """P-16: an E that the acceptor made itself is of no record: the record after it is not taken for done."""
    peer, welcome = login(rig)
    rig.shard.push(rig.sessions[0][4], b"first")
    assert peer.frame() == push(1, b"first")
    rig.shard.release(rig.sessions[0][2])
    rig.steps(0.02)
    peer.send(ask(4, b"x"))
    assert peer.frame()[:1] == b"E"
    rig.shard.push(rig.sessions[0][4], b"second")
    assert rig.succeed() == (1, 0)
    back, _ = come_back(rig, welcome, 2)
    assert back.frame() == push(3, b"second")


def test_a_session_that_was_being_bound_at_the_death_ends(rig: Rig) -> None:
    """P-16: before the welcome there is nothing to come back to."""
    rig.bind_sessions = False
    peer = rig.connect()
    peer.send(b'H{"v":1}')
    rig.until(lambda: rig.system.hellos)
    assert rig.succeed() == (0, 0)
    rig.bind(77, 1 << 32)
    rig.until(lambda: ended(rig) == [1006])


def test_a_client_moves_with_its_socket_to_the_acceptor_of_its_session(rig: Rig) -> None:
    """P-6, P-11: what was read behind the hello moves with it, and the resume is done there."""
    peer, welcome = login(rig)
    lose(rig, peer)
    rig.shard.push(rig.sessions[0][4], b"missed")
    detour = detoured(rig)
    peer = rig.connect()
    peer.send(hello(elsewhere(welcome), 0), ask(1, b"pipelined"))
    frame = peer.frame()
    assert frame[:1] == b"W"
    assert json.loads(frame[1:])["resumed"] is True
    assert peer.frame() == push(1, b"missed")
    assert peer.frame() == reply(2, 1, b"pipelined")
    assert detour.sent[0].came == struct.pack(">I", 14) + ask(1, b"pipelined")
    assert rig.engine.connections == 1


def test_a_websocket_moves_behind_its_handshake(rig: Rig) -> None:
    """P-11: the handshake's answer, wherever it was written, comes first; frames go on as frames."""
    peer, welcome = login(rig)
    lose(rig, peer)
    detour = detoured(rig)
    peer = rig.connect(Transport.WS)
    peer.write(UPGRADE + masked(hello(elsewhere(welcome), 0)))
    rig.until(lambda: (peer.pull(), b'"resumed":true' in peer.data)[1])
    assert peer.data.startswith(b"HTTP/1.1 101 ")
    assert len(detour.sent) == 1
    peer.write(masked(ask(1, b"x")))
    rig.until(lambda: (peer.pull(), peer.data.endswith(b"\x82\x0a" + reply(1, 1, b"x")))[1])


def test_where_a_socket_cannot_move_the_client_is_told_to_come_again(rig: Rig) -> None:
    """P-11: no room on the way is 4503, not a refused resume; the session goes on waiting."""
    peer, welcome = login(rig)
    lose(rig, peer)
    detoured(rig, room=False)
    peer = rig.connect()
    peer.send(hello(elsewhere(welcome), 0))
    assert peer.close_code() == 4503
    assert ended(rig) == []
    come_back(rig, welcome, 0)
