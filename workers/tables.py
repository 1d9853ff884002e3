"""The executor's Table of each class, made once per shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardpool.app import ObjectType
from shardpool.codecs import encode_msgpack
from shardpool.handlers import Dispatch
from shardpool.workers.context import ShardContext

if TYPE_CHECKING:
    from shardpool._core import Table

MakeTable = Callable[..., Any]


class Tables:
    """Args: make: `shardpool._core.Table`, or a test's double of it."""

    def __init__(self, context: ShardContext, make: MakeTable) -> None:
        self._context = context
        self._make = make
        self._tables: dict[type, Table] = {}

    def of(self, kind: ObjectType) -> Table:
        """The table of a registered class."""
        table = self._tables.get(kind.cls)
        if table is None:
            table = self._tables[kind.cls] = self._build(kind.dispatch)
        return table

    def system(self) -> Table:
        """The table of the system object, which takes no messages."""
        return self._build(Dispatch(None, {}, None, _nothing, encode_msgpack, (), ()))

    def refusing(self, refuse: Callable[[bytes], Any], step: Callable[..., Any]) -> Table:
        """A table that refuses every message. Args: refuse: raises. step: for all other records."""
        return self._build(Dispatch(refuse, {}, None, refuse, encode_msgpack, (), ()), step)

    def _build(self, dispatch: Dispatch, step: Callable[..., Any] | None = None) -> Table:
        table: Table = self._make(
            dispatch.decode,
            dispatch.handlers,
            dispatch.encode,
            dispatch.call_decode,
            dispatch.call_encode,
            step or self._context.step,
        )
        return table


def _nothing(payload: bytes) -> Any:
    raise LookupError("no handler takes it")
