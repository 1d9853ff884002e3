"""One run: pool, drivers, killer, and what is found afterwards."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
from planting import variants

from torturing.driver import STREAMS, Answers, Plan, Result
from torturing.killer import Kill, Killer
from torturing.ledger import Ledger, Sizes, create
from torturing.points.control import Control, build_with_points
from torturing.points.executioner import Executioner
from torturing.pool import RESUME_WINDOW, SCRIPTS, Pool, PoolError, wait_for
from torturing.report import Figures
from torturing.verdict import gaps, judge, returns

ROOMS = 16
PROGRESS_SECONDS = 5.0
# The slowest machine, and deaths that are waited for: what is sent must end at some time.
SLACK_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Options:
    """Of scripts/torture, under the same names."""

    messages: int = 60_000
    seconds: float = 60.0
    period: float = 500.0
    victims: str = "both"
    clients: int = 100
    shards: int = 2
    acceptors: int = 2
    drivers: int = 2
    deadline: float = 30.0
    seed: int = 0
    points: bool = False
    package: str = ""
    lenient: bool = False
    keep: bool = False

    def arguments(self) -> list[tuple[str, str]]:
        """The command line that gives these."""
        found = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value is True:
                found.append((f"--{each.name}", ""))
            elif value not in (False, ""):
                found.append((f"--{each.name}", str(value)))
        return found


def torture(options: Options) -> Figures:
    """Run it. Raises: PoolError when there is nothing to judge because the pool did not even serve."""
    directory = Path(tempfile.mkdtemp(prefix="sp-torture-"))
    try:
        return _Run(options, directory).run()
    finally:
        if options.keep:
            print(f"kept: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


class _Run:
    def __init__(self, options: Options, directory: Path) -> None:
        self.options = options
        self.directory = directory
        self.per_client = options.messages // options.clients
        path = directory / "ledger"
        create(path, Sizes(self.per_client * options.clients, options.clients * STREAMS))
        self.ledger = Ledger(path)
        chance = random.Random(options.seed)
        environ = {"TORTURE_LEDGER": str(path)}
        self.dead: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        self.killer: Killer | Executioner
        if options.points:
            control = Control(directory / "points")
            environ["KILL_POINTS"] = str(directory / "points")
            if not options.package:
                build_with_points(directory / "package")
        if options.points or options.package:
            environ |= variants.environ(Path(options.package or directory / "package"))
        self.pool = Pool(directory, options.shards, options.acceptors, environ)
        if options.points:
            self.killer = Executioner(self.pool, control, options.victims, chance)
        else:
            self.killer = Killer(self.pool, self.ledger, options.victims, options.period / 1000, chance)

    def run(self) -> Figures:
        faults: list[str] = []
        try:
            before = self._held()
            began = time.monotonic()
            results = self._rage(faults)
            took = time.monotonic() - began
            faults += self._settle(before)
            self.dead = self.pool.dead()
            code = self.pool.stop()
            if code != 0:
                faults.append(f"the pool ended with code {code}: {self.pool.last_words()}")
        finally:
            self.pool.kill()
        return self._figures(results, took, faults)

    def _held(self) -> tuple[int, int]:
        return self.pool.process.num_fds(), len(self.pool.process.children())

    def _rage(self, faults: list[str]) -> list[Result]:
        drivers = self._start_drivers()
        over = threading.Event()
        collected = [threading.Thread(target=_wait, args=(driver, self._limit(), over)) for driver in drivers]
        for thread in collected:
            thread.start()
        watch = threading.Thread(target=self._show_progress, args=(over,))
        watch.start()
        try:
            if self.options.victims != "none":
                self.killer.rage(lambda: any(driver.poll() is not None for driver in drivers))
        except PoolError as error:
            faults.append(str(error))
        finally:
            for thread in collected:
                thread.join()
            over.set()
            watch.join()
        results = []
        for number, driver in enumerate(drivers):
            if driver.returncode != 0:
                faults.append(f"a driver ended with code {driver.returncode}")
            else:
                path = self.directory / f"answers-{number}.result"
                results.append(msgspec.json.decode(path.read_bytes(), type=Result))
        return results

    def _limit(self) -> float:
        return self.options.seconds + self.options.deadline + SLACK_SECONDS

    def _start_drivers(self) -> list[subprocess.Popen[bytes]]:
        options = self.options
        shares = [options.clients // options.drivers] * options.drivers
        shares[-1] += options.clients % options.drivers
        started, first = [], 0
        for number, clients in enumerate(shares):
            plan = Plan(
                ledger=str(self.directory / "ledger"),
                addresses=self.pool.addresses,
                first_client=first,
                clients=clients,
                per_client=self.per_client,
                seconds=options.seconds,
                seed=options.seed,
                answers=str(self.directory / f"answers-{number}"),
                deadline=options.deadline,
                rooms=ROOMS,
                lenient=options.lenient,
            )
            command = [sys.executable, "-m", "torturing.driver", msgspec.json.encode(plan).decode()]
            started.append(subprocess.Popen(command, cwd=SCRIPTS))
            first += clients
        return started

    def _show_progress(self, over: threading.Event) -> None:
        began = time.monotonic()
        while not over.wait(PROGRESS_SECONDS):
            total = self.ledger.sizes.messages
            sent = total - bytes(self.ledger.told).count(0)
            ran = total - bytes(self.ledger.run).count(0)
            kills = Counter(kill.role for kill in self.killer.kills)
            shown = ", ".join(f"{kills[role]} {role}s killed" for role in ("shard", "acceptor"))
            print(
                f"{time.monotonic() - began:5.0f} s  {sent:,} sent, {ran:,} ran, {shown}", file=sys.stderr, flush=True
            )

    def _settle(self, before: tuple[int, int]) -> list[str]:
        """Nothing may be left when all clients have gone."""
        try:
            wait_for(self.pool.is_serving, 30.0, "all workers are ready again after the last kill")
            wait_for(lambda: not self.pool.left(), RESUME_WINDOW + 30.0, "every permit, session and token is back")
            wait_for(lambda: self._held() == before, 10.0, f"descriptors and processes {before}, as at first")
        except PoolError as error:
            return [f"{error}: {self.pool.left()}, held {self._held()}"]
        return []

    def _figures(self, results: Sequence[Result], took: float, faults: list[str]) -> Figures:
        options = self.options
        kills = self.killer.kills
        acceptors_died = any(kill.role == "acceptor" for kill in kills)
        verdict = judge(self.ledger, *self.dead, acceptors_died, options.lenient)
        closed = sum(result.closed for result in results)
        if not verdict.is_good:
            faults.append("not every message is accounted for")
        if closed and not acceptors_died and not options.lenient:
            faults.append(f"{closed} connections were closed, and only shards were killed")
        return Figures(
            messages=dict(verdict.messages),
            hops=dict(verdict.hops),
            kills=dict(Counter(kill.role for kill in kills)),
            skipped=self.killer.skipped,
            closed=closed,
            sessions_lost=sum(result.sessions_lost for result in results),
            gaps=self._gaps(kills),
            back=returns(
                [at for result in results for at in result.back], [k.at for k in kills if k.role == "acceptor"]
            ),
            longest=max((result.longest for result in results), default=0.0),
            errors=_sum(result.errors for result in results),
            reasons=_sum(result.reasons for result in results),
            seconds=took,
            faults=[*faults, *verdict.examples],
            points=self.killer.as_text() if isinstance(self.killer, Executioner) else "",
        )

    def _gaps(self, kills: Sequence[Kill]) -> list[float]:
        answers: list[Answers] = []
        for path in self.directory.glob("answers-?"):
            answers += msgspec.msgpack.decode(path.read_bytes(), type=list[Answers])
        found: list[float] = []
        for shard in range(self.options.shards):
            deaths = [kill.at for kill in kills if kill.role == "shard" and kill.index == shard]
            times = [
                (int(each.session, 16), memoryview(each.times).cast("d").tolist())
                for each in answers
                if int(each.session, 16) % self.options.shards == shard
            ]
            found += gaps(times, deaths)
        return found


def _wait(driver: subprocess.Popen[bytes], limit: float, over: threading.Event) -> None:
    try:
        driver.wait(limit)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()


def _sum(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
