"""Dead letters: messages that a pool accepted and did not run, in a file that outlives its processes (M-16).

file     a header line, then one JSON line per letter, in order; every shard appends under a lock (flock)
bound    half of the limit per file: a full one becomes PATH.1, in place of the one before
crash    a line that was cut off is skipped by readers and ended by the next writer; a letter that was written twice,
         because its writer died before it could note that, has the same id and is read once
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from shardpool.errors import NotFound, TypeMismatch

FORMAT = "shardpool dead letters"
VERSION = 1
NAME = "dead-letters.jsonl"  # in the pool's run directory, unless a setting says otherwise


class Reason(StrEnum):
    """Why a message was not run."""

    SHARD_DIED = "shard_died"  # in its handler
    QUARANTINED = "quarantined"  # its object killed its shard again and again
    OBJECT_ENDED = "object_ended"  # before it came to it


class Kind(StrEnum):
    """What it was."""

    MESSAGE = "message"  # of a client
    ASK = "ask"  # of a client
    SEND = "send"  # of an object or a trusted program
    CALL = "call"  # the ask of one


class Header(Struct, frozen=True):
    """First line of the file."""

    format: str
    version: int


class DeadLetter(Struct, frozen=True):
    """One message. id: of shard, slot, generation and turn, so that one message has one."""

    id: str
    at: float  # seconds since 1970
    shard: int  # from 0
    type: str  # of the object
    object: str  # its id
    kind: Kind
    sender: str
    reason: Reason
    attempts: int  # how often it had begun
    codec: str  # of the payload: "json", "msgpack" or "raw"
    payload: bytes


_header = msgspec.json.Decoder(Header).decode
_letter = msgspec.json.Decoder(DeadLetter).decode
_encode = msgspec.json.Encoder().encode


class DeadLetterFile:
    """The file as a shard appends to it. Args: path: of the file. limit: bytes of it and its predecessor together."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit

    def append(self, letters: Iterable[DeadLetter]) -> None:
        """Write letters behind those that are there. Raises: OSError."""
        text = b"".join(_encode(letter) + b"\n" for letter in letters)
        while True:
            # Private: payloads are what clients said.
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if self._append_locked(fd, text):
                    return
            finally:
                os.close(fd)

    def _append_locked(self, fd: int, text: bytes) -> bool:
        """False: the file was put aside meanwhile, or had to be; open the new one."""
        here = os.fstat(fd)
        try:
            if os.stat(self._path).st_ino != here.st_ino:
                return False
        except FileNotFoundError:
            return False
        if here.st_size == 0:
            os.write(fd, _encode(Header(FORMAT, VERSION)) + b"\n")
        elif not _is_ours(os.pread(fd, 256, 0)):
            os.rename(self._path, f"{self._path}.other-version")
            return False
        elif here.st_size + len(text) > self._limit // 2:
            os.rename(self._path, f"{self._path}.1")
            return False
        elif os.pread(fd, 1, here.st_size - 1) != b"\n":
            text = b"\n" + text
        os.write(fd, text)
        return True


def _is_ours(start: bytes) -> bool:
    try:
        header = _header(start.partition(b"\n")[0])
    except msgspec.DecodeError:
        return False
    return header == Header(FORMAT, VERSION)


def read(path: Path) -> list[DeadLetter]:
    """All letters, oldest first, each once; none if there is no file.

    Raises: TypeMismatch: it is no dead-letter file, or one of another version; says which. OSError.
    """
    letters: dict[str, DeadLetter] = {}
    for part in (Path(f"{path}.1"), path):
        try:
            lines = part.read_bytes().split(b"\n")
        except FileNotFoundError:
            continue
        _check_header(part, lines[0])
        for line in lines[1:]:
            try:
                letter = _letter(line)
            except msgspec.DecodeError:
                continue  # cut off by its writer's death, or the end of the file
            letters.setdefault(letter.id, letter)
    return list(letters.values())


def find(path: Path, id: str) -> DeadLetter:
    """One letter. Raises: NotFound, and what `read` raises."""
    for letter in read(path):
        if letter.id == id:
            return letter
    raise NotFound(f"no dead letter {id!r} in {path}; `shardpool dead-letters list` shows those that are there")


def _check_header(path: Path, line: bytes) -> None:
    if not line:
        return  # its writer died before the first line stood
    try:
        header = _header(line)
    except msgspec.DecodeError:
        raise TypeMismatch(f"{path} is no file of dead letters") from None
    if header.format != FORMAT:
        raise TypeMismatch(f"{path} is no file of dead letters")
    if header.version != VERSION:
        raise TypeMismatch(
            f"{path} is of version {header.version} of this file, this shardpool reads version {VERSION}: "
            "use the shardpool that wrote it"
        )
