"""Messages and their answers on live shards: handlers, errors, asks, sends, timers, trusted programs."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from shardpool import Actor, App, Rejected, Request, Spot, _core, every, on
from shardpool.workers import kinds

sys.path.insert(0, str(Path(__file__).parent))
from shard_harness import AskFailed, Client, Pool, Received, run, system_object

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


class Add(Struct, tag="add"):
    n: int


class Make(Struct, tag="make"):
    n: int


class Size(Struct):
    w: float


class GetSize(Request[Size], tag="size"):
    pass


class SendWait(Struct, tag="send_wait"):
    id: str
    message: str = "count"


class SendOff(SendWait, tag="send_off"):
    pass


class Relay(SendWait, tag="relay"):
    timeout: float | None = None


def make_app() -> App:
    app = App("test")

    @app.actor
    class Player(Actor):
        count = 0

        @on
        def add(self, msg: Add) -> int:
            self.count += msg.n
            return self.count

        @on
        def fail(self) -> None:
            raise ValueError("secret detail")

        @on
        def refuse(self) -> None:
            raise Rejected("no seat left", code="room_full")

        @on
        def unencodable(self) -> Any:
            return object()

        @on
        def nothing(self) -> None: ...

        @on
        def push_then_reply(self) -> str:
            self.session.send({"first": 1})
            return "second"

        @on
        def push_object(self) -> None:
            self.session.send(object())

        @on
        def push_long(self) -> None:
            self.session.send("x" * 70_000)

        @on
        async def timeouts(self) -> str:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(10)
            except TimeoutError:
                return "timeout"
            return "none"

        @on
        async def group(self) -> list[int]:
            async def part(n: int) -> int:
                await asyncio.sleep(0.001)
                return n

            async with asyncio.TaskGroup() as tasks:
                parts = [tasks.create_task(part(n)) for n in range(3)]
            return [task.result() for task in parts]

        @on
        async def group_fails(self) -> str:
            async def bad() -> None:
                await asyncio.sleep(0.001)
                raise KeyError

            caught = "none"
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(bad())
                    await asyncio.sleep(10)
            except* KeyError:
                caught = "caught"
            return caught

        @on
        async def no_suspend(self) -> int:
            async with asyncio.timeout(10):
                return 7

        @on
        async def variables(self) -> int:
            variable.set(variable.get() + 1)
            await asyncio.sleep(0)
            return variable.get()

        @on
        async def slow_then_add(self) -> int:
            seen = self.count
            await asyncio.sleep(0.02)
            self.count = seen + 100
            return self.count

        @on
        async def late_failure(self) -> None:
            await asyncio.sleep(0.001)
            raise Rejected("later")

        @on
        async def relay(self, msg: Relay) -> Any:
            return await self.ask(Counter, msg.id, msg.message, timeout=msg.timeout)

        @on
        async def make(self, msg: Make) -> str:
            return (await self.create(Counter, f"c{msg.n}")).result

        @on
        async def typed(self) -> float:
            await self.create(Counter, "typed")
            size = await self.ask(Counter, "typed", GetSize())
            return size.w

        @on
        async def ask_self(self) -> Any:
            return await self.ask(Player, self.id, "nothing")

        @on
        async def send_self(self) -> None:
            await self.send(Player, self.id, Add(n=5))

        @on
        async def send_nobody(self) -> None:
            await self.send(Counter, "nobody", "count")

        @on
        async def send_wait(self, msg: SendWait) -> None:
            await self.send(Counter, msg.id, msg.message)

        @on
        def send_off(self, msg: SendOff) -> None:
            self.send(Counter, msg.id, msg.message)

        @on
        async def used_twice(self) -> None:
            call = self.ask(Counter, "c1", "count")
            await call
            await call

        @on
        async def yielding_here(self) -> None:
            await self.ask(Counter, "c1", "count").yielding()

    @app.spot
    class Counter(Spot):
        n = 0
        lateness = -1.0

        @on
        def count(self) -> int:
            self.n += 1
            return self.n

        @on
        def boom(self) -> None:
            raise ZeroDivisionError

        @on
        async def never(self) -> None:
            await asyncio.sleep(3600)

        @on
        def size(self, msg: GetSize) -> Size:
            return Size(2.5)

        @on
        def where(self) -> int:
            return self.shard

    return app


def reply_of(pool_app: App, *messages: Any, shards: int = 1, **settings: Any) -> list[Any]:
    """What one client gets for messages, errors as (code, message)."""
    answers: list[Any] = []

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        for message in messages:
            try:
                answers.append(await client.ask(message))
            except AskFailed as error:
                answers.append((error.code, error.message))

    run(body, pool_app, shards, **settings)
    return answers


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": name, **fields}


def test_kinds_are_the_cores() -> None:
    """P-14: both sides of the binding number records and outcomes alike."""
    for name in ("FRAME", "CALL", "TIMER", "ATTACH", "DETACH", "BOUND", "REFUSED", "ROUTE", "XOFF", "XON"):
        assert getattr(_core, f"KIND_{name}") == kinds.Kind[name]
    assert kinds.Kind.OPERATION == _core.KIND_CUSTOM
    for outcome in kinds.Outcome:
        assert getattr(_core, outcome.name) == outcome


def test_reply_is_the_return_value() -> None:
    """P-14: state between messages, null for None, pushes before the reply."""
    assert reply_of(make_app(), named("add", n=2), named("add", n=3), named("nothing")) == [2, 5, None]


def test_push_comes_before_the_reply_of_its_turn() -> None:
    """P-8: what a handler pushed before it returned comes before its reply."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        assert await client.ask(named("push_then_reply")) == "second"
        kinds_seen = [record.kind for record in pool.records[-2:]]
        assert kinds_seen == [_core.KIND_PUSH, _core.KIND_REPLY]
        assert client.pushed == [{"first": 1}]

    run(body, make_app())


