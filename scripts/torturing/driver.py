"""One driver process: its share of the clients, what they send and when, and what they are told.

Called with a Plan as JSON in argv; leaves a Result beside the answers when all its messages were sent and answered,
or given up.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from shardpool.client import Client, ClientSettings, Welcome, connect
from shardpool.errors import CapacityExceeded, DeadlineExceeded, NotFound, ShardpoolError, ShuttingDown, Unavailable
from torturing.ledger import Ledger, Told, checksum

WINDOW = 64  # more than what one cut connection leaves without an answer
STREAMS = 64  # per client: one for each session that it may get
KINDS = ("note", "note", "later", "tell", "relay")
SIZES = (10, 10, 200, 200, 2_000, 12_000)


class Plan(Struct, frozen=True):
    """What a driver does. Clients have numbers in the whole run, and messages too."""

    ledger: str
    addresses: tuple[str, str]
    first_client: int
    clients: int
    per_client: int
    seconds: float
    seed: int
    answers: str  # file for the times of the answers
    deadline: float  # of an ask, in seconds
    rooms: int
    lenient: bool


class Result(Struct, frozen=True):
    """What a driver saw."""

    closed: int  # connections that ended before their client was done
    sessions_lost: int  # clients that had to begin with a new session
    back: list[float]  # when sessions came back, monotonic seconds
    reasons: dict[str, int]
    errors: dict[str, int]
    longest: float  # seconds an answered ask took at most


class Answers(Struct, frozen=True, array_like=True):
    """When a session was answered; f64 monotonic seconds, native order."""

    session: str
    times: bytes


class Driver:
    """All clients of one process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ledger = Ledger(Path(plan.ledger))
        self.start = time.monotonic()
        self.closed = 0
        self.sessions_lost = 0
        self.back: list[float] = []
        self.reasons: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        self.answers: list[Answers] = []
        self.longest = 0.0

    async def run(self) -> Result:
        plan = self.plan
        numbers = range(plan.first_client, plan.first_client + plan.clients)
        await asyncio.gather(*(Player(self, number).play() for number in numbers))
        Path(plan.answers).write_bytes(msgspec.msgpack.encode(self.answers))
        return Result(self.closed, self.sessions_lost, self.back, self.reasons, self.errors, self.longest)

    def count(self, where: dict[str, int], error: BaseException) -> None:
        name = f"{type(error).__name__} {getattr(error, 'code', '')}".strip()
        where[name] = where.get(name, 0) + 1


