from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

MAX_PROCESSES: int
ACCEPTED: int
LANE_FULL: int
SATURATED: int
SEALED: int
STALE: int
SHUTTING_DOWN: int
LINK_FULL: int
TOO_BIG: int
KIND_FRAME: int
KIND_CALL: int
KIND_TIMER: int
KIND_ATTACH: int
KIND_RESUMED: int
KIND_DETACH: int
KIND_CUSTOM: int
KIND_RECOVER: int
QUARANTINE_DEATHS: int
LIFE_OPEN: int
LIFE_LEAVING: int
LIFE_ARRIVING: int
LIFE_ENDING: int
KIND_BOUND: int
KIND_REFUSED: int
KIND_ROUTE: int
KIND_PUSH: int
KIND_REPLY: int
KIND_ERROR: int
KIND_PUBLISH: int
KIND_CLOSE: int
KIND_XOFF: int
KIND_XON: int
KIND_CALL_REPLY: int
FLAG_ASK: int
FLAG_BARE: int
FLAG_TEXT: int
HANDLER_NO_ARGUMENT: int
HANDLER_ASYNC: int

class Geometry:
    def __init__(
        self,
        acceptors: int,
        shards: int,
        *,
        slots: int = 65536,
        permits: int = 4096,
        link_bytes: int = 1 << 20,
        infra_bytes: int = 1 << 18,
        arena_bytes: int = 64 << 20,
        lane_records: int = 1024,
        lane_bytes: int = 64 << 20,
        lifecycle_records: int = 128,
        lifecycle_bytes: int = 4 << 20,
        directory_entries: int = 16384,
        resume_bytes: int = 0,
        resume_entries: int = 0,
    ) -> None: ...
    def segment_size(self, process: int, /) -> int: ...

def create_segment(geometry: Geometry, process: int, /) -> int: ...

class Node:
    process: int
    acceptors: int
    shards: int
    slots: int
    def __init__(self, process: int, segments: list[int], doorbells: list[int]) -> None: ...
    def counters(self, process: int, /) -> dict[str, int]: ...
    def slot(self, address: int, /) -> dict[str, int]: ...
    def ring_all(self) -> None: ...
    def set_closing(self, closing: bool, /) -> None: ...

class Table:
    def __init__(
        self,
        decode: Callable[[bytes], object] | None,
        handlers: dict[type, tuple[Callable[..., Any], int]],
        encode: Callable[[Any], bytes] | None,
        call_decode: Callable[[bytes], object],
        call_encode: Callable[[Any], bytes],
        lifecycle: Callable[[Any, int, int, int, bytes], Any],
    ) -> None: ...

class Hooks(Protocol):
    """What the executor calls in the shard's Python half; looked up once, when the Shard is made."""

    # The running loop, asyncio's C functions _enter_task/_leave_task, and the stand-in task's class.
    # None for `enter_task`: async handlers go to `adopt` unstepped (yielded and stub are None).
    loop: Any
    enter_task: Callable[[Any, Any], None] | None
    leave_task: Callable[[Any, Any], None] | None
    stub: Callable[[], Any] | None

    def poke(self) -> None:
        """Work appeared outside run(): call run() soon. Called once until the next run()."""
    def failed(self, address: int, kind: int, exc: BaseException, payload: bytes) -> bytes | None:
        """A decoder, handler or encoder raised; bytes go to the asker as the error's body."""
    def adopt(
        self, address: int, turn: int, coro: Coroutine[Any, Any, Any], yielded: object, stub: Any, context: Any
    ) -> None:
        """An async handler suspended in its first step; at its end call Shard.finish(address, turn, ...)."""
    def reply(self, call_id: int, status: int, payload: bytes) -> None: ...
    def control(self, kind: int, process: int, a: int, b: int, payload: bytes) -> None: ...
    def resumed(self, address: int) -> None: ...
    def dropped(self, address: int, records: list[tuple[int, int, int, int, bytes]]) -> None:
        """An object ends with these records unrun: whoever asked must be told."""
    def sealed(self, address: int, records: list[tuple[int, int, int, int, bytes]]) -> None:
        """A sealed object has settled; records = what it had not run: (kind, flags, a, b, payload).

        Call vacate(address) when they are safe elsewhere, or unseal(address) to go on here."""

