"""Clients that stop reading, or are gone at the worst moment: what is held for them is bounded, nobody waits."""

from __future__ import annotations

import socket
import struct
import time

from acceptor_rig import Peer, Rig, descriptors

from shardpool import _core

XOFF, XON = _core.KIND_XOFF, _core.KIND_XON
READERS, SLEEPERS = 3, 40


def reset(peer: Peer) -> None:
    """The connection ends with an RST."""
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()


def test_clients_that_stop_reading_are_cut_and_others_notice_nothing() -> None:
    """P-9, P-11, P-12: aiohttp#1367: each holds outbound_bytes at most, then it is cut; the readers miss nothing."""
    with Rig(resume_window=30.0, slow_client="close", outbound_bytes=32_768, resume_bytes_per_session=65_536) as rig:
        readers = [rig.session() for _ in range(READERS)]
        for _ in range(SLEEPERS):
            rig.session(narrow=True)
        rounds = 0
        deadline = time.monotonic() + 30.0  # one that is cut may still take a while to be told so
        while rig.engine.connections > READERS:
            rounds += 1
            assert time.monotonic() < deadline, "clients that read nothing were not cut"
            for session in rig.sessions[READERS:]:
                rig.shard.push(session[4], b"x" * 4000)
            for reader, session in zip(readers, rig.sessions, strict=False):
                rig.shard.push(session[4], b"%d" % rounds)
                assert reader.frame() == b"M" + struct.pack(">I", rounds) + b"%d" % rounds
                reader.send(b"K" + struct.pack(">I", rounds))
        # what they missed does not fit for ever either: their sessions end by and by, and give all of it back
        while any(not session[1].detached for session in rig.sessions[READERS:]):
            for session in rig.sessions[READERS:]:
                rig.shard.push(session[4], b"x" * 4000)
            rig.step()
        assert rig.engine.detached == 0
        assert not any(session[1].detached for session in rig.sessions[:READERS])


def test_a_reset_while_senders_wait_releases_them() -> None:
    """P-9, P-11: uvicorn#336: the shards were told to pause for a client that is reset: they are told to go on."""
    with Rig(resume_window=30.0, outbound_bytes=65_536) as rig:
        before = descriptors()
        for number in range(60):
            peer = rig.session(narrow=True)
            client = rig.sessions[-1][4]
            while (XOFF, client) not in rig.hooks.controls:
                rig.shard.push(client, b"x" * 2000)
                rig.step()
            reset(peer)
            rig.until(lambda client=client: (XON, client) in rig.hooks.controls)
            assert rig.engine.detached == number + 1
        assert rig.engine.connections == 0
        assert descriptors() == before
        for session in rig.sessions:
            rig.shard.close_client(session[4], 1000, b"")
        rig.until(lambda: rig.engine.detached == 0)
        assert all(session[1].detached == [1000] for session in rig.sessions)
