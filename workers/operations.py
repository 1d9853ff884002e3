"""What trusted programs on the host ask through the local socket: ask, send, find, list, publish (P-27)."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from shardpool.app import ObjectType
from shardpool.calls import encode_value
from shardpool.codecs import UNREADABLE, encode_json, encode_msgpack, unreadable, value_decoder
from shardpool.errors import Condition, ShardpoolError
from shardpool.spot import Spot
from shardpool.workers.asking import Asking
from shardpool.workers.context import ShardContext, log
from shardpool.workers.faults import body_of
from shardpool.workers.kinds import Kind, SlotKind, shard_of
from shardpool.workers.outbox import Outbox
from shardpool.workers.peers import Operation, Peers
from shardpool.workers.places import LIST_MAX, Places
from shardpool.workers.tables import Tables

OPEN_MAX = 1024


class AskOperation(Struct, frozen=True, tag_field="op", tag="ask"):
    """Ask an object."""

    type: str
    id: str
    message: dict[str, Any]
    timeout: float | None = None


class SendOperation(Struct, frozen=True, tag_field="op", tag="send"):
    """Send to an object."""

    type: str
    id: str
    message: dict[str, Any]


class FindOperation(Struct, frozen=True, tag_field="op", tag="find"):
    """Look an object up."""

    type: str
    id: str


class ListOperation(Struct, frozen=True, tag_field="op", tag="list"):
    """A page of the objects of a type."""

    type: str
    limit: int = LIST_MAX
    after: str = ""


class PublishOperation(Struct, frozen=True, tag_field="op", tag="publish"):
    """Send to the sessions of a Spot's members."""

    type: str
    id: str
    message: Any


class ReleaseOperation(Struct, frozen=True, tag_field="op", tag="release"):
    """Release a quarantined object."""

    type: str
    id: str


class PublishHere(Struct, frozen=True, array_like=True):
    """To the Spot's shard."""

    spot: int
    message: Any


_operation = value_decoder(
    AskOperation | SendOperation | FindOperation | ListOperation | PublishOperation | ReleaseOperation
)
_publish_here = value_decoder(PublishHere)
_flag = value_decoder(bool)


