"""How a process ended."""

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Death:
    """Exit code or signal of a dead process; exactly one of these is set."""

    exit_code: int | None = None
    signal: int | None = None
    cause: str = ""  # why the supervisor killed it

    @property
    def clean(self) -> bool:
        """Ended by itself, and well."""
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """For people, as the end of `shard 2 (pid 41) …`."""
        if self.signal is None:
            return f"ended with exit code {self.exit_code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        # Nobody but the kernel's memory killer, or an operator, sends this one unasked.
        hint = "out of memory? see dmesg" if self.signal == signal.SIGKILL else ""
        because = self.cause or hint
        return f"was killed by {name} ({because})" if because else f"was killed by {name}"


def death_of(result: os.waitid_result) -> Death:
    """What waitid reported."""
    if result.si_code == os.CLD_EXITED:
        return Death(exit_code=result.si_status)
    return Death(signal=result.si_status)
