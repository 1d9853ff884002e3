"""What the kernel alone costs to tell everybody: each message read is written to every connection, in C."""

import argparse
import signal
import socket

from shardpool import _load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", options.port))
    listener.listen(4096)
    listener.setblocking(False)
    _load.broadcast(listener.fileno())


if __name__ == "__main__":
    main()
