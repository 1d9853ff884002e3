"""P-27: shardpool.connect() against a server of the local socket written from docs/protocol.md."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardpool import NotFound, ShardpoolError, TypeMismatch
from shardpool.local import Found, Listed, connect


class Limits(msgspec.Struct):
    w: float


def answer(request: dict[str, Any]) -> Any:
    match request:
        case {"op": "ask", "type": "Arena", "id": "r1", "message": {"type": "limits"}}:
            return {"w": 100.0}
        case {"op": "send", "type": "Arena", "id": "r1", "message": {"type": "open"}}:
            return None
        case {"op": "publish", "type": "Arena", "id": "r1", "message": [1]}:
            return 7
        case {"op": "find", "type": "Arena", "id": "r1"}:
            return {"type": "Arena", "id": "r1", "shard": 1}
        case {"op": "find"}:
            return None
        case {"op": "list", "type": "Arena", "limit": 1000}:
            return [{"id": "r1", "shard": 1, "properties": {"players": 2}}]
    raise KeyError(request["id"])


@asynccontextmanager
async def pool(directory: Path) -> AsyncIterator[list[bytes]]:
    """A run directory with its lock held, and the local socket in it."""
    directory.mkdir(mode=0o700)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, b"%d\n" % os.getpid())
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def write(frame: bytes) -> None:
            writer.write(struct.pack(">I", len(frame)) + frame)

        while True:
            try:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                frame = await reader.readexactly(size)
            except asyncio.IncompleteReadError:
                break
            seen.append(frame)
            if frame[:1] == b"H":
                write(b'W{"v":1,"local":true,"app":"arena","codec":"msgpack","max_frame":65536}')
            elif frame[:1] == b"A":
                try:
                    body = msgspec.msgpack.encode(answer(msgspec.msgpack.decode(frame[5:])))
                    write(b"R" + struct.pack(">I", 0) + frame[1:5] + body)
                except KeyError as error:
                    text = msgspec.json.encode({"code": "not_found", "kind": "NotFound", "message": f"no {error}"})
                    write(b"E" + struct.pack(">I", 0) + frame[1:5] + text)
            elif frame[:1] == b"B":
                break
        writer.close()

    server = await asyncio.start_unix_server(serve, directory / "local.sock")
    try:
        yield seen
    finally:
        server.close()
        os.close(lock)


def test_all_operations_by_run_directory_and_by_name(tmp_path: Path) -> None:
    """P-27: ask, send, find, list, publish."""

    async def test() -> None:
        (tmp_path / "shardpool").mkdir()
        environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
        path = tmp_path / "shardpool" / "arena"
        async with asyncio.timeout(20), pool(path) as seen:
            for where in (path, str(path), "arena", None):
                async with connect(where, environ=environ) as arena:
                    assert arena.app == "arena"
                    assert await arena.ask("Arena", "r1", "limits") == {"w": 100.0}
                    assert await arena.ask("Arena", "r1", "limits", reply=Limits, timeout=3) == Limits(100.0)
                    await arena.send("Arena", "r1", {"type": "open"})
                    assert await arena.publish("Arena", "r1", [1]) == 7
                    assert await arena.find("Arena", "r1") == Found("Arena", "r1", 1)
                    assert await arena.find("Arena", "r2") is None
                    assert await arena.list("Arena") == [Listed("r1", 1, {"players": 2})]
                    with pytest.raises(NotFound, match="r9"):
                        await arena.ask("Arena", "r9", "limits")
                    with pytest.raises(TypeMismatch, match="Arena 'r1'"):
                        await arena.ask("Arena", "r1", 5)  # type: ignore[call-overload]
            assert seen[0] == b'H{"v":1,"local":true}'
            assert not any(frame[:1] == b"K" for frame in seen)

    asyncio.run(test())


def test_no_pool_and_several_pools_are_named(tmp_path: Path) -> None:
    """P-27, O-2."""

    async def test() -> None:
        (tmp_path / "shardpool").mkdir()
        environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
        with pytest.raises(ShardpoolError, match="no pool is running"):
            connect(environ=environ)
        with pytest.raises(ShardpoolError, match="no pool runs in"):
            connect(tmp_path, environ=environ)
        async with pool(tmp_path / "shardpool" / "one"), pool(tmp_path / "shardpool" / "two"):
            with pytest.raises(ShardpoolError, match="one, two"):
                connect(environ=environ)
            with pytest.raises(ShardpoolError, match='"three"'):
                connect("three", environ=environ)

    asyncio.run(test())
