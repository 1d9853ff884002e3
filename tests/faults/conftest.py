"""Pools for the tests of faults."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from served_pool import APP, ServedPool


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedPool]]:
    """Starts pools in one directory, one after another."""
    directory = Path("/tmp") / f"sp-{os.getpid()}-{abs(hash(tmp_path)) % 100000}"
    started: list[ServedPool] = []

    def begin(*flags: str, app: str = APP, address: str = "tcp://127.0.0.1:0") -> ServedPool:
        started.append(ServedPool(directory, app, *flags, address=address))
        return started[-1]

    yield begin
    for pool in started:
        pool.end()
    shutil.rmtree(directory, ignore_errors=True)
