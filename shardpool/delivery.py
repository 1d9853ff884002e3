"""What becomes of a message whose handler was cut off by its shard's death (M-16): `@app.actor(delivery=…)`."""

from __future__ import annotations

from dataclasses import dataclass

from shardpool.errors import TypeMismatch

ATTEMPTS_MAX = 100


@dataclass(frozen=True, slots=True)
class AtMostOnce:
    """It is not run again, but kept as a dead letter; who asked gets `Unavailable`. The default."""

    @property
    def attempts(self) -> int:
        """How often it begins at most."""
        return 1


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """It is run again, in its place in the queue; after `attempts` deaths in it, it is kept as a dead letter.

    For handlers that may run twice: what they did before the death has happened.
    Raises: TypeMismatch: attempts is no number from 2 to 100.
    """

    attempts: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or not 2 <= self.attempts <= ATTEMPTS_MAX:
            raise TypeMismatch(f"AtLeastOnce({self.attempts!r}): attempts is a number from 2 to {ATTEMPTS_MAX}")


Policy = AtMostOnce | AtLeastOnce
AT_MOST_ONCE = AtMostOnce()
