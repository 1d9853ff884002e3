"""What is done in shared memory after a death, before the place is filled again.

One attempt is short and never waits. It fails only while the supervisor's own link into a shard is full: then what is
owed to that shard's objects is kept, and tried again soon. The pool serves on meanwhile, without the dead one's place.
"""

from shardpool._core import settle
from shardpool.supervisor.memory import Memory

_RETRY = 0.02
_PATIENCE = 1.0


class Recovery:
    """Dead processes whose traces in shared memory are not removed yet."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._since: dict[int, float] = {}  # by process index: when it died
        self._due = 0.0
        self._reported: set[int] = set()

    def begin(self, process: int, now: float) -> None:
        """Put a process that was reaped on the list; `attempt` does the work.

        Called by: the supervisor, before the process's successor is started.
        """
        self._since[process] = self._due = now

    def attempt(self, now: float) -> list[int]:
        """Settle every process whose turn has come. Returns: those that are settled now; each is told once."""
        if now < self._due:
            return []
        settled = [process for process in self._since if settle(self._memory.node, process)]
        for process in settled:
            del self._since[process]
            self._reported.discard(process)
        self._due = now + _RETRY
        return settled

    def wait(self, now: float) -> float | None:
        """Seconds until `attempt` has something to do, None while nothing is left to settle."""
        return max(0.0, self._due - now) if self._since else None

    def overdue(self, now: float) -> list[int]:
        """Processes that have waited long enough to be worth a line; each is told once."""
        late = [process for process, since in self._since.items() if now - since >= _PATIENCE]
        new = [process for process in late if process not in self._reported]
        self._reported.update(new)
        return new