class Player:
    """One client: sends its messages in order at its pace, over as many connections as that takes."""

    def __init__(self, driver: Driver, number: int) -> None:
        plan = driver.plan
        self.driver = driver
        self.ledger = driver.ledger
        self.number = number
        self.address = plan.addresses[number % 2]
        self.chance = random.Random(plan.seed * 1_000_003 + number)
        self.first = number * plan.per_client
        self.next = 0
        self.stream = number * STREAMS - 1
        self.pushed_last = -1
        self.times = array("d")
        self.cuts = 0
        self.open: set[asyncio.Task[None]] = set()
        self.sends: list[int] = []
        self.failed_sends = 0

    async def play(self) -> None:
        # Spread over the first second: a thousand hellos at once would measure something else.
        await asyncio.sleep(self.chance.random() * min(1.0, self.driver.plan.clients / 200))
        while self.next < self.driver.plan.per_client:
            try:
                client = await connect(self.address, timeout=20, settings=ClientSettings(inbox=1 << 16))
            except (ShardpoolError, OSError) as error:
                self.driver.count(self.driver.reasons, error)
                await asyncio.sleep(0.05)
                continue
            await self._use(client)
        self._assign_failed_sends()

    async def _use(self, client: Client) -> None:
        """Until all is sent, or the session is lost."""
        if (self.stream + 1) % STREAMS != 0:
            self.driver.sessions_lost += 1
        self.stream = min(self.stream + 1, self.number * STREAMS + STREAMS - 1)
        self.pushed_last = -1
        self.times = array("d")
        session = str(client.welcome.session)
        client.on("mark", self._pushed)
        client.on_reconnect(self._came_back)
        client.on_send_failed(self._send_failed)
        try:
            while self.next < self.driver.plan.per_client and client.closed is None:
                await self._send_due(client)
            await asyncio.gather(*self.open)
        finally:
            if client.closed is not None:
                self._was_cut(client)
            self.driver.answers.append(Answers(session, self.times.tobytes()))
            await client.close()

    def _send_failed(self, error: Exception) -> None:
        """An error that names no message: it was one of those that were sent and did not run."""
        self.failed_sends += 1
        self.driver.count(self.driver.errors, error)

    def _assign_failed_sends(self) -> None:
        """As many sends as the client was told of are reported, and no more."""
        not_run = [message for message in self.sends if self.ledger.run[message] == 0]
        for message in not_run[: self.failed_sends]:
            self.ledger.tell(message, Told.REPORTED)

    def _came_back(self, welcome: Welcome) -> None:
        """The library resumed the session."""
        self.cuts += 1
        self.driver.closed += 1
        self.driver.back.append(time.monotonic())

    def _was_cut(self, client: Client) -> None:
        self.cuts += 1
        self.driver.closed += 1
        assert client.closed is not None
        self.driver.count(self.driver.reasons, client.closed)

    async def _send_due(self, client: Client) -> None:
        """The next message, when it is due and the window has room for it."""
        plan = self.driver.plan
        due = self.driver.start + self.next * plan.seconds / plan.per_client
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        while len(self.open) >= WINDOW:
            await asyncio.wait(self.open, return_when=asyncio.FIRST_COMPLETED)
        # Tasks begin in the order in which they are made, and so do their messages.
        task = asyncio.create_task(self._send(client, self.first + self.next))
        self.next += 1
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    def _make(self, message: int) -> dict[str, Any]:
        # The last one is answered: what is sent right before one's own goodbye may go unread.
        last = message == self.first + self.driver.plan.per_client - 1
        kind = "note" if last else self.chance.choice(KINDS)
        padding = "x" * self.chance.choice(SIZES) + str(self.chance.random())
        body: dict[str, Any] = {"type": kind, "number": message, "stream": self.stream, "padding": padding}
        body["check"] = checksum(message, self.stream, padding)
        if kind == "relay":
            body["room"] = f"room-{self.number % self.driver.plan.rooms}"
        return body

    async def _send(self, client: Client, message: int) -> None:
        body = self._make(message)
        tell = self.ledger.tell
        tell(message, Told.SENT)
        began, cuts = time.monotonic(), self.cuts
        try:
            if body["type"] == "tell":
                self.sends.append(message)
                await client.send(body)
                return
            answer = await client.ask(body, timeout=self.driver.plan.deadline)
        except DeadlineExceeded as error:
            whole = cuts == self.cuts and client.connected
            tell(message, Told.SILENT if whole else Told.SILENT | Told.CUT)
            self.driver.count(self.driver.errors, error)
        except (CapacityExceeded, ShuttingDown) as error:
            tell(message, Told.REFUSED)
            self.driver.count(self.driver.errors, error)
        except Unavailable as error:
            tell(message, Told.CUT if client.closed is not None else Told.REPORTED)
            self.driver.count(self.driver.errors, error)
        except NotFound as error:
            # A room that a client has met stays, whoever dies.
            tell(message, Told.REPORTED if self.driver.plan.lenient else Told.WRONG)
            self.driver.count(self.driver.errors, error)
        except ShardpoolError as error:
            tell(message, Told.WRONG)
            self.driver.count(self.driver.errors, error)
        else:
            self._answered(message, answer, body["type"], began)

    def _answered(self, message: int, answer: Any, kind: str, began: float) -> None:
        now = time.monotonic()
        self.times.append(now)
        self.driver.longest = max(self.driver.longest, now - began)
        in_order = kind != "note" or self.ledger.pushed[message] == 1  # pushed before it was answered
        self.ledger.tell(message, Told.ANSWERED if answer == message and in_order else Told.WRONG)

    def _pushed(self, body: dict[str, Any]) -> None:
        message = body["number"]
        self.ledger.pushed[message] = min(255, self.ledger.pushed[message] + 1)
        if message <= self.pushed_last or body["stream"] != self.stream:
            self.ledger.tell(message, Told.WRONG)
        self.pushed_last = max(message, self.pushed_last)


def main() -> int:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    gc.freeze()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write into a connection that was cut
    result = asyncio.run(Driver(plan).run())
    # Not into a pipe: it may be longer than one holds, and nobody reads before the end.
    Path(f"{plan.answers}.result").write_bytes(msgspec.json.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
