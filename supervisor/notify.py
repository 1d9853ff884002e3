"""systemd's readiness protocol: one datagram per change. A library would be longer than the protocol."""

import socket


class Notify:
    """Tells the service manager, if there is one, what the pool is doing."""

    def __init__(self, address: str | None) -> None:
        """Args: address: value of NOTIFY_SOCKET."""
        self._address = address

    def ready(self, status: str) -> None:
        """The pool serves."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """The pool drains."""
        self._send("STOPPING=1\nSTATUS=draining")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            try:
                sock.sendto(text.encode(), address)
            except OSError:
                return  # the manager is not listening: it learns the rest from the exit code
