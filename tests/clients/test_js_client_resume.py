"""The JavaScript client on its way back, in Node.js, against a server of docs/protocol.md that loses connections."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from session_keeper import Keeper
from test_js_client import TRANSPORTS, drive, node

pytestmark = pytest.mark.skipif(node is None, reason="no node here")


class Loser(Keeper):
    """Loses the connection on a message "lose": two pushes were sent, a third and the reply to ask 1 are kept."""

    lost = False
    gone: Any = None
    keep = 1 << 30  # messages that count as taken when the connection is lost

    async def frame(self, peer: Any, frame: bytes) -> None:
        if peer is self.gone:
            return  # it was read, and is not taken
        if frame[:1] == b"S" and json.loads(frame[1:])["type"] == "lose" and not self.lost:
            self.lost, self.gone = True, peer
            self.taken.append(frame)
            for n in (0, 1):
                await self.push(n)
            await self.number(peer, b"M", b"2", away=True)
            await self.number(peer, b"R", struct.pack(">I", 1) + b'"done"', away=True)
            self.taken = self.taken[: self.keep]
            await peer.end()
        else:
            await super().frame(peer, frame)


def check(make_server: Any, case: str, transport: str, prepare: Callable[[Loser], None] = lambda _: None) -> Loser:
    async def test() -> Loser:
        async with make_server() as server:
            keeper = Loser(server)
            prepare(keeper)
            await drive(case, getattr(server, transport))
            return keeper

    return asyncio.run(test())


def refuse(keeper: Loser) -> None:
    keeper.refuse = 4404


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_lost_connection_is_replaced_and_nothing_is_missed_or_doubled(make_server: Any, transport: str) -> None:
    """P-11, O-12: pushes go on in order, and the open ask gets the reply that it missed."""
    keeper = check(make_server, "comes_back", transport)
    assert keeper.hellos[1]["resume"]["token"] == f"{1:032x}"
    assert keeper.hellos[1]["resume"]["received"] in (0, 1, 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_wait_bounded_for_the_next_connection(make_server: Any, transport: str) -> None:
    """O-12: 1,024 messages wait, the next is a RangeError; those that wait go out in order."""

    def prepare(keeper: Loser) -> None:
        keeper.pause = 0.5

    keeper = check(make_server, "waits", transport, prepare)
    last = keeper.server.peers[-1]
    names = [json.loads(frame[1:])["type"] for frame in last.frames if frame[:1] == b"S"]
    assert names[:4] == ["x", "x", "x", "y"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_refused_resume_is_the_end(make_server: Any, transport: str) -> None:
    """P-6, O-12: 4404 ends the client once, with that code."""
    assert len(check(make_server, "resume_refused", transport, refuse).hellos) == 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_anew_begins_a_new_session(make_server: Any, transport: str) -> None:
    """P-6, O-12: the hello carries auth again, and no resume."""
    assert check(make_server, "anew", transport, refuse).hellos[-1] == {"v": 1, "auth": ["ann"]}


def test_without_reconnect_the_first_loss_is_the_end(make_server: Any) -> None:
    """O-12: reconnect: false leaves it to the program."""
    assert len(check(make_server, "not_at_all", "tcp").hellos) == 1


def test_the_window_ends_the_attempts(make_server: Any) -> None:
    """P-6, O-12: a server that keeps a session for 0.5 s is not asked for longer."""

    def prepare(keeper: Loser) -> None:
        keeper.refuse = 4503
        keeper.server.welcome["resume_window"] = 0.5

    assert len(check(make_server, "window", "tcp", prepare).hellos) >= 2


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("taken", [260, 299, 300])
def test_what_the_server_did_not_take_is_sent_again_in_order(make_server: Any, transport: str, taken: int) -> None:
    """P-11, O-12: the welcome says how many messages were taken; the others follow, and none of these."""

    def prepare(keeper: Loser) -> None:
        keeper.keep = taken

    keeper = check(make_server, "sends_again", transport, prepare)
    messages = [json.loads(frame[1:]) for frame in keeper.taken if frame[:1] == b"S"]
    assert [message["n"] for message in messages if message["type"] == "x"] == list(range(300))