def test_failures_give_code_and_sentence_and_the_object_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """T-27, O-1, P-14: no detail of a foreign exception reaches the client; the log has the traceback."""
    with caplog.at_level(logging.INFO, "shardpool"):
        answers = reply_of(
            make_app(),
            named("fail"),
            named("refuse"),
            named("unencodable"),
            named("late_failure"),
            named("nobody"),
            named("add", n="x"),
            b"{not json",
            b'{"type":"add","n":\xff}',
            named("push_object"),
            named("push_long"),
            named("add", n=1),
        )
    codes = [answer[0] for answer in answers[:-1]]
    assert codes == [
        "handler_raised",
        "room_full",
        "reply_not_encodable",
        "rejected",
        "unknown_message",
        "bad_message",
        "bad_message",
        "bad_message",
        "type_mismatch",
        "too_big",
    ]
    assert answers[-1] == 1
    assert answers[1][1] == "no seat left"
    assert "add" in answers[4][1]
    assert "$.n" in answers[5][1]
    assert all("secret" not in str(answer) and "Traceback" not in str(answer) for answer in answers)
    assert "secret detail" in caplog.text
    assert "ValueError" in caplog.text


def test_async_handlers_have_all_of_asyncio() -> None:
    """T-3, P-14: timeouts, task groups, failing groups, contextvars that last, and no task where nothing suspends."""
    answers = reply_of(
        make_app(),
        named("timeouts"),
        named("group"),
        named("group_fails"),
        named("no_suspend"),
        named("variables"),
        named("variables"),
    )
    assert answers == ["timeout", [0, 1, 2], "caught", 7, 1, 2]


