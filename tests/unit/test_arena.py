"""The arena: memory of accepted records."""

from __future__ import annotations

import ctypes
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from native_programs import load_library

PAGE = 65536
UNIT = 16
HEAD = 40
PAGES = 32


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    core = load_library(tmp_path_factory.mktemp("core"))
    core.arena_open.restype = core.arena_adopt.restype = ctypes.c_void_p
    core.arena_allocate.restype = core.arena_free_pages.restype = ctypes.c_uint32
    return core


class Arena:
    """An arena and what is known to be in use."""

    def __init__(self, core: ctypes.CDLL, pages: int = PAGES) -> None:
        self._core = core
        self.pages = pages
        self.pointer = ctypes.c_void_p(core.arena_open(ctypes.c_uint64(pages * PAGE)))
        self.cells: dict[int, int] = {}  # unit -> length

    def allocate(self, length: int, keep: int = 0) -> int:
        unit = int(self._core.arena_allocate(self.pointer, length, keep))
        if unit:
            start, end = unit * UNIT, unit * UNIT + HEAD + length
            assert end <= self.pages * PAGE
            for other, size in self.cells.items():
                assert end <= other * UNIT or other * UNIT + HEAD + size <= start, "two cells overlap"
            self.cells[unit] = length
        return unit

    def free(self, unit: int) -> None:
        del self.cells[unit]
        self._core.arena_free(self.pointer, unit)

    def free_pages(self) -> int:
        return int(self._core.arena_free_pages(self.pointer))

    def adopt(self) -> int:
        """As a successor: only the cells in use are known. Returns: how many were kept."""
        units = (ctypes.c_uint32 * len(self.cells))(*self.cells)
        kept = ctypes.c_uint32(0)
        self.pointer = ctypes.c_void_p(self._core.arena_adopt(self.pointer, units, len(self.cells), ctypes.byref(kept)))
        return kept.value

    def close(self) -> None:
        self._core.arena_close(self.pointer)


def a_length(dice: random.Random) -> int:
    return dice.choice(
        [dice.randrange(0, 64), dice.randrange(0, 4096), dice.randrange(0, PAGE), dice.randrange(0, 3 * PAGE)]
    )


@pytest.mark.parametrize("seed", range(8))
def test_cells_never_overlap_and_everything_comes_back(core: ctypes.CDLL, seed: int) -> None:
    """M-3: random allocations and frees, with a successor taking over in between."""
    dice = random.Random(seed)
    arena = Arena(core)
    for step in range(2000):
        if arena.cells and dice.random() < 0.5:
            arena.free(dice.choice(list(arena.cells)))
        else:
            arena.allocate(a_length(dice))
        if step % 500 == 499:
            assert arena.adopt() == len(arena.cells)
    for unit in list(arena.cells):
        arena.free(unit)
    # a class in use keeps one page, all others are free again
    assert arena.free_pages() >= PAGES - 17
    arena.close()


@pytest.mark.parametrize("length", [0, 24, 216, 1000, 32768 - HEAD, PAGE, 5 * PAGE])
def test_a_full_arena_refuses_and_takes_as_much_again_after_it_was_emptied(core: ctypes.CDLL, length: int) -> None:
    """M-3: a refusal changes nothing."""
    arena = Arena(core, 12)

    def fill() -> int:
        count = 0
        while core.arena_allocate(arena.pointer, length, 0):
            count += 1
        return count

    units = []
    while unit := int(core.arena_allocate(arena.pointer, length, 0)):
        units.append(unit)
    assert core.arena_allocate(arena.pointer, length, 0) == 0
    assert len(set(units)) == len(units)
    for unit in units:
        core.arena_free(arena.pointer, unit)
    assert fill() == len(units)
    arena.close()


def test_the_share_of_lifecycle_stays_free(core: ctypes.CDLL) -> None:
    """M-10: application records leave `keep` pages alone; lifecycle records may use them."""
    arena = Arena(core, 8)
    while core.arena_allocate(arena.pointer, 30000, 2):
        pass
    assert arena.free_pages() == 2
    assert core.arena_allocate(arena.pointer, 3 * PAGE // 2, 2) == 0
    assert core.arena_allocate(arena.pointer, 30000, 0) != 0
    arena.close()


def test_a_successor_refuses_what_cannot_be_a_cell(core: ctypes.CDLL) -> None:
    """M-3, M-16: units outside the arena, the same twice, or of two classes in one page."""
    arena = Arena(core, 4)
    small, large = arena.allocate(10), arena.allocate(PAGE)
    arena.cells = {small: 10, large: PAGE, 0: 0, 4 * PAGE // UNIT: 0, 2**32 - 1: 0}
    assert arena.adopt() == 2
    arena.close()