def publish_frames(
    node: Node, address: int, client: int, payload: bytes, count: int, flags: int, first: int = 1, /
) -> int:
    """Frames of a client, as its acceptor publishes them. Args: first: number of the first one's ask."""

DIRECTORY_CREATING: int
DIRECTORY_FULL: int
DIRECTORY_KEY_BYTES: int
DIRECTORY_PROPERTIES_BYTES: int

class Directory:
    """Where ids live on this node, as one process sees it; every call answers at once. A key is app, type and id."""

    def __init__(self, node: Node) -> None: ...
    def claim(self, key: bytes, /) -> tuple[bool, int]:
        """(True, 0): the caller creates the object and calls publish or withdraw; else (False, address of the object
        that has the id, DIRECTORY_CREATING or DIRECTORY_FULL)."""
    def find(self, key: bytes, /) -> int:
        """The address, DIRECTORY_CREATING, or 0."""
    def publish(self, key: bytes, address: int, properties: bytes = b"") -> bool:
        """Enters the address of what was claimed, or changes the properties of what lives at that address."""
    def withdraw(self, key: bytes, /) -> bool:
        """Gives a claim up."""
    def move(self, key: bytes, old: int, new: int, /) -> bool:
        """Changes the address, if it is still the old one."""
    def remove(self, key: bytes, address: int, /) -> bool:
        """Takes an entry out, if it still has this address."""
    def list(self, prefix: bytes, limit: int, after: bytes = b"") -> list[tuple[bytes, int, bytes]]:
        """(key, address, properties) of the entries behind a key, in order of their keys."""

def settle(node: Node, process: int, /) -> bool:
    """Ends in shared memory what a dead process had begun, and rings all; the supervisor only. False: a token found no
    room; call again, before the successor is started."""

def audit(node: Node, shard: int, /) -> dict[str, int]:
    """What a shard's books, lanes, links, permits and routes say, seen from outside; from any process, at any time.
    `moved`: the shard worked meanwhile, and the numbers need not fit together."""

def spawn(
    program: bytes, arguments: list[bytes], environment: list[bytes], descriptors: list[int], held_back: list[int], /
) -> int:
    """Starts a program as the leader of a process group, with /dev/null as its input; returns its pid.

    It is killed when this thread ends, also while it is still being started. It inherits 1, 2 and `descriptors`; every
    signal has its default disposition, those in `held_back` are blocked. Raises: OSError."""

def drain_links(node: Node, keep: bool = False, /) -> Any: ...

