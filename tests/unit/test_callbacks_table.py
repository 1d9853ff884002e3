"""The one list of callbacks."""

from __future__ import annotations

import re
from pathlib import Path

from shardpool import Actor, App, Session, Spot
from shardpool.callbacks import CALLBACKS, page

OWNERS = {"app": App, "session": Session, "actor": Actor, "Spot": Spot}


def test_every_callback_of_the_classes_is_in_the_table_and_the_other_way_round() -> None:
    """T-39: owner by owner, nothing missing, nothing invented."""
    listed = {
        (owner, match.group())
        for row in CALLBACKS
        for owner in row.owner.split(", ")
        if (match := re.match(r"on_\w+", row.name))
    }
    defined = {(owner, name) for owner, cls in OWNERS.items() for name in dir(cls) if name.startswith("on_")}
    assert listed == defined


def test_the_page_is_printed_from_the_table() -> None:
    """T-39: docs/turns.md is what `python -m shardpool.callbacks` prints."""
    docs = Path(__file__).parents[2] / "docs" / "turns.md"
    assert docs.read_text() == page()
