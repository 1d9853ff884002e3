"""Judging what a shard's memory says."""

from __future__ import annotations

import pytest

from shardpool.supervisor.audit import TRIES, judge, look_at, table

BALANCED = {
    "accepted": 10, "moved_in": 2, "handled": 6, "failed": 1, "dead_lettered": 1, "unrun": 1, "moved_out": 1,
    "in_lanes": 2, "in_links": 3, "objects": 4, "judged": 4, "off": 0, "first_off": 0, "damaged": 0, "permits": 1,
    "permits_needed": 1, "routes": 3, "stray_routes": 0, "moved": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"in_lanes": 1}, "1 records are missing from the lanes"),
        ({"in_lanes": 3}, "1 records are too many in the lanes"),
        ({"off": 2, "first_off": 0x1000000000005}, "2 objects hold reservations that are not their records"),
        ({"damaged": 1}, "1 lanes lead nowhere"),
        ({"permits": 3}, "3 permits are in use, 1 objects hold one"),
        ({"stray_routes": 2}, "2 of 3 ids lead to objects that are gone"),
    ],
)
def test_each_imbalance_has_its_words(change: dict[str, int], words: str) -> None:
    """O-14: what does not balance is named with its number."""
    assert judge(BALANCED) == []
    [finding] = judge({**BALANCED, **change})
    assert words in finding


def test_a_shard_between_two_steps_is_looked_at_again() -> None:
    """O-14: one step's difference is no finding; one that stays is."""
    looks = iter([{**BALANCED, "in_lanes": 1}, BALANCED])
    assert look_at(0, lambda: next(looks), None, False).findings == []
    assert look_at(0, lambda: {**BALANCED, "in_lanes": 1}, None, False).findings


def test_a_shard_that_never_holds_still_is_not_judged() -> None:
    """O-14: numbers that were read while they changed accuse nobody; the table says what to do."""
    looks = 0

    def look() -> dict[str, int]:
        nonlocal looks
        looks += 1
        return {**BALANCED, "in_lanes": 0, "moved": 1}

    books = look_at(0, look, None, False)
    assert (books.judged, books.findings, looks) == (False, [], TRIES)
    assert "--pause" in table([books])
