"""Peer: what one would build by hand: an acceptor (uvloop) and a shard process with a dictionary of sessions, joined by
two queues: `cloudtoid` (cloudtoid-interprocess, shared memory, batch calls) or `multiprocessing` (its Queue).

A record carries the connection's number and one message, or with `--grain read` all messages of one read: fewer
records, and the shard then splits frames. The acceptor flushes once per turn of its loop, and writes once per
connection and batch of replies; an eventfd tells it of them, where the queue has no descriptor for an event loop.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol, cast

import uvloop
from cloudtoid_interprocess import Publisher, Subscriber
from counter import Counter, session_type
from process import end_at_once, fork

CAPACITY = 16 << 20
BATCH = 4096
unpack_length = struct.Struct(">I").unpack_from
pack_length = struct.Struct(">I").pack


class Pipe(Protocol):
    """One direction between the two processes."""

    def send(self, records: list[bytes]) -> None: ...
    def receive(self) -> list[bytes]: ...
    def poll(self) -> list[bytes]: ...
    def ring(self) -> None: ...
    def answer(self) -> None: ...
    def fileno(self) -> int: ...


class CloudtoidPipe:
    def __init__(self, name: str) -> None:
        self.name = name
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.publisher: Publisher | None = None
        self.subscriber: Subscriber | None = None

    def send(self, records: list[bytes]) -> None:
        if self.publisher is None:
            self.publisher = Publisher(self.name, CAPACITY)
        sent = self.publisher.try_send_batch(records)
        while sent < len(records):
            time.sleep(0.0001)
            sent += self.publisher.try_send_batch(records[sent:])

    def receive(self) -> list[bytes]:
        if self.subscriber is None:
            self.subscriber = Subscriber(self.name, CAPACITY)
        first = self.subscriber.receive(1.0)
        return [] if first is None else [first, *self.poll()]

    def poll(self) -> list[bytes]:
        if self.subscriber is None:
            self.subscriber = Subscriber(self.name, CAPACITY)
        return list(itertools.islice(iter(self.subscriber.try_receive, None), BATCH))

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def answer(self) -> None:
        os.eventfd_read(self.bell)

    def fileno(self) -> int:
        return self.bell


class QueuePipe:
    def __init__(self) -> None:
        self.queue: Any = multiprocessing.get_context("fork").Queue()

    def send(self, records: list[bytes]) -> None:
        for record in records:
            self.queue.put(record)

    def receive(self) -> list[bytes]:
        return [self.queue.get(), *self.poll()]

    def poll(self) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < BATCH and not self.queue.empty():
            found.append(self.queue.get())
        return found

    def ring(self) -> None:
        """Nothing to do: its pipe is readable as soon as a record has come."""

    def answer(self) -> None:
        """See ring."""

    def fileno(self) -> int:
        return int(self.queue._reader.fileno())


def shard(requests: Pipe, replies: Pipe, new_session: Callable[[], Counter], whole_reads: bool) -> None:
    """Runs the handlers; a record of four bytes says that its connection is gone."""
    sessions: dict[bytes, Callable[[bytes], bytes]] = {}
    while True:
        answers: list[bytes] = []
        for record in requests.receive():
            key = record[:4]
            handler = sessions.get(key)
            if handler is None:
                handler = sessions[key] = new_session().message
            if len(record) == 4:
                del sessions[key]
            elif whole_reads:
                answers.append(key + answer_read(record, handler))
            else:
                answers.append(key + handler(record[4:]))
        if answers:
            replies.send(answers)
            replies.ring()


def answer_read(record: bytes, handler: Callable[[bytes], bytes]) -> bytes:
    at, have = 4, len(record)
    parts: list[bytes] = []
    while at < have:
        body = at + 4
        at = body + unpack_length(record, at)[0]
        reply = handler(record[body:at])
        parts.append(pack_length(len(reply)))
        parts.append(reply)
    return b"".join(parts)


class Acceptor:
    def __init__(self, loop: asyncio.AbstractEventLoop, requests: Pipe, replies: Pipe, whole_reads: bool) -> None:
        self.loop, self.requests, self.replies, self.whole_reads = loop, requests, replies, whole_reads
        self.outbox: list[bytes] = []
        self.flushing = False
        self.connections: dict[bytes, Callable[[bytes], None]] = {}
        self.numbers = itertools.count(1)
        loop.add_reader(replies.fileno(), self.deliver)

    def flush(self) -> None:
        self.flushing = False
        records, self.outbox = self.outbox, []
        self.requests.send(records)

    def soon(self) -> None:
        if not self.flushing:
            self.flushing = True
            self.loop.call_soon(self.flush)

    def deliver(self) -> None:
        self.replies.answer()
        while records := self.replies.poll():
            gathered: dict[bytes, list[bytes]] = {}
            for record in records:
                key = record[:4]
                parts = gathered.get(key)
                if parts is None:
                    parts = gathered[key] = []
                if not self.whole_reads:
                    parts.append(pack_length(len(record) - 4))
                parts.append(record[4:])
            for key, parts in gathered.items():
                if (write := self.connections.get(key)) is not None:
                    write(b"".join(parts))


class Connection(asyncio.Protocol):
    __slots__ = ("acceptor", "key", "rest")

    def __init__(self, acceptor: Acceptor) -> None:
        self.acceptor = acceptor
        self.key = struct.pack("<I", next(acceptor.numbers))
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.acceptor.connections[self.key] = cast(asyncio.Transport, transport).write

    def connection_lost(self, exc: Exception | None) -> None:
        del self.acceptor.connections[self.key]
        self.acceptor.outbox.append(self.key)
        self.acceptor.soon()

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        at, have = 0, len(data)
        key, add, whole_reads = self.key, self.acceptor.outbox.append, self.acceptor.whole_reads
        while have - at >= 4:
            body = at + 4
            end = body + unpack_length(data, at)[0]
            if end > have:
                break
            if not whole_reads:
                add(key + data[body:end])
            at = end
        if whole_reads and at:
            add(key + data[:at])
        self.rest = data[at:]
        self.acceptor.soon()


async def accept(port: int, requests: Pipe, replies: Pipe, whole_reads: bool) -> None:
    loop = asyncio.get_running_loop()
    acceptor = Acceptor(loop, requests, replies, whole_reads)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = await loop.create_server(lambda: Connection(acceptor), sock=listener, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--queue", choices=["cloudtoid", "multiprocessing"], default="cloudtoid")
    parser.add_argument("--grain", choices=["message", "read"], default="message")
    parser.add_argument("--loop", type=int, default=0)
    options = parser.parse_args()
    name = f"hop-{uuid.uuid4().hex[:12]}"
    end_at_once(f"/dev/shm/sem.*{name}*")
    requests: Pipe
    replies: Pipe
    if options.queue == "cloudtoid":
        requests, replies = CloudtoidPipe(name + "-a"), CloudtoidPipe(name + "-b")
    else:
        requests, replies = QueuePipe(), QueuePipe()
    whole_reads = options.grain == "read"
    fork(lambda: shard(requests, replies, session_type(options.loop), whole_reads))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(accept(options.port, requests, replies, whole_reads))


if __name__ == "__main__":
    main()
