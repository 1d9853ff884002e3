"""What a client has sent and the server may not have taken: it is sent again after a resume.

The server takes messages in the order they were written, and answers a ping behind those before it. So every so many
messages a ping that carries their count is sent, and its pong settles them; after a resume the welcome says the count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from shardpool import wire

_COUNT_BYTES = 8


class Outgoing:
    """Messages of one session, counted from its first.

    Args: ping: sends P with these bytes.
    """

    def __init__(self, ping: Callable[[bytes], None]) -> None:
        self._ping = ping
        self._frames: deque[bytes] = deque()
        self._settled = 0  # messages that are not in _frames any more
        self._bytes = 0  # since the last ping
        self._pinged = 0

    def note(self, frame: bytes) -> None:
        """A message was written."""
        self._frames.append(frame)
        self._bytes += len(frame)
        written = self._settled + len(self._frames)
        if written - self._pinged >= wire.ACK_FRAMES or self._bytes >= wire.ACK_BYTES:
            self._bytes = 0
            self._pinged = written
            self._ping(written.to_bytes(_COUNT_BYTES, "big"))

    def pong(self, payload: bytes) -> None:
        """O came. Heartbeats carry nothing."""
        if len(payload) == _COUNT_BYTES:
            self._settle(int.from_bytes(payload, "big"))

    def resume(self, taken: int) -> list[bytes]:
        """The server has the session again, and says how many it took. Returns: what is to be sent again, in order."""
        self._settle(taken)
        self._bytes = 0
        self._pinged = self._settled
        return list(self._frames)

    def restart(self, taken: int = 0) -> None:
        """Another session, of which so many were sent before."""
        self._frames.clear()
        self._settled = self._pinged = taken
        self._bytes = 0

    def _settle(self, count: int) -> None:
        while self._settled < count and self._frames:
            self._frames.popleft()
            self._settled += 1
