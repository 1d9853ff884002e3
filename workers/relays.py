"""TLS connections whose session is another acceptor's: decrypted here, and passed on through a socket pair.

    client ══TLS══ this acceptor ──socket pair──▶ the acceptor of the session

What TLS has agreed on cannot be handed over; the far end of the pair can (workers/passages.py), and is a plain
connection for the acceptor that gets it. Heartbeat, limits and close codes are that one's; when either side ends, so
does the other.
"""

from __future__ import annotations

import socket

from shardpool._core import Acceptor
from shardpool.workers.doors import Framing, Transport

# Beyond this the other side is not read until all of it was written.
UNSENT_BYTES = 65536


class Relays:
    """Pairs of connections, of which each gets what the other receives."""

    def __init__(self, engine: Acceptor) -> None:
        self._engine = engine
        self._peers: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        return client in self._peers

    def begin(self, client: int) -> tuple[Transport, Framing, bytes, socket.socket] | None:
        """Relay a TLS connection that said hello.

        Returns: what the other acceptor is to take it for: transport, framing, input so far, the far end of the pair;
            None if it cannot be relayed.
        """
        try:
            near, far = socket.socketpair()
        except OSError:
            return None
        for end in (near, far):
            end.setblocking(False)
        parts = self._engine.relay(client, near.fileno())
        if parts is None:
            near.close()
            far.close()
            return None
        near.detach()
        address, framing, came = parts
        self._peers[client], self._peers[address] = address, client
        return Transport.WS if framing == Framing.WEBSOCKET else Transport.TCP, Framing(framing), came, far

    def carry(self, client: int, data: bytes) -> bool:
        """Pass on what a connection received. Returns: False if it is none of these."""
        peer = self._peers.get(client)
        if peer is None:
            return False
        self._engine.write(peer, data)
        if sum(self._engine.unsent(peer)) > UNSENT_BYTES:
            self._engine.hold(client, True)
        return True

    def drained(self, client: int) -> bool:
        """Everything was written to a connection. Returns: False if it is none of these."""
        peer = self._peers.get(client)
        if peer is not None:
            self._engine.hold(peer, False)
        return peer is not None

    def end(self, client: int) -> int | None:
        """A connection is gone. Returns: the other, which is to end now."""
        peer = self._peers.pop(client, None)
        if peer is not None:
            del self._peers[peer]
        return peer
