from collections.abc import Callable
from typing import Literal, TypedDict

# Microseconds; all 0 when `count` is.
Latency = TypedDict(
    "Latency",
    {"count": int, "mean": float, "p50": float, "p90": float, "p99": float, "p99.9": float, "max": float},
)

class Result(TypedDict):
    messages: int  # replies, or pushes where there are no replies
    sent: int
    pushes: int
    seconds: float  # from the first message to the last reply
    rate: float  # messages per second
    latency_us: Latency
    push_latency_us: Latency
    histogram_us: list[tuple[float, int]]  # (lower bound of the bucket, values in it), ascending
    push_histogram_us: list[tuple[float, int]]
    errors: int
    unfinished: int  # messages without reply when the grace time was over
    error: str  # the first error, as a sentence; "" without errors
    connections: int  # open at the end
    bytes_sent: int
    bytes_received: int
    cpu_user: float  # seconds of this client's own thread
    cpu_system: float

class Load:
    def __init__(
        self,
        host: str,
        port: int,
        *,
        connections: int = 1,
        transport: Literal["tcp", "ws"] = "tcp",
        framing: Literal["bare", "session"] = "session",
        path: str = "/",
        hello: bytes = b"",
        check: Literal["none", "echo", "counter"] = "counter",
        size: int = 64,
        payload: bytes | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args: hello: JSON of the hello (session framing). check: what a reply must be: "counter": the per-session count
              of messages in the first eight bytes, little-endian, then the payload unchanged; "echo": the payload;
              "none". size: bytes of a generated payload; payload: one of your own, with check="none".
        """
    @property
    def welcome(self) -> bytes:
        """JSON of the first welcome; empty in bare framing."""
    def connect(self, timeout: float = 10.0, /) -> None:
        """Opens all connections. Raises: ConnectionError: some failed; TimeoutError: some are not ready in time."""
    def run(
        self,
        seconds: float,
        *,
        outstanding: int = 1,
        rate: float = 0.0,
        senders: int = -1,
        receive: bool = False,
        grace: float = 2.0,
        progress: Callable[[float, int, int], object] | None = None,
    ) -> Result:
        """Drives the server; the GIL is released meanwhile.

        Args: outstanding: messages on their way per connection (1: closed loop). rate: messages per second in all
              instead, at scheduled times from which latency counts. senders: only the first so many connections send.
              receive: send nothing, count pushes. grace: seconds to wait for the last replies; connections that still
              owe one then are closed. progress: called about once a second with (seconds, messages, errors).
        Raises: ConnectionError: no connection is open. ValueError: a number out of range.
        """
    def close(self) -> None:
        """Says goodbye and closes; the object cannot be used again."""

def ping_pong() -> float:
    """Median nanoseconds of a spinning round trip between the first two usable CPUs; 0.0 with one CPU."""

def broadcast(listener: int, /) -> None:
    """Serves a non-blocking listening socket: each frame goes to every connection, one send each. Ends by signal."""
