"""The arena's simulated players against a server written from docs/protocol.md."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from typing import Any

import pytest


class Rooms:
    """Just enough of the arena: enter, move, and a position list per move."""

    def __init__(self, server: Any, full: bool = False) -> None:
        self.server = server
        self.full = full
        self.rooms: dict[str, list[Any]] = {}
        self.room_of: dict[Any, str] = {}

    async def act(self, peer: Any, frame: bytes) -> None:
        if frame[:1] == b"S":
            message = json.loads(frame[1:])
            room = self.room_of[peer] = message["room"]
            self.rooms.setdefault(room, []).append(peer)
            await peer.push(
                {
                    "type": "joined",
                    "room": room,
                    "accepted": not self.full,
                    "you": "1",
                    "why": "full" if self.full else None,
                }
            )
        elif frame[:1] == b"A":
            await peer.reply(struct.unpack_from(">I", frame, 1)[0], {"x": 1.0, "y": 2.0})
            members = self.rooms[self.room_of[peer]]
            await peer.push({"type": "positions", "players": {str(n): ["p", 0, 0] for n in range(len(members))}})
        else:
            await self.server.behave(peer, frame)


@pytest.mark.parametrize("full", [False, True])
def test_players_enter_move_and_report(make_server: Any, full: bool) -> None:
    """O-12: over TCP and WebSocket; a room that lets nobody in is a failure with its reason."""

    async def test() -> None:
        async with make_server() as server:
            server.on_frame = Rooms(server, full).act
            command = [sys.executable, "-m", "shardpool.examples.players", "--tcp", server.tcp, "--ws", server.ws]
            command += ["--players", "8", "--rooms", "2", "--seconds", "1.2", "--rate", "20"]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            async with asyncio.timeout(30):
                output, _ = await process.communicate()
            text = output.decode()
            if full:
                assert process.returncode == 1
                assert "not let into room 1: full" in text
            else:
                assert process.returncode == 0, text
                assert "8 (4 over TCP, 4 over WebSocket)" in text
                assert "0 failures" in text

    asyncio.run(test())
