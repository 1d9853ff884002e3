"""Message bodies: what the program hands over, as bytes of the app's codec, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shardpool.codecs import UNREADABLE, unreadable
from shardpool.errors import NotConfigured, ProtocolError, TypeMismatch

Message = msgspec.Struct | dict[str, Any] | str | bytes

_TAG_FIELD = "type"


def message_name(cls: type[msgspec.Struct]) -> str:
    """The name under which messages of this type travel.

    Raises: TypeMismatch: the type has no text tag, or another tag field than "type".
    """
    config = cls.__struct_config__
    if not isinstance(config.tag, str) or config.tag_field != _TAG_FIELD:
        raise TypeMismatch(
            f"{cls.__name__} has no name on the wire: declare it "
            f"`class {cls.__name__}(Struct, tag={cls.__name__.lower()!r})`"
        )
    return config.tag


class Bodies:
    """Encoder and decoder of one codec.

    Args: codec: "json", "msgpack" or "raw", as the server's welcome said.
    """

    def __init__(self, codec: str) -> None:
        self.codec = codec
        self._encode: Callable[[Any], bytes] | None = None
        self._decode: Callable[[bytes], Any] | None = None
        self.switch(codec)

    def switch(self, codec: str) -> None:
        """Use another codec from here on. Raises: NotConfigured: it is none."""
        if codec == "json":
            self._encode, self._decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
        elif codec == "msgpack":
            self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
        elif codec == "raw":
            self._encode = self._decode = None
        else:
            raise NotConfigured(f"the server's codec {codec!r} is not one of json, msgpack, raw: update the client")
        self.codec = codec

    def encode(self, message: Message) -> bytes:
        """A message as bytes; a plain text is the name of a message without fields.

        Raises: TypeMismatch: it is nothing that this codec carries.
        """
        if self._encode is None:
            if not isinstance(message, bytes | bytearray | memoryview):
                raise TypeMismatch(f"codec raw carries bytes, not {type(message).__name__}")
            return bytes(message)
        if isinstance(message, str):
            message = {_TAG_FIELD: message}
        elif isinstance(message, msgspec.Struct):
            message_name(type(message))
        elif not isinstance(message, dict):
            raise TypeMismatch(
                f"codec {self.codec} carries a tagged Struct, a dict with 'type' or a name, "
                f"not {type(message).__name__}"
            )
        try:
            return self._encode(message)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise TypeMismatch(f"message {message!r:.200} cannot be encoded as {self.codec}: {error}") from None

    def decode(self, body: bytes, cls: Any = Any) -> Any:
        """A body as a value, or as `cls`.

        Raises: ProtocolError: the bytes are no such value.
        """
        if self._decode is None:
            return body
        try:
            if cls is Any:
                return self._decode(body)
            return (msgspec.json if self.codec == "json" else msgspec.msgpack).decode(body, type=cls)
        except UNREADABLE as error:
            raise ProtocolError(
                f"the server's body is no {getattr(cls, '__name__', cls)} in {self.codec}: {unreadable(error)}"
            ) from None


def name_of(value: Any) -> str | None:
    """The "type" of a decoded message, if it has one."""
    if isinstance(value, dict):
        name = value.get(_TAG_FIELD)
        return name if isinstance(name, str) else None
    return None
