"""When a dead worker is started again, in the words of OTP's supervisor: intensity and period."""

from dataclasses import dataclass

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """More than `intensity` deaths within `period` seconds open the breaker of that place."""

    intensity: int = 5
    period: float = 10.0

    def after_death(self, deaths: tuple[float, ...], now: float) -> tuple[tuple[float, ...], float | None]:
        """Judge one more death.

        Args: deaths: earlier ones that still count (monotonic seconds); now: this one.
        Returns: the deaths that count from now on, and the seconds until the restart, None when the breaker opens.
        """
        recent = (*(death for death in deaths if now - death < self.period), now)
        if len(recent) > self.intensity:
            return recent, None
        # The first restart is at once: a single crash must not cost its clients a delay.
        if len(recent) == 1:
            return recent, 0.0
        return recent, min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (len(recent) - 2))
