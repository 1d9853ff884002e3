"""An actor's movable state (T-38): its attributes, or what its `capture()` returns and `restore(state)` takes."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from shardpool.codecs import decode_msgpack, encode_msgpack
from shardpool.errors import Condition


def capture(actor: Any) -> bytes:
    """The state as MessagePack. Raises: TypeMismatch: with the attribute that cannot travel."""
    own = getattr(actor, "capture", None)
    if own is not None:
        return encode_msgpack({"captured": own()})
    attributes = {}
    for name, value in vars(actor).items():
        try:
            attributes[name] = msgspec.Raw(encode_msgpack(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Condition.TYPE_MISMATCH.error(
                f"{actor._seat.label}: the attribute {name!r} cannot move to another shard: {error}. "
                f"Give {type(actor).__name__} capture() and restore(state), or register it with move='recreate'"
            ) from None
    return encode_msgpack({"attributes": attributes})


def restore(actor: Any, state: bytes) -> None:
    """Put the state into a fresh object, attributes as they are annotated. Raises: what does not fit."""
    decoded: dict[str, Any] = decode_msgpack(state)
    if "captured" in decoded:
        actor.restore(decoded["captured"])
        return
    hints = _hints(type(actor))
    for name, value in decoded["attributes"].items():
        setattr(actor, name, msgspec.convert(value, hints[name]) if name in hints else value)


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError:  # annotations of names that exist for type checkers only: plain values then
        return {}
