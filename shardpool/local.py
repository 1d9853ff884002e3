"""Trusted programs on the host reach a running pool: `shardpool.connect()` (P-27).

async with shardpool.connect("arena") as pool:
    print(await pool.ask("Arena", "r1", "limits"))

Over `local.sock` in the pool's run directory (0700, socket 0600); each side checks the other's uid. The frames are
those of docs/protocol.md, "The local socket".
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec

from shardpool import runtime_dir
from shardpool.client.bodies import Message, message_name
from shardpool.client.client import Client
from shardpool.client.connection import connect_local
from shardpool.client.settings import ClientSettings
from shardpool.errors import Rejected, TypeMismatch

T = TypeVar("T")

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Found(msgspec.Struct, frozen=True):
    """Where an object lives on the node."""

    type: str
    id: str
    shard: int


class Listed(msgspec.Struct, frozen=True):
    """One object of a type, with the properties that it published."""

    id: str
    shard: int
    properties: dict[str, Any] = {}


class Pool:
    """A running pool, seen from another program; made by `connect`. For the event loop it was made on."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def app(self) -> str:
        """The app's name."""
        return self._client.welcome.app

    @overload
    async def ask(
        self, target: type | str, id: str, message: Message, *, timeout: float | None = None, reply: type[T]
    ) -> T: ...
    @overload
    async def ask(self, target: type | str, id: str, message: Message, *, timeout: float | None = None) -> Any: ...
    async def ask(
        self, target: type | str, id: str, message: Message, *, timeout: float | None = None, reply: Any = Any
    ) -> Any:
        """Ask an actor or Spot.

        Args: target: its class, or the class's name. id: its id. message: tagged Struct, dict with "type", or a name.
              timeout: seconds; default 30. reply: type of the reply.
        Returns: what its handler returned.
        Raises: its error; NotFound, NotConfigured; DeadlineExceeded; client.Closed: the pool stopped.
        """
        fields = self._addressed("ask", target, id, message)
        if timeout is not None:
            fields["timeout"] = timeout
        return await self._client.ask(fields, timeout=timeout, reply=reply)

    async def send(self, target: type | str, id: str, message: Message) -> None:
        """Send to an actor or Spot; returns once its mailbox accepted the message. Args, Raises: as ask."""
        await self._client.ask(self._addressed("send", target, id, message))

    async def publish(self, target: type | str, id: str, message: Any) -> int:
        """Push a message to the clients of a Spot's members. Args: message: anything that the app's codec can encode.

        Returns: how many sessions it was sent to.
        """
        fields = {"op": "publish", "type": _name(target), "id": id, "message": message}
        return await self._client.ask(fields, reply=int)

    async def find(self, target: type | str, id: str) -> Found | None:
        """Where an object lives, or None when there is none."""
        fields: dict[str, Any] = {"op": "find", "type": _name(target), "id": id}
        found = await self._client.ask(fields)
        return None if found is None else msgspec.convert(found, Found)

    async def list(self, target: type | str, *, limit: int = 1000, after: str | None = None) -> list[Listed]:
        """The objects of a type, by id. Args: limit: at most 1,000. after: the last id of the page before."""
        fields: dict[str, Any] = {"op": "list", "type": _name(target), "limit": limit}
        if after is not None:
            fields["after"] = after
        return await self._client.ask(fields, reply=list[Listed])

    async def release(self, target: type | str, id: str) -> None:
        """Let an object that was quarantined run again. Raises: NotFound: there is none, or it is not quarantined."""
        await self._client.ask({"op": "release", "type": _name(target), "id": id})

    async def close(self) -> None:
        """Close the connection; the pool runs on."""
        await self._client.close()

    def _addressed(self, op: str, target: type | str, id: str, message: Message) -> dict[str, Any]:
        if isinstance(message, str):
            message = {"type": message}
        elif isinstance(message, msgspec.Struct):
            message_name(type(message))
        elif not isinstance(message, dict | bytes):
            raise TypeMismatch(
                f"{op} {_name(target)} {id!r}: a message is a tagged Struct, a dict with 'type' or a name"
            )
        return {"op": op, "type": _name(target), "id": id, "message": message}


class ConnectingPool:
    """What `connect` returns: await it for a Pool, or `async with` it to have it closed."""

    def __init__(self, directory: runtime_dir.RunDir, timeout: float) -> None:
        self._directory = directory
        self._timeout = timeout
        self._pool: Pool | None = None

    def __await__(self) -> Generator[Any, None, Pool]:
        return self._connect().__await__()

    async def __aenter__(self) -> Pool:
        self._pool = await self._connect()
        return self._pool

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def _connect(self) -> Pool:
        client = await connect_local(str(self._directory.local), timeout=self._timeout, settings=ClientSettings())
        uid = _peer_uid(client)
        if uid not in (os.geteuid(), 0):
            await client.close()
            raise Rejected(f"{self._directory.local} is served by uid {uid}, not by this user ({os.geteuid()})")
        return Pool(client)


def connect(
    name_or_run_dir: str | os.PathLike[str] | None = None,
    *,
    timeout: float = 10.0,
    environ: Mapping[str, str] = os.environ,
) -> ConnectingPool:
    """Reach a pool that runs on this host as this user: `async with shardpool.connect("arena") as pool:`.

    Args: name_or_run_dir: the pool's name, or its run directory (anything with a slash); None: the only one that runs.
          timeout: seconds to connect.
    Raises: runtime_dir.NotRunning: no such pool runs; Ambiguous: several do and none was named; says which.
    """
    text = None if name_or_run_dir is None else os.fspath(name_or_run_dir)
    is_path = text is not None and (os.sep in text or isinstance(name_or_run_dir, os.PathLike))
    directory, _ = runtime_dir.find(None if is_path else text, text if is_path else None, environ)
    return ConnectingPool(directory, timeout)


def _name(target: type | str) -> str:
    return target if isinstance(target, str) else target.__name__


def _peer_uid(client: Client) -> int:
    sock = client.transport_info("socket")
    assert isinstance(sock, socket.socket) or hasattr(sock, "getsockopt")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid
