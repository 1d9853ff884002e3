"""Back pressure both ways, and the acceptor's limits: full lanes, full links, slow clients, too many of anything."""

import errno
import gc
import json
import os
import resource
import struct
import time

import pytest
from acceptor_rig import Peer, Rig

from shardpool import _core
from shardpool.workers.doors import Event, SlowClient

XOFF, XON = _core.KIND_XOFF, _core.KIND_XON


def ask(number: int, body: bytes) -> bytes:
    return b"A" + struct.pack(">I", number) + body


def messages(count: int, size: int = 64) -> list[bytes]:
    return [b"S" + struct.pack(">I", number).ljust(size, b".") for number in range(count)]


def numbers(seen: list[bytes]) -> list[int]:
    return [struct.unpack(">I", body[:4])[0] for body in seen]


def test_a_full_lane_stops_only_its_own_socket() -> None:
    """P-9: the flooded actor's client is not read any more; another client is served as before."""
    with Rig(geometry={"lane_records": 64}) as rig:
        flooder, other = rig.session(), rig.session()
        rig.shard_runs = False
        frames = messages(1000)
        flooder.send(*frames)
        other.send(b"Squick")
        rig.steps(0.1)
        assert rig.node.slot(rig.sessions[0][2])["application_records"] == 64
        assert rig.node.slot(rig.sessions[1][2])["application_records"] == 1
        rig.shard_runs = True
        rig.until(lambda: len(rig.sessions[0][3].seen) == 1000)
        assert numbers(rig.sessions[0][3].seen) == list(range(1000))
        assert rig.sessions[1][3].seen == [b"quick"]


def test_a_lane_of_one_record_still_passes_everything() -> None:
    """P-9, M-3: a batch larger than the lane is cut, not kept for ever."""
    with Rig(geometry={"lane_records": 1}) as rig:
        peer = rig.session()
        peer.send(*messages(300))
        rig.until(lambda: len(rig.sessions[0][3].seen) == 300)
        assert numbers(rig.sessions[0][3].seen) == list(range(300))


def test_one_flooded_object_leaves_the_link_to_the_others() -> None:
    """M-3: an object has at most a quarter of a link in flight."""
    with Rig(geometry={"link_bytes": 1 << 16, "lane_records": 4000}, frame_bytes=8192, outbound_bytes=1 << 20) as rig:
        flooder, other = rig.session(), rig.session()
        rig.shard_runs = False
        flooder.send(*messages(40, 4000))
        rig.steps(0.1)
        held = rig.node.slot(rig.sessions[0][2])["application_records"]
        assert 1 <= held * 4032 <= 1 << 14
        other.send(b"Sthrough")
        rig.steps(0.05)
        assert rig.node.slot(rig.sessions[1][2])["application_records"] == 1
        rig.shard_runs = True
        rig.until(lambda: len(rig.sessions[0][3].seen) == 40)
        assert numbers(rig.sessions[0][3].seen) == list(range(40))


def test_a_full_link_holds_everybody_up_and_loses_nothing() -> None:
    """M-3: nothing was begun while the link is full; room is announced by the doorbell."""
    with Rig(geometry={"link_bytes": 1 << 16, "lane_records": 4000}, frame_bytes=8192) as rig:
        peers = [rig.session() for _ in range(6)]
        rig.shard_runs = False
        for peer in peers:
            peer.send(*messages(40, 4000))
        rig.steps(0.1)
        rig.shard_runs = True
        rig.until(lambda: all(len(session[3].seen) == 40 for session in rig.sessions))
        assert all(numbers(session[3].seen) == list(range(40)) for session in rig.sessions)
        assert rig.engine.settled


