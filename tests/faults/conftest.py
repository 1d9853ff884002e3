"""Pools for the tests of faults."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from served_pool import APP, ServedPool


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedPool]]:
    """Starts pools in one directory, one after another."""
    directory = Path("/tmp") / f"sp-{os.getpid()}-{abs(hash(tmp_path)) % 100000}"
    started: list[ServedPool] = []

    def begin(*flags: str, app: str = APP, **options: Any) -> ServedPool:
        started.append(ServedPool(directory, app, *flags, **options))
        return started[-1]

    yield begin
    for pool in started:
        pool.end()
    shutil.rmtree(directory, ignore_errors=True)
