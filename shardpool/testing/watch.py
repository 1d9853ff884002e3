"""What handlers of the app under test raised, read from shardpool's log, which is where they are reported."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("shardpool")
_RECORDS_MAX = 10_000


class Watch(logging.Handler):
    """The log of one kit's run."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.deaf = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if not self.deaf and len(self.records) < _RECORDS_MAX:
            self.records.append(record)

    @property
    def raised(self) -> list[BaseException]:
        """What was reported with a traceback: exceptions that are no ShardpoolError."""
        return [info[1] for record in self.records if (info := record.exc_info) is not None and info[1] is not None]

    def begin(self) -> None:
        """Listen."""
        _LOGGER.addHandler(self)

    def end(self) -> None:
        """Listen no more."""
        _LOGGER.removeHandler(self)