def test_a_saturated_shard_answers_asks_and_sends_and_goes_on_later() -> None:
    """M-10, P-14: without a permit left each message gets an E; the session stays."""
    with Rig(geometry={"permits": 1}) as rig:
        first, second = rig.session(), rig.session()
        rig.shard_runs = False
        first.send(b"Sholds the permit")
        rig.until(lambda: rig.node.slot(rig.sessions[0][2])["application_records"] == 1)
        second.send(ask(7, b"x"), b"Sy")
        assert second.frame() == b"E" + struct.pack(">II", 1, 7) + b'{"code":"saturated"}'
        assert second.frame() == b"E" + struct.pack(">II", 2, 0) + b'{"code":"saturated"}'
        rig.shard_runs = True
        rig.until(lambda: rig.sessions[0][3].seen)
        second.send(ask(8, b"now"))
        assert second.frame() == b"R" + struct.pack(">II", 3, 8) + b"now"
        assert rig.counters["refused_permit"] == 2


def test_a_bare_client_of_a_saturated_shard_waits() -> None:
    """M-10: bare mode has no error frame, so its frames are kept until there is a permit."""
    with Rig(envelope=False, geometry={"permits": 1}) as rig:
        first, second = rig.connect(), rig.connect()
        rig.until(lambda: len(rig.sessions) == 2)
        rig.steps(0.02)
        rig.shard_runs = False
        first.send(b"one")
        rig.steps(0.02)
        second.send(b"two", b"three")
        rig.steps(0.05)
        rig.shard_runs = True
        assert second.frame() == b"two"
        assert second.frame() == b"three"


def test_detach_survives_a_full_lifecycle_lane() -> None:
    """P-11, M-10: the end of a session is never lost, however full its lane or link is."""
    with Rig(geometry={"lifecycle_records": 8, "infra_bytes": 4096}) as rig:
        peers = [rig.session() for _ in range(100)]
        rig.shard_runs = False
        for peer in peers:
            peer.sock.close()
        rig.until(lambda: rig.engine.connections == 0)
        rig.steps(0.05)
        assert not rig.engine.settled
        rig.shard_runs = True
        rig.until(lambda: all(session[1].detached for session in rig.sessions))
        rig.until(lambda: rig.engine.settled)
        assert all(session[1].detached == [1006] for session in rig.sessions)


def test_a_storm_of_hellos_waits_for_the_shard() -> None:
    """P-7: more attaches than the system object's lane holds are kept, and all are bound in the end."""
    with Rig(geometry={"lifecycle_records": 8, "infra_bytes": 4096}) as rig:
        rig.shard_runs = False
        peers = [rig.connect() for _ in range(200)]
        for peer in peers:
            peer.send(b'H{"v":1,"auth":"' + b"x" * 200 + b'"}')
        rig.steps(0.2)
        rig.shard_runs = True
        for peer in peers:
            assert peer.frame()[:1] == b"W"


def flood(rig: Rig, client: int, count: int, size: int = 1000) -> None:
    """Push to a client that does not read; the rig moves in between."""
    for number in range(count):
        rig.shard.push(client, struct.pack(">I", number).ljust(size, b"."))
        if number % 16 == 0:
            rig.step()
    rig.steps(0.05)


def test_a_slow_client_pauses_its_senders_and_is_not_read() -> None:
    """P-9: beyond a quarter of outbound_bytes the shards hear XOFF, below half of that XON; nothing is lost."""
    with Rig(outbound_bytes=1 << 22) as rig:
        peer = rig.session(narrow=True)
        client = rig.sessions[0][4]
        count = 5000
        flood(rig, client, count)
        assert (XOFF, client) in rig.hooks.controls
        assert (XON, client) not in rig.hooks.controls
        peer.send(b"Sunheard")
        rig.steps(0.05)
        assert rig.sessions[0][3].seen == []
        got = [struct.unpack(">I", peer.frame()[5:9])[0] for _ in range(count)]
        assert got == list(range(count))
        rig.until(lambda: (XON, client) in rig.hooks.controls)
        rig.until(lambda: rig.sessions[0][3].seen == [b"unheard"])


