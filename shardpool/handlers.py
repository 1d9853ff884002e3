"""`@on` and `@every`, and what a class with them means: which message goes to which method.

class Player(Actor):
    @on
    def enter(self, msg: Enter) -> None: ...     the message type decides; the method's name does not matter
    @on
    def limits(self) -> dict: ...                no message: called by its own name
    @every(0.05)
    def tick(self, lateness: float) -> None: ... the lateness in seconds, for those that take it
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Struct

from shardpool.codecs import Codec, Decode, Encode, call_decoder, client_decoder, client_encoder, encode_msgpack
from shardpool.errors import AlreadyExists, TypeMismatch

F = TypeVar("F", bound=Callable[..., Any])

# The executor's flags of a handler (HANDLER_NO_ARGUMENT and HANDLER_ASYNC of shardpool._core).
NO_ARGUMENT = 1
ASYNC = 2

_MARK = "__shardpool_handler__"


@dataclass(frozen=True, slots=True)
class OnMark:
    """`@on`. client: sessions may send it too, not only other objects."""

    client: bool


@dataclass(frozen=True, slots=True)
class EveryMark:
    """`@every`. seconds: period."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TimerHandler:
    """One `@every` method of a class."""

    name: str
    function: Callable[..., Any]
    seconds: float
    wants_lateness: bool


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A class's handlers, ready for the executor's Table."""

    decode: Decode | None
    handlers: dict[type, tuple[Callable[..., Any], int]]
    encode: Encode | None
    call_decode: Decode
    call_encode: Encode
    timers: tuple[TimerHandler, ...]
    names: tuple[str, ...]  # what clients may send, for the sentence about an unknown message


@overload
def on(function: F, /) -> F: ...
@overload
def on(*, client: bool = True) -> Callable[[F], F]: ...
def on(function: F | None = None, /, *, client: bool = True) -> F | Callable[[F], F]:
    """Make a method a message handler: of the message its parameter is annotated with, or, without one, of its name.

    Args: client: False keeps clients out: only other objects of the pool may send it.
    Returns: the method, unchanged. May be plain or async; its return value is the reply of an ask.
    """

    def mark(target: F) -> F:
        return _mark(target, OnMark(client))

    return mark if function is None else mark(function)


def every(seconds: float) -> Callable[[F], F]:
    """Make a method run periodically in its object's turns, from the object's creation to its end.

    Args: seconds: period, above 0. A run never overlaps itself; ticks that could not run in time are skipped.
    Returns: a decorator. The method may take the lateness in seconds.
    """
    if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise TypeMismatch(f"@every({seconds!r}): a period is a number of seconds above 0")

    def mark(target: F) -> F:
        return _mark(target, EveryMark(float(seconds)))

    return mark


def _mark(target: F, mark: OnMark | EveryMark) -> F:
    if not inspect.isfunction(target):
        raise TypeMismatch(f"@on and @every mark methods; {target!r} is none. Put them right above `def`")
    if hasattr(target, _MARK):
        raise AlreadyExists(f"{target.__qualname__} is marked twice; a method is one handler: keep one of @on, @every")
    setattr(target, _MARK, mark)
    return target


@dataclass(slots=True)
class _Collected:
    owner: type
    handlers: dict[type, tuple[Callable[..., Any], int]] = field(default_factory=dict)
    client: list[type] = field(default_factory=list)
    tags: dict[str | int, str] = field(default_factory=dict)
    timers: list[TimerHandler] = field(default_factory=list)


def compile_class(cls: type, base: type, codec: Codec) -> Dispatch:
    """Collect a class's handlers and build its decoders.

    Args: cls: the user's class; base: the shardpool class it derives from, whose methods no handler may hide.
    Raises: TypeMismatch, AlreadyExists: with class, method and what to do.
    """
    collected = _Collected(cls)
    for name, function in _methods(cls).items():
        mark = getattr(function, _MARK)
        if hasattr(base, name):
            raise AlreadyExists(
                f"{_where(cls, name)}: {base.__name__}.{name} is part of shardpool. Rename the handler; "
                f'clients can still say "{name}" if it takes a Struct with tag="{name}"'
            )
        if isinstance(mark, OnMark):
            _add_message(collected, codec, name, function, mark)
        else:
            _add_timer(collected, name, function, mark)
    return Dispatch(
        decode=client_decoder(codec, collected.client),
        handlers=collected.handlers,
        encode=client_encoder(codec),
        call_decode=call_decoder(collected.handlers),
        call_encode=encode_msgpack,
        timers=tuple(collected.timers),
        names=tuple(sorted(str(_tag(message)) for message in collected.client if message is not bytes)),
    )


def parameter_type(function: Callable[..., Any], index: int) -> Any:
    """Annotation of a method's parameter.

    Args: index: 1 is the first after self. Returns: Any if there is none.
    Raises: TypeMismatch: it names something that the module does not have.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if index >= len(parameters):
        return Any
    return _annotation(function.__qualname__, function, parameters[index], Any)


def _methods(cls: type) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for owner in reversed(cls.__mro__):
        for name, value in vars(owner).items():
            inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            marked = hasattr(inner, _MARK)
            if marked and inner is not value:
                raise TypeMismatch(f"{_where(cls, name)} is a {type(value).__name__}; handlers are plain methods")
            # An override without a mark takes the handler away, as overriding does everywhere.
            found.pop(name, None)
            if marked:
                found[name] = value
    return found


