"""The kit as tests have it: clients, objects, time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar

from shardpool.actor import Actor
from shardpool.app import App
from shardpool.calls import encode_message, encode_value
from shardpool.codecs import decode_msgpack
from shardpool.errors import InvalidOperation, NotFound
from shardpool.objects import TurnObject
from shardpool.spot import Spot
from shardpool.testing.client import Answer, Client, Message
from shardpool.testing.dice import Dice
from shardpool.testing.limits import SETTLE_SECONDS, STEPS_MAX
from shardpool.testing.run import Run
from shardpool.testing.watch import Watch
from shardpool.workers.lives import outcome_of
from shardpool.workers.places import LIST_MAX
from shardpool.workers.shard import run_hooks

A = TypeVar("A", bound=Actor)
S = TypeVar("S", bound=Spot)
O = TypeVar("O", bound=TurnObject)  # noqa: E741


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
        self._lag = lag
        self._steps = steps
        self._settings = settings
        self._blueprint = app.compile()
        self._watch = Watch()
        self._running: Run | None = None
        self._random: Any = None

    def __enter__(self) -> Kit:
        self._running = Run(self._blueprint, self._dice, self._count, self._lag, self._steps, self._settings)
        self._watch.begin()
        # Handlers that draw from `random` are part of what the seed replays.
        self._random = random.getstate()
        random.seed(self.seed)
        try:
            self._run_hooks(self.app.start_hooks, "on_start", range(self._count))
            for shard in self._run.shards:
                shard.open()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._run_hooks(self.app.stop_hooks, "on_stop", range(self._count))
        except Exception as failed:
            failed.add_note(self.replay)
            raise
        finally:
            if error is not None:
                error.add_note(self.replay)
            random.setstate(self._random)
            self._watch.deaf = True  # what ending leads to is no news
            self._run.end()
            self._running = None
            self._watch.end()

    @property
    def seed(self) -> int:
        """What replays this run."""
        return self._dice.seed

    @property
    def replay(self) -> str:
        """The line that runs this test again with the same interleaving."""
        return self._dice.replay

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
        return self._run.clock.now

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
        index = len(self._run.clients) + 1
        shard = index % self._count if home is None else home
        session = (index + 1) * self._count + shard
        hello = json.dumps({"v": 1, "auth": auth}).encode()
        client = Client(self._run.memory, self, self.app.codec, index, shard, session, hello)
        self._run.clients[client.address] = client
        return client

    def ask(self, target: type[TurnObject], id: str, message: Message, *, timeout: float = 30.0) -> Answer:
        """Ask an object from outside, as a trusted program does. Returns: the place of the reply."""
        described = f"ask {target.__name__} {id!r}"
        payload = encode_message(message, described)
        runtime = self._dice.choice(self._run.shards).runtime
        kind = self._blueprint.find(target)

        async def ask() -> Any:
            return decode_msgpack(await runtime.asking.ask(None, kind, id, payload, self.now + timeout))

        return self._answer(runtime.shard, ask(), described)

    def create(self, target: type[TurnObject], id: str, request: Any = None, *, timeout: float = 30.0) -> Answer:
        """Get or create an object from outside. Returns: the place of the CreateOutcome."""
        described = f"create {target.__name__} {id!r}"
        payload = encode_value(request, described)
        runtime = self._dice.choice(self._run.shards).runtime
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

        self._run.shards[shard].loop.create_task(work).add_done_callback(done)
        return answer

    def find(self, target: type[O], id: str) -> O | None:
        """The object itself, to look at; None: there is none."""
        name = self._blueprint.find(target).name
        address = self._run.shards[0].runtime.places.find(name, id)
        found = self._run.shards[address >> 56].core.target(address) if address else None
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
        return [entry.id for entry in self._run.shards[0].runtime.places.list(name, "", LIST_MAX)]

    def living(self, target: type[O]) -> list[O]:
        """Every object of a class that holds a slot on any shard, whether it can be found by its id or not."""
        found = []
        for number, shard in enumerate(self._run.shards):
            for slot in range(shard.node.slots):
                address = number << 56 | slot
                generation = shard.node.slot(address)["generation"]
                tenant = shard.core.target(address | generation << 32)
                if isinstance(tenant, target):
                    found.append(tenant)
        return found

    def run(self, steps: int | None = None) -> bool:
        """Until there is nothing left to do at this moment.

        Args: steps: at most so many of them, to stop in the middle of something; a turn is one to three.
        Returns: whether there is nothing left. Raises: Endless.
        """
        return self._run.work(steps)

    def kill(self, shard: int) -> None:
        """A shard's process dies where it is, and another takes its objects over: state in attributes is lost,
        `on_recover` runs, as after `kill -9`. Handlers that were suspended there see a cancellation when the kit ends.
        """
        self._run.kill(shard)
        self._run_hooks(self.app.start_hooks, "on_start", [shard])
        self._run.shards[shard].open()

    def advance(self, seconds: float) -> None:
        """Let time pass: timers, timeouts and sleeps that are due by then have their effect. Raises: Endless."""
        self._run.advance(seconds)

    def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """Let time pass until no handler waits and nothing is under way.

        Args: seconds: the most that may pass. Raises: NotSettled, Endless.
        """
        self.until(lambda: not self._run.waits(), seconds, "an app with nothing under way")

    def until(self, condition: Callable[[], bool], seconds: float, described: str) -> None:
        """Let time pass until something is so. Args: seconds: the most that may pass. Raises: NotSettled, Endless."""
        self._run.until(condition, seconds, described)

    @property
    def _run(self) -> Run:
        if self._running is None:
            raise InvalidOperation("the kit runs inside of its with statement only: with Kit(app) as kit: ...")
        return self._running

    def _run_hooks(self, hooks: list[Callable[..., Any]], described: str, shards: Iterable[int]) -> None:
        answers = [self._answer(number, run_hooks(hooks, number), described) for number in shards if hooks]
        for answer in answers:
            answer.get()
