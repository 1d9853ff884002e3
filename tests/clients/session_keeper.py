"""A session behind the fake server of conftest.py that outlives its connections, as docs/protocol.md says."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any


class Keeper:
    """Makes a fake server keep one session: frames since the last acknowledgement, a token per welcome."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.kept: list[tuple[int, bytes]] = []
        self.hellos: list[dict[str, Any]] = []
        self.seq = 0
        self.refuse: int | None = None
        self.silent = False
        self.taken: list[bytes] = []
        self.pause = 0.0  # before a resume is answered
        server.welcome["resume_window"] = 30.0
        server.on_frame = self.frame

    async def frame(self, peer: Any, frame: bytes) -> None:
        match frame[:1]:
            case b"H":
                await self.greet(peer, json.loads(frame[1:]))
            case b"S":
                self.taken.append(frame)
            case b"A":
                self.taken.append(frame)
                (ask,) = struct.unpack_from(">I", frame, 1)
                if json.loads(frame[5:])["type"] != "later":
                    await self.number(peer, b"R", struct.pack(">I", ask) + frame[5:])
            case b"B":
                await peer.end(1000, "bye")
            case b"P":
                await peer.write(b"O" + frame[1:])

    async def greet(self, peer: Any, hello: dict[str, Any]) -> None:
        self.hellos.append(hello)
        resume = hello.get("resume")
        if self.silent and resume:
            return
        if self.refuse and resume:
            await peer.end(self.refuse, "refused")
            return
        if resume:
            await asyncio.sleep(self.pause)
        token = f"{len(self.hellos):032x}"
        await peer.write(
            b"W"
            + json.dumps(
                self.server.welcome
                | {"token": token, "resumed": bool(resume), "taken": len(self.taken) if resume else 0}
            ).encode()
        )
        if not resume:
            self.kept, self.seq, self.taken = [], 0, []
            return
        for seq, kept in self.kept:
            if seq > resume["received"]:
                await peer.write(kept)

    async def number(self, peer: Any, kind: bytes, rest: bytes, away: bool = False) -> None:
        self.seq += 1
        self.kept.append((self.seq, kind + struct.pack(">I", self.seq) + rest))
        if not away:
            await peer.write(self.kept[-1][1])

    async def push(self, value: Any, away: bool = False) -> None:
        await self.number(self.server.peers[-1], b"M", json.dumps(value).encode(), away)