def _add_message(collected: _Collected, codec: Codec, name: str, function: Callable[..., Any], mark: OnMark) -> None:
    where = _where(collected.owner, name)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeMismatch(f"{where} is a generator; a handler returns its one reply: use return instead of yield")
    flags = ASYNC if inspect.iscoroutinefunction(function) else 0
    parameters = _parameters(where, function, "one message")
    if not parameters:
        messages: list[type] = [msgspec.defstruct(name, [], tag=name, frozen=True)]
        flags |= NO_ARGUMENT
    else:
        messages = _message_types(where, function, parameters[0])
    for message in messages:
        _check_message(where, codec, message, mark)
        if message is not bytes:
            _claim_tag(collected, where, message)
        if message in collected.handlers:
            other = collected.handlers[message][0].__name__
            raise AlreadyExists(f"{where} and {other} both take {message.__name__}; a message has one handler")
        collected.handlers[message] = (function, flags)
        if mark.client:
            collected.client.append(message)


def _add_timer(collected: _Collected, name: str, function: Callable[..., Any], mark: EveryMark) -> None:
    where = _where(collected.owner, name)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeMismatch(f"{where} is a generator; an @every method is a plain or async one")
    parameters = _parameters(where, function, "the lateness in seconds")
    collected.timers.append(TimerHandler(name, function, mark.seconds, bool(parameters)))


def _parameters(where: str, function: Callable[..., Any], takes: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise TypeMismatch(f"{where} takes no self; write `def {function.__name__}(self)`")
    rest = parameters[1:]
    needed = [p for p in rest if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or len(rest) > 1:
        names = ", ".join(p.name for p in rest)
        raise TypeMismatch(f"{where} takes {len(rest)} arguments ({names}); a handler takes {takes} at most")
    if rest and rest[0].kind in (rest[0].KEYWORD_ONLY, rest[0].VAR_POSITIONAL, rest[0].VAR_KEYWORD):
        raise TypeMismatch(f"{where}: `{rest[0]}` cannot get it; name the argument: `msg: Move`")
    return rest


def _message_types(where: str, function: Callable[..., Any], parameter: inspect.Parameter) -> list[type]:
    if parameter.annotation is parameter.empty:
        raise TypeMismatch(
            f"{where}: `{parameter.name}` has no annotation. Say which message it takes, as in "
            f'`{parameter.name}: Move` with `class Move(Struct, tag="move")`, or drop it for a message without a body'
        )
    annotation = _annotation(where, function, parameter, parameter.annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members: list[type] = list(typing.get_args(annotation))
        return members
    return [annotation]


def _annotation(where: str, function: Callable[..., Any], parameter: inspect.Parameter, missing: Any) -> Any:
    """One parameter's annotation, by itself: what the others name is nobody's business here."""
    hint = getattr(function, "__annotations__", {}).get(parameter.name, missing)
    if not isinstance(hint, str):
        return hint
    try:
        holder = types.SimpleNamespace(__annotations__={parameter.name: hint})
        return typing.get_type_hints(holder, function.__globals__)[parameter.name]
    except NameError as error:
        raise TypeMismatch(
            f"{where}: the annotation {hint!r} names {error.name!r}, which its module does not have. "
            "Define message types at the top of the module, not under `if TYPE_CHECKING`"
        ) from None


def _check_message(where: str, codec: Codec, message: Any, mark: OnMark) -> None:
    if message is bytes:
        if codec is not Codec.RAW and mark.client:
            raise TypeMismatch(
                f"{where} takes bytes, but the app's codec is {codec.value!r}. Take a Struct, or make the app "
                'with codec="raw"'
            )
        return
    shown = getattr(message, "__name__", repr(message))
    if not (isinstance(message, type) and issubclass(message, Struct)):
        expected = "bytes or a msgspec Struct" if codec is Codec.RAW else "a msgspec Struct"
        raise TypeMismatch(f'{where} takes {shown}; a message is {expected}: `class Move(Struct, tag="move")`')
    config = message.__struct_config__
    if config.tag is None:
        raise TypeMismatch(
            f"{where}: {shown} has no name on the wire. Write `class {shown}(Struct, tag={shown.lower()!r})`"
        )
    if config.tag_field != "type":
        raise TypeMismatch(f'{where}: {shown} has tag_field={config.tag_field!r}; messages are named by "type"')
    if config.array_like:
        raise TypeMismatch(f"{where}: {shown} is array_like; messages are objects: drop array_like=True")


def _tag(message: type) -> str | int:
    tag: str | int = message.__struct_config__.tag  # type: ignore[attr-defined]
    return tag


def _claim_tag(collected: _Collected, where: str, message: type) -> None:
    tag = _tag(message)
    other = collected.tags.get(tag)
    if other is not None:
        raise AlreadyExists(f'{where}: the message "{tag}" already goes to {other}. Give one of them another tag')
    for known, owner in collected.tags.items():
        if type(known) is not type(tag):
            raise TypeMismatch(
                f"{where}: the message {tag!r} and {owner}'s {known!r} are named by text and by number; "
                "name all messages of a class one way (a handler without a message is named by text)"
            )
        break
    collected.tags[tag] = where


def _where(cls: type, name: str) -> str:
    return f"{cls.__name__}.{name}"
