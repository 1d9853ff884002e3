"""Bounds of a client, and what it counts."""

from __future__ import annotations

from typing import Literal

import msgspec

# What a lost connection leads to: the end, a resume of the session, or that and, once it is refused, a new session.
Reconnect = bool | Literal["anew"]


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a client. `heartbeat` None: as the server says; 0: none."""

    ask_timeout: float = 30.0
    open_asks: int = 4096
    inbox: int = 1024
    heartbeat: float | None = None


class Statistics(msgspec.Struct, frozen=True):
    """Counts of one client since it connected."""

    sent: int
    messages: int
    replies: int
    errors: int
    late: int  # replies whose ask had given up
    repeated: int  # numbered frames that came again after a resume
    reconnects: int
    dropped: int  # pushes nobody had asked for
    handler_failures: int
    open_asks: int