class Operations:
    """Answers the requests of trusted programs."""

    def __init__(
        self,
        context: ShardContext,
        tables: Tables,
        places: Places,
        peers: Peers,
        asking: Asking,
        outbox: Outbox,
    ) -> None:
        self._context = context
        self._table = tables.system()
        self._places = places
        self._peers = peers
        self._asking = asking
        self._outbox = outbox
        self._tasks: set[asyncio.Task[None]] = set()
        self._encode = context.blueprint.entry.dispatch.encode
        context.steps[Kind.OPERATION] = self._begin
        peers.serve(Operation.PUBLISH, lambda payload, _: self._publish_here(_publish_here(payload)))

    def __len__(self) -> int:
        """Requests of trusted programs that are not answered."""
        return len(self._tasks)

    def _begin(self, target: Any, client: int, request: int, payload: bytes) -> None:
        # A task: the system object's next record, perhaps somebody's attach, must not wait for this one's answer.
        if len(self._tasks) >= OPEN_MAX:
            error = Condition.CAPACITY.error(f"{OPEN_MAX} requests of trusted programs are open here; ask again later")
            self._fail(client, request, error)
            return
        # A slot of its own, while it is open: after this process's death its successor tells the program (P-15).
        slot = self._context.shard.allocate(SlotKind.OPERATION, self, self._table, client, request)
        task = self._context.loop.create_task(self._answer(client, request, payload))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._done(task, slot))

    def _done(self, task: asyncio.Task[None], slot: int) -> None:
        self._tasks.discard(task)
        if slot:
            self._context.shard.release(slot)

    async def _answer(self, client: int, request: int, payload: bytes) -> None:
        try:
            operation = _operation(payload)
        except UNREADABLE as error:
            self._fail(client, request, Condition.PROTOCOL.error(f"not an operation: {unreadable(error)}"))
            return
        try:
            self._context.shard.reply_client(client, request, await self._perform(operation))
        except ShardpoolError as error:
            self._fail(client, request, error)
        except Exception as error:
            log.error("an operation of a trusted program failed", exc_info=error)
            self._fail(client, request, Condition.INTERNAL.error("the operation failed; the operator's log says why"))

    def _fail(self, client: int, request: int, error: ShardpoolError) -> None:
        self._context.shard.error_client(client, request, encode_json(body_of(error)))

    async def _perform(self, operation: Any) -> bytes:
        kind = self._kind(operation.type)
        settings = self._context.settings
        deadline = self._context.now() + settings.ask_timeout
        match operation:
            case AskOperation(_, id, message, timeout):
                if timeout is not None and not 0 < timeout < float("inf"):
                    raise Condition.INVALID_OPERATION.error(f"timeout={timeout!r} is no positive number of seconds")
                if timeout is not None:
                    deadline = self._context.now() + timeout
                return await self._asking.ask(None, kind, id, encode_msgpack(message), deadline)
            case SendOperation(_, id, message):
                delivery = self._outbox.send(None, kind, id, encode_msgpack(message))
                await delivery.wait()
                return encode_msgpack(None)
            case FindOperation(_, id):
                address = self._places.find(kind.name, id)
                found = {"type": kind.name, "id": id, "shard": shard_of(address)} if address else None
                return encode_msgpack(found)
            case ListOperation(_, limit, after):
                page = self._places.list(kind.name, after, limit)
                return encode_msgpack([{"id": e.id, "shard": e.shard, "properties": e.properties} for e in page])
            case ReleaseOperation(_, id):
                return await self._release(kind, id, deadline)
            case PublishOperation(_, id, message):
                return await self._publish(kind, id, message, deadline)
        raise AssertionError(operation)

    def _kind(self, name: str) -> ObjectType:
        kind = self._context.blueprint.types.get(name)
        if kind is None:
            known = ", ".join(sorted(self._context.blueprint.types))
            raise Condition.NOT_CONFIGURED.error(f"the app has no type {name[:64]!r}; it has {known}")
        return kind

    async def _publish(self, kind: ObjectType, id: str, message: Any, deadline: float) -> bytes:
        described = f"publish to {kind.name} {id!r}"
        if not issubclass(kind.cls, Spot):
            raise Condition.TYPE_MISMATCH.error(f"{described}: it is an actor; only Spots have members")
        address = self._places.find(kind.name, id)
        if not address:
            raise Condition.NOT_FOUND.error(f"{described}: there is no such Spot")
        payload = encode_msgpack(PublishHere(address, message))
        return await self._peers.ask(shard_of(address), Operation.PUBLISH, payload, deadline, described)

    async def _release(self, kind: ObjectType, id: str, deadline: float) -> bytes:
        described = f"release {kind.name} {id!r}"
        address = self._places.find(kind.name, id)
        if not address:
            raise Condition.NOT_FOUND.error(f"{described}: there is no such object")
        question = encode_msgpack(address)
        answer = await self._peers.ask(shard_of(address), Operation.PARDON, question, deadline, described)
        if not _flag(answer):
            raise Condition.NOT_FOUND.error(f"{described}: it is not quarantined")
        return encode_msgpack(None)

    def _publish_here(self, request: PublishHere) -> bytes:
        spot = self._context.shard.target(request.spot)
        if not isinstance(spot, Spot):
            raise Condition.STALE.error("the Spot has just ended")
        clients = spot.members.clients
        if self._encode is not None:
            body = self._encode(request.message)
        elif isinstance(request.message, bytes):
            body = request.message
        else:
            raise Condition.TYPE_MISMATCH.error("the app's codec is raw: publish bytes")
        self._outbox.publish(clients, body)
        return encode_value(len(clients) // 8, "count")