def test_awaiting_keeps_the_turn() -> None:
    """T-3, T-6: the next record does not begin before the suspended one is over."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        client.send(named("slow_then_add"))
        client.send(named("add", n=1))
        assert await client.ask(named("add", n=1)) == 102

    run(body, make_app())


@pytest.mark.parametrize("shards", [1, 3])
def test_asks_reach_objects_on_the_same_and_on_other_shards(shards: int) -> None:
    """T-9, T-40, P-26: by type and id, created or existing, wherever the id's home is."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        other = await pool.connect(home=shards - 1)
        for n in range(6):
            assert await client.ask(named("make", n=n)) == "created"
            assert await other.ask(named("make", n=n)) == "existing"
            assert await client.ask(named("relay", id=f"c{n}")) == 1
            assert await other.ask(named("relay", id=f"c{n}")) == 2
        homes = {await client.ask(named("relay", id=f"c{n}", message="where")) for n in range(6)}
        assert len(homes) == min(shards, 3)

    run(body, make_app(), shards)


@pytest.mark.parametrize("shards", [1, 2])
def test_asks_that_fail(shards: int) -> None:
    """T-7, T-10, T-11, O-1: nobody there, the other raised, no handler, too late, itself, no gate to give."""
    answers = reply_of(
        make_app(),
        named("make", n=1),
        named("relay", id="nobody"),
        named("relay", id="c1", message="boom"),
        named("relay", id="c1", message="nosuch"),
        named("relay", id="c1", message="never", timeout=0.05),
        named("relay", id="c1", timeout=-1),
        named("ask_self"),
        named("yielding_here"),
        shards=shards,
    )
    assert [answer[0] for answer in answers[1:]] == [
        "not_found",
        "handler_raised",
        "unknown_message",
        "deadline",
        "invalid_operation",
        "invalid_operation",
        "invalid_operation",
    ]


def test_call_object_is_used_once() -> None:
    """T-5: the second await raises and submits nothing."""
    answers = reply_of(make_app(), named("make", n=1), named("used_twice"), named("relay", id="c1"))
    assert answers[1][0] == "invalid_operation"
    assert "used once" in answers[1][1]
    assert answers[2] == 2


def test_request_types_its_reply() -> None:
    """O-13: `Request[R]` decodes the reply as R."""
    assert reply_of(make_app(), named("typed")) == [2.5]


def test_open_asks_are_bounded() -> None:
    """M-21: the place of a completion is reserved before anything is submitted."""
    answers = reply_of(make_app(), named("make", n=1), open_asks=0)
    assert answers == ["created"]
    assert reply_of(make_app(), named("make", n=1), named("relay", id="c1"), open_asks=0)[1][0] == "asks_full"


@pytest.mark.parametrize("shards", [1, 2])
def test_sends(shards: int) -> None:
    """T-11, T-36, O-3: to oneself at the tail, to others, to nobody."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        await client.ask(named("send_self"))
        assert await client.ask(named("add", n=0)) == 5
        with pytest.raises(AskFailed) as caught:
            await client.ask(named("send_nobody"))
        assert caught.value.code == "not_found"
        await client.ask(named("make", n=2))
        for _ in range(3):
            await client.ask(named("send_wait", id="c2"))
            await client.ask(named("send_off", id="c2"))
        await asyncio.sleep(0.01)
        assert await client.ask(named("relay", id="c2")) == 7

    run(body, make_app(), shards)


def test_full_lane_holds_an_awaited_send_until_its_deadline_and_drops_the_others() -> None:
    """T-36: `await send` waits up to send_timeout; what is not awaited is dropped and counted."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        await client.ask(named("make", n=1))
        client.send(named("relay", id="c1", message="never"))
        context = pool.live[0].context
        sender = await pool.connect()
        filled = pool.live[0].runtime.places.find("Counter", "c1")
        await asyncio.sleep(0.01)
        while pool.live[0].core.send(filled, b"\x80") == 0:
            pass
        with pytest.raises(AskFailed) as caught:
            await sender.ask(named("send_wait", id="c1"))
        assert caught.value.code == "deadline"
        with pytest.raises(AskFailed) as caught:
            await sender.ask(named("relay", id="c1"))
        assert caught.value.code == "lane_full"
        await sender.ask(named("send_off", id="c1"))
        await pool.until(lambda: context.counts.dropped_sends == 1)

    run(body, make_app(), send_timeout=0.1)


