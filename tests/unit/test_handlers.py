"""`@on` and `@every`: what a class's methods become, and what is refused with a sentence that helps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from shardpool import Actor, AlreadyExists, TypeMismatch, _core, every, on
from shardpool.codecs import Codec, encode_msgpack
from shardpool.handlers import ASYNC, NO_ARGUMENT, Dispatch, compile_class


class Move(Struct, tag="move"):
    dx: float


class Jump(Struct, tag="jump"):
    height: int = 1


class Numbered(Struct, tag=7):
    x: int


class Untagged(Struct):
    x: int


class OtherField(Struct, tag="x", tag_field="kind"):
    x: int


class Listed(Struct, tag="listed", array_like=True):
    x: int


def dispatch(cls: type, codec: Codec = Codec.JSON) -> Dispatch:
    return compile_class(cls, Actor, codec)


def refused(cls: type, kind: type[Exception], codec: Codec = Codec.JSON) -> str:
    with pytest.raises(kind) as caught:
        dispatch(cls, codec)
    return str(caught.value)


def test_flags_are_the_executors() -> None:
    """P-14: both sides of the binding agree on what a handler's flags mean."""
    assert _core.HANDLER_NO_ARGUMENT == NO_ARGUMENT
    assert _core.HANDLER_ASYNC == ASYNC


def test_message_goes_to_the_method_annotated_with_its_type() -> None:
    """P-14: the type decides, not the method's name; plain and async."""

    class Player(Actor):
        @on
        def walk(self, msg: Move) -> None: ...

        @on
        async def leap(self, msg: Jump) -> None: ...

    made = dispatch(Player)
    assert made.decode is not None
    assert made.decode(b'{"type":"move","dx":1}') == Move(1.0)
    assert made.handlers[Move] == (Player.walk, 0)
    assert made.handlers[Jump] == (Player.leap, ASYNC)
    assert made.names == ("jump", "move")


def test_method_without_a_message_is_called_by_its_name() -> None:
    """P-14: an implicit message named after the method, from clients and from objects."""

    class Room(Actor):
        @on
        def limits(self) -> None: ...

    made = dispatch(Room)
    assert made.decode is not None
    message = made.decode(b'{"type":"limits"}')
    assert made.handlers[type(message)] == (Room.limits, NO_ARGUMENT)
    assert type(made.call_decode(encode_msgpack({"type": "limits"}))) is type(message)


def test_union_annotation_takes_each_of_its_messages() -> None:
    """P-14: one handler for several messages."""

    class Player(Actor):
        @on
        def both(self, msg: Move | Jump) -> None: ...

    assert set(dispatch(Player).handlers) == {Move, Jump}


def test_message_without_a_name_is_refused_even_by_a_single_handler() -> None:
    """P-14: adding a second handler must not change what clients may leave out."""

    class Player(Actor):
        @on
        def walk(self, msg: Move) -> None: ...

    made = dispatch(Player)
    assert made.decode is not None
    with pytest.raises(msgspec.ValidationError, match="missing required field `type`"):
        made.decode(b'{"dx":1}')
    with pytest.raises(msgspec.ValidationError):
        made.decode(b'{"type":"nobody"}')


def test_handler_for_objects_only_is_not_reachable_by_clients() -> None:
    """P-14, P-31: `@on(client=False)` keeps a message out of the client's decoder."""

    class Player(Actor):
        @on
        def walk(self, msg: Move) -> None: ...

        @on(client=False)
        def hurt(self, msg: Jump) -> None: ...

    made = dispatch(Player)
    assert made.decode is not None
    with pytest.raises(msgspec.ValidationError):
        made.decode(b'{"type":"jump"}')
    assert made.call_decode(encode_msgpack({"type": "jump"})) == Jump()
    assert made.names == ("move",)


def test_msgpack_and_raw_codecs() -> None:
    """P-13: msgpack has the same shape; raw hands over the bytes, and objects still send typed messages."""

    class Player(Actor):
        @on
        def walk(self, msg: Move) -> None: ...

    packed = dispatch(Player, Codec.MSGPACK)
    assert packed.decode is not None
    assert packed.decode(msgspec.msgpack.encode(Move(2.0))) == Move(2.0)

    class Echo(Actor):
        @on
        def data(self, data: bytes) -> bytes:
            return data

        @on
        def walk(self, msg: Move) -> None: ...

    raw = dispatch(Echo, Codec.RAW)
    assert raw.decode is None
    assert raw.encode is None
    assert raw.handlers[bytes] == (Echo.data, 0)
    assert raw.call_decode(encode_msgpack(b"x")) == b"x"
    assert raw.call_decode(encode_msgpack(Move(1.0))) == Move(1.0)


def test_numbers_name_messages_too() -> None:
    """P-14: messages carry name or number."""

    class Player(Actor):
        @on
        def numbered(self, msg: Numbered) -> None: ...

    made = dispatch(Player)
    assert made.decode is not None
    assert made.decode(b'{"type":7,"x":1}') == Numbered(1)


