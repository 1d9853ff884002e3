"""The node's directory of ids, from several processes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardpool import _core

sys.path.insert(0, str(Path(__file__).parents[1]))
from native_programs import load_library

HERE, THERE = 1 << 32 | 1, 1 << 56 | 1 << 32 | 2  # object addresses on two shards


class Node:
    """Segments of a supervisor, one acceptor and two shards; a directory as each process sees it."""

    def __init__(self, entries: int = 4096) -> None:
        geometry = _core.Geometry(1, 2, slots=8, permits=4, arena_bytes=65536, directory_entries=entries)
        self.segments = [_core.create_segment(geometry, process) for process in range(4)]
        self.doorbells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(4)]

    def attach(self, process: int) -> _core.Node:
        return _core.Node(process, self.segments, self.doorbells)

    def directory(self, process: int) -> _core.Directory:
        return _core.Directory(self.attach(process))

    def close(self) -> None:
        for descriptor in self.segments + self.doorbells:
            os.close(descriptor)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


def key(name: str, kind: str = "room") -> bytes:
    return f"app\0{kind}\0{name}".encode()


def in_child(work: Callable[[], Any]) -> tuple[int, int]:
    """Fork; the child's result is read as JSON from the descriptor. Returns: pid, descriptor."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writes, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    return pid, reads


