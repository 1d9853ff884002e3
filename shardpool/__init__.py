"""A multi-core runtime for stateful session servers."""

from shardpool.actor import Actor
from shardpool.app import App
from shardpool.calls import CreateOutcome, Creation
from shardpool.codecs import Request
from shardpool.decisions import Accept, Hello, JoinOutcome, Refuse, Reject
from shardpool.delivery import AtLeastOnce, AtMostOnce
from shardpool.directory import Entry
from shardpool.errors import (
    AlreadyExists,
    CapacityExceeded,
    DataLost,
    DeadlineExceeded,
    InternalFailure,
    InvalidOperation,
    NotConfigured,
    NotFound,
    ProtocolError,
    Rejected,
    ShardpoolError,
    ShuttingDown,
    TypeMismatch,
    Unavailable,
)
from shardpool.handlers import every, on
from shardpool.local import connect
from shardpool.session import Session, SessionRef
from shardpool.spot import Spot

__version__ = "0.1.0"

__all__ = [
    "Accept",
    "Actor",
    "AlreadyExists",
    "App",
    "AtLeastOnce",
    "AtMostOnce",
    "CapacityExceeded",
    "CreateOutcome",
    "Creation",
    "DataLost",
    "DeadlineExceeded",
    "Entry",
    "Hello",
    "InternalFailure",
    "InvalidOperation",
    "JoinOutcome",
    "NotConfigured",
    "NotFound",
    "ProtocolError",
    "Refuse",
    "Reject",
    "Rejected",
    "Request",
    "Session",
    "SessionRef",
    "ShardpoolError",
    "ShuttingDown",
    "Spot",
    "TypeMismatch",
    "Unavailable",
    "connect",
    "every",
    "on",
]
