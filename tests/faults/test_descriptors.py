"""What a program gets that user code starts: none of the pool's memory, doorbells or sockets."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from torturing.pool import Pool

from shardpool.client import connect

APP = """\
import os
from shardpool import Actor, App, on

app = App("descriptors")


@app.actor
class Player(Actor):
    @on
    def start(self) -> None:
        os.system("ls -l /proc/self/fd > listing")
"""


def test_programs_that_user_code_starts_inherit_nothing(tmp_path: Path) -> None:
    """P-1, M-17: else they would hold memory and ports for as long as they run, whoever is killed."""
    (tmp_path / "descriptors.py").write_text(APP)
    pool = Pool(tmp_path, 1, 1, {}, "descriptors:app", tmp_path)

    async def play() -> None:
        async with connect(pool.addresses[0]) as client:
            await client.ask("start")

    try:
        asyncio.run(play())
        # os.system leaves open in the child whatever is not marked close-on-exec.
        held = re.findall(r"-> (.*)", (tmp_path / "listing").read_text())
        wrong = [what for what in held if re.search(r"memfd|eventfd|socket|eventpoll|pidfd|ledger|dead-letters", what)]
        assert not wrong, held
    finally:
        pool.stop()
