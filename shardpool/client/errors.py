"""What a client's calls raise."""

from __future__ import annotations

from typing import ClassVar

from shardpool.errors import FAMILY, ErrorBody, InternalFailure, Unavailable
from shardpool.wire import CLOSE_NAMES


class ServerError(Exception):
    """The server answered with an error.

    What is raised is also an exception of the one family, so that both `except ServerError` and
    `except shardpool.NotFound` catch a missing object. `code` is the exact condition, `kind` its family.
    """

    code: str
    kind: ClassVar[str]

    @property
    def message(self) -> str:
        """The server's sentence."""
        return str(self)


class Closed(Unavailable):
    """The connection is over.

    Args: close_code: of docs/protocol.md; 1006 when nobody said why. reason: a sentence, the server's or ours.
    """

    def __init__(self, close_code: int, reason: str) -> None:
        self.close_code = close_code
        self.name = CLOSE_NAMES.get(close_code, "")
        self.reason = reason
        shown = f"{close_code} {self.name}".rstrip()
        super().__init__(f"connection closed ({shown}): {reason or 'no reason given'}", code=self.name or None)


_SERVER_ERRORS = {kind: type(f"Server{kind}", (ServerError, cls), {}) for kind, cls in FAMILY.items()}


def server_error(body: ErrorBody) -> Exception:
    """The exception for an E frame; an unknown kind (a later server's) is an InternalFailure."""
    cls = _SERVER_ERRORS.get(body.kind, _SERVER_ERRORS[InternalFailure.kind])
    error: Exception = cls(body.message, code=body.code)
    return error