def test_awaited_push_waits_for_a_client_that_is_behind() -> None:
    """P-9, T-36: up to send_timeout, then DeadlineExceeded; XON lets it go on."""
    app = App("test")

    @app.actor
    class Player(Actor):
        @on
        async def push(self) -> str:
            await self.session.send(1)
            return "done"

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        outbox = pool.live[0].runtime.outbox
        outbox.client_is_behind(client.address)
        with pytest.raises(AskFailed) as caught:
            await client.ask(named("push"))
        assert caught.value.code == "deadline"
        client.send(named("push"), flags=_core.FLAG_ASK)
        await asyncio.sleep(0.02)
        assert not client.replies
        outbox.client_caught_up(client.address)
        await pool.until(lambda: client.replies == {1: "done"})

    run(body, app, send_timeout=0.1)


def test_timers_tick_skip_and_end_with_their_object() -> None:
    """T-33: own cadence, no overlap, missed ticks skipped, none after the end."""
    app = App("test")
    ticks: list[tuple[str, float]] = []
    running = 0

    @app.actor
    class Player(Actor):
        @every(0.01)
        async def slow(self, lateness: float) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0.035)
            ticks.append(("slow", lateness))
            running -= 1

        @every(0.01)
        def broken(self) -> None:
            ticks.append(("broken", 0.0))
            raise ValueError

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        await pool.until(
            lambda: [t[0] for t in ticks].count("slow") >= 3 and [t[0] for t in ticks].count("broken") >= 2
        )
        assert all(0 <= lateness < 1 for _, lateness in ticks)
        assert pool.live[0].context.counts.skipped_ticks >= 4
        client.disconnect()
        await pool.until(lambda: pool.live[0].node.counters(2)["objects"] == 1)
        seen = len(ticks)
        await asyncio.sleep(0.05)
        assert len(ticks) == seen

    run(body, app)


def test_listings_show_what_objects_advertise() -> None:
    """P-26: listed by type with published properties, from any shard; pages by id; too much is refused."""
    app = App("test")

    @app.actor
    class Player(Actor):
        @on
        async def make(self, msg: Make) -> None:
            await self.create(Room, f"r{msg.n}", msg.n)

        @on
        def rooms(self) -> list[Any]:
            first = self.listing(Room, limit=2)
            rest = self.listing(Room, after=first[-1].id)
            return [[e.id, e.shard, e.properties] for e in first + rest]

        @on
        def there(self) -> list[bool]:
            return [self.exists(Room, "r1"), self.exists(Room, "r9")]

        @on
        def too_much(self) -> None:
            self.advertise(text="x" * 200)

    @app.spot
    class Room(Spot):
        @staticmethod
        def shard_of(id: str) -> int:
            return int(id[1:])

        @every(0.01)
        def tick(self) -> None:
            self.advertise(seats=int(self.id[1:]))

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        for n in range(3):
            await client.ask(named("make", n=n))
        assert await client.ask(named("there")) == [True, False]
        async with asyncio.timeout(5):
            while (rooms := await client.ask(named("rooms")))[2][2] != {"seats": 2}:
                await asyncio.sleep(0.005)
        assert [room[:2] for room in rooms] == [["r0", 0], ["r1", 1], ["r2", 0]]
        with pytest.raises(AskFailed) as caught:
            await client.ask(named("too_much"))
        assert caught.value.code == "type_mismatch"
        assert pool.live[0].node.counters(2)["sessions"] == 1

    run(body, app, 2)


