"""An acceptor's engine with its Python half, and one shard's executor, in one process and step by step.

Sockets are real (loopback), memory is real; what moves when is the test's decision, so that full lanes, full links and
slow clients are states that a test can hold and look at.
"""

from __future__ import annotations

import gc
import mmap
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec

from shardpool import _core
from shardpool.settings import defaults
from shardpool.workers.acceptor_settings import AcceptorSettings
from shardpool.workers.clients import AppFacts, Clients
from shardpool.workers.doors import Event, Transport
from shardpool.workers.http import Site
from shardpool.workers.minting import Mint
from shardpool.workers.passages import Passages
from shardpool.workers.static_files import StaticFiles
from shardpool.workers.websocket import Upgrade

PATIENCE = 10.0
SLICE_NS = 1_000_000_000
ATTACH, DETACH, OPERATION = _core.KIND_ATTACH, _core.KIND_DETACH, 6
BOUND, REFUSED, RESUMED = _core.KIND_BOUND, _core.KIND_REFUSED, _core.KIND_RESUMED


def descriptors() -> int:
    """How many this process has open, without those that earlier tests left to the collector."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


class Hooks:
    """The executor's Python half, as far as these tests need one."""

    loop = enter_task = leave_task = stub = None

    def __init__(self) -> None:
        self.controls: list[tuple[int, int]] = []

    def poke(self) -> None:
        pass

    def failed(self, address: int, kind: int, exc: BaseException, payload: bytes) -> bytes:
        raise AssertionError from exc

    def adopt(self, *arguments: Any) -> None:
        raise AssertionError("no handler here suspends")

    def reply(self, call_id: int, status: int, payload: bytes) -> None:
        raise AssertionError("nothing here asks")

    def control(self, kind: int, process: int, a: int, b: int, payload: bytes) -> None:
        self.controls.append((kind, a))

    def resumed(self, address: int) -> None:
        raise AssertionError

    def dropped(self, address: int, records: list[tuple[int, int, int, int, bytes]]) -> None:
        pass

    def sealed(self, address: int, records: list[tuple[int, int, int, int, bytes]]) -> None:
        self.moved = records


