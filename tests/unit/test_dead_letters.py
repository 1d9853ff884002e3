"""The file of dead letters: what is written is read, whatever happened to the writer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardpool import dead_letters
from shardpool.dead_letters import DeadLetter, DeadLetterFile, Kind, Reason
from shardpool.errors import NotFound, TypeMismatch

LIMIT = 1 << 20


def letter(id: str, payload: bytes = b'{"type":"move"}') -> DeadLetter:
    return DeadLetter(id, 1.5, 0, "Player", "ann", Kind.ASK, "client 1", Reason.SHARD_DIED, 1, "json", payload)


def test_letters_are_read_as_they_were_written(tmp_path: Path) -> None:
    """M-16: by several writers, in order; no file: none."""
    path = tmp_path / "letters"
    assert dead_letters.read(path) == []
    first, second = DeadLetterFile(path, LIMIT), DeadLetterFile(path, LIMIT)
    first.append([letter("1", b"\x00\xff"), letter("2")])
    second.append([letter("3")])
    assert dead_letters.read(path) == [letter("1", b"\x00\xff"), letter("2"), letter("3")]
    assert dead_letters.find(path, "3") == letter("3")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(NotFound, match="no dead letter '4'"):
        dead_letters.find(path, "4")


def test_letter_written_twice_is_read_once(tmp_path: Path) -> None:
    """M-16: a kill between the letter and the mark has the next successor write it again, under the same id."""
    path = tmp_path / "letters"
    for _ in range(3):
        DeadLetterFile(path, LIMIT).append([letter("1")])
    assert dead_letters.read(path) == [letter("1")]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_last_line_that_was_cut_off_costs_that_letter_only(tmp_path: Path, cut: int) -> None:
    """M-16: a writer killed in the middle of its line: readers skip it, the next writer begins a line of its own."""
    path = tmp_path / "letters"
    file = DeadLetterFile(path, LIMIT)
    file.append([letter("1"), letter("2")])
    path.write_bytes(path.read_bytes()[:-cut])
    kept = dead_letters.read(path)
    assert [each.id for each in kept] == (["1", "2"] if cut == 1 else ["1"])
    file.append([letter("3")])
    assert [each.id for each in dead_letters.read(path)] == [each.id for each in kept] + ["3"]


def test_file_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    """M-16, M-3: old letters make room; file and predecessor together stay within the limit."""
    path = tmp_path / "letters"
    file = DeadLetterFile(path, 8192)
    for number in range(200):
        file.append([letter(str(number))])
    assert path.stat().st_size + (tmp_path / "letters.1").stat().st_size <= 8192
    ids = [int(each.id) for each in dead_letters.read(path)]
    assert ids == list(range(ids[0], 200))
    assert len(ids) > 10


def test_file_of_another_version_is_named_and_not_overwritten(tmp_path: Path) -> None:
    """O-2: readers say which version; a writer puts it aside and begins its own."""
    path = tmp_path / "letters"
    path.write_text(json.dumps({"format": dead_letters.FORMAT, "version": 9}) + "\nwhatever\n")
    with pytest.raises(TypeMismatch, match=r"version 9 .* reads version 1"):
        dead_letters.read(path)
    DeadLetterFile(path, LIMIT).append([letter("1")])
    assert dead_letters.read(path) == [letter("1")]
    assert "whatever" in (tmp_path / "letters.other-version").read_text()


def test_what_is_no_file_of_letters_is_said(tmp_path: Path) -> None:
    """O-2: with the path."""
    path = tmp_path / "letters"
    path.write_text("hello\n")
    with pytest.raises(TypeMismatch, match="letters is no file of dead letters"):
        dead_letters.read(path)