def test_a_shards_successor_hears_which_clients_are_behind() -> None:
    """P-9, P-15: it says again whose sessions it has, and is told XOFF for those that must be waited for."""
    with Rig(outbound_bytes=1 << 22) as rig:
        peer = rig.session(narrow=True)
        rig.session()
        slow, quick = rig.sessions[0], rig.sessions[1]
        flood(rig, slow[4], 5000)
        rig.until(lambda: (XOFF, slow[4]) in rig.hooks.controls)
        rig.hooks.controls.clear()
        for slot, _, actor, _, client in (slow, quick):
            rig.shard.post_process(1, _core.KIND_BOUND, client, actor, slot.to_bytes(8, "little"))
        rig.until(lambda: (XOFF, slow[4]) in rig.hooks.controls)
        assert (XOFF, quick[4]) not in rig.hooks.controls
        for _ in range(5000):
            peer.frame()
        rig.until(lambda: (XON, slow[4]) in rig.hooks.controls)
        assert (slow[1].detached, quick[1].detached) == ([], [])


def test_a_client_that_never_reads_is_closed_and_costs_bounded_memory() -> None:
    """P-9: with `wait` the end comes when outbound_bytes are there and nothing moved for send_timeout."""
    with Rig(outbound_bytes=1 << 18, send_timeout=0.2, frame_bytes=65536) as rig:
        rig.session(narrow=True)
        other = rig.session()
        client = rig.sessions[0][4]
        deadline = time.monotonic() + 8
        while not rig.sessions[0][1].detached and time.monotonic() < deadline:
            flood(rig, client, 64, 4000)
        assert rig.sessions[0][1].detached == [4453]
        other.send(ask(1, b"fine"))
        assert other.frame()[9:] == b"fine"


def test_drop_oldest_leaves_no_gap_in_the_numbers_and_keeps_replies() -> None:
    """P-9: the oldest pushes go, what stays is numbered anew, and every ask is answered."""
    with Rig(outbound_bytes=1 << 18, slow_client="drop-oldest", frame_bytes=65536) as rig:
        peer = rig.session(narrow=True)
        client = rig.sessions[0][4]
        flood(rig, client, 4000)
        rig.shard.reply_client(client, 77, b"the answer")
        flood(rig, client, 2000)
        rig.shard.push(client, b"last")
        rig.steps(0.05)
        got: list[bytes] = []
        while not got or got[-1][5:] != b"last":
            got.append(peer.frame())
        assert [struct.unpack(">I", frame[1:5])[0] for frame in got] == list(range(1, len(got) + 1))
        assert len(got) < 6002
        assert [frame[9:] for frame in got if frame[:1] == b"R"] == [b"the answer"]
        pushed = [struct.unpack(">I", frame[5:9])[0] for frame in got if frame[:1] == b"M" and frame[5:] != b"last"]
        assert pushed[-1] == 1999
        assert rig.counters["dropped"] > 0
        assert not rig.sessions[0][1].detached


def test_close_ends_a_slow_client_at_the_limit() -> None:
    """P-9: with `close` the limit is the end."""
    with Rig(outbound_bytes=1 << 18, slow_client="close", frame_bytes=65536) as rig:
        rig.session(narrow=True)
        flood(rig, rig.sessions[0][4], 8000)
        rig.until(lambda: rig.sessions[0][1].detached == [4453])


def test_slow_policies_are_named_as_in_the_settings() -> None:
    """P-28: the table's words are the engine's policies."""
    assert [SlowClient.of(name) for name in ("wait", "drop-oldest", "close")] == list(SlowClient)


