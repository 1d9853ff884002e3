"""TLS over memory: ciphertext in, plaintext out, and back. Certificates and keys are checked before they are used."""

import contextlib
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path


class TlsFileError(Exception):
    """A certificate or key that cannot be used; says which, why, and what to do."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def server_context(cert: str, key: str) -> ssl.SSLContext:
    """A context for TLS 1.2 and later.

    Args: cert, key: paths of PEM files.
    Raises: TlsFileError: unreadable, not a pair, or a key that others may read.
    """
    try:
        mode = Path(key).stat().st_mode
    except OSError as error:
        raise TlsFileError(f"tls_key = {key}: {error.strerror}", "give the path of a PEM file") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise TlsFileError(f"tls_key = {key} can be read by others (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {key}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsFileError(
            f"tls_cert = {cert} and tls_key = {key} cannot be used: {error}", "give a PEM chain and its unencrypted key"
        ) from None
    return context


def _no_password() -> str:
    # Without this, OpenSSL asks the terminal.
    raise ValueError("the key is encrypted")


@dataclass(frozen=True, slots=True)
class TlsStep:
    """What received bytes led to."""

    cipher: bytes = b""  # to be written at once
    plain: bytes = b""
    established: bool = False  # the handshake ended with these bytes
    ended: bool = False  # the client said that it closes, or broke the protocol


class TlsSession:
    """One connection's TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_side=True)
        self.established = False

    def receive(self, data: bytes) -> TlsStep:
        """Take ciphertext of the client."""
        self._in.write(data)
        established = False
        plain: list[bytes] = []
        try:
            if not self.established:
                self._object.do_handshake()
                self.established = established = True
            while piece := self._object.read(65536):
                plain.append(piece)
            ended = True  # an empty read: the client's close_notify
        except ssl.SSLWantReadError:
            ended = False
        except ssl.SSLError:
            ended = True
        return TlsStep(self._out.read(), b"".join(plain), established, ended)

    def encrypt(self, plain: bytes) -> bytes:
        """Ciphertext of what the server says; nothing after the client ended it."""
        try:
            self._object.write(plain)
        except ssl.SSLError:
            return b""
        return self._out.read()

    def close(self) -> bytes:
        """The server's close_notify."""
        with contextlib.suppress(ssl.SSLError, OSError):
            self._object.unwrap()
        return self._out.read()
