"""The shardpool apps that are measured; their handlers do what the peers' do (peers/counter.py)."""

import struct
from typing import Any

from shardpool import Actor, App, Spot, on

pack_count = struct.Struct("<Q").pack


class Counter(Actor):
    n = 0

    @on
    def message(self, data: bytes) -> bytes:
        self.n += 1
        return pack_count(self.n) + data[8:]


class LoopingCounter(Actor):
    n = 0

    @on
    def message(self, data: bytes) -> bytes:
        self.n += 1
        total = 0
        for i in range(1000):
            total += i
        return pack_count(self.n) + data[8:]


class Room(Spot):
    def on_create(self, request: Any) -> bool:
        return True


class Member(Actor):
    """Joins the one room; what a member says, all in it hear."""

    n = 0

    def on_ready(self) -> None:
        self.join(Room, "hall").defer()

    @on
    def message(self, data: bytes) -> bytes:
        self.n += 1
        self.spot.publish(data)
        return pack_count(self.n) + data[8:]


counter = App("counter", codec="raw")
counter.actor(Counter)
counter_bare = App("counter", codec="raw", envelope=False)
counter_bare.actor(Counter)
looping = App("looping", codec="raw")
looping.actor(LoopingCounter)
looping_bare = App("looping", codec="raw", envelope=False)
looping_bare.actor(LoopingCounter)
room = App("room", codec="raw")
room.actor(Member)
room.spot(Room)
