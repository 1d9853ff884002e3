"""The kit itself: runs the parts of a node, one step of one part after another, as the dice say."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from shardpool.actor import Actor
from shardpool.app import App
from shardpool.calls import encode_message, encode_value
from shardpool.codecs import decode_msgpack
from shardpool.errors import NotFound
from shardpool.objects import TurnObject
from shardpool.spot import Spot
from shardpool.testing.acceptor import Inbox
from shardpool.testing.client import Answer, Client, Message
from shardpool.testing.dice import SEED_VARIABLE, Dice
from shardpool.testing.limits import SETTLE_SECONDS, STEPS_MAX, STEPS_SHOWN, TURNS_SHOWN, Endless, NotSettled
from shardpool.testing.loop import Clock
from shardpool.testing.parts import KitShard, Memory
from shardpool.testing.watch import Watch
from shardpool.workers.lives import outcome_of
from shardpool.workers.shard import run_hooks

A = TypeVar("A", bound=Actor)
S = TypeVar("S", bound=Spot)
O = TypeVar("O", bound=TurnObject)  # noqa: E741

_SLACK = 1e-6  # sums of fractions differ by less; a timer that is due within it is due
_LAG_CHANCE = 0.1
_ENDING_STEPS = 20_000


class Kit:
    """An app on some shards in this process, until the end of the `with` block.

    Args: shards: how many. seed: decides the interleaving; None: SHARDPOOL_SEED, else a fresh one, shown on failure.
          lag: virtual seconds by which work that is ready may be late when time passes; 0: none is.
          steps: limit of one run. settings: of the shards, by name: ask_timeout, send_timeout, open_asks, frame_bytes.
    """

    def __init__(
        self,
        app: App,
        *,
        shards: int = 1,
        seed: int | None = None,
        lag: float = 0.0,
        steps: int = STEPS_MAX,
        **settings: Any,
    ) -> None:
        self.app = app
        self._dice = Dice(seed)
        self._count = shards
        self._settings = settings
        self._lag = lag
        self._steps = steps
        self._clock = Clock()
        self._quiet_at = self._clock.now
        self._blueprint = app.compile()
        self._watch = Watch()
        self._clients: dict[int, Client] = {}
        self._shards: list[KitShard] = []
        self._memory: Memory | None = None
        self._inbox: Inbox | None = None
        self._random: Any = None

    def __enter__(self) -> Kit:
        memory = self._memory = Memory(self._count)
        self._inbox = Inbox(memory, self._clients)
        self._watch.begin()
        # Handlers that draw from `random` are part of what the seed replays.
        self._random = random.getstate()
        random.seed(self.seed)
        try:
            for number in range(self._count):
                shard = KitShard(memory, number, self._count, self._blueprint, self._settings, self._dice, self._clock)
                self._shards.append(shard)
            self._run_hooks(self.app.start_hooks, "on_start")
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._run_hooks(self.app.stop_hooks, "on_stop")
        except Exception as failed:
            failed.add_note(self.replay)
            raise
        finally:
            if error is not None:
                error.add_note(self.replay)
            random.setstate(self._random)
            self._end()
            self._watch.end()

    @property
    def seed(self) -> int:
        """What replays this run."""
        return self._dice.seed

    @property
    def replay(self) -> str:
        """The line that runs this test again with the same interleaving."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        command = f"pytest '{test}'" if test else "the test"
        return f"shardpool.testing: to replay this: {SEED_VARIABLE}={self.seed} {command}"

    @property
    def trace(self) -> list[str]:
        """The last steps, each `time part what`."""
        return list(self._dice.trace)

    @property
    def fingerprint(self) -> str:
        """Of all steps since the start: equal for equal runs."""
        return self._dice.fingerprint

    @property
    def now(self) -> float:
        """Virtual seconds, as `asyncio.get_running_loop().time()` gives them in handlers."""
        return self._clock.now

    @property
    def raised(self) -> list[BaseException]:
        """Exceptions of handlers and callbacks that were no ShardpoolError, in order."""
        return self._watch.raised

    @property
    def logged(self) -> list[str]:
        """Lines of shardpool's log so far."""
        return [record.getMessage() for record in self._watch.records]

    def connect(self, auth: Any = None, *, home: int | None = None) -> Client:
        """A new client, whose hello is under way.

        Args: auth: what `on_connect` finds in `hello.auth`. home: the session's shard; None: shards take turns.
        """
        index = len(self._clients) + 1
        shard = index % self._count if home is None else home
        session = (index + 1) * self._count + shard
        hello = json.dumps({"v": 1, "auth": auth}).encode()
        client = Client(self._opened, self, self.app.codec, index, shard, session, hello)
        self._clients[client.address] = client
        return client

    def ask(self, target: type[TurnObject], id: str, message: Message, *, timeout: float = 30.0) -> Answer:
        """Ask an object from outside, as a trusted program does. Returns: the place of the reply."""
        described = f"ask {target.__name__} {id!r}"
        payload = encode_message(message, described)
        runtime = self._dice.choice(self._shards).runtime
        kind = self._blueprint.find(target)

        async def ask() -> Any:
            return decode_msgpack(await runtime.asking.ask(None, kind, id, payload, self.now + timeout))

        return self._answer(runtime.shard, ask(), described)

    def create(self, target: type[TurnObject], id: str, request: Any = None, *, timeout: float = 30.0) -> Answer:
        """Get or create an object from outside. Returns: the place of the CreateOutcome."""
        described = f"create {target.__name__} {id!r}"
        payload = encode_value(request, described)
        runtime = self._dice.choice(self._shards).runtime
        kind = self._blueprint.find(target)

        async def create() -> Any:
            return outcome_of(await runtime.lives.create(kind, id, payload, self.now + timeout))

        return self._answer(runtime.shard, create(), described)

    def _answer(self, shard: int, work: Coroutine[Any, Any, Any], described: str) -> Answer:
        answer = Answer(self, described, SETTLE_SECONDS)

        def done(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                answer.succeed(task.result())
            else:
                answer.fail(error)

        self._shards[shard].loop.create_task(work).add_done_callback(done)
        return answer

    def find(self, target: type[O], id: str) -> O | None:
        """The object itself, to look at; None: there is none."""
        name = self._blueprint.find(target).name
        address = self._shards[0].runtime.places.find(name, id)
        found = self._shards[address >> 56].core.target(address) if address else None
        return found if isinstance(found, target) else None

    def spot(self, target: type[S], id: str) -> S:
        """A Spot, to look at. Raises: NotFound."""
        return self._found(target, id)

    def actor(self, target: type[A], id: str) -> A:
        """An actor, to look at. Raises: NotFound."""
        return self._found(target, id)

    def _found(self, target: type[O], id: str) -> O:
        found = self.find(target, id)
        if found is None:
            raise NotFound(f"there is no {target.__name__} {id!r}; there are {', '.join(self.ids(target)) or 'none'}")
        return found

    def ids(self, target: type[TurnObject]) -> list[str]:
        """Ids of the objects of a type, in order."""
        name = self._blueprint.find(target).name
        return [entry.id for entry in self._shards[0].runtime.places.list(name, "", 1000)]

    def living(self, target: type[O]) -> list[O]:
        """Every object of a class that holds a slot on any shard, whether it can be found by its id or not."""
        found = []
        for number, shard in enumerate(self._shards):
            for slot in range(shard.node.slots):
                address = number << 56 | slot
                generation = shard.node.slot(address)["generation"]
                tenant = shard.core.target(address | generation << 32)
                if isinstance(tenant, target):
                    found.append(tenant)
        return found

    def run(self) -> None:
        """Until there is nothing left to do at this moment. Raises: Endless."""
        self._work(None)

    def advance(self, seconds: float) -> None:
        """Let time pass: timers, timeouts and sleeps that are due by then have their effect. Raises: Endless."""
        target = self._clock.now + seconds
        self._work(target)
        while (due := self._due()) is not None and due <= target + _SLACK:
            self._clock.now = max(self._clock.now, due)
            for shard in self._shards:
                shard.loop.take_due()
            self._work(target)
        self._clock.now = max(self._clock.now, target)
        self._quiet_at = self._clock.now

    def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """Let time pass until no handler waits and nothing is under way.

        Args: seconds: the most that may pass. Raises: NotSettled, Endless.
        """
        self.until(lambda: not self._waits(), seconds, "an app with nothing under way")

    def until(self, condition: Callable[[], bool], seconds: float, described: str) -> None:
        """Let time pass until something is so. Args: seconds: the most that may pass. Raises: NotSettled, Endless."""
        self.run()
        end = self._clock.now + seconds
        while not condition():
            due = self._due()
            if due is None or due > end:
                raise NotSettled(
                    f"{described} did not come within {seconds:g} s of virtual time; {self._waits() or 'nothing waits'}"
                )
            self.advance(max(0.0, due - self._clock.now))

    def _due(self) -> float | None:
        dues = [due for shard in self._shards if (due := shard.loop.due()) is not None]
        return min(dues, default=None)

    def _waits(self) -> str:
        shards = [f"{shard.name}: {waits}" for shard in self._shards if (waits := shard.waits())]
        clients = [f"{client.name}: {client.unsent} unsent" for client in self._clients.values() if client.unsent]
        return "; ".join(shards + clients)

    @property
    def _opened(self) -> Memory:
        assert self._memory is not None, "use the kit in a with statement: with Kit(app) as kit"
        return self._memory

    def _work(self, target: float | None) -> None:
        """Steps until nothing is ready; with lag perhaps only until time may pass."""
        counted: dict[int, int] = {}
        for step in range(self._steps):
            if step == self._steps // 2:
                counted = self._turns()
            if not self._step():
                self._quiet_at = self._clock.now
                return
            if target is not None and self._lag and self._may_lag(target):
                return
        raise Endless(self._endless(counted))

    def _may_lag(self, target: float) -> bool:
        due = self._due()
        if due is None or due > min(target, self._quiet_at + self._lag):
            return False
        return self._dice.fraction() < _LAG_CHANCE

    def _step(self) -> bool:
        inbox = self._inbox
        assert inbox is not None
        rung = self._opened.rung()
        ready: list[KitShard | Client | Inbox] = [
            shard for shard in self._shards if shard.loop.ready or shard.doorbell in rung
        ]
        ready += [client for client in self._clients.values() if client.ready]
        if inbox.ready:
            ready.append(inbox)
        if not ready:
            return False
        part = self._dice.next_part(ready, [part.name for part in ready])
        if isinstance(part, KitShard):
            what = part.step(part.doorbell in rung)
            inbox.ready = True
            for client in self._clients.values():
                client.held = False
        else:
            what = part.step()
        self._dice.note(f"{self._clock.now:.6f} {part.name} {what}")
        return True

    def _turns(self) -> dict[int, int]:
        """Number of the last turn of every object that has an entry, by address."""
        places = self._shards[0].runtime.places
        entries = [
            places.find(name, entry.id) for name in self._blueprint.types for entry in places.list(name, "", 1000)
        ]
        return {address: self._shards[address >> 56].node.slot(address)["turn"] for address in entries if address}

    def _endless(self, counted: dict[int, int]) -> str:
        grown = {address: turn - counted.get(address, 0) for address, turn in self._turns().items()}
        busiest = sorted(grown, key=lambda address: grown[address], reverse=True)[:TURNS_SHOWN]
        objects = [
            f"{self._shards[address >> 56].core.target(address)!r} ({self._label(address)})"
            for address in busiest
            if grown[address]
        ]
        last = "\n  ".join(list(self._dice.trace)[-STEPS_SHOWN:])
        return (
            f"still busy after {self._steps:,} steps: objects that send in a circle, or a handler that never waits for "
            f"time to pass. Most turns: {', '.join(objects) or 'none, so look for a loop around sleep(0)'}. "
            f"The last steps:\n  {last}\n{self.replay}"
        )

    def _label(self, address: int) -> str:
        return str(getattr(self._shards[address >> 56].core.target(address), "_seat", "gone"))

    def _run_hooks(self, hooks: list[Callable[..., Any]], described: str) -> None:
        answers = [self._answer(number, run_hooks(hooks, number), described) for number in range(self._count) if hooks]
        for answer in answers:
            answer.get()

    def _end(self) -> None:
        """Cancel what is suspended, so that its `finally` blocks run and nothing is left for the collector."""
        self._watch.deaf = True  # what cancelling leads to is no news
        tasks = [(shard, task) for shard in self._shards for task in asyncio.all_tasks(shard.loop)]
        for shard, task in tasks:
            with shard.loop.entered():
                task.cancel()
        for _ in range(_ENDING_STEPS):
            if all(task.done() for _, task in tasks) or not self._step():
                break
        for shard in self._shards:
            shard.end()
        if self._memory is not None:
            self._memory.close()
