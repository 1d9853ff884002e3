"""What can go wrong: one family of exceptions, and the one table of conditions (O-1, O-18).

    condition -> kind (exception class) -> client code -> HTTP status -> close code -> metric

`python -m shardpool.errors` prints docs/errors.md. Numbers travel in call replies; they are never reused.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import msgspec
from msgspec import Struct


class ShardpoolError(Exception):
    """Base of everything that shardpool raises.

    Args: message: a sentence for a person; it is shown to the client when a handler raises it.
          code: what the client reads instead of the condition's own code, for an app's own cases ("room_full").
    """

    kind: ClassVar[str] = "InternalFailure"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code if code is not None else KIND_CONDITIONS[self.kind].code

    def __init_subclass__(cls, family: bool = False) -> None:
        # Users' subclasses keep the kind they derive from: clients decide by kind, and kinds are never added.
        if family:
            cls.kind = cls.__name__


class NotFound(ShardpoolError, family=True):
    """No such object, type or session."""


class AlreadyExists(ShardpoolError, family=True):
    """The name is taken."""


class TypeMismatch(ShardpoolError, family=True):
    """A value or a handler has another type than what is asked for."""


class NotConfigured(ShardpoolError, family=True):
    """The app or the pool was not set up for this."""


class Rejected(ShardpoolError, family=True):
    """User code refused it."""


class Unavailable(ShardpoolError, family=True):
    """Who should answer cannot at the moment: moving, restarting, or another node's queue is full."""


class CapacityExceeded(ShardpoolError, family=True):
    """A resource of this node is full."""


class DeadlineExceeded(ShardpoolError, family=True):
    """It did not happen in time; it may still happen."""


class ShuttingDown(ShardpoolError, family=True):
    """The pool stops."""


class ProtocolError(ShardpoolError, family=True):
    """The peer sent what the protocol does not allow."""


class InvalidOperation(ShardpoolError, family=True):
    """A call that is wrong here; nothing was submitted."""


class DataLost(ShardpoolError, family=True):
    """Something that was accepted is gone, or may be."""


class InternalFailure(ShardpoolError, family=True):
    """Code of the app or of shardpool failed; the operator's log has the traceback."""