async def operate(pool: Pool, **operation: Any) -> Any:
    """One request of a trusted program, to shard 0."""
    pool.clients[77] = client = Client(pool, 77, 0)
    pool.post(system_object(0), _core.KIND_CUSTOM, 77, 5, msgspec.msgpack.encode(operation))
    found: list[Received] = []

    def there() -> bool:
        found.extend(r for r in pool.records if r.a == 77)
        return bool(found)

    pool.records.clear()
    client.replies.clear()
    try:
        await pool.until(there)
    except ValueError:  # the reply is MessagePack, not JSON: the records have it
        found.extend(r for r in pool.records if r.a == 77)
    assert found[0].b == 5
    if found[0].kind == _core.KIND_ERROR:
        raise AskFailed(found[0].json)
    return msgspec.msgpack.decode(found[0].payload)


@pytest.mark.parametrize("shards", [1, 2])
def test_trusted_programs_ask_send_find_list_and_publish(shards: int) -> None:
    """P-27: over all shards, with codes for what cannot be."""

    async def body(pool: Pool) -> None:
        client = await pool.connect()
        for n in range(3):
            await client.ask(named("make", n=n))
        assert await operate(pool, op="ask", type="Counter", id="c1", message={"type": "count"}) == 1
        assert await operate(pool, op="send", type="Counter", id="c1", message={"type": "count"}) is None
        assert await operate(pool, op="ask", type="Counter", id="c1", message={"type": "count"}) == 3
        found = await operate(pool, op="find", type="Counter", id="c1")
        assert found["id"] == "c1"
        assert await operate(pool, op="find", type="Counter", id="c9") is None
        listed = await operate(pool, op="list", type="Counter", limit=2)
        assert [entry["id"] for entry in listed] == ["c0", "c1"]
        rest = await operate(pool, op="list", type="Counter", after="c1")
        assert [entry["id"] for entry in rest] == ["c2"]
        assert await operate(pool, op="publish", type="Counter", id="c1", message={"x": 1}) == 0
        for code, operation in {
            "protocol_error": {"op": "explode"},
            "not_configured": {"op": "find", "type": "Nope", "id": "x"},
            "not_found": {"op": "ask", "type": "Counter", "id": "c9", "message": {"type": "count"}},
            "type_mismatch": {"op": "publish", "type": "Player", "id": "x", "message": 1},
            "deadline": {"op": "ask", "type": "Counter", "id": "c0", "message": {"type": "never"}, "timeout": 0.02},
        }.items():
            with pytest.raises(AskFailed) as caught:
                await operate(pool, **operation)
            assert caught.value.code == code

    run(body, make_app(), shards)


def test_askers_of_an_object_that_ends_are_told_at_once() -> None:
    """T-40, M-2: asks that still wait in an ended object's lane get an error, clients' and objects' alike."""
    app = App("test")

    @app.actor
    class Player(Actor):
        @on
        async def leave(self) -> None:
            await asyncio.sleep(0.01)
            self.close()

        @on
        def hello(self) -> str:
            return "hello"

        @on
        async def relay(self, msg: Relay) -> Any:
            return await self.ask(Room, msg.id, msg.message, timeout=30.0)

        @on
        async def make(self, msg: Make) -> None:
            await self.create(Room, str(msg.n))

    @app.spot
    class Room(Spot):
        @on
        async def leave(self) -> None:
            await asyncio.sleep(0.01)
            self.close()

        @on
        def hello(self) -> str:
            return "hello"

    async def body(pool: Pool) -> None:
        one, two, three = [await pool.connect() for _ in range(3)]
        await one.ask(named("make", n=1))
        asks = [
            asyncio.ensure_future(client.ask(message))
            for client, message in (
                (one, named("relay", id="1", message="leave")),
                (two, named("relay", id="1", message="hello")),
                (three, named("leave")),
                (three, named("hello")),
            )
        ]
        async with asyncio.timeout(5.0):
            results = await asyncio.gather(*asks, return_exceptions=True)
        assert [result.code for result in results if isinstance(result, AskFailed)] == ["stale", "stale"]

    run(body, app)
