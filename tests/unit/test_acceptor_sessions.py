"""The acceptor's engine with one shard: hello to end, frame by frame."""

import json
import struct
from collections.abc import Iterator

import pytest
from acceptor_rig import Peer, Rig

from shardpool import _core
from shardpool.workers.doors import Event, Framing, SlowClient, Transport


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


def ask(number: int, body: bytes) -> bytes:
    return b"A" + struct.pack(">I", number) + body


def reply(sequence: int, number: int, body: bytes) -> bytes:
    return b"R" + struct.pack(">II", sequence, number) + body


def test_numbers_of_the_engine_are_those_of_python() -> None:
    """P-7: what C calls an event, a transport, a framing or a policy, Python calls the same."""
    for enum, prefix in ((Event, "EVENT"), (Transport, "TRANSPORT"), (Framing, "FRAMING"), (SlowClient, "SLOW")):
        assert {member.name: int(member) for member in enum} == {
            name.removeprefix(f"{prefix}_"): getattr(_core, name)
            for name in dir(_core)
            if name.startswith(f"{prefix}_")
        }


def test_a_session_is_minted_attached_and_welcomed(rig: Rig) -> None:
    """P-6, P-7: the shard gets the whole hello; the client gets id and token."""
    peer = rig.connect()
    peer.send(b'H{"v":1,"auth":{"user":"ann"}}')
    welcome = peer.frame()
    assert welcome[:1] == b"W"
    record = json.loads(welcome[1:])
    assert len(record["session"]) == 16
    assert len(bytes.fromhex(record["token"])) == 16
    assert rig.system.hellos == [b'{"v":1,"auth":{"user":"ann"}}']


def test_frames_behind_the_hello_wait_for_the_binding(rig: Rig) -> None:
    """P-7: pipelined frames reach the actor once it is bound, in order."""
    rig.bind_sessions = False
    peer = rig.connect()
    peer.send(b'H{"v":1}', b"Sone", ask(1, b"two"))
    rig.until(lambda: rig.system.hellos)
    rig.steps(0.05)
    session = rig.events  # nothing of it concerns Python
    assert session == []
    rig.bind(77, 1 << 32)
    assert peer.frame()[:1] == b"W"
    assert peer.frame() == reply(1, 1, b"two")
    assert rig.sessions[0][3].seen == [b"one", b"two"]


def test_a_flood_behind_the_hello_is_held_within_one_buffer(rig: Rig) -> None:
    """P-7, P-12: before the binding the socket is not read beyond what one read brought."""
    rig.bind_sessions = False
    peer = rig.connect()
    peer.send(b'H{"v":1}')
    rig.until(lambda: rig.system.hellos)
    flood = struct.pack(">I", 1001) + b"S" + b"x" * 1000
    with pytest.raises(AssertionError):
        # the kernel's buffers fill up; the engine takes no more
        _write_all_within(rig, peer, flood * 20_000)
    assert rig.node.counters(1)["messages_in"] == 0


def _write_all_within(rig: Rig, peer: Peer, data: bytes) -> None:
    left = data
    for _ in range(3000):
        try:
            left = left[peer.sock.send(left) :]
        except BlockingIOError:
            rig.step()
        if not left:
            return
    raise AssertionError(f"{len(left)} bytes did not go out")


def test_what_on_connect_pushes_comes_behind_the_welcome(rig: Rig) -> None:
    """P-7: W is the first frame, whatever was pushed before the binding was known."""
    rig.bind_sessions = False
    peer = rig.connect()
    peer.send(b'H{"v":1}')
    rig.until(lambda: rig.system.hellos)
    rig.shard.push(1 << 32, b"early")
    rig.steps(0.02)
    rig.bind(77, 1 << 32)
    assert peer.frame()[:1] == b"W"
    assert peer.frame() == b"M" + struct.pack(">I", 1) + b"early"


def test_numbers_count_pushes_replies_and_errors_together(rig: Rig) -> None:
    """P-11: M, R and E share one count per session."""
    peer = rig.session()
    client = rig.sessions[0][4]
    rig.shard.push(client, b"a")
    rig.shard.error_client(client, 5, b"{}")
    assert peer.frame() == b"M" + struct.pack(">I", 1) + b"a"
    assert peer.frame() == b"E" + struct.pack(">II", 2, 5) + b"{}"
    peer.send(ask(9, b"x"))
    assert peer.frame() == reply(3, 9, b"x")


def test_many_frames_of_one_read_are_one_admission(rig: Rig) -> None:
    """P-8, M-7: all that one read brought for one actor is published at once, in order."""
    peer = rig.session()
    rig.until(lambda: True)
    before = rig.counters["batches"]
    peer.send(*(b"S%d" % number for number in range(200)))
    rig.until(lambda: len(rig.sessions[0][3].seen) == 200)
    assert rig.sessions[0][3].seen == [b"%d" % number for number in range(200)]
    assert rig.counters["batches"] - before <= 3