def result(child: tuple[int, int]) -> Any:
    pid, reads = child
    with os.fdopen(reads, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return json.loads(said)


def test_who_claims_first_creates(node: Node) -> None:
    """P-26: the others are told to wait, then the address."""
    first, second = node.directory(2), node.directory(3)
    assert first.find(key("a")) == 0
    assert first.claim(key("a")) == (True, 0)
    assert second.claim(key("a")) == (False, _core.DIRECTORY_CREATING)
    assert second.find(key("a")) == _core.DIRECTORY_CREATING
    assert first.publish(key("a"), HERE)
    assert second.claim(key("a")) == (False, HERE)
    assert node.directory(1).find(key("a")) == HERE


def test_a_claim_can_be_given_up(node: Node) -> None:
    """P-26: then the next one creates; nobody gives up what is not his."""
    first, second = node.directory(2), node.directory(3)
    first.claim(key("a"))
    assert not second.withdraw(key("a"))
    assert not second.publish(key("a"), THERE)
    assert first.withdraw(key("a"))
    assert second.claim(key("a")) == (True, 0)


def test_a_move_replaces_the_address_it_knows(node: Node) -> None:
    """P-26, T-16: once; who comes late with the old address changes nothing."""
    directory = node.directory(2)
    directory.claim(key("a"))
    directory.publish(key("a"), HERE)
    assert directory.move(key("a"), HERE, THERE)
    assert not directory.move(key("a"), HERE, THERE)
    assert not directory.remove(key("a"), HERE)
    assert node.directory(3).find(key("a")) == THERE
    assert directory.remove(key("a"), THERE)
    assert directory.find(key("a")) == 0


def test_a_type_is_listed_in_order_and_in_pages(node: Node) -> None:
    """P-26: with the properties that were published last; claims are not listed."""
    directory = node.directory(2)
    for number in range(30):
        directory.claim(key(f"{number:02}"))
        directory.publish(key(f"{number:02}"), HERE + number, b"old")
        assert directory.publish(key(f"{number:02}"), HERE + number, f"{number} players".encode())
    directory.claim(key("x", "lobby"))
    directory.publish(key("x", "lobby"), THERE)
    directory.claim(key("99"))
    prefix, after, listed = b"app\0room\0", b"", []
    while page := node.directory(1).list(prefix, 7, after):
        listed += page
        after = page[-1][0]
    assert listed == [(key(f"{n:02}"), HERE + n, f"{n} players".encode()) for n in range(30)]
    assert directory.list(b"app\0lobby\0", 5) == [(key("x", "lobby"), THERE, b"")]
    assert directory.list(prefix, 0) == []


def test_a_full_window_is_said_so_and_cells_are_used_again() -> None:
    """P-26, M-3: CapacityExceeded is the caller's; nothing is evicted."""
    node = Node(entries=8)
    directory = node.directory(2)
    for number in range(8):
        assert directory.claim(key(str(number))) == (True, 0)
        directory.publish(key(str(number)), HERE + number)
    assert directory.claim(key("ninth")) == (False, _core.DIRECTORY_FULL)
    for turn in range(5000):  # more often than the count of uses in a cell's state can tell apart
        assert directory.remove(key("0"), HERE), turn
        assert directory.claim(key("0")) == (True, 0)
        directory.publish(key("0"), HERE)
    assert directory.find(key("7")) == HERE + 7
    node.close()


@pytest.mark.parametrize("bad", [b"", b"x" * 129])
def test_keys_have_a_length(node: Node, bad: bytes) -> None:
    """P-26: 1 to 128 bytes, said with the remedy."""
    with pytest.raises(ValueError, match="use a shorter app, type or id"):
        node.directory(2).claim(bad)
    assert node.directory(2).claim(b"x" * 128) == (True, 0)


def test_properties_have_a_limit_and_addresses_a_generation(node: Node) -> None:
    """P-26: refused before anything changes."""
    directory = node.directory(2)
    directory.claim(key("a"))
    with pytest.raises(ValueError, match="at most 96 bytes"):
        directory.publish(key("a"), HERE, b"x" * 97)
    with pytest.raises(ValueError, match="no object address"):
        directory.publish(key("a"), 1)
    assert directory.find(key("a")) == _core.DIRECTORY_CREATING
    assert directory.publish(key("a"), HERE, b"x" * 96)


def test_racing_processes_create_each_id_once(node: Node) -> None:
    """P-26: three processes claim the same ids in the same order."""
    names = [key(str(number)) for number in range(600)]

    def work(process: int) -> list[int]:
        directory = node.directory(process)
        created = []
        for number, name in enumerate(names):
            mine, _ = directory.claim(name)
            if mine:
                directory.publish(name, process << 32 | number)
                created.append(number)
        return created

    children = [in_child(lambda process=process: work(process)) for process in (1, 2, 3)]
    created = {process: result(child) for process, child in zip((1, 2, 3), children, strict=True)}
    assert sorted(number for numbers in created.values() for number in numbers) == list(range(600))
    directory = node.directory(1)
    for process, numbers in created.items():
        for number in numbers:
            assert directory.find(names[number]) == process << 32 | number


def test_racing_processes_enter_and_remove_one_id(node: Node) -> None:
    """P-26: whoever has the id finds its own address there until it takes it out again."""

    def work(process: int) -> int:
        directory = node.directory(process)
        had = wrong = 0
        while had < 3000:
            mine, says = directory.claim(key("a"))
            if mine:
                had += 1
                wrong += not directory.publish(key("a"), process << 32 | 5)
                wrong += directory.find(key("a")) != process << 32 | 5
                wrong += not directory.remove(key("a"), process << 32 | 5)
            else:
                wrong += says == _core.DIRECTORY_FULL
        return wrong

    children = [in_child(lambda process=process: work(process)) for process in (2, 3)]
    assert [result(child) for child in children] == [0, 0]
    assert node.directory(1).find(key("a")) == 0


def test_a_dead_creators_claims_are_free_again(node: Node) -> None:
    """P-26, M-16: its finished entries stay, its objects live on."""
    dead, other = node.directory(2), node.directory(3)
    dead.claim(key("made"))
    dead.publish(key("made"), HERE)
    dead.claim(key("begun"))
    other.claim(key("others"))
    assert _core.settle(node.attach(0), 2)
    assert other.find(key("made")) == HERE
    assert other.find(key("begun")) == 0
    assert other.find(key("others")) == _core.DIRECTORY_CREATING
    assert other.claim(key("begun")) == (True, 0)


def test_the_hash_is_siphash(tmp_path: Path) -> None:
    """P-26: the vectors of its authors: key 00 01 .. 0f, input 00 01 .. of growing length."""
    core = load_library(tmp_path)
    core.siphash.restype = ctypes.c_uint64
    secret = (ctypes.c_uint64 * 2)(0x0706050403020100, 0x0F0E0D0C0B0A0908)
    expected = {0: 0x726FDB47DD0E0E31, 1: 0x74F839C593DC67FD, 8: 0x93F5F5799A932462, 15: 0xA129CA6149BE45E5}
    for length, value in expected.items():
        assert core.siphash(secret, bytes(range(length)), ctypes.c_size_t(length)) == value
