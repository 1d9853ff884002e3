"""Messages between supervisor, workers and the command line (ZeroMQ over ipc:// in a 0700 directory, JSON bodies).

    worker (DEALER, identity "shard-1")  --Register, Ready, Failed, Drained-->  supervisor (ROUTER, control.sock)
                                         <--Homes, CloseDoors, Drain, HandOver, Stop--
    command line (DEALER)                --Request-->                           supervisor (ROUTER, admin.sock)
                                         <--Reply--

How a worker answers, so that no accepted message is lost on the way down:

1. `Drain` reaches the acceptors first: accept no more, read no more, publish what was read, then `Drained`.
   They go on writing what shards send.
2. `Drain` then reaches the shards: run what is queued until nothing is ready or suspended, then `Drained`.
3. `Stop` to the shards: end sessions (`on_disconnect`), `on_stop`, exit 0.
4. `Stop` to the acceptors: write what is queued, close connections with 1001, exit 0.

`Stop` may come at any time, without `Drain`: end quickly. After its deadline comes SIGKILL.

`CloseDoors` comes before all this where the pool is emptied first: its clients leave when they like. `HandOver` is a
shard's other end: the pool goes on, with a successor in its segment.
"""

from typing import Any

import msgspec
from msgspec import Struct


class Register(Struct, frozen=True, tag="register"):
    """First message of every worker process; what follows under its identity belongs to this pid."""

    role: str
    index: int
    pid: int


class Ready(Struct, frozen=True, tag="ready"):
    """The worker serves."""


class Failed(Struct, frozen=True, tag="failed"):
    """The worker cannot work, for a reason that a restart does not cure; it exits after this."""

    reason: str  # what was asked of what, and what was found
    remedy: str
    exit_code: int  # an ExitCode


class Drained(Struct, frozen=True, tag="drained"):
    """Answer to Drain: nothing is left to do."""


class Drain(Struct, frozen=True, tag="drain"):
    """Take on nothing new, finish what is there."""

    timeout: float  # seconds until Stop comes anyway


class Stop(Struct, frozen=True, tag="stop"):
    """Exit now."""


class HandOver(Struct, frozen=True, tag="hand_over"):
    """To a shard: finish the turns that run, then `on_stop`, exit 0; objects and records are left to the successor."""

    timeout: float  # seconds for the turns


class CloseDoors(Struct, frozen=True, tag="close_doors"):
    """To acceptors: accept no more, go on serving those who are there."""


class Homes(Struct, frozen=True, tag="homes"):
    """To acceptors: the shards that may become home of a new session (P-6); before the first of these, all may."""

    shards: list[int]


class StatusRequest(Struct, frozen=True, tag="status"):
    """Ask for a snapshot of the pool."""


class StatusReply(Struct, frozen=True, tag="status_reply"):
    """The snapshot, as `shardpool status --json` prints it."""

    status: dict[str, Any]


class AuditRequest(Struct, frozen=True, tag="audit"):
    """Ask whether the books balance."""

    pause: bool = False  # hold each shard still for the look


class AuditReply(Struct, frozen=True, tag="audit_reply"):
    """The books of all shards, as `shardpool audit --json` prints them."""

    shards: list[dict[str, Any]]


class StopRequest(Struct, frozen=True, tag="stop_request"):
    """Drain and stop the pool."""

    timeout: float | None = None  # seconds; None: the pool's drain_timeout


class DrainRequest(Struct, frozen=True, tag="drain_request"):
    """Accept no more clients, wait until those who are there have left, then drain and stop."""

    timeout: float | None = None  # seconds to wait for clients; None: the pool's drain_timeout


class RestartRequest(Struct, frozen=True, tag="restart_request"):
    """Replace the shards one after another."""


class RestartReply(Struct, frozen=True, tag="restart_reply"):
    """The restart has begun; `status` tells how it goes."""

    number: int  # of this restart, from 1


class StopReply(Struct, frozen=True, tag="stop_reply"):
    """The pool is stopping; its supervisor's exit is the end."""

    pid: int
    timeout: float


class Refused(Struct, frozen=True, tag="refused"):
    """A request was not understood, or cannot be granted now."""

    reason: str
    remedy: str = "restart the pool"
    exit_code: int = 10  # an ExitCode: NO_ANSWER


FromWorker = Register | Ready | Failed | Drained
ToWorker = Homes | CloseDoors | Drain | HandOver | Stop
Request = StatusRequest | AuditRequest | StopRequest | DrainRequest | RestartRequest
Reply = StatusReply | AuditReply | StopReply | RestartReply | Refused
Message = FromWorker | ToWorker | Request | Reply

encode = msgspec.json.Encoder().encode

_from_worker = msgspec.json.Decoder(FromWorker)
_to_worker = msgspec.json.Decoder(ToWorker)
_request = msgspec.json.Decoder(Request)
_reply = msgspec.json.Decoder(Reply)


def decode_from_worker(body: bytes) -> FromWorker:
    """Decode what a worker sent; raises msgspec.DecodeError."""
    return _from_worker.decode(body)


def decode_to_worker(body: bytes) -> ToWorker:
    """Decode what the supervisor sent to a worker; raises msgspec.DecodeError."""
    return _to_worker.decode(body)


def decode_request(body: bytes) -> Request:
    """Decode what the command line asked; raises msgspec.DecodeError."""
    return _request.decode(body)


def decode_reply(body: bytes) -> Reply:
    """Decode the supervisor's answer to the command line; raises msgspec.DecodeError."""
    return _reply.decode(body)