def test_frames_are_put_together_from_any_pieces(rig: Rig) -> None:
    """P-13: where a stream is cut does not matter."""
    peer = rig.session()
    stream = b"".join(struct.pack(">I", len(f)) + f for f in (ask(n, b"z" * n * 7) for n in range(1, 60)))
    for start in range(0, len(stream), 11):
        peer.write(stream[start : start + 11])
        rig.step()
    for number in range(1, 60):
        assert peer.frame() == reply(number, number, b"z" * number * 7)


def test_a_longest_frame_passes_and_one_byte_more_does_not(rig: Rig) -> None:
    """P-12: frame_bytes is a bound, not a guess."""
    peer = rig.session()
    body = b"y" * (rig.settings.frame_bytes - 5)
    peer.send(ask(1, body))
    assert peer.frame() == reply(1, 1, body)
    peer.send(ask(2, body + b"y"))
    assert peer.close_code() == 4413


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b'H{"v":1}', 4400),
        (b"A\0\0\0\0body", 4400),
        (b"A\0\0", 4400),
        (b"K\0\0", 4400),
        (b"K\0\0\0\x09", 4400),
        (b"P" + b"x" * 126, 4400),
        (b"O" + b"x" * 126, 4400),
        (b"?", 4400),
        (b"B", 1000),
    ],
)
def test_a_frame_that_breaks_the_protocol_ends_the_session_with_its_code(rig: Rig, frame: bytes, code: int) -> None:
    """P-14: broken frames are answered with a code, and the session's object hears of it once."""
    peer = rig.session()
    peer.send(frame)
    assert peer.close_code() == code
    rig.until(lambda: rig.sessions[0][1].detached)
    rig.steps(0.02)
    assert rig.sessions[0][1].detached == [code]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\0\0\0\0", 4400),
        (b"\xff\xff\xff\xff", 4413),
        (b"\x80\0\0\0", 4413),
        (b"GET / HTTP/1.1\r\n\r\n", 4400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 4400),
        (b"\0\0\x20\0H", 4413),
        (b"\0\0\0\1S", 4400),
        (b"\0\0\0\2H{", 4400),
        (b"\0\0\0\5H[{}]", 4400),
        (b'\0\0\0\x08H{"v":2}', 4400),
        (b'\0\0\0\x15H{"v":1,"local":true}', 4400),
        (b"\0\0\0\5H\xff\xfe\xfd\xfc", 4400),
    ],
)
def test_bad_first_bytes_are_answered_and_cost_nothing(rig: Rig, data: bytes, code: int) -> None:
    """P-12, P-13, P-30: other protocols, impossible lengths and broken hellos get a code; no session is made."""
    peer = rig.connect()
    peer.write(data)
    assert peer.close_code() == code
    assert rig.system.hellos == []


def test_a_refused_session_is_told_why(rig: Rig) -> None:
    """P-7: on_connect's refusal reaches the client with its code and reason."""
    rig.refuse = (4401, b"unknown ticket")
    peer = rig.connect()
    peer.send(b'H{"v":1}')
    frame = peer.frame()
    assert json.loads(frame[1:]) == {"code": 4401, "name": "unauthenticated", "reason": "unknown ticket"}


def test_no_home_no_session(rig: Rig) -> None:
    """P-6: with every shard's breaker open, clients are told to come back later."""
    rig.mint.set_homes([])
    peer = rig.connect()
    peer.send(b'H{"v":1}')
    assert peer.close_code() == 4503


def test_a_client_that_leaves_before_its_binding_is_detached_by_it(rig: Rig) -> None:
    """P-11: the session of a client that did not wait ends at once, exactly once."""
    rig.bind_sessions = False
    peer = rig.connect()
    peer.send(b'H{"v":1}')
    rig.until(lambda: rig.system.hellos)
    peer.sock.close()
    rig.until(lambda: rig.engine.connections == 0)
    rig.bind(77, 1 << 32)
    rig.until(lambda: rig.sessions[0][1].detached)
    rig.steps(0.02)
    assert rig.sessions[0][1].detached == [1006]


def test_an_old_client_address_reaches_nobody(rig: Rig) -> None:
    """P-11: what a shard still sends to a client that left never reaches the next tenant of its place."""
    first = rig.session()
    old = rig.sessions[0][4]
    first.sock.close()
    rig.until(lambda: rig.engine.connections == 0)
    second = rig.session()
    assert old & 0xFFFFFFFF == rig.sessions[1][4] & 0xFFFFFFFF
    rig.shard.push(old, b"late")
    rig.shard.close_client(old, 4500, b"late")
    second.send(ask(1, b"mine"))
    assert second.frame() == reply(1, 1, b"mine")


def test_the_app_closes_behind_what_it_pushed(rig: Rig) -> None:
    """P-11: a close comes in order, with the app's code and reason."""
    peer = rig.session()
    client = rig.sessions[0][4]
    rig.shard.push(client, b"last")
    rig.shard.close_client(client, 4600, b"game over")
    assert peer.frame() == b"M" + struct.pack(">I", 1) + b"last"
    assert json.loads(peer.frame()[1:])["code"] == 4600
    assert peer.read(1) == b""


