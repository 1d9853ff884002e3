"""How bodies are written: by the app's codec for clients, always MessagePack between objects of the node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import reduce
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

R = TypeVar("R")

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]


# What a decoder raises about the bytes it was given. Not only DecodeError: values inside values, some hundred deep in a
# few bytes, exhaust the interpreter's stack, and whoever writes those bytes must not choose what that ends.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def unreadable(error: BaseException) -> str:
    """What is wrong with the bytes. Args: error: one of UNREADABLE."""
    return "its values are nested too deeply" if isinstance(error, RecursionError) else str(error)


class Codec(StrEnum):
    """The app's codec."""

    JSON = "json"
    MSGPACK = "msgpack"
    RAW = "raw"


class Request(Struct, Generic[R]):
    """Base of messages that state the type of their reply: `class GetSize(Request[Size], tag="size")`.

    An ask with such a message has that type, for mypy and when it is decoded.
    """


class Unaddressed(Struct, tag="\0"):
    """Never sent. With it every decoder is a union, so that a message without a name is refused even where one
    handler is all there is: adding a second handler must not change what clients may leave out."""


class UnaddressedNumber(Struct, tag=-(1 << 62)):
    """The same where messages are named by number; msgspec does not mix the two."""


encode_json: Encode = msgspec.json.Encoder().encode
encode_msgpack: Encode = msgspec.msgpack.Encoder().encode
decode_msgpack: Decode = msgspec.msgpack.Decoder().decode


def client_decoder(codec: Codec, messages: Iterable[type]) -> Decode | None:
    """Decoder of what clients send; None for raw: the bytes are the message."""
    structs = [message for message in messages if message is not bytes]
    match codec:
        case Codec.RAW:
            return None
        case Codec.JSON:
            return msgspec.json.Decoder(_union(structs)).decode
        case Codec.MSGPACK:
            return msgspec.msgpack.Decoder(_union(structs)).decode


def client_encoder(codec: Codec) -> Encode | None:
    """Encoder of what clients get; None for raw: it must be bytes."""
    match codec:
        case Codec.RAW:
            return None
        case Codec.JSON:
            return encode_json
        case Codec.MSGPACK:
            return encode_msgpack


def call_decoder(messages: Iterable[type]) -> Decode:
    """Decoder of what objects of the node send to each other."""
    return msgspec.msgpack.Decoder(_union(list(messages))).decode


def value_decoder(of: Any) -> Decode:
    """Decoder of one MessagePack value of a type. Args: of: a type, or Any for plain Python values."""
    return decode_msgpack if of is Any else msgspec.msgpack.Decoder(of).decode


def reply_type(message: type) -> Any:
    """What `Request[R]` promised: R; Any for messages that promise nothing."""
    for cls in message.__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            if getattr(base, "__origin__", None) is Request:
                return base.__args__[0]
    return Any


def _union(messages: list[Any]) -> Any:
    numbered = any(isinstance(message.__struct_config__.tag, int) for message in messages if message is not bytes)
    return reduce(operator.or_, messages, UnaddressedNumber if numbered else Unaddressed)
