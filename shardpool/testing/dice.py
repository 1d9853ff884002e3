"""Every choice of a run comes from one seed, and is written down."""

from __future__ import annotations

import hashlib
import os
import random
from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")

SEED_VARIABLE = "SHARDPOOL_SEED"
_MOODS = (1, 1, 8, 64)  # how much more often one part runs than another
_MOOD_STEPS = 48
_TRACE_STEPS = 1000


class Part(Protocol):
    """What can be next: a shard, a client's connection, the acceptor."""

    name: str


class Dice:
    """The scheduler's choices. Args: seed: None: from SHARDPOOL_SEED, else a fresh one."""

    def __init__(self, seed: int | None) -> None:
        if seed is None:
            given = os.environ.get(SEED_VARIABLE)
            seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
        self.seed = seed
        self.trace: deque[str] = deque(maxlen=_TRACE_STEPS)
        self._random = random.Random(seed)
        self._moods: dict[str, int] = {}
        self._mood_left = 0
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def replay(self) -> str:
        """The line that runs this test again with the same interleaving."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        command = f"pytest '{test}'" if test else "the test"
        return f"shardpool.testing: to replay this: {SEED_VARIABLE}={self.seed} {command}"

    @property
    def fingerprint(self) -> str:
        """Of all steps so far: the same for the same run."""
        return self._digest.hexdigest()

    def next_part(self, parts: Sequence[T], names: Sequence[str]) -> T:
        """Which one goes on. Uneven for a while, then uneven in another way: a fair draw would never let one fall
        far behind, and that is where the rare interleavings are."""
        if len(parts) == 1:
            return parts[0]
        if self._mood_left == 0:
            self._moods.clear()
            self._mood_left = self._random.randrange(1, _MOOD_STEPS)
        self._mood_left -= 1
        weights = [self._mood(name) for name in names]
        return self._random.choices(parts, weights)[0]

    def _mood(self, name: str) -> int:
        mood = self._moods.get(name)
        if mood is None:
            mood = self._moods[name] = self._random.choice(_MOODS)
        return mood

    def choice(self, options: Sequence[T]) -> T:
        """One of some, evenly."""
        return self._random.choice(options)

    def fraction(self) -> float:
        """From 0 up to 1."""
        return self._random.random()

    def note(self, step: str) -> None:
        """Write a step down."""
        self.trace.append(step)
        self._digest.update(step.encode())
        self._digest.update(b"\n")
