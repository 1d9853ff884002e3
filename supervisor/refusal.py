"""A reason why a command cannot do what was asked: one line for people, with the remedy, and the exit code."""

from shardpool.exit_codes import ExitCode


class Refusal(Exception):
    """What was asked of what and what was found; what to do; how the command ends."""

    def __init__(self, reason: str, remedy: str, exit_code: ExitCode) -> None:
        joint = ". " if remedy[:1].isupper() else ": "
        super().__init__(f"{reason}{joint}{remedy}" if remedy else reason)
        self.exit_code = exit_code