class Shard:
    current: int
    turn: int
    sessions: int
    def __init__(self, node: Node, shard: int, hooks: Any, time_budget_ns: int = 10_000_000) -> None: ...
    def allocate(self, kind: int, target: object, table: Table, client: int = 0, session: int = 0) -> int:
        """A slot for an object; 0 when all are taken. System object: the first allocate gets slot 0."""
    def adopt(self) -> list[tuple[Any, ...]]:
        """Takes a predecessor's segment over, before the first allocate: the live objects as (address, kind, session,
        client, route, begun record or None, spot, life, sealed, deaths, attempts, turn). Each needs restore() or
        release(); nothing of it runs before."""
    def restore(self, address: int, target: object, table: Table, skip_begun: bool, recover: bool = False, /) -> bool:
        """The Python half of an adopted object. skip_begun: the record that had begun is taken out, else it runs again.
        recover: a KIND_RECOVER record is the object's first turn; False: there was no memory for it."""
    def queued(self, address: int, /) -> list[tuple[int, int, int, int, bytes]]:
        """What an object has not run: (kind, flags, a, b, payload), in order within each lane."""
    def hand_over(self) -> None:
        """Notes that this process leaves between two turns: what it has taken in is its successor's."""
    def was_handed_over(self, process: int, /) -> bool:
        """Whether the last process in a process's place left so; False after a death."""
    def turn_of(self, address: int, /) -> int:
        """Number of an object's last turn."""
    def pardon(self, address: int, table: Table, /) -> None:
        """An object that was quarantined runs its messages again, with this table."""
    def stepping(self, address: int, /) -> None:
        """The object whose suspended turn goes on now; 0: it has stopped again."""
    def note_quarantined(self, count: int, /) -> None: ...
    def set_spot(self, address: int, spot: int, /) -> None:
        """Notes the Spot that an actor is in, for a successor; 0: the entry Spot."""
    def set_life(self, address: int, life: int, /) -> None: ...
    def route_of(self, address: int, /) -> int | None:
        """Route of an object of any shard; None: nobody lives at that address."""
    def incarnation(self, process: int, /) -> int:
        """How many processes have died in a process's place."""
    def release(self, address: int, /) -> None:
        """Ends an object: seals it; what it has not run is dropped and counted; its address becomes stale."""
    def target(self, address: int, /) -> object | None: ...
    def seal(self, address: int, /) -> bool: ...
    def unseal(self, address: int, /) -> None: ...
    def vacate(self, address: int, /) -> None: ...
    def place(self, address: int, records: list[tuple[int, int, int, int, bytes]], /) -> bool:
        """Puts a moved object's records (as hooks.sealed gave them) into an object's lanes, in order; it then runs.

        False: no memory, or nobody lives at that address."""
    def share_gate(self, address: int, owner: int, /) -> None: ...
    def release_gate(self, address: int, /) -> None:
        """A suspended turn gives its gate back (yielding)."""
    def acquire_gate(self, address: int, /) -> bool:
        """True: the gate is held now; False: hooks.resumed(address) comes in turn."""
    def run(self, budget_ns: int, /) -> bool:
        """Runs ready objects; True: more is ready, call again after the event loop had its look. 0: one object."""
    def park(self) -> bool:
        """Declares the shard parked and looks again; True: it may sleep on its doorbell."""
    def wake(self) -> None: ...
    def send(self, address: int, payload: bytes, call_id: int = 0) -> int: ...
    def post(
        self, address: int, kind: int, a: int = 0, b: int = 0, payload: bytes = b"", lifecycle: bool = True
    ) -> int: ...
    def post_process(self, process: int, kind: int, a: int = 0, b: int = 0, payload: bytes = b"") -> bool:
        """An infrastructure record to a process; kept and sent later when its link is full."""
    def push(self, client: int, payload: bytes, /) -> bool: ...
    def reply_client(self, client: int, request: int, payload: bytes, /) -> bool: ...
    def error_client(self, client: int, request: int, payload: bytes, /) -> bool: ...
    def publish(self, clients: Sequence[int] | bytes, payload: bytes, /) -> int: ...
    def close_client(self, client: int, code: int, reason: bytes, /) -> bool: ...
    def reply_call(self, process: int, call_id: int, status: int, payload: bytes, /) -> bool: ...
    def finish(self, address: int, turn: int, result: object, exc: BaseException | None, /) -> bool:
        """Ends a suspended turn: replies, gives gate and reservation back; False if the turn is not the current one."""
    def set_client(self, address: int, client: int, /) -> None: ...
    def set_route(self, address: int, route: int, /) -> None:
        """The session slot's atomic route word: the bound object's address (P-8)."""
    @property
    def blocked(self) -> bool:
        """An outbound link is full: run() executes nothing until its consumer rings."""

EVENT_OPENED: int
EVENT_BYTES: int
EVENT_HELLO: int
EVENT_BOUND: int
EVENT_FRAME: int
EVENT_PLAIN: int
EVENT_ENDING: int
EVENT_CLOSED: int
EVENT_READY: int
EVENT_STARVED: int
EVENT_CORRUPT: int
EVENT_RECORD: int
EVENT_DRAINED: int
TRANSPORT_TCP: int
TRANSPORT_WS: int
TRANSPORT_TLS: int
TRANSPORT_WSS: int
TRANSPORT_LOCAL: int
FRAMING_TCP: int
FRAMING_WEBSOCKET: int
FRAMING_RAW: int
SLOW_WAIT: int
SLOW_DROP_OLDEST: int
SLOW_CLOSE: int
RESUMED: int
RESUME_GONE: int
RESUME_REFUSED: int
RESUME_TOO_OLD: int