def test_a_publish_reaches_every_client_of_the_record(rig: Rig) -> None:
    """P-10: one record, one frame for each; those who left are skipped."""
    peers = [rig.session() for _ in range(5)]
    clients = [session[4] for session in rig.sessions]
    peers[2].sock.close()
    rig.until(lambda: rig.engine.connections == 4)
    rig.shard.publish(clients, b"news")
    for peer in (peers[0], peers[1], peers[3], peers[4]):
        assert peer.frame() == b"M" + struct.pack(">I", 1) + b"news"


def test_a_changed_route_is_read_again_when_the_old_place_is_stale(rig: Rig) -> None:
    """P-8: after a move the next frame goes to the new place without a word from anybody."""
    peer = rig.session()
    slot, _, actor, echo, client = rig.sessions[0]
    peer.send(b"Sbefore")
    rig.until(lambda: echo.seen == [b"before"])
    new = type(echo)()
    moved = rig.shard.allocate(3, new, rig._table, client, 0)
    rig.shard.set_route(slot, moved)
    rig.shard.release(actor)
    rig.steps(0.02)
    peer.send(b"Safter")
    rig.until(lambda: new.seen == [b"after"])


def test_frames_for_a_sealed_actor_wait_for_its_new_place(rig: Rig) -> None:
    """P-8, M-2: while an object moves its frames are held, then follow the route in order."""
    peer = rig.session()
    slot, _, actor, echo, client = rig.sessions[0]
    rig.shard.seal(actor)
    peer.send(b"Sone", b"Stwo")
    rig.steps(0.05)
    new = type(echo)()
    moved = rig.shard.allocate(3, new, rig._table, client, 0)
    rig.shard.set_route(slot, moved)
    rig.shard.vacate(actor)
    rig.shard.post_process(1, _core.KIND_ROUTE, client, moved)
    rig.until(lambda: new.seen == [b"one", b"two"])
    assert echo.seen == []


def test_frames_for_an_object_that_ended_are_answered(rig: Rig) -> None:
    """P-8: a stale address without a new route is an error of that message, not of the session."""
    peer = rig.session()
    rig.shard.release(rig.sessions[0][2])
    rig.steps(0.02)
    peer.send(ask(4, b"x"), b"Sy", b"Palive")
    assert peer.frame() == b"E" + struct.pack(">II", 1, 4) + b'{"code":"stale"}'
    assert peer.frame() == b"E" + struct.pack(">II", 2, 0) + b'{"code":"stale"}'
    assert peer.frame() == b"Oalive"


def test_acknowledgements_may_come_in_any_size(rig: Rig) -> None:
    """P-11: an old number is ignored, the newest sent is fine."""
    peer = rig.session()
    for number in range(1, 4):
        rig.shard.push(rig.sessions[0][4], b"x")
        peer.frame()
        peer.send(b"K" + struct.pack(">I", number))
    peer.send(b"K\0\0\0\1", b"Pstill")
    assert peer.frame() == b"Ostill"


def test_bare_frames_go_to_the_actor_as_they_are() -> None:
    """P-13: in bare mode there is no hello; each frame is a message, each return value a frame."""
    with Rig(envelope=False) as rig:
        peer = rig.connect()
        peer.send(b"Hello", b"x" * 5000)
        assert peer.frame() == b"Hello"
        assert peer.frame() == b"x" * 5000
        assert rig.system.hellos == [b""]
        peer.sock.close()
        rig.until(lambda: rig.sessions[0][1].detached == [1006])


def test_a_local_program_asks_the_system_object() -> None:
    """P-27: requests of trusted programs are admitted like any message, replies carry no number."""
    with Rig() as rig:
        peer = rig.connect(Transport.LOCAL)
        peer.send(b'H{"v":1,"local":true}')
        welcome = json.loads(peer.frame()[1:])
        assert welcome["local"] is True
        assert "session" not in welcome
        peer.send(ask(3, b"find"))
        assert peer.frame() == reply(0, 3, b"done: find")
        assert rig.system.operations == [b"find"]
        peer.send(b"Sx")
        assert peer.close_code() == 4400


def test_a_successor_ends_the_sessions_of_a_dead_acceptors_clients(rig: Rig) -> None:
    """P-11, P-16: without a window, sessions do not stay behind when the process that held their clients dies."""
    for _ in range(5):
        rig.session()
    assert rig.succeed() == (0, 5)
    rig.until(lambda: all(session[1].detached == [1006] for session in rig.sessions))


def test_a_hello_before_the_shards_first_start_waits_for_it() -> None:
    """P-7, M-16: what was published before the shard adopted its segment is run by it."""
    with Rig(start_shard=False) as rig:
        peers = [rig.connect() for _ in range(3)]
        for peer in peers:
            peer.send(b'H{"v":1}')
        rig.steps(0.05)
        rig.start_shard(adopt=True)
        for peer in peers:
            assert peer.frame()[:1] == b"W"
