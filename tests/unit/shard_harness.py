"""Whole shards in one test process: the real executor and runtime of each, on the test's event loop.

The test plays the acceptor: it attaches sessions, publishes their frames, and reads what comes for it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from shardpool import _core
from shardpool.app import App
from shardpool.dead_letters import DeadLetterFile
from shardpool.directory import Directory
from shardpool.workers.context import ShardContext, ShardSettings
from shardpool.workers.places import IDENTITY
from shardpool.workers.runtime import Hooks, ShardRuntime
from shardpool.workers.shard import task_hooks

T = TypeVar("T")
PATIENCE = 10.0
BUDGET_NS = 10_000_000


@dataclass(frozen=True)
class Received:
    """One record that came to the acceptor."""

    kind: int
    target: int
    a: int
    b: int
    payload: bytes

    @property
    def json(self) -> Any:
        """Its payload as JSON."""
        return json.loads(self.payload)


class LiveShard:
    """One shard on the test's loop."""

    def __init__(self, pool: Pool, number: int, app: App, take_over: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.planned = False
        process = 1 + pool.acceptors + number
        self.node = _core.Node(process, pool.segments, pool.doorbells)
        hooks = Hooks(loop, self.plan, *task_hooks())
        self.core = _core.Shard(self.node, number, hooks, BUDGET_NS)
        self.context = ShardContext(
            shard=self.core,
            loop=loop,
            number=number,
            shards=pool.shards,
            acceptors=pool.acceptors,
            blueprint=app.compile(),
            settings=pool.settings,
            directory=Directory(_core.Directory(self.node), app.name),
        )
        hooks.runtime = self.runtime = ShardRuntime(self.context, _core.Table, DeadLetterFile(pool.letters, 1 << 20))
        self._doorbell = pool.doorbells[process]
        if not take_over:
            return
        self.runtime.take_over()
        loop.add_reader(self._doorbell, self._ring)
        self.plan()

    def plan(self) -> None:
        if not self.planned:
            self.planned = True
            self._loop.call_soon(lambda: self._pump())

    def _ring(self) -> None:
        self.core.wake()
        self.runtime.deaths.look()
        self.plan()

    def _pump(self) -> None:
        self.planned = False
        if self.core.run(BUDGET_NS) or not self.core.park():
            self.plan()

    def stop(self) -> None:
        """No more turns."""
        self._loop.remove_reader(self._doorbell)
        self.plan = lambda: None  # type: ignore[method-assign]
        self._pump = lambda: None  # type: ignore[method-assign]

    def die(self) -> None:
        """Stop as a killed process does: what its tasks and timers still do changes nothing in shared memory."""
        self.stop()
        self.context.shard = Gone()  # type: ignore[assignment]


class Deciding:
    """The executor of a shard that takes over and is killed before it restores anything."""

    def __init__(self, real: _core.Shard) -> None:
        self._real = real

    def adopt(self) -> Any:
        return self._real.adopt()

    def incarnation(self, process: int) -> int:
        return self._real.incarnation(process)

    def restore(self, *arguments: Any) -> bool:
        return True

    def route_of(self, address: int) -> int | None:
        return self._real.route_of(address)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: 0


class Gone:
    """The executor of a shard that died."""

    current = turn = sessions = 0

    def acquire_gate(self, address: int) -> bool:
        return True  # who waits for a gate is not cancelled, and this one comes from nowhere

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: 0


@dataclass
class Client:
    """One session's client, as the acceptor has it."""

    pool: Pool
    address: int
    session: int
    actor: int = 0
    slot: int = 0
    pushed: list[Any] = field(default_factory=list)
    replies: dict[int, Any] = field(default_factory=dict)
    errors: list[tuple[int, Any]] = field(default_factory=list)
    refused: tuple[int, str] | None = None
    closed: tuple[int, str] | None = None
    asked: int = 0

    def send(self, message: Any, *, flags: int = 0, request: int = 0) -> int:
        """Publish one frame to the bound actor, as an acceptor does. Returns: the outcome."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.pool.publish(self, body, flags)

    async def ask(self, message: Any) -> Any:
        """Ask, and wait for the reply. Raises: AskFailed."""
        self.replies.pop(1, None)
        errors = len(self.errors)
        outcome = self.send(message, flags=_core.FLAG_ASK)
        assert outcome == 0, outcome
        await self.pool.until(lambda: 1 in self.replies or len(self.errors) > errors)
        if 1 in self.replies:
            return self.replies.pop(1)
        raise AskFailed(self.errors[-1][1])

    def disconnect(self, code: int = 1000) -> None:
        """The client is gone."""
        self.pool.post(self.slot, _core.KIND_DETACH, code, 0)


class AskFailed(Exception):
    """The reply was an error; its body is the argument."""

    @property
    def code(self) -> str:
        """The body's code."""
        code: str = self.args[0]["code"]
        return code

    @property
    def message(self) -> str:
        """The body's sentence."""
        message: str = self.args[0]["message"]
        return message


class Pool:
    """Some shards and the test as acceptor 0; one more shard segment lets the test post records."""

    def __init__(self, shards: int, letters: Path | None = None, **settings: Any) -> None:
        self.shards = shards
        self.letters = letters or Path(os.devnull)
        self.acceptors = 1
        self.settings = ShardSettings(**settings)
        geometry = _core.Geometry(1, shards + 1, slots=4096, permits=1024, arena_bytes=8 << 20, directory_entries=1024)
        processes = 1 + 1 + shards + 1
        self.segments = [_core.create_segment(geometry, process) for process in range(processes)]
        self.doorbells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(processes)]
        self._acceptor = _core.Node(1, self.segments, self.doorbells)
        loop = asyncio.get_running_loop()
        driver_node = _core.Node(processes - 1, self.segments, self.doorbells)
        self._driver = _core.Shard(driver_node, shards, Hooks(loop, lambda: None, None, None, None))
        self.live: list[LiveShard] = []
        self.clients: dict[int, Client] = {}
        self.records: list[Received] = []
        self._sessions = 0

    def start(self, app: App) -> None:
        """Start all shards with an app."""
        self.live = [LiveShard(self, number, app) for number in range(self.shards)]

    def die(self, number: int) -> None:
        """A shard's process dies, and the supervisor settles."""
        self.live[number].die()
        supervisor = _core.Node(0, self.segments, self.doorbells)
        assert _core.settle(supervisor, 1 + self.acceptors + number)

    def restart(self, number: int, app: App) -> None:
        """A shard's process dies and its successor starts."""
        self.die(number)
        self.succeed(number, app)

    def succeed(self, number: int, app: App) -> None:
        """The successor of a shard that died starts."""
        self.live[number] = LiveShard(self, number, app)

    def route(self, client: Client) -> int:
        """Where a client's messages go."""
        return self._acceptor.slot(client.slot)["route"]

    def die_before_restoring(self, number: int, app: App) -> None:
        """A successor is killed when it has decided about what was cut off, and has changed nothing in the slots."""
        successor = LiveShard(self, number, app, take_over=False)
        real = successor.context.shard
        successor.context.shard = Deciding(real)  # type: ignore[assignment]
        successor.runtime.take_over()
        successor.context.shard = Gone()  # type: ignore[assignment]
        supervisor = _core.Node(0, self.segments, self.doorbells)
        assert _core.settle(supervisor, 1 + self.acceptors + number)

    def blame(self, number: int, client: Client) -> None:
        """The shard is at this client's actor when it dies."""
        self.live[number].core.stepping(self.route(client))

    def counter(self, number: int, name: str) -> int:
        """What a shard shows for status."""
        return self._acceptor.counters(1 + self.acceptors + number)[name]

    def objects(self, number: int) -> int:
        """How many objects a shard has, its system object included."""
        return self.counter(number, "objects")

    def close(self) -> None:
        """Stop the shards, close descriptors."""
        for shard in self.live:
            shard.stop()
        for fd in (*self.segments, *self.doorbells):
            os.close(fd)

    def post(self, address: int, kind: int, a: int = 0, b: int = 0, payload: bytes = b"") -> None:
        """A lifecycle record to an object."""
        outcome = self._driver.post(address, kind, a, b, payload)
        assert outcome == 0, outcome
        self._driver.park()  # rings whom it owes a ring

    def publish(self, client: Client, body: bytes, flags: int) -> int:
        """One frame; a sealed or stale address has the route read again, as acceptors do."""
        outcome = _core.publish_frames(self._acceptor, client.actor, client.address, body, 1, flags)
        route = self._acceptor.slot(client.slot)["route"]
        if outcome in (_core.SEALED, _core.STALE) and route not in (0, client.actor):
            client.actor = route
            return self.publish(client, body, flags)
        return outcome

    async def connect(self, auth: Any = None, *, home: int = 0) -> Client:
        """Attach a session and wait until it is bound or refused."""
        self._sessions += 1
        session = self._sessions * self.shards + home
        client = Client(self, 1 << 32 | self._sessions, session)
        self.clients[client.address] = client
        hello = json.dumps({"v": 1, "auth": auth}).encode()
        self.post(system_object(home), _core.KIND_ATTACH, session, client.address, hello)
        await self.until(lambda: client.actor != 0 or client.refused is not None)
        return client

    def entries(self, *types: str) -> list[str]:
        """Ids of some types that are in the directory; of players and identities by default."""
        directory = self.live[0].context.directory
        return [entry.id for name in types or ("Player", "Admin", IDENTITY) for entry in directory.list(name, "", 1000)]

    def look(self) -> None:
        """Take in what came for the acceptor."""
        for kind, _, target, a, b, payload in _core.drain_links(self._acceptor, True):
            record = Received(kind, target, a, b, payload)
            self.records.append(record)
            self._take(record)

    def _take(self, record: Received) -> None:
        client = self.clients.get(record.a)
        match record.kind:
            case _core.KIND_BOUND if client is not None:
                client.actor = record.b
                client.slot = int.from_bytes(record.payload, "little")
            case _core.KIND_REFUSED if client is not None:
                client.refused = (record.b, record.payload.decode())
            case _core.KIND_PUSH if client is not None:
                client.pushed.append(record.json)
            case _core.KIND_REPLY if client is not None:
                client.replies[record.b] = record.payload if record.payload[:1] == b"\xff" else record.json
            case _core.KIND_ERROR if client is not None:
                client.errors.append((record.b, record.json))
            case _core.KIND_CLOSE if client is not None:
                client.closed = (record.b, record.payload.decode())
            case _core.KIND_PUBLISH:
                self._take_publish(record)

    def _take_publish(self, record: Received) -> None:
        count = int.from_bytes(record.payload[:4], "little")
        body = json.loads(record.payload[8 + 8 * count :])
        for index in range(count):
            at = 8 + 8 * index
            client = self.clients.get(int.from_bytes(record.payload[at : at + 8], "little"))
            if client is not None:
                client.pushed.append(body)

    async def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait for a condition, taking in what comes. Raises: TimeoutError."""
        async with asyncio.timeout(patience):
            while True:
                self.look()
                if condition():
                    return
                await asyncio.sleep(0.001)


def system_object(shard: int) -> int:
    """Address of a shard's slot 0, whose first tenant it is."""
    return shard << 56 | 1 << 32


def run(test: Callable[[Pool], Awaitable[None]], app: App, shards: int = 1, **settings: Any) -> None:
    """Run a test's coroutine with a pool that serves the app."""

    async def body() -> None:
        pool = Pool(shards, **settings)
        try:
            pool.start(app)
            await test(pool)
        finally:
            pool.close()

    run_loop(body())


def run_loop(body: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, as shards do."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(body)
