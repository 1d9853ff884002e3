"""The engine under random clients: any bytes, any cuts, shards that stop and go; replayable by its seed."""

import contextlib
import os
import random
import struct

import pytest
from acceptor_rig import Peer, Rig
from test_websocket import frame

from shardpool.workers.doors import Transport

SEEDS = int(os.environ.get("SHARDPOOL_SEEDS", "12"))
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def tcp_piece(rng: random.Random) -> bytes:
    """A frame, a broken frame, or noise."""
    body = rng.randbytes(rng.choice((0, 1, 5, 60, 3000)))
    kind = rng.choice((b"S", b"A" + struct.pack(">I", rng.randrange(1, 99)), b"P", b"K\0\0\0\0", b"O", b"Z", b"B"))
    weights = rng.random()
    if weights < 0.9:
        kind = rng.choice((b"S", b"A" + struct.pack(">I", rng.randrange(1, 99))))
    if weights > 0.995:
        return rng.randbytes(20)
    sent = kind + (body if kind[:1] in b"SA" else body[:100] if kind in (b"P", b"O") else b"")
    return struct.pack(">I", len(sent)) + sent


def ws_piece(rng: random.Random) -> bytes:
    """A WebSocket frame, mostly legal."""
    body = b"S" + rng.randbytes(rng.choice((0, 1, 124, 125, 126, 3000)))
    chance = rng.random()
    if chance < 0.7:
        return frame(2, body, mask=rng.randbytes(4))
    if chance < 0.85:
        return frame(2, body, final=False) + frame(9, b"p") + frame(0, body)
    if chance < 0.98:
        return frame(9, body[:125])
    return rng.choice((frame(1, b"\xff"), frame(3, b""), frame(8, b""), rng.randbytes(9)))


def stream(rng: random.Random, transport: Transport) -> bytes:
    pieces = rng.randrange(1, 60)
    if transport is Transport.TCP:
        return b'\0\0\0\x08H{"v":1}' + b"".join(tcp_piece(rng) for _ in range(pieces))
    return UPGRADE + frame(2, b'H{"v":1}') + b"".join(ws_piece(rng) for _ in range(pieces))


def feed(rng: random.Random, rig: Rig, peer: Peer, data: bytes) -> None:
    while data and not peer.over:
        size = rng.choice((1, 7, 100, 1000, 20_000))
        with contextlib.suppress(BlockingIOError, ConnectionError):
            data = data[peer.sock.send(data[:size]) :]
        if rng.random() < 0.3:
            rig.shard_runs = rng.random() < 0.7
        if rng.random() < 0.02 and rig.sessions:
            session = rng.choice(rig.sessions)
            with contextlib.suppress(ValueError):
                rig.shard.push(session[4], rng.randbytes(rng.choice((10, 5000))))
        if rng.random() < 0.5:
            rig.step()
        if rng.random() < 0.5:
            peer.pull()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_clients_break_nothing_and_every_session_ends_once(seed: int) -> None:
    """P-11, P-12, M-3: whatever clients send, sessions and places are given back, exactly once."""
    rng = random.Random(seed)
    sizes = {
        "lane_records": rng.choice((1, 8, 1024)),
        "link_bytes": rng.choice((1 << 15, 1 << 20)),
        "permits": rng.choice((1, 400)),
    }
    policy = rng.choice(("wait", "drop-oldest", "close"))
    with Rig(geometry=sizes, frame_bytes=4096, outbound_bytes=8192, slow_client=policy) as rig:
        for _ in range(12):
            transport = rng.choice((Transport.TCP, Transport.WS))
            peer = rig.connect(transport, narrow=rng.random() < 0.3)
            feed(rng, rig, peer, stream(rng, transport))
            if rng.random() < 0.7:
                peer.sock.close()
        rig.shard_runs = True
        for peer in rig.peers:
            peer.sock.close()
        rig.until(lambda: rig.engine.connections == 0, f"seed {seed}")
        rig.until(lambda: rig.engine.settled, f"seed {seed}")
        rig.until(lambda: all(session[1].detached for session in rig.sessions), f"seed {seed}")
        rig.steps(0.01)
        assert all(len(session[1].detached) == 1 for session in rig.sessions), f"seed {seed}"
        assert rig.node.counters(2)["permits_used"] == 0, f"seed {seed}"
        assert all(rig.node.slot(session[2])["application_records"] == 0 for session in rig.sessions), f"seed {seed}"
