"""The family of errors and the one table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shardpool import Rejected, ShardpoolError
from shardpool.codecs import encode_msgpack
from shardpool.errors import CODES, FAMILY, NUMBERS, Condition, ErrorBody, error_from_call, number_of, page

KINDS = [
    "NotFound",
    "AlreadyExists",
    "TypeMismatch",
    "NotConfigured",
    "Rejected",
    "Unavailable",
    "CapacityExceeded",
    "DeadlineExceeded",
    "ShuttingDown",
    "ProtocolError",
    "InvalidOperation",
    "DataLost",
    "InternalFailure",
]


def test_the_family_is_complete() -> None:
    """O-1: these kinds, no others, all ShardpoolErrors."""
    assert list(FAMILY) == KINDS
    assert all(issubclass(cls, ShardpoolError) and cls.kind == name for name, cls in FAMILY.items())


def test_the_table_has_what_it_must() -> None:
    """O-18: each of the named conditions, each code and number once."""
    named = "lane_full saturated sealed stale memory work busy stopped uncertain store_busy handler_raised"
    assert {*named.split(), "reply_not_encodable", "late", "dead_lettered"} <= set(CODES)
    assert len(NUMBERS) == len(CODES) == len(Condition)


def test_admission_outcomes_are_the_first_numbers() -> None:
    """M-7, O-18: the mailbox's answers are conditions of the same number."""
    codes = [NUMBERS[number].code for number in range(1, 8)]
    assert codes == ["lane_full", "saturated", "sealed", "stale", "shutting_down", "link_full", "too_big"]


def test_own_full_resource_is_capacity_and_anothers_is_unavailable() -> None:
    """O-1: CapacityExceeded here, Unavailable elsewhere."""
    assert Condition.LANE_FULL.row.kind.kind == "CapacityExceeded"
    assert Condition.SEALED.row.kind.kind == "Unavailable"


def test_users_subclass_keeps_its_kind() -> None:
    """O-1: clients decide by kind; an app's own class and code do not add one."""

    class RoomFull(Rejected):
        pass

    error = RoomFull("no seat left", code="room_full")
    assert (error.kind, error.code, str(error)) == ("Rejected", "room_full", "no seat left")
    assert Rejected("x").code == "rejected"
    assert NUMBERS[number_of(error)] is Condition.REJECTED


def test_errors_travel() -> None:
    """T-10, O-18: what one object raises another one gets."""
    body = encode_msgpack(ErrorBody("room_full", "Rejected", "no seat left"))
    error = error_from_call(1, body)
    assert isinstance(error, Rejected)
    assert (error.code, str(error)) == ("room_full", "no seat left")
    assert error_from_call(4, b"").kind == "NotFound"
    assert error_from_call(1, b"\xc1").kind == "CapacityExceeded"
    assert error_from_call(9999, b"").kind == "InternalFailure"
    assert error_from_call(1, encode_msgpack(ErrorBody("x", "NoSuchKind", "y"))).kind == "InternalFailure"


def test_number_of_an_unknown_exception() -> None:
    """T-27: anything else is the handler's failure."""
    assert NUMBERS[number_of(ValueError())] is Condition.HANDLER_RAISED


def test_the_page_is_printed_from_the_table() -> None:
    """O-18: docs/errors.md is what `python -m shardpool.errors` prints."""
    docs = Path(__file__).parents[2] / "docs" / "errors.md"
    assert docs.read_text() == page()


def test_bodies_are_what_the_protocol_says() -> None:
    """O-1: code, kind and message."""
    assert msgspec.json.encode(ErrorBody("a", "B", "c")) == b'{"code":"a","kind":"B","message":"c"}'


def test_docstrings_say_what_each_kind_means() -> None:
    """O-2: the page explains every kind."""
    assert all(cls.__doc__ for cls in FAMILY.values())
    with pytest.raises(KeyError):
        FAMILY["Oops"]
