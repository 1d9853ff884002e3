"""The app that is killed: it writes into the ledger what it runs, in the order in which it runs it.

Its handlers are the four ways a message can be under way when its shard dies: at once, suspended, without an answer,
and on to another shard.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from shardpool import Actor, App, Spot, on
from torturing.ledger import PIDS, Ledger, Seen, checksum

app = App("torture")
ledger = Ledger(Path(os.environ["TORTURE_LEDGER"]))


class Message(Struct):
    """number: in the whole run; stream: whose order it keeps; check: over all of it."""

    number: int
    stream: int
    check: int
    padding: str

    def is_whole(self) -> bool:
        return checksum(self.number, self.stream, self.padding) == self.check


class Note(Message, tag="note"):
    """Pushed back, then answered."""


class Later(Message, tag="later"):
    """Answered after a suspension."""


class Tell(Message, tag="tell"):
    """Not answered."""


class Relay(Message, tag="relay"):
    """Sent on to a room, then answered."""

    room: str = ""


class Hop(Message, tag="hop"):
    """What a room gets."""


def mark(msg: Message) -> None:
    """Before anything else that the handler does: from here on it has run."""
    number = msg.number
    ledger.run[number] = min(255, ledger.run[number] + 1)
    pid = os.getpid() % PIDS
    ledger.taken[pid] += 1
    if not msg.is_whole():
        ledger.seen[number] |= Seen.TORN
    if ledger.last[msg.stream] > number:
        ledger.seen[number] |= Seen.REORDERED
    else:
        ledger.last[msg.stream] = number


@app.actor
class Player(Actor):
    """One client."""

    @on
    def note(self, msg: Note) -> int:
        mark(msg)
        self.session.send({"type": "mark", "number": msg.number, "stream": msg.stream})
        return msg.number

    @on
    async def later(self, msg: Later) -> int:
        mark(msg)
        await asyncio.sleep(0.002)
        return msg.number

    @on
    def tell(self, msg: Tell) -> None:
        mark(msg)

    @on
    async def relay(self, msg: Relay) -> int:
        mark(msg)
        await self.create(Room, msg.room)
        await self.send(Room, msg.room, Hop(msg.number, msg.stream, msg.check, msg.padding))
        ledger.hop_sent[msg.number] = 1
        return msg.number


@app.spot(mode="spotwide")
class Room(Spot):
    """Where relayed messages go."""

    @on
    def hop(self, msg: Hop) -> None:
        number = msg.number
        ledger.hop_run[number] = min(255, ledger.hop_run[number] + 1)
        if not msg.is_whole():
            ledger.seen[number] |= Seen.HOP_TORN
        if ledger.last_hop[msg.stream] > number:
            ledger.seen[number] |= Seen.HOP_REORDERED
        else:
            ledger.last_hop[msg.stream] = number

    def on_create(self, request: Any) -> None:
        """Accept."""
