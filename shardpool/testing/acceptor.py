"""What comes from the shards for clients, taken in when the dice say so."""

from __future__ import annotations

from shardpool import _core
from shardpool.testing.client import Client
from shardpool.testing.parts import Memory

_PUBLISH_HEAD = 8
_ADDRESS = 8


class Inbox:
    """The acceptor's links from the shards."""

    name = "acceptor"

    def __init__(self, memory: Memory, clients: dict[int, Client]) -> None:
        self._memory = memory
        self._clients = clients
        self.ready = False  # a shard did something since the last look

    def step(self) -> str:
        """Take in what is there."""
        self.ready = False
        records = _core.drain_links(self._memory.acceptor, True)
        for kind, _, _, a, b, payload in records:
            if kind == _core.KIND_PUBLISH:
                self._publish(payload)
            elif (client := self._clients.get(a)) is not None:
                _take(client, kind, b, payload)
        return f"takes {len(records)}"

    def _publish(self, payload: bytes) -> None:
        count = int.from_bytes(payload[:4], "little")
        body = payload[_PUBLISH_HEAD + _ADDRESS * count :]
        for at in range(_PUBLISH_HEAD, _PUBLISH_HEAD + _ADDRESS * count, _ADDRESS):
            client = self._clients.get(int.from_bytes(payload[at : at + _ADDRESS], "little"))
            if client is not None:
                client.take(body)


def _take(client: Client, kind: int, b: int, payload: bytes) -> None:
    match kind:
        case _core.KIND_BOUND:
            client.bound(b, payload)
        case _core.KIND_REFUSED | _core.KIND_CLOSE:
            client.end(b, payload.decode())
        case _core.KIND_PUSH:
            client.take(payload)
        case _core.KIND_REPLY:
            client.answer(b, payload)
        case _core.KIND_ERROR:
            client.fail(b, payload)