def test_connections_per_address_and_in_all_are_bounded() -> None:
    """P-12: one more than permitted is refused with 4529 and a sentence; the place is free again afterwards."""
    with Rig(connections_per_address=3) as rig:
        peers = [rig.session() for _ in range(3)]
        assert rig.connect().close_code() == 4529
        peers[0].sock.close()
        rig.until(lambda: rig.sessions[0][1].detached)
        rig.session()
    with Rig(connections=2) as rig:
        peers = [rig.session(), rig.session()]
        assert (
            json.loads(rig.connect().frame()[1:])["reason"]
            == "the server has as many connections as it may (connections)"
        )


def test_handshakes_per_second_leave_the_rest_in_the_backlog() -> None:
    """P-12: beyond the rate connections wait, they are not refused."""
    with Rig(handshakes_per_second=10) as rig:
        peers = [rig.connect() for _ in range(25)]
        started = time.monotonic()
        rig.until(lambda: rig.engine.connections >= 10)
        assert rig.engine.connections <= 15
        rig.until(lambda: rig.engine.connections == 25)
        assert time.monotonic() - started > 1.0
        assert len(peers) == 25


def test_messages_per_second_end_a_flooding_client() -> None:
    """P-12: more than the rate, beyond a second's worth at once, ends with 4429."""
    with Rig(messages_per_second=100) as rig:
        peer = rig.session()
        peer.send(*messages(50))
        rig.until(lambda: len(rig.sessions[0][3].seen) == 50)
        peer.send(*messages(200))
        assert peer.close_code() == 4429


def test_a_declared_length_allocates_nothing() -> None:
    """P-30, S1: thousands of announced longest frames cost what arrived, not what was announced."""
    with Rig(frame_bytes=16 << 20, geometry={"link_bytes": 1 << 27}, outbound_bytes=32 << 20) as rig:
        peers = [rig.session() for _ in range(50)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for peer in peers:
            peer.write(struct.pack(">I", 16 << 20) + b"S" + b"x" * 100)
        rig.steps(0.2)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048


def test_unfinished_input_is_bounded_over_all_clients() -> None:
    """P-12: clients that together hold more than inbound_bytes are told that the server is full."""
    with Rig(inbound_bytes=1 << 20) as rig:
        peers = [rig.session() for _ in range(64)]
        for peer in peers:
            peer.write(struct.pack(">I", 65536) + b"S" + b"x" * 60000)
        rig.steps(0.2)
        codes = [peer.close_code() for peer in peers if _over(rig, peer)]
        assert codes
        assert set(codes) == {4529}
        assert len(codes) < 64


def _over(rig: Rig, peer: Peer) -> bool:
    rig.step()
    peer.pull()
    return bool(peer.data)


def test_running_out_of_descriptors_is_no_storm() -> None:
    """P-12: EMFILE pauses accepting; one report per second; connections go on as soon as a descriptor is free."""
    with Rig() as rig:
        first = rig.session()
        waiting = [rig.connect() for _ in range(5)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # What earlier tests left in reference cycles is closed now: a collection later would free descriptors.
        gc.collect()
        gc.disable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")), hard))
        held: list[int] = []
        try:
            while True:
                try:
                    held.append(os.dup(0))
                except OSError:
                    break
            usage = resource.getrusage(resource.RUSAGE_SELF)
            deadline = time.monotonic() + 1.0
            turns = 0
            while time.monotonic() < deadline:
                rig.events += [event for event in rig.engine.poll(200) if not rig.clients.handle(*event)]
                turns += 1
            spent = resource.getrusage(resource.RUSAGE_SELF)
            assert spent.ru_utime + spent.ru_stime - usage.ru_utime - usage.ru_stime < 0.3
            starved = [event for event in rig.events if event[0] == Event.STARVED]
            assert 1 <= len(starved) <= 2
            assert starved[0][2] == errno.EMFILE
            assert rig.engine.connections == 1
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            gc.enable()
        rig.until(lambda: rig.engine.connections == 6)
        first.send(ask(1, b"x"))
        assert first.frame()[9:] == b"x"
        assert len(waiting) == 5


def test_slow_hellos_are_cut_at_the_limit() -> None:
    """P-7, P-12: one byte at a time does not stretch hello_timeout; silence neither."""
    with Rig(hello_timeout=0.3) as rig:
        silent, dripping = rig.connect(), rig.connect()
        started = time.monotonic()
        hello = struct.pack(">I", 8) + b'H{"v":1}'
        position = 0
        while not dripping.over and time.monotonic() < started + 3:
            if position < len(hello) - 1:
                dripping.sock.send(hello[position : position + 1])
                position += 1
            rig.steps(0.05)
            dripping.pull()
        assert time.monotonic() - started < 1.0
        assert b'"code":4408' in dripping.data
        assert silent.close_code() == 4408


def test_a_session_that_is_not_bound_in_time_is_told_so() -> None:
    """P-7: hello_timeout covers the app's on_connect."""
    with Rig(hello_timeout=0.3) as rig:
        rig.bind_sessions = False
        peer = rig.connect()
        peer.send(b'H{"v":1}')
        assert peer.close_code() == 4408


def test_a_silent_client_is_pinged_then_closed() -> None:
    """P-11: after heartbeat comes P, after idle_timeout 4410; an answer keeps the connection."""
    with Rig(heartbeat=0.2, idle_timeout=0.6) as rig:
        silent, polite = rig.session(), rig.session()
        deadline = time.monotonic() + 1.5
        pings = 0
        while time.monotonic() < deadline:
            rig.step()
            polite.pull()
            if len(polite.data) >= 5:
                assert polite.frame() == b"P"
                pings += 1
                polite.send(b"O")
        assert pings >= 3
        assert silent.frame() == b"P"
        assert silent.close_code() == 4410
        rig.until(lambda: rig.sessions[0][1].detached == [4410])
        assert rig.sessions[1][1].detached == []


def test_a_corrupt_ring_is_left_alone_and_reported() -> None:
    """M-15: what a broken shard wrote is never followed, and the acceptor goes on."""
    with Rig() as rig:
        peer = rig.session()
        rig.shard.publish([rig.sessions[0][4]], b"fine")
        assert peer.frame()[5:] == b"fine"
        # a publish that counts more clients than it carries
        rig.shard.post_process(1, _core.KIND_PUBLISH, 0, 0, struct.pack("<II", 1000, 0))
        rig.until(lambda: any(event[0] == Event.CORRUPT for event in rig.events))
        peer.send(b"Palive")
        assert peer.frame() == b"Oalive"


def test_draining_publishes_what_was_read_and_reads_no_more() -> None:
    """P-17: after stop_reading nothing new comes in; what was read still reaches its actor; replies still go out."""
    with Rig(geometry={"lane_records": 16}) as rig:
        peer = rig.session()
        rig.shard_runs = False
        peer.send(*messages(100))
        rig.steps(0.05)
        rig.engine.stop_accepting()
        rig.engine.stop_reading()
        assert not rig.engine.settled
        rig.shard_runs = True
        rig.until(lambda: rig.engine.settled and len(rig.sessions[0][3].seen) == 100)
        peer.send(b"Stoo late")
        rig.shard.push(rig.sessions[0][4], b"news")
        assert peer.frame()[5:] == b"news"
        assert len(rig.sessions[0][3].seen) == 100
        rig.engine.end_all(1001, b"going")
        assert peer.close_code() == 1001


@pytest.mark.parametrize("linger", [True, False])
def test_resets_leave_nothing_behind(linger: bool) -> None:
    """P-11: connections that are cut while output waits free their place, and each session ends once."""
    with Rig() as rig:
        for _ in range(50):
            peer = rig.session()
            rig.shard.push(rig.sessions[-1][4], b"x" * 1000)
            if linger:
                peer.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER 0: RST
            peer.sock.close()
            rig.step()
        rig.until(lambda: rig.engine.connections == 0)
        rig.until(lambda: all(session[1].detached == [1006] for session in rig.sessions))
