"""Which processes a pool consists of, and how they are numbered."""

from dataclasses import dataclass
from enum import StrEnum

SUPERVISOR_PROCESS = 0


class Role(StrEnum):
    """What a worker process does."""

    ACCEPTOR = "acceptor"
    SHARD = "shard"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One place in the pool; processes come and go in it."""

    role: Role
    index: int  # within the role, from 0
    process: int  # process index: 0 supervisor, then acceptors, then shards

    @property
    def identity(self) -> str:
        """Name on the control socket."""
        return f"{self.role}-{self.index}"

    @property
    def label(self) -> str:
        """Name for people; they count from 1, as process titles do."""
        return f"{self.role} {self.index + 1}"


def child_specs(acceptors: int, shards: int) -> tuple[ChildSpec, ...]:
    """All places of a pool, in order of their process index."""
    first_shard = 1 + acceptors
    return (
        *(ChildSpec(Role.ACCEPTOR, index, 1 + index) for index in range(acceptors)),
        *(ChildSpec(Role.SHARD, index, first_shard + index) for index in range(shards)),
    )
