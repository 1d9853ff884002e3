"""Records that a shard will not run, on their way into the file of dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from time import time

from shardpool._core import FLAG_ASK
from shardpool.dead_letters import DeadLetter, DeadLetterFile, Reason
from shardpool.dead_letters import Kind as LetterKind
from shardpool.workers.context import ShardContext, log
from shardpool.workers.kinds import Kind
from shardpool.workers.travel import Record

PER_OBJECT_MAX = 64  # of those that an ended object leaves: one client must not push all others' out of the file


class Letters:
    """Args: file: None where a shard has no place for them; they are counted only."""

    def __init__(self, context: ShardContext, file: DeadLetterFile | None) -> None:
        self._context = context
        self._file = file

    def keep(
        self,
        name: tuple[str, str],
        address: int,
        turn: int,
        records: Iterable[Record],
        reason: Reason,
        attempts: int,
        first: int = 0,
    ) -> None:
        """Keep messages of one object; other records are nobody's.

        Args: name: type and id. turn: the object's last. first: place of the first behind that turn, for the ids.
        """
        letters = [
            self._letter(name, f"{address:016x}-{turn}-{place}", record, reason, attempts)
            for place, record in enumerate(records, first)
            if record[0] in (Kind.FRAME, Kind.CALL)
        ][:PER_OBJECT_MAX]
        if not letters:
            return
        self._context.counts.dead_letters += len(letters)
        if self._file is None:
            return
        try:
            self._file.append(letters)
        except OSError as error:
            log.error("%d dead letters of %s %r could not be written: %s", len(letters), *name, error)

    def _letter(self, name: tuple[str, str], id: str, record: Record, reason: Reason, attempts: int) -> DeadLetter:
        kind, flags, a, b, payload = record
        if kind == Kind.FRAME:
            what = LetterKind.ASK if flags & FLAG_ASK else LetterKind.MESSAGE
            sender, codec = f"client {a:016x}", self._context.blueprint.app.codec.value
        else:
            what = LetterKind.CALL if a else LetterKind.SEND
            sender, codec = f"shard {b - 1 - self._context.acceptors}", "msgpack"
        return DeadLetter(
            id, time(), self._context.number, name[0], name[1], what, sender, reason, attempts, codec, payload
        )