class Echo:
    """A session's object: keeps what it was told and answers with it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def message(self, data: bytes) -> bytes:
        self.seen.append(data)
        return data


class SessionObject:
    """The session slot: keeps what ended it."""

    def __init__(self) -> None:
        self.detached: list[int] = []
        self.resumed: list[int] = []


class System:
    """Slot 0 of the shard."""

    def __init__(self) -> None:
        self.hellos: list[bytes] = []
        self.operations: list[bytes] = []


class Rig:
    """One acceptor and one shard."""

    def __init__(
        self,
        *,
        envelope: bool = True,
        geometry: dict[str, int] | None = None,
        root: str | None = None,
        tls: ssl.SSLContext | None = None,
        start_shard: bool = True,
        **settings: Any,
    ) -> None:
        sizes = {"slots": 1024, "permits": 512, "arena_bytes": 8 << 20, "directory_entries": 64}
        sizes |= {"resume_bytes": 1 << 20, "resume_entries": 256} | (geometry or {})
        made = _core.Geometry(1, 1, **sizes)
        self.segments = [_core.create_segment(made, process) for process in range(3)]
        self.doorbells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(3)]
        self.node = _core.Node(1, self.segments, self.doorbells)
        self.shard_node = _core.Node(2, self.segments, self.doorbells)
        self.hooks = Hooks()
        self.shard_runs = False
        self.refuse: tuple[int, bytes] | None = None
        self.bind_sessions = True
        self.sessions: list[tuple[int, SessionObject, int, Echo, int]] = []  # address, object, actor, object, client
        self.peers: list[Peer] = []
        self.events: list[tuple[int, int, int, int, bytes]] = []
        self._table = self._make_table(Echo.message)
        self.system = System()
        if start_shard:
            self.start_shard()
        self.passages = Passages()
        self._how = (envelope, root, tls, settings)
        self._build(*self._how)

    def start_shard(self, adopt: bool = False) -> None:
        """The shard begins; adopt: as the worker does it, with what is in its segment."""
        self.shard = _core.Shard(self.shard_node, 0, self.hooks)
        if adopt:
            assert self.shard.adopt() == []
        assert self.shard.allocate(1, self.system, self._table) == 1 << 32
        self.shard_runs = True

    def _make_table(self, handler: Callable[[Echo, bytes], bytes]) -> _core.Table:
        return _core.Table(None, {bytes: (handler, 0)}, None, bytes, bytes, self._lifecycle)

    def _build(self, envelope: bool, root: str | None, tls: ssl.SSLContext | None, changes: dict[str, Any]) -> None:
        # sessions end with their connection, so that tests see the end; what is kept is test_acceptor_resume.py's
        table = defaults() | {"slow_client": "wait", "resume_window": 0.0} | changes
        self.settings = AcceptorSettings.of(table)
        self.engine = _core.Acceptor(self.node, 0, self.settings.engine(envelope))
        for outcome, code in ((_core.SATURATED, "saturated"), (_core.STALE, "stale")):
            self.engine.set_error(outcome, msgspec.json.encode({"code": code}))
        self.mint = Mint(1)
        upgrade = Upgrade(self.settings.origins, self.settings.compression, self.settings.frame_bytes)
        sites = {kind: Site(StaticFiles(root), upgrade, lambda: True, kind) for kind in (False, True)}
        transports = list(Transport)
        app = AppFacts("rig", "raw", envelope)
        self.clients = Clients(self.engine, self.settings, app, self.mint, sites, transports, tls, self.passages)
        self.listeners: list[socket.socket] = []
        for transport in transports:
            listener = socket.socket(socket.AF_UNIX if transport is Transport.LOCAL else socket.AF_INET)
            listener.bind("" if transport is Transport.LOCAL else ("127.0.0.1", 0))
            listener.listen(256)
            listener.setblocking(False)
            self.listeners.append(listener)
            self.engine.listen(listener.fileno(), transport)

    def succeed(self, rewind: int = 0, given_back: bool = True) -> tuple[int, int]:
        """The acceptor dies as by kill -9, and a successor takes its place: (sessions adopted, sessions ended).

        Args:
            rewind: bytes of the shard's data ring that it had dealt with without having said so.
            given_back: False: it had said so, and had not given their room back.
        """
        for listener in self.listeners:
            listener.close()
        del self.engine, self.clients
        if rewind:
            self._rewind(rewind, given_back)
        assert _core.settle(_core.Node(0, self.segments, self.doorbells), 1)
        self.node = _core.Node(1, self.segments, self.doorbells)
        self._build(*self._how)
        return self.engine.take_over(2)

    def _rewind(self, size: int, given_back: bool) -> None:
        # struct sp_ring of layout.h: the link of process 2 in the acceptor's segment, its data ring
        ring = 4096 + 2 * (2 * 512 + (1 << 20) + (1 << 18))
        with mmap.mmap(self.segments[1], 0) as memory:
            (linked,) = struct.unpack_from("<Q", memory, ring + 256)
            if given_back:
                struct.pack_into("<Q", memory, ring + 256, linked - size)
            struct.pack_into("<Q", memory, ring + 128, linked - size)

    def _lifecycle(self, target: Any, kind: int, a: int, b: int, payload: bytes) -> None:
        if isinstance(target, SessionObject) and kind == RESUMED:
            target.resumed.append(a)
        elif isinstance(target, SessionObject):
            assert kind == DETACH
            target.detached.append(a)
        elif kind == OPERATION:
            target.operations.append(payload)
            self.shard.reply_client(a, b, b"done: " + payload)
        elif kind == ATTACH:
            target.hellos.append(payload)
            if self.refuse is not None:
                self.shard.post_process(1, REFUSED, b, self.refuse[0], self.refuse[1])
            elif self.bind_sessions:
                self.bind(a, b)

    def bind(self, session: int, client: int) -> None:
        """What the session handler does when it lets a client in."""
        ends, echo = SessionObject(), Echo()
        slot = self.shard.allocate(2, ends, self._table, client, session)
        actor = self.shard.allocate(3, echo, self._table, client, session)
        self.shard.set_route(slot, actor)
        self.sessions.append((slot, ends, actor, echo, client))
        self.shard.post_process(1, BOUND, client, actor, slot.to_bytes(8, "little"))

    def close(self) -> None:
        """Give descriptors back."""
        self.passages.close()
        for sock in (*self.listeners, *(peer.sock for peer in self.peers)):
            sock.close()
        del self.engine, self.shard
        for fd in (*self.segments, *self.doorbells):
            os.close(fd)

    def step(self) -> None:
        """One turn of each side."""
        for event in self.engine.poll(0):
            if event[0] == Event.READY:
                self.clients.receive()
            elif not self.clients.handle(*event):
                self.events.append(event)
        self.clients.settle()
        if self.shard_runs:
            self.shard.run(SLICE_NS)
            self.shard.park()

    def until(self, condition: Callable[[], Any], why: str = "") -> Any:
        """Step until the condition holds; returns what it returned."""
        deadline = time.monotonic() + PATIENCE
        while not (result := condition()):
            assert time.monotonic() < deadline, why or "the condition did not come true"
            self.step()
        return result

    def steps(self, seconds: float) -> None:
        """Step for a time: for showing that something does not happen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.step()

    def connect(self, transport: Transport = Transport.TCP, narrow: bool = False) -> Peer:
        """A raw client connection; narrow: the kernel takes little on the client's behalf."""
        sock = socket.socket(self.listeners[transport].family)
        if narrow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(self.listeners[transport].getsockname())
        sock.setblocking(False)
        self.peers.append(Peer(self, sock))
        return self.peers[-1]

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def session(self, hello: bytes = b'{"v":1}', narrow: bool = False) -> Peer:
        """A client whose session is bound; the welcome is read."""
        peer = self.connect(narrow=narrow)
        peer.send(b"H" + hello)
        self.welcome = peer.frame()
        assert self.welcome[:1] == b"W"
        return peer

    @property
    def counters(self) -> dict[str, int]:
        """The acceptor's."""
        return self.node.counters(1)


