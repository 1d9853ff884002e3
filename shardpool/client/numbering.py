"""The numbers of a session's frames as a client sees them: what is new, and when to acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardpool import wire


class Numbers:
    """Follows the numbered frames of one session over all its connections.

    Args: acknowledge: sends K with a number.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, acknowledge: Callable[[int], None], seen: int = 0) -> None:
        self.seen = seen
        self._loop = loop
        self._acknowledge = acknowledge
        self._frames = 0
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, number: int, size: int) -> bool:
        """Whether the frame is new; also sees to the acknowledgement. Raises: FrameError: some are missing."""
        expected = self.seen % wire.NUMBER_LIMIT + 1
        if number != expected:
            if (self.seen - number) & wire.NUMBER_LIMIT < 1 << 31:
                return False
            raise wire.FrameError(4400, f"number {number} where {expected} was due")
        self.seen = number
        self._frames += 1
        self._bytes += size
        if self._frames >= wire.ACK_FRAMES or self._bytes >= wire.ACK_BYTES:
            self._due()
        elif self._timer is None:
            self._timer = self._loop.call_later(wire.ACK_SECONDS / 2, self._due)
        return True

    def restart(self) -> None:
        """A new session: its first frame has number 1."""
        self.pause()
        self.seen = 0

    def pause(self) -> None:
        """The connection is gone: the hello of the next one says what was seen."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._frames = self._bytes = 0

    def _due(self) -> None:
        self.pause()
        self._acknowledge(self.seen)
