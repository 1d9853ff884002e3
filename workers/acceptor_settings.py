"""What an acceptor takes from the settings table."""

from dataclasses import dataclass
from typing import Any

from shardpool.workers.doors import SlowClient


@dataclass(frozen=True, slots=True)
class AcceptorSettings:
    """Seconds, bytes, counts."""

    frame_bytes: int
    hello_bytes: int
    hello_timeout: float
    handshake_timeout: float
    heartbeat: float
    idle_timeout: float
    send_timeout: float
    resume_window: float
    resume_bytes_per_session: int
    connections: int
    connections_per_address: int
    handshakes_per_second: int
    messages_per_second: int
    inbound_bytes: int
    outbound_bytes: int
    slow_client: SlowClient
    origins: tuple[str, ...]
    compression: bool
    static_dir: str | None
    tls_cert: str | None
    tls_key: str | None

    @classmethod
    def of(cls, table: dict[str, Any]) -> "AcceptorSettings":
        """Args: table: the whole settings table of the boot record."""
        values = {name: table[name] for name in cls.__slots__ if name in table}
        values["slow_client"] = SlowClient.of(table["slow_client"])
        values["origins"] = tuple(table["origins"])
        return cls(**values)

    def engine(self, envelope: bool) -> dict[str, int]:
        """What the engine is made with."""
        times = ("hello_timeout", "handshake_timeout", "heartbeat", "idle_timeout", "send_timeout")
        counts = (
            "frame_bytes",
            "hello_bytes",
            "connections",
            "connections_per_address",
            "handshakes_per_second",
            "messages_per_second",
            "inbound_bytes",
            "outbound_bytes",
            "resume_bytes_per_session",
            "slow_client",
        )
        return (
            {name: int(getattr(self, name)) for name in counts}
            | {f"{name}_ms": max(1, int(getattr(self, name) * 1000)) for name in times}
            | {"envelope": int(envelope), "resume_window_ms": int(self.resume_window * 1000) if envelope else 0}
        )
