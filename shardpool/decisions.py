"""What user code decides about sessions and joins, and what it is told about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from shardpool.errors import ShardpoolError

if TYPE_CHECKING:
    from shardpool.actor import Actor


class Hello(Struct, frozen=True):
    """What a client said first.

    `auth` is the client's own JSON, unchecked; everything else the protocol takes care of.
    """

    v: int = 1
    auth: Any = None


@dataclass(frozen=True, slots=True)
class Accept:
    """`on_connect`: let the session in.

    Args: identity: who it is; a second session of the same identity meets the app's `second_login` policy.
          actor: type of the session's fresh actor; default: the app's entry actor.
          id: id of that actor; default: the identity, else the session's id in hex.
    """

    identity: str | None = None
    actor: type[Actor] | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """`on_connect`: keep the session out; the client reads the reason with close code 4401."""

    reason: str = "not authenticated"


@dataclass(frozen=True, slots=True)
class Reject:
    """`on_actor_join`, `on_create`: no. Args: reply: what the asker gets to know, anything encodable."""

    reply: Any = None


@dataclass(frozen=True, slots=True)
class JoinOutcome:
    """How a Join ended, as `on_joined` gets it.

    accepted: the actor is a member now. Not accepted and `error` is None: the Spot rejected it, `reply` is its answer.
    """

    spot: str
    accepted: bool
    reply: Any = None
    error: ShardpoolError | None = None
