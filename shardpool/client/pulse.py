"""The client's heartbeat: when to ping a silent server, and when to call it lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pulse:
    """Silence for one interval: `beat`; for another: `dead`. One timer, moved only when it fires.

    Args: beat: sends a ping. dead: gets the silence in seconds; called once.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, beat: Callable[[], None], dead: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._beat = beat
        self._dead = dead
        self._interval = 0.0
        self._heard = 0.0
        self._asked = False
        self._held = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, interval: float) -> None:
        """Begin, or go on with another interval. Args: interval: seconds; 0: never."""
        self.stop()
        self._interval = interval
        self.touch()
        if interval > 0:
            self._timer = self._loop.call_later(interval, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def touch(self) -> None:
        """Something came."""
        self._heard = self._loop.time()
        self._asked = False

    def hold(self) -> None:
        """This side does not read: silence means nothing until `go_on`."""
        self._held = True

    def go_on(self) -> None:
        self._held = False
        self.touch()

    def _look(self) -> None:
        silence = self._loop.time() - self._heard
        if self._held:
            silence = 0.0
        if silence >= self._interval and self._asked:
            self._timer = None
            self._dead(silence)
            return
        if silence >= self._interval:
            self._asked = True
            self._beat()
            silence = 0.0
        self._timer = self._loop.call_later(self._interval - silence, self._look)