FAMILY: dict[str, type[ShardpoolError]] = {
    cls.__name__: cls
    for cls in (
        NotFound,
        AlreadyExists,
        TypeMismatch,
        NotConfigured,
        Rejected,
        Unavailable,
        CapacityExceeded,
        DeadlineExceeded,
        ShuttingDown,
        ProtocolError,
        InvalidOperation,
        DataLost,
        InternalFailure,
    )
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    number: int  # travels in call replies; 1 to 7 are the mailbox's own outcomes
    kind: type[ShardpoolError]
    code: str
    http: int
    close: int | None  # the code that ends the connection, if the condition does
    metric: str
    meaning: str


class Condition(Enum):
    """Everything that can be refused or fail, each with its row."""

    LANE_FULL = Row(1, CapacityExceeded, "lane_full", 503, None, "refused_lane", "the object's queue is full")
    SATURATED = Row(2, CapacityExceeded, "saturated", 503, None, "refused_permit", "the shard has no permit left")
    SEALED = Row(3, Unavailable, "sealed", 503, None, "refused_sealed", "the object is moving to another shard")
    STALE = Row(4, NotFound, "stale", 404, None, "refused_stale", "the object of that address has ended")
    SHUTTING_DOWN = Row(5, ShuttingDown, "shutting_down", 503, 1001, "refused_closing", "the pool drains or stops")
    LINK_FULL = Row(6, CapacityExceeded, "link_full", 503, None, "refused_link", "the link to that process is full")
    TOO_BIG = Row(7, CapacityExceeded, "too_big", 413, None, "refused_size", "the message is above the limit")

    NOT_FOUND = Row(10, NotFound, "not_found", 404, None, "failed", "no object has that id")
    ALREADY_EXISTS = Row(11, AlreadyExists, "already_exists", 409, None, "failed", "the id is taken")
    TYPE_MISMATCH = Row(12, TypeMismatch, "type_mismatch", 422, None, "failed", "the value has another type")
    NOT_CONFIGURED = Row(13, NotConfigured, "not_configured", 404, None, "failed", "the app has no such type")
    REJECTED = Row(14, Rejected, "rejected", 409, None, "rejected", "the app's code refused it")
    UNAVAILABLE = Row(15, Unavailable, "unavailable", 503, 4503, "unavailable", "the shard died or is out of service")
    CAPACITY = Row(16, CapacityExceeded, "capacity", 503, None, "refused_capacity", "a bounded resource is full")
    SLOTS_FULL = Row(17, CapacityExceeded, "slots_full", 503, 4529, "refused_slots", "the shard has no slot left")
    ASKS_FULL = Row(18, CapacityExceeded, "asks_full", 503, None, "refused_asks", "too many asks of the shard are open")
    DEADLINE = Row(19, DeadlineExceeded, "deadline", 504, None, "timeouts", "no reply, or no room, in time")
    INVALID_OPERATION = Row(20, InvalidOperation, "invalid_operation", 409, None, "failed", "not allowed here")
    DATA_LOST = Row(21, DataLost, "data_lost", 500, None, "lost", "something that was accepted is gone")

    UNKNOWN_MESSAGE = Row(30, ProtocolError, "unknown_message", 404, None, "failed", "no handler takes that message")
    BAD_MESSAGE = Row(31, ProtocolError, "bad_message", 422, None, "failed", "the message could not be decoded")
    HANDLER_RAISED = Row(32, InternalFailure, "handler_raised", 500, None, "failed", "the handler raised")
    REPLY_NOT_ENCODABLE = Row(
        33, InternalFailure, "reply_not_encodable", 500, None, "failed", "the handler's return value cannot be encoded"
    )
    LATE = Row(34, DeadlineExceeded, "late", 504, None, "late_replies", "the reply came after the deadline: dropped")
    DEAD_LETTERED = Row(35, DataLost, "dead_lettered", 500, None, "dead_letters", "not run; kept as a dead letter")

    MEMORY = Row(40, CapacityExceeded, "memory", 422, None, "refused_memory", "the app's state would exceed its budget")
    WORK = Row(41, CapacityExceeded, "work", 422, None, "refused_work", "the event needs more than its unit budget")
    BUSY = Row(42, CapacityExceeded, "busy", 503, None, "refused_busy", "too many requests wait for the app")
    STOPPED = Row(43, Unavailable, "stopped", 503, None, "refused_stopped", "the app is stopped")
    UNCERTAIN = Row(44, DataLost, "uncertain", 500, None, "uncertain", "the commit's outcome is not known")
    STORE_BUSY = Row(45, Unavailable, "store_busy", 503, None, "refused_store", "another process holds the app's store")

    PROTOCOL = Row(60, ProtocolError, "protocol_error", 400, 4400, "closed_protocol", "the client protocol was broken")
    UNAUTHENTICATED = Row(61, Rejected, "unauthenticated", 401, 4401, "closed_refused", "the session handler refused")
    HELLO_TIMEOUT = Row(62, DeadlineExceeded, "hello_timeout", 408, 4408, "closed_hello", "no complete hello in time")
    REPLACED = Row(63, Rejected, "replaced", 409, 4409, "closed_replaced", "the same identity came in again")
    RESUME_REFUSED = Row(
        70, NotFound, "resume_refused", 404, 4404, "closed_resume", "no such session is kept, or not for that token"
    )
    IDLE = Row(64, DeadlineExceeded, "idle", 408, 4410, "closed_idle", "nothing received for idle_timeout")
    FRAME_TOO_BIG = Row(65, ProtocolError, "frame_too_big", 413, 4413, "closed_size", "a frame or hello is too long")
    RATE_LIMITED = Row(66, CapacityExceeded, "rate_limited", 429, 4429, "closed_rate", "too many messages per second")
    SLOW_CLIENT = Row(67, CapacityExceeded, "slow_client", 503, 4453, "closed_slow", "the client does not read")
    INTERNAL = Row(68, InternalFailure, "internal", 500, 4500, "failed", "a fault of the server")
    TOO_MANY = Row(69, CapacityExceeded, "too_many_connections", 503, 4529, "closed_full", "in all, or of one address")

    @property
    def row(self) -> Row:
        """Its line of the table."""
        row: Row = self.value
        return row

    @property
    def code(self) -> str:
        """What the client reads."""
        return self.row.code

    def error(self, message: str) -> ShardpoolError:
        """The exception of this condition. Args: message: what was asked of whom, what was found, what to do."""
        return self.row.kind(message, code=self.row.code)


KIND_CONDITIONS: dict[str, Condition] = {
    "NotFound": Condition.NOT_FOUND,
    "AlreadyExists": Condition.ALREADY_EXISTS,
    "TypeMismatch": Condition.TYPE_MISMATCH,
    "NotConfigured": Condition.NOT_CONFIGURED,
    "Rejected": Condition.REJECTED,
    "Unavailable": Condition.UNAVAILABLE,
    "CapacityExceeded": Condition.CAPACITY,
    "DeadlineExceeded": Condition.DEADLINE,
    "ShuttingDown": Condition.SHUTTING_DOWN,
    "ProtocolError": Condition.PROTOCOL,
    "InvalidOperation": Condition.INVALID_OPERATION,
    "DataLost": Condition.DATA_LOST,
    "InternalFailure": Condition.INTERNAL,
}
NUMBERS: dict[int, Condition] = {condition.row.number: condition for condition in Condition}
CLOSE_NAMES: dict[int, str] = {1000: "normal", 1001: "going_away", 1002: "websocket_protocol", 1006: "lost"}
CLOSE_NAMES |= {1007: "invalid_utf8", 1009: "message_too_big"}
CLOSE_NAMES |= {c.row.close: c.row.code for c in Condition if c.row.close is not None and c.row.close > 4000}
CLOSE_NAMES |= {4503: "unavailable", 4529: "too_many_connections"}
CODES: dict[str, Condition] = {condition.row.code: condition for condition in Condition}


class ErrorBody(Struct, frozen=True):
    """An error as it travels: JSON to clients, MessagePack between objects."""

    code: str
    kind: str
    message: str

    def error(self) -> ShardpoolError:
        """The exception that it stands for at the other end."""
        return FAMILY.get(self.kind, InternalFailure)(self.message, code=self.code)


_decode_body = msgspec.msgpack.Decoder(ErrorBody).decode


def number_of(error: BaseException) -> int:
    """The number in a call reply for this exception; an app's own codes travel under their kind's."""
    if not isinstance(error, ShardpoolError):
        return Condition.HANDLER_RAISED.row.number
    return CODES.get(error.code, KIND_CONDITIONS[error.kind]).row.number


def error_from_call(status: int, payload: bytes) -> ShardpoolError:
    """The exception of a failed call. Args: status: number of a condition; payload: ErrorBody, or empty."""
    if payload:
        try:
            return _decode_body(payload).error()
        except msgspec.DecodeError:
            pass  # an answer without a sentence still has its number
    condition = NUMBERS.get(status, Condition.INTERNAL)
    return condition.error(condition.row.meaning)


_HEAD = """# Errors

Every error is one of the kinds below, with a code for the exact condition and a sentence for a person. Decide by
kind; show the sentence. A resource of this node that is full is `CapacityExceeded`; another node's is `Unavailable`.

This page is printed by `python -m shardpool.errors` from the table in code.

| kind | means |
|---|---|
"""

_CONDITIONS = """
## Conditions

*close*: the code that ends the connection, where the condition does; *number*: what calls between objects carry.

| condition | kind | code | HTTP | close | metric | number |
|---|---|---|---|---|---|---|
"""

_TAIL = """
## What a handler's exception becomes

| raised in a handler | an ask gets | the log gets |
|---|---|---|
| one of the kinds above, or a subclass | its kind, code and message | one line |
| anything else | `InternalFailure`, `handler_raised`, a sentence without details | one line and the traceback |

An app's own codes: `raise Rejected("the room is full", code="room_full")`.
"""


def page() -> str:
    """docs/errors.md."""
    kinds = "".join(f"| `{name}` | {(cls.__doc__ or '').strip()} |\n" for name, cls in FAMILY.items())
    lines = []
    for condition in Condition:
        row = condition.row
        lines.append(
            f"| {row.meaning} | `{row.kind.__name__}` | `{row.code}` | {row.http} | {row.close or '–'} "
            f"| `{row.metric}` | {row.number} |\n"
        )
    return _HEAD + kinds + _CONDITIONS + "".join(lines) + _TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
