"""What the engine leaves to Python: handshakes, hellos, TLS, WebSocket's corner cases, last words.

Events in, calls to the engine out. A client is known here only while it needs more than the engine keeps: during an
HTTP conversation, with TLS, or between WebSocket frames that the library judges.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
from wsproto.connection import Connection as WebSocketConnection

from shardpool import wire
from shardpool._core import Acceptor
from shardpool.codecs import UNREADABLE, unreadable
from shardpool.workers.acceptor_settings import AcceptorSettings
from shardpool.workers.doors import Event, Framing, Transport
from shardpool.workers.http import Conversation, Respond, Site, Upgraded
from shardpool.workers.last_words import closing
from shardpool.workers.minting import Mint, Token
from shardpool.workers.passages import Passages
from shardpool.workers.relays import Relays
from shardpool.workers.resumption import Resumption
from shardpool.workers.static_files import StaticFile
from shardpool.workers.tls import TlsSession
from shardpool.workers.websocket import Fragments, WebSocketTail, session_stays

log = logging.getLogger("shardpool.acceptor")

PIECE_BYTES = 65536
_ENCRYPTED = 1

_hello = msgspec.json.Decoder(wire.Hello)


@dataclass(frozen=True, slots=True)
class AppFacts:
    """What the welcome says about the app."""

    name: str
    codec: str
    envelope: bool


class Client:
    """One connection that needs Python."""

    __slots__ = ("conversation", "ending", "file", "file_left", "last", "tail", "tls", "transport")

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.tls: TlsSession | None = None
        self.conversation: Conversation | None = None
        self.tail: WebSocketTail | None = None
        self.file: BinaryIO | None = None
        self.file_left = 0
        self.ending = False
        self.last: bytes | None = None  # what the WebSocket library wants to say last


class Clients:
    """Answers the engine's events about connections.

    Args: sites: for plain and for TLS listeners. tls: None when no listener speaks it.
    """

    def __init__(
        self,
        engine: Acceptor,
        settings: AcceptorSettings,
        app: AppFacts,
        mint: Mint,
        sites: dict[bool, Site],
        transports: list[Transport],
        tls: ssl.SSLContext | None,
        passages: Passages,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._app = app
        self._mint = mint
        self._sites = sites
        self._transports = transports
        self._tls = tls
        self._clients: dict[int, Client] = {}
        self._fragments = Fragments(settings.inbound_bytes)
        self._relays = Relays(engine)
        self._resumption = Resumption(
            engine, mint.acceptor, passages, self._relays, self._welcome_back, self._change_places
        )

    def handle(self, kind: int, client: int, a: int, b: int, payload: bytes) -> bool:
        """One event of the engine; False if it is about no connection."""
        try:
            return self._answer(kind, client, a, b, payload)
        except Exception:
            # A bug, and some client's bytes found it: they end that client's connection, not the process of all others.
            log.exception("a fault of the server ends the connection of one client (event %d)", kind)
            if kind in (Event.ENDING, Event.CLOSED):
                self._engine.drop(client)
            else:
                self._engine.end(client, 4500, b"a fault of the server; its log has it")
            return True

    def receive(self) -> None:
        """Clients that other acceptors send here wait at the passage."""
        self._resumption.receive()

    def settle(self) -> None:
        """Between two batches of events: what had to wait for the end of one."""
        self._resumption.settle()

    def _answer(self, kind: int, client: int, a: int, b: int, payload: bytes) -> bool:
        match kind:
            case Event.FRAME:
                self._frame(client, payload)
            case Event.BYTES:
                self._received(client, a, payload)
            case Event.PLAIN:
                self._plain(client, payload)
            case Event.HELLO:
                self._greeted(client, payload)
            case Event.BOUND:
                self._bound(client, a, bool(b))
            case Event.OPENED:
                self._opened(client, a)
            case Event.ENDING:
                self._ending(client, a, b, payload)
            case Event.CLOSED:
                self._closed(client)
            case Event.DRAINED:
                self._drained(client)
            case _:
                return False
        return True

    def _opened(self, client: int, listener: int) -> None:
        transport = self._transports[listener]
        if transport is Transport.TCP:
            self._attach(client, b"")  # bare: nothing is awaited
            return
        state = self._clients[client] = Client(transport)
        if transport.secure and self._tls is not None:
            state.tls = TlsSession(self._tls)
        if transport.http:
            state.conversation = Conversation(self._sites[transport.secure])

    def _received(self, client: int, encrypted: int, data: bytes) -> None:
        state = self._clients.get(client)
        if state is None:
            self._relays.carry(client, data)
            return
        if encrypted == _ENCRYPTED and state.tls is not None:
            self._decrypt(client, state, state.tls, data)
        elif state.conversation is not None:
            self._converse(client, state, state.conversation.receive(data))

    def _decrypt(self, client: int, state: Client, tls: TlsSession, data: bytes) -> None:
        step = tls.receive(data)
        if step.cipher:
            self._engine.cipher(client, step.cipher)
        if step.established and not state.transport.http:
            self._established(client, websocket=False, compressed=False)
        if step.plain and not self._relays.carry(client, step.plain):
            self._engine.feed(client, step.plain)
        if step.ended and not tls.established:
            self._engine.finish(client, b"")  # the alert is out; nothing can be said
        elif step.ended:
            self._engine.end(client, 1006, b"the client ended TLS")

    def _established(self, client: int, websocket: bool, compressed: bool) -> None:
        self._engine.established(client, websocket, compressed)
        if not self._app.envelope:
            self._attach(client, b"")

    def _converse(self, client: int, state: Client, actions: list[Respond | Upgraded]) -> None:
        for action in actions:
            match action:
                case Upgraded(response, rest, connection):
                    self._upgrade(client, state, response, rest, connection)
                case Respond(data, close=True):
                    self._engine.finish(client, data)
                case Respond(data, file=None, more=more):
                    self._engine.write(client, data, more)
                case Respond(data, file=StaticFile() as file):
                    self._send_file(client, state, data, file)

    def _upgrade(
        self, client: int, state: Client, response: bytes, rest: bytes, connection: WebSocketConnection | None
    ) -> None:
        self._engine.write(client, response)
        state.conversation = None
        if connection is not None:
            state.tail = WebSocketTail(connection, self._settings.frame_bytes, self._fragments)
        elif state.tls is None:
            del self._clients[client]  # the engine does the rest; a strange frame brings it back
        self._established(client, websocket=True, compressed=connection is not None)
        if rest:
            self._engine.feed(client, rest)

    def _send_file(self, client: int, state: Client, head: bytes, file: StaticFile) -> None:
        try:
            state.file = file.path.open("rb")
        except OSError:
            self._engine.finish(client, b"")
            return
        state.file_left = file.size
        self._engine.write(client, head, True)

    def _drained(self, client: int) -> None:
        if self._relays.drained(client):
            return
        state = self._clients.get(client)
        if state is None or state.conversation is None:
            return
        if state.file is None:
            self._converse(client, state, state.conversation.resume())
            return
        piece = state.file.read(min(PIECE_BYTES, state.file_left))
        state.file_left -= len(piece)
        if not piece:
            self._engine.finish(client, b"")  # the file became shorter: the cut answer says so
            return
        last = state.file_left == 0
        self._engine.write(client, state.conversation.file_piece(piece, last), not last)
        if last:
            state.file.close()
            state.file = None
            self._converse(client, state, state.conversation.resume())

    def _greeted(self, client: int, payload: bytes) -> None:
        state = self._clients.get(client)
        local = state is not None and state.transport is Transport.LOCAL
        try:
            hello = _hello.decode(payload)
        except UNREADABLE as error:
            self._engine.end(client, 4400, f"the hello cannot be read: {unreadable(error)}".encode())
            return
        if hello.v != wire.VERSION:
            reason = f"version {hello.v} of the protocol is not spoken here; version {wire.VERSION} is"
            self._engine.end(client, 4400, reason.encode())
        elif hello.local != local:
            reason = "local programs say so in their hello" if local else "this is not the local socket"
            self._engine.end(client, 4400, reason.encode())
        elif local:
            self._bind_local(client)
        elif hello.resume is not None:
            self._resumption.note(client, hello.resume)
        else:
            self._attach(client, payload)

    def _attach(self, client: int, payload: bytes) -> None:
        home = self._mint.home()
        if home is None:
            self._engine.end(client, 4503, b"no shard is in service; try again later")
        else:
            self._engine.attach(client, self._mint.session(home), home, payload)

    def _bound(self, client: int, session: int, kept: bool) -> None:
        if not self._app.envelope:
            self._engine.welcome(client, b"")
            return
        token = Token.new()
        self._engine.welcome(client, wire.welcome(self._welcome(session, token.text, kept=kept)), token.digest)

    def _welcome_back(self, session: int, token: Token, taken: int) -> bytes:
        welcome = self._welcome(session, token.text, resumed=True)
        return wire.welcome(msgspec.structs.replace(welcome, taken=taken))

    def _change_places(self, one: int, other: int) -> None:
        """The sockets of two clients changed places, and what is known here goes with them."""
        states = self._clients.pop(one, None), self._clients.pop(other, None)
        for client, state in zip((other, one), states, strict=True):
            if state is not None:
                self._clients[client] = state

    def _bind_local(self, client: int) -> None:
        home = self._mint.home()
        if home is None:
            self._engine.end(client, 4503, b"no shard is in service; try again later")
            return
        system_object = home << 56 | 1 << 32  # slot 0, of the first generation as long as its shard's memory lives
        self._engine.bind_local(client, system_object, wire.welcome(self._welcome(0, local=True)))

    def _welcome(
        self, session: int, token: str = "", *, resumed: bool = False, kept: bool = True, local: bool = False
    ) -> wire.Welcome:
        settings = self._settings
        return wire.Welcome(
            v=wire.VERSION,
            app=self._app.name,
            codec="msgpack" if local else self._app.codec,
            session="" if local else f"{session:016x}",
            token=token,
            resumed=msgspec.UNSET if local else resumed,
            heartbeat=settings.heartbeat,
            idle_timeout=settings.idle_timeout,
            resume_window=0.0 if local or not kept else settings.resume_window,
            max_frame=settings.frame_bytes,
            local=local,
        )

    def _frame(self, client: int, data: bytes) -> None:
        state = self._clients.get(client)
        if state is None:
            state = self._clients[client] = Client(Transport.WS)
        if state.tail is None:
            state.tail = WebSocketTail(None, self._settings.frame_bytes, self._fragments)
        step = state.tail.receive(data)
        if step.out:
            self._engine.write(client, step.out)
        if step.end is not None:
            state.last = step.last
            code, reason = step.end
            self._engine.end(client, code, reason.encode(), session_stays(code))
            return
        self._engine.proceed(client, step.fragmented, step.message, step.text)
        if not step.fragmented and state.tls is None and step.message is None and not state.tail.compressed:
            state.tail = None
            del self._clients[client]

    def _plain(self, client: int, data: bytes) -> None:
        state = self._clients.get(client)
        if state is not None and state.tls is not None:
            cipher = state.tls.encrypt(data)
            self._engine.cipher(client, cipher + state.tls.close() if state.ending else cipher, True)

    def _ending(self, client: int, code: int, how: int, reason: bytes) -> None:
        state = self._clients.get(client)
        framing = Framing(how >> 4 & 15)
        local = Transport(how >> 8 & 255) is Transport.LOCAL
        if state is not None and state.last is not None:
            words = state.last
        elif (
            code == 1006
            or (state is None and client in self._relays)
            or (state is not None and state.tls is not None and not state.tls.established)
        ):
            words = b""
        else:
            words = closing(framing, self._app.envelope or local, code, reason.decode("utf-8", "replace"))
        if state is not None and state.tls is not None and state.tls.established:
            state.ending = True
            if not words:
                self._engine.cipher(client, state.tls.close())
        self._engine.finish(client, words)

    def _closed(self, client: int) -> None:
        self._part(client)
        state = self._clients.pop(client, None)
        if state is None:
            return
        if state.file is not None:
            state.file.close()
        if state.tail is not None:
            state.tail.release()

    def _part(self, client: int) -> None:
        """What a connection was relayed to ends with it, behind what is on its way."""
        other = self._relays.end(client)
        if other is None:
            return
        state = self._clients.get(other)
        if state is None:
            self._engine.drop(other)
        else:
            state.ending = True  # TLS says goodbye behind what is still to be encrypted
            if state.tls is not None and not self._engine.unsent(other)[0]:
                self._engine.cipher(other, state.tls.close())
            self._engine.finish(other, b"")
