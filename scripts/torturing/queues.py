"""Deaths at queues between processes, of others.

python -m torturing.queues KIND VICTIM TRIALS SEED PATIENCE     prints how many trials stalled

Only the standard library is needed, and for faster-fifo that package: it runs in the peers' interpreter.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import random
import signal
import sys
import time
from enum import StrEnum
from typing import Any

KINDS = ("multiprocessing.Queue", "SimpleQueue")
CAPACITY = 100


class Victim(StrEnum):
    """Who is killed."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


def make(kind: str, context: Any) -> Any:
    """A queue of that kind."""
    match kind:
        case "multiprocessing.Queue":
            return context.Queue(CAPACITY)
        case "SimpleQueue":
            return context.SimpleQueue()
        case "faster-fifo":
            from faster_fifo import Queue

            return Queue(max_size_bytes=1 << 20)
        case _:
            raise SystemExit(f"no queue is called {kind}")


def produce(channel: Any) -> None:
    item = b"x" * 100
    while True:
        with contextlib.suppress(queue.Full):
            channel.put(item)


def consume(channel: Any, counts: Any, place: int) -> None:
    while True:
        with contextlib.suppress(queue.Empty):
            channel.get()
            counts[place] += 1


def progresses(counts: Any, places: list[int], patience: float) -> bool:
    """Whether one of the consumers gets something in time."""
    before = [counts[place] for place in places]
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if any(counts[place] > count + CAPACITY for place, count in zip(places, before, strict=True)):
            return True
        time.sleep(0.01)
    return False


def stalls(kind: str, victim: Victim, chance: random.Random, patience: float) -> bool:
    """One trial."""
    context = multiprocessing.get_context("fork")
    channel = make(kind, context)
    counts = context.RawArray("Q", 2)
    producers = [context.Process(target=produce, args=(channel,), daemon=True) for _ in range(2)]
    consumers = [context.Process(target=consume, args=(channel, counts, place), daemon=True) for place in range(2)]
    everybody = producers + consumers
    try:
        for process in everybody:
            process.start()
        if not progresses(counts, [0, 1], 30.0):
            raise SystemExit(f"{kind} does not even work without a death")
        time.sleep(chance.uniform(0.0, 0.05))
        dead = chance.randrange(2)
        os.kill((producers if victim is Victim.PRODUCER else consumers)[dead].pid, signal.SIGKILL)
        left = [0, 1] if victim is Victim.PRODUCER else [1 - dead]
        time.sleep(0.05)  # what was in the queue is through
        return not progresses(counts, left, patience)
    finally:
        for process in everybody:
            process.kill()
        for process in everybody:
            process.join()


def trials(kind: str, victim: Victim, count: int, seed: int, patience: float) -> int:
    """How many of the trials stalled."""
    chance = random.Random(seed)
    return sum(stalls(kind, victim, chance, patience) for _ in range(count))


def main(argv: list[str]) -> int:
    kind, victim, count, seed, patience = argv
    print(trials(kind, Victim(victim), int(count), int(seed), float(patience)))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Not through the queues' feeder threads and finalizers: some would wait for the dead.
    os._exit(code)