def test_override_replaces_and_unmarked_override_removes() -> None:
    """P-14: inheritance works as in plain Python."""

    class Base(Actor):
        @on
        def walk(self, msg: Move) -> None: ...

        @on
        def rest(self) -> None: ...

    class Child(Base):
        @on
        def walk(self, msg: Move) -> None: ...

        def rest(self) -> None: ...

    made = dispatch(Child)
    assert made.handlers == {Move: (Child.walk, 0)}


def test_timers_are_collected() -> None:
    """T-33: period, and whether the handler wants its lateness."""

    class Room(Actor):
        @every(0.5)
        def tick(self) -> None: ...

        @every(2)
        async def slow(self, lateness: float) -> None: ...

    found = {timer.name: (timer.seconds, timer.wants_lateness) for timer in dispatch(Room).timers}
    assert found == {"tick": (0.5, False), "slow": (2.0, True)}


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "1"])
def test_period_must_be_positive(seconds: Any) -> None:
    """T-33: a period that cannot be is refused at the decorator."""
    with pytest.raises(TypeMismatch, match="above 0"):
        every(seconds)


def test_two_handlers_of_one_message_are_a_conflict() -> None:
    """O-2: the error names class, methods and message."""

    class Player(Actor):
        @on
        def one(self, msg: Move) -> None: ...

        @on
        def two(self, msg: Move) -> None: ...

    text = refused(Player, AlreadyExists)
    assert "Player.two" in text
    assert "Player.one" in text
    assert '"move"' in text


def test_name_and_tag_that_meet_are_a_conflict() -> None:
    """O-2: a handler called by its name, and a message of the same name."""

    class Player(Actor):
        @on
        def move(self) -> None: ...

        @on
        def walk(self, msg: Move) -> None: ...

    assert '"move"' in refused(Player, AlreadyExists)


def test_handler_must_not_hide_a_method_of_the_library() -> None:
    """O-2: `send` and its like stay what they are."""

    class Player(Actor):
        @on
        def join(self, msg: Move) -> None: ...  # type: ignore[override]

    text = refused(Player, AlreadyExists)
    assert "Actor.join is part of shardpool" in text
    assert 'tag="join"' in text


def test_wrong_signatures_are_refused_with_a_remedy() -> None:
    """O-2: no self, too many arguments, keyword only, no annotation, generator, static method."""

    class TooMany(Actor):
        @on
        def go(self, a: Move, b: Jump) -> None: ...

    class Keyword(Actor):
        @on
        def go(self, *, msg: Move) -> None: ...

    class Bare(Actor):
        @on
        def go(self, msg) -> None: ...  # type: ignore[no-untyped-def]

    class Generator(Actor):
        @on
        async def go(self, msg: Move) -> Any:
            yield 1

    class Static(Actor):
        @staticmethod
        @on
        def go(msg: Move) -> None: ...

    class NoSelf(Actor):
        @on
        def go() -> None: ...  # type: ignore[misc]

    assert "takes 2 arguments (a, b)" in refused(TooMany, TypeMismatch)
    assert "msg: Move" in refused(Keyword, TypeMismatch)
    assert "`msg` has no annotation" in refused(Bare, TypeMismatch)
    assert "generator" in refused(Generator, TypeMismatch)
    assert "staticmethod" in refused(Static, TypeMismatch)
    assert "def go(self)" in refused(NoSelf, TypeMismatch)


def test_messages_that_cannot_be_named_are_refused_with_a_remedy() -> None:
    """O-2: no tag, another tag field, arrays, no Struct, bytes without raw, names mixed with numbers."""

    class A(Actor):
        @on
        def go(self, msg: Untagged) -> None: ...

    class B(Actor):
        @on
        def go(self, msg: OtherField) -> None: ...

    class C(Actor):
        @on
        def go(self, msg: Listed) -> None: ...

    class D(Actor):
        @on
        def go(self, msg: int) -> None: ...

    class E(Actor):
        @on
        def go(self, msg: bytes) -> None: ...

    class F(Actor):
        @on
        def go(self, msg: Move) -> None: ...

        @on
        def number(self, msg: Numbered) -> None: ...

    assert "class Untagged(Struct, tag='untagged')" in refused(A, TypeMismatch)
    assert "tag_field='kind'" in refused(B, TypeMismatch)
    assert "array_like" in refused(C, TypeMismatch)
    assert "D.go takes int" in refused(D, TypeMismatch)
    assert 'codec="raw"' in refused(E, TypeMismatch)
    assert "by text and by number" in refused(F, TypeMismatch)


def test_annotation_that_cannot_be_found_is_named() -> None:
    """O-2: a forward reference to nothing."""

    class Player(Actor):
        @on
        def go(self, msg: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    text = refused(Player, TypeMismatch)
    assert "'Nowhere'" in text
    assert "Player.go" in text


def test_marks_on_no_method_and_twice() -> None:
    """O-2: at the decorator, where the mistake is."""
    with pytest.raises(TypeMismatch, match="mark methods"):
        on(3)  # type: ignore[call-overload]
    with pytest.raises(AlreadyExists, match="marked twice"):

        class Player(Actor):
            @every(1)
            @on
            def go(self) -> None: ...
