"""What a failing turn becomes: a log line, with traceback, for the operator; a code and a sentence for the asker."""

from __future__ import annotations

import asyncio
from typing import Any

from shardpool._core import FLAG_ASK
from shardpool.codecs import UNREADABLE, encode_json, encode_msgpack, unreadable
from shardpool.dead_letters import Reason
from shardpool.errors import Condition, ErrorBody, ShardpoolError
from shardpool.workers.context import ShardContext, kind_name, log, settled
from shardpool.workers.kinds import Kind
from shardpool.workers.letters import Letters

_SHOWN_BYTES = 80
_NAMES_SHOWN = 12
_SENTENCE_CHARS = 500


class Faults:
    """The executor's `failed` hook."""

    def __init__(self, context: ShardContext, letters: Letters) -> None:
        self._context = context
        self._letters = letters
        self._spared: set[int] = set()

    def spare(self, address: int) -> None:
        """What this object has not run lives on elsewhere: its end is to be told to nobody."""
        self._spared.add(address)

    def failed(self, address: int, kind: int, error: BaseException, payload: bytes) -> bytes:
        """Executor's hook: a decoder, handler or encoder raised.

        Returns: the error's body for whoever asked: JSON to a client, MessagePack to an object.
        """
        self._context.counts.failed += 1
        target = self._context.shard.target(address)
        body = self._body(target, kind, error, payload)
        return encode_json(body) if kind == Kind.FRAME else encode_msgpack(body)

    def unrun(self, address: int, records: list[tuple[int, int, int, int, bytes]]) -> None:
        """Tell those who asked an object that has ended that nobody will answer."""
        for kind, _, a, _, _ in records:
            self._context.parcels.lose(kind, a)
        if address in self._spared:
            self._spared.discard(address)
            return
        shard = self._context.shard
        seat = getattr(shard.target(address), "_seat", None)
        if seat is not None:
            name = (seat.type_name, seat.id)
            self._letters.keep(name, address, shard.turn_of(address), records, Reason.OBJECT_ENDED, 0, first=1)
        body = body_of(Condition.STALE.error(f"{label_of(shard.target(address))} ended before it came to this message"))
        for kind, flags, a, b, _ in records:
            if kind == Kind.CALL and a:
                shard.reply_call(b, a, 1, encode_msgpack(body))
            elif kind == Kind.FRAME and flags & FLAG_ASK:
                shard.error_client(a, b, encode_json(body))

    def report(self, target: Any, callback: str, error: BaseException) -> None:
        """Log a callback that raised and whose failure ends nothing else."""
        self._context.counts.failed += 1
        if isinstance(error, ShardpoolError):
            log.warning("%s: %s raised %s: %s", label_of(target), callback, error.kind, escaped(str(error)))
        else:
            log.error("%s: %s raised", label_of(target), callback, exc_info=error)

    async def guarded(self, target: Any, callback: str, *arguments: Any) -> Any:
        """Run a callback, plain or async; what it raises is reported and goes no further."""
        try:
            return await settled(getattr(target, callback)(*arguments))
        except Exception as error:
            self.report(target, callback, error)
            return None

    def _body(self, target: Any, kind: int, error: BaseException, payload: bytes) -> ErrorBody:
        label = label_of(target)
        user_code = _ran_user_code(error)
        if isinstance(error, UNREADABLE) and not user_code and " serializing" not in str(error):
            condition, sentence = self._undecodable(target, error)
            log.info("%s could not read a %s: %s: %s", label, kind_name(kind), sentence, shown(payload))
            return body_of(condition.error(sentence))
        if isinstance(error, LookupError) and not user_code and str(error).startswith("no handler takes"):
            sentence = self._unknown(target, "a message of bytes" if kind == Kind.FRAME else "this message")
            log.info("%s: %s: %s", label, sentence, shown(payload))
            return body_of(Condition.UNKNOWN_MESSAGE.error(sentence))
        if isinstance(error, ShardpoolError):
            log.warning("%s answered a %s with %s: %s", label, kind_name(kind), error.kind, escaped(str(error)))
            return body_of(error)
        if isinstance(error, asyncio.CancelledError):
            log.warning("%s: the turn for a %s was cancelled: %s", label, kind_name(kind), error)
            return body_of(Condition.UNAVAILABLE.error("the handler was cancelled"))
        if not user_code and kind in (Kind.FRAME, Kind.CALL):
            sentence = "the handler's reply could not be encoded; the operator's log says why"
            log.error("%s: the reply to %s cannot be encoded: %s", label, shown(payload), error)
            return body_of(Condition.REPLY_NOT_ENCODABLE.error(sentence))
        log.error("%s raised in a %s: %s", label, kind_name(kind), shown(payload), exc_info=error)
        return body_of(Condition.HANDLER_RAISED.error("the handler failed; the operator's log says why"))

    def _undecodable(self, target: Any, error: BaseException) -> tuple[Condition, str]:
        text = str(error)
        if text.startswith("Invalid value") and text.endswith("`$.type`"):
            return Condition.UNKNOWN_MESSAGE, self._unknown(target, "a message of this type")
        return Condition.BAD_MESSAGE, f"the message could not be read: {unreadable(error)}"

    def _unknown(self, target: Any, what: str) -> str:
        registered = self._context.blueprint.types.get(type(target).__name__)
        names = registered.dispatch.names if registered is not None else ()
        known = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        return f"nobody here takes {what}; known are: {known or 'none'}"


def body_of(error: BaseException) -> ErrorBody:
    """An exception as it travels. Anything but a ShardpoolError is nobody's business outside."""
    if not isinstance(error, ShardpoolError):
        error = Condition.HANDLER_RAISED.error("the handler failed; the operator's log says why")
    return ErrorBody(error.code, error.kind, str(error)[:_SENTENCE_CHARS])


def label_of(target: Any) -> str:
    """An object for logs."""
    seat = getattr(target, "_seat", None)
    return str(seat) if seat is not None else repr(target)


def shown(text: bytes | str) -> str:
    """Foreign text for logs: escaped, on one line, cut."""
    cut = repr(text[:_SHOWN_BYTES])
    return cut if len(text) <= _SHOWN_BYTES else f"{cut}… ({len(text):,} in all)"


def escaped(text: str) -> str:
    """Text that may quote a client, for logs: on one line, cut."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_SENTENCE_CHARS])


def _ran_user_code(error: BaseException) -> bool:
    # Decoders and encoders are C: an exception that has no Python frame comes from them.
    return error.__traceback__ is not None
