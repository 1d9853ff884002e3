"""What `on_create` and `on_actor_join` said, and the requests they get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardpool.codecs import UNREADABLE, decode_msgpack, unreadable, value_decoder
from shardpool.decisions import Reject
from shardpool.errors import Condition, Rejected
from shardpool.handlers import parameter_type
from shardpool.workers.context import settled


@dataclass(frozen=True, slots=True)
class Verdict:
    """Accepted, or rejected with a reply."""

    accepted: bool
    reply: Any = None


async def decide(target: Any, callback: str, *arguments: Any) -> Verdict:
    """Run a deciding callback. Raises: what it raises, but Rejected, which is a no with its message as the reply."""
    try:
        answer = await settled(getattr(target, callback)(*arguments))
    except Rejected as error:
        return Verdict(False, str(error))
    match answer:
        case None | True:
            return Verdict(True)
        case False:
            return Verdict(False)
        case Reject(reply):
            return Verdict(False, reply)
        case _:
            raise Condition.TYPE_MISMATCH.error(
                f"{type(target).__name__}.{callback} returned {answer!r}; return None to accept, or Reject(reply)"
            )


def read_request(cls: type, callback: str, index: int, payload: bytes) -> Any:
    """Decode a request as the callback's parameter is annotated.

    Args: index: of the parameter, self is 0. Raises: TypeMismatch: it is something else.
    """
    try:
        return _request_decoder(cls, callback, index)(payload)
    except UNREADABLE as error:
        sentence = f"{cls.__name__}.{callback} takes another request: {unreadable(error)}"
        raise Condition.TYPE_MISMATCH.error(sentence) from None


@lru_cache(maxsize=1024)
def _request_decoder(cls: type, callback: str, index: int) -> Callable[[bytes], Any]:
    of = parameter_type(getattr(cls, callback), index)
    return decode_msgpack if of is Any else value_decoder(of)