class Acceptor:
    """Sockets, frames, admissions and writes of one acceptor. A call for a client which has gone does nothing."""

    def __init__(self, node: Node, acceptor: int, settings: dict[str, int]) -> None: ...
    def listen(self, fd: int, transport: int, /) -> None: ...
    def watch(self, fd: int, /) -> None: ...
    def set_error(self, outcome: int, body: bytes, /) -> None: ...
    def poll(self, timeout_ms: int, /) -> list[tuple[int, int, int, int, bytes]]:
        """Works until there are events (kind, client, a, b, payload), or until the time is over; negative: no limit."""
    def attach(self, client: int, session: int, shard: int, hello: bytes, /) -> None: ...
    def welcome(self, client: int, frame: bytes, digest: bytes = b"", /) -> None:
        """Answers EVENT_BOUND: the W frame, then what waited. Args: digest: of the token that resumes the session."""
    def resume(
        self, client: int, session: int, received: int, digest: bytes, fresh: bytes, frame: bytes, /
    ) -> tuple[int, int]:
        """Gives a session its client back. Not while events of the last poll are unhandled: sockets change places.

        Args: received: highest number seen; digest: of the token shown; fresh: of the token in the welcome `frame`.
        Returns: outcome (RESUMED: the rest holds; else nothing changed), client address from here on.
        """
    def taken(self, session: int, /) -> int:
        """How many messages of a kept session's client were taken, from its first."""
    def socket_of(self, client: int, /) -> tuple[int, int, int, bytes, bytes] | None:
        """What another acceptor needs of a connection: descriptor, transport, framing, input, output."""
    def let_go(self, client: int, /) -> None:
        """Forgets a connection that another acceptor has by now."""
    def take_socket(self, fd: int, transport: int, framing: int, input: bytes, output: bytes, /) -> int:
        """A connection of another acceptor; its address here. 0: no room, the descriptor is the caller's."""
    def relay(self, client: int, fd: int, /) -> tuple[int, int, bytes] | None:
        """A TLS connection that said hello passes bytes on, both ways by EVENT_BYTES and write().

        Args: fd: the near end of a socket pair. Returns: its address, the client's framing, input so far.
        """
    def hold(self, client: int, on: bool, /) -> None:
        """Whether a relayed connection is not read for now."""
    def unsent(self, client: int, /) -> tuple[int, int]:
        """Bytes that wait for a connection: not encrypted (those that EVENT_PLAIN gave count as 1), and encrypted."""
    def take_over(self, kind: int, /) -> tuple[int, int]:
        """Before the first connection: adopts the sessions that a dead predecessor kept and ends its others.

        Args: kind: of the slots of sessions. Returns: how many of each.
        """
    def bind_local(self, client: int, address: int, frame: bytes, /) -> None: ...
    def established(self, client: int, websocket: bool, compressed: bool, /) -> None: ...
    def feed(self, client: int, data: bytes, /) -> None: ...
    def proceed(self, client: int, fragmented: bool, message: bytes | None = None, text: bool = False, /) -> None: ...
    def write(self, client: int, data: bytes, more: bool = False, /) -> None: ...
    def cipher(self, client: int, data: bytes, answers: bool = False, /) -> None: ...
    def end(self, client: int, code: int, reason: bytes, lost: bool = False, /) -> None:
        """Ends a connection; EVENT_ENDING follows. Args: lost: as if it had broken, its session may be resumed."""
    def finish(self, client: int, data: bytes, /) -> None: ...
    def drop(self, client: int, /) -> None: ...
    def end_all(self, code: int, reason: bytes, /) -> None: ...
    def stop_accepting(self) -> None: ...
    def stop_reading(self) -> None: ...
    @property
    def settled(self) -> bool:
        """Nothing that was read, or that is owed to a shard, waits here."""
    @property
    def detached(self) -> int:
        """Number of sessions that wait for their clients."""
    @property
    def connections(self) -> int: ...