class Peer:
    """A client's end of a connection; reading steps the rig."""

    def __init__(self, rig: Rig, sock: socket.socket) -> None:
        self._rig = rig
        self.sock = sock
        self.data = b""
        self.over = False

    def write(self, data: bytes) -> None:
        """Bytes as they are; the rig moves while the socket is full."""
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                self._rig.step()

    def send(self, *frames: bytes) -> None:
        """Frames, each behind its length."""
        self.write(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))

    def pull(self) -> None:
        """Take what has arrived."""
        try:
            piece = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            piece = b""
        self.data += piece
        self.over = self.over or not piece

    def _has(self, size: int) -> bool:
        self.pull()
        return len(self.data) >= size or self.over

    def read(self, size: int) -> bytes:
        """Exactly so many bytes, fewer only at the end of the stream."""
        self._rig.until(lambda: self._has(size), f"{size} bytes awaited, got {self.data[:200]!r}")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def frame(self) -> bytes:
        """The next frame; b"" at the end of the stream."""
        head = self.read(4)
        return self.read(struct.unpack(">I", head)[0]) if len(head) == 4 else b""

    def close_code(self) -> int:
        """Code of the C frame that comes next, behind which the stream ends."""
        frame = self.frame()
        while frame[:1] in (b"M", b"R", b"E", b"P"):
            frame = self.frame()
        assert frame[:1] == b"C", frame
        assert self.read(1) == b""
        return int(msgspec.json.decode(frame[1:])["code"])

    def rest(self) -> bytes:
        """Everything up to the end of the stream."""
        self._rig.until(lambda: self._has(1 << 40))
        taken, self.data = self.data, b""
        return taken
