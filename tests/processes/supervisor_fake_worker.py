"""A worker without shards or clients: registers, obeys, and misbehaves as its environment says.

FAKE_<ROLE>_<INDEX> is a list of words separated by commas:
    crash          exits with 3 before it is ready        fail        reports Failed and exits
    crash-once     as crash, the first time               slow        is ready only after a second
    deaf           ignores Drain and Stop                 undrained   never answers Drain
FAKE_LOG: a file to which each worker appends what happens to it.
"""

import os
import sys
import time

import zmq

from shardpool import boot, control

BOOT = boot.read_boot(sys.argv)
WORDS = os.environ.get(f"FAKE_{BOOT.role.upper()}_{BOOT.index}", "").split(",")
LOG = os.environ["FAKE_LOG"]


def log(text: str) -> None:
    with open(LOG, "a", encoding="utf-8") as file:
        file.write(f"{BOOT.identity} {os.getpid()} {text}\n")


def first_time() -> bool:
    try:
        os.close(os.open(f"{LOG}.{BOOT.identity}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main() -> int:
    boot.become_worker(BOOT)
    for fd in (*BOOT.segments, *BOOT.doorbells, *(listener.fd for listener in BOOT.listeners)):
        os.fstat(fd)
    log("started")
    if "crash" in WORDS or ("crash-once" in WORDS and first_time()):
        return 3
    with zmq.Context(1) as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.IDENTITY, BOOT.identity.encode())
        socket.set(zmq.LINGER, 1000)
        socket.connect(BOOT.control)
        socket.send(control.encode(control.Register(BOOT.role, BOOT.index, os.getpid())))
        if "fail" in WORDS:
            socket.send(control.encode(control.Failed("no module named 'arena'", "start where it is", 5)))
            return 5
        if "slow" in WORDS:
            time.sleep(1.5)
        socket.send(control.encode(control.Ready()))
        while True:
            message = control.decode_to_worker(socket.recv())
            log(type(message).__name__)
            if "deaf" in WORDS:
                continue
            match message:
                case control.Drain() if "undrained" not in WORDS:
                    socket.send(control.encode(control.Drained()))
                case control.Stop():
                    return 0
                case _:
                    pass


sys.exit(main())
