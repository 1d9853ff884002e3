"""The delivery table names a test in every cell, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "delivery.md").read_text()
NAMED = {int(number): test for number, test in re.findall(r"^(\d+)\. `([^`]+)`$", PAGE, flags=re.M)}
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")][1:]
NEEDS_NONE = ("no test yet", "no test of its own yet", "no part in it", "then the reply is late")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_every_cell_names_its_test_or_says_that_it_has_none(row: list[str]) -> None:
    """P-29: five failures per kind of call."""
    assert len(row) == 6
    for cell in row[1:]:
        assert re.search(r"\[\d+\]", cell) or any(words in cell for words in NEEDS_NONE), cell


def test_numbers_and_tests_belong_together() -> None:
    """P-29: nothing is numbered and not listed, or listed and not used."""
    used = {int(number) for number in re.findall(r"\[(\d+)\]", PAGE)}
    assert used == set(NAMED) == set(range(1, len(NAMED) + 1))


@pytest.mark.parametrize("test", NAMED.values())
def test_every_named_test_exists(test: str) -> None:
    """P-29: file and function."""
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
