"""The app: what a module hands to `shardpool serve MODULE:APP`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, overload

from shardpool.actor import Actor
from shardpool.codecs import Codec
from shardpool.delivery import AT_MOST_ONCE, Policy
from shardpool.errors import AlreadyExists, NotConfigured, TypeMismatch
from shardpool.handlers import Dispatch, compile_class, parameter_type
from shardpool.objects import TurnObject
from shardpool.session import Session
from shardpool.spot import EntrySpot, Spot

A = TypeVar("A", bound=type[Actor])
S = TypeVar("S", bound=type[Spot])
H = TypeVar("H", bound=type[Session])
F = TypeVar("F", bound=Callable[..., Any])

NAME_BYTES_MAX = 40  # of apps and classes: with an id they share the 128 bytes of a directory key


class SlowClient(StrEnum):
    """What happens when a client does not read (P-9)."""

    WAIT = "wait"
    DROP_OLDEST = "drop-oldest"
    CLOSE = "close"


class SecondLogin(StrEnum):
    """What happens when an identity comes in that is in already (T-39)."""

    REPLACE = "replace"
    REFUSE = "refuse"
    ALLOW = "allow"


class Move(StrEnum):
    """What a Join to another shard does with the actor's state (T-15)."""

    NEVER = "never"
    RECREATE = "recreate"
    PRESERVE = "preserve"


@dataclass(frozen=True, slots=True)
class ObjectType:
    """One registered class, compiled."""

    cls: type[TurnObject]
    dispatch: Dispatch
    move: Move = Move.PRESERVE
    delivery: Policy = AT_MOST_ONCE

    @property
    def name(self) -> str:
        """What it is called in calls, status and the directory."""
        return self.cls.__name__


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The app with everything checked: what a shard runs."""

    app: App
    entry: ObjectType
    session: ObjectType
    entry_spot: ObjectType
    types: dict[str, ObjectType]  # actors and Spots, by name

    def find(self, cls: type[TurnObject]) -> ObjectType:
        """The registration of a class. Raises: NotConfigured."""
        found = self.types.get(cls.__name__)
        if found is None or found.cls is not cls:
            name = cls.__name__
            raise NotConfigured(f"{name} is not part of app {self.app.name!r}: put @app.actor or @app.spot on it")
        return found


class App:
    """One deployable: a module's objects and how clients talk to them.

    Args: name: shown in titles, status and to clients. codec: "json", "msgpack" or "raw", how bodies are written.
          envelope: False (codec "raw" only) speaks somebody else's protocol, see "Bare mode" in docs/protocol.md.
          static_dir: directory served over HTTP by the acceptors. origins: what browsers may connect from; default: the
          same host. slow_client: "wait", "drop-oldest" or "close". second_login: "replace", "refuse" or "allow".
    Raises: TypeMismatch: a value that cannot be used, at once.
    """

    def __init__(
        self,
        name: str,
        *,
        codec: str = "json",
        envelope: bool = True,
        static_dir: str | os.PathLike[str] | None = None,
        origins: Sequence[str] = (),
        slow_client: str = "wait",
        second_login: str = "replace",
    ) -> None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise TypeMismatch(f"App({name!r}): a name is 1 to {NAME_BYTES_MAX} bytes of printable text")
        self.name = name
        self.codec = _choice(name, "codec", codec, Codec)
        self.slow_client = _choice(name, "slow_client", slow_client, SlowClient)
        self.second_login = _choice(name, "second_login", second_login, SecondLogin)
        if not envelope and self.codec is not Codec.RAW:
            raise TypeMismatch(f'App({name!r}): envelope=False goes with codec="raw" only, not {self.codec.value!r}')
        if isinstance(origins, str):
            raise TypeMismatch(f"App({name!r}): origins={origins!r} is one text; give a list: origins=[{origins!r}]")
        self.envelope = envelope
        self.static_dir = None if static_dir is None else Path(static_dir).absolute()
        self.origins = tuple(origins)
        self._actors: dict[str, tuple[type[Actor], Move]] = {}
        self._policies: dict[str, Policy] = {}  # of actors and Spots
        self._entry: type[Actor] | None = None
        self._spots: dict[str, type[Spot]] = {}
        self._session: type[Session] | None = None
        self.start_hooks: list[Callable[..., Any]] = []
        self.stop_hooks: list[Callable[..., Any]] = []

    @overload
    def actor(self, cls: A, /, *, entry: bool = False, move: str = "preserve") -> A: ...
    @overload
    def actor(
        self, /, *, entry: bool = False, move: str = "preserve", delivery: Policy = AT_MOST_ONCE
    ) -> Callable[[A], A]: ...
    def actor(
        self, cls: Any = None, /, *, entry: bool = False, move: str = "preserve", delivery: Policy = AT_MOST_ONCE
    ) -> Any:
        """Register an actor class.

        Args: entry: sessions get a fresh one of these (default: the first registered).
              move: what a Join to another shard does with its state: "preserve" (it travels), "recreate" (a fresh one
              is made there), "never" (such a Join fails).
              delivery: what becomes of a message whose handler was cut off by the shard's death: AtMostOnce() or
              AtLeastOnce(attempts).
        """

        def register(cls: A) -> A:
            self._check_class(cls, Actor, "actor")
            self._set_policy(cls, delivery)
            self._actors[cls.__name__] = (cls, _choice(self.name, f"{cls.__name__} move", move, Move))
            if entry:
                if self._entry is not None:
                    raise AlreadyExists(f"{cls.__name__} and {self._entry.__name__} are both entry=True; keep one")
                self._entry = cls
            return cls

        return register if cls is None else register(cls)

    @overload
    def spot(self, cls: S, /, *, mode: str = "spotwide") -> S: ...
    @overload
    def spot(self, /, *, mode: str = "spotwide", delivery: Policy = AT_MOST_ONCE) -> Callable[[S], S]: ...
    def spot(self, cls: Any = None, /, *, mode: str = "spotwide", delivery: Policy = AT_MOST_ONCE) -> Any:
        """Register a Spot class.

        Args: mode: "spotwide": one gate for the Spot, its timers and its members. delivery: as of an actor.
        """

        def register(cls: S) -> S:
            self._check_class(cls, Spot, "spot")
            if mode != "spotwide":
                raise NotConfigured(f'{cls.__name__}: mode={mode!r} does not exist in this version; use "spotwide"')
            self._set_policy(cls, delivery)
            self._spots[cls.__name__] = cls
            return cls

        return register if cls is None else register(cls)

    def session(self, cls: H, /) -> H:
        """Register the session handler: one object of this class per session decides who comes in."""
        self._check_class(cls, Session, "session")
        if self._session is not None:
            raise AlreadyExists(f"app {self.name!r} has the session handler {self._session.__name__}; keep one")
        self._session = cls
        return cls

    def on_start(self, function: F, /) -> F:
        """Register a function for once per shard, before the first turn.

        Args: function: plain or async; takes nothing, or the shard's number.
        """
        self.start_hooks.append(_checked_hook("on_start", function))
        return function

    def on_stop(self, function: F, /) -> F:
        """Register a function for once per shard, after the last turn; as on_start."""
        self.stop_hooks.append(_checked_hook("on_stop", function))
        return function

    def compile(self) -> Blueprint:
        """Check everything and build the dispatch of each class.

        Raises: NotConfigured: no actor. TypeMismatch, AlreadyExists: a handler that cannot work; says which and why.
        """
        if not self._actors:
            raise NotConfigured(
                f"app {self.name!r} has no actor, so nobody would answer its clients: put @app.actor on a class"
            )
        types: dict[str, ObjectType] = {}
        for cls, move in self._actors.values():
            policy = self._policies[cls.__name__]
            types[cls.__name__] = ObjectType(cls, compile_class(cls, Actor, self.codec), move, policy)
        for spot in self._spots.values():
            policy = self._policies[spot.__name__]
            types[spot.__name__] = ObjectType(spot, compile_class(spot, Spot, self.codec), delivery=policy)
        entry = self._entry if self._entry is not None else next(iter(self._actors.values()))[0]
        session = self._session if self._session is not None else Session
        for registered in types.values():
            _check_requests(registered.cls)
        return Blueprint(
            app=self,
            entry=types[entry.__name__],
            session=ObjectType(session, compile_class(session, Session, self.codec)),
            entry_spot=ObjectType(EntrySpot, compile_class(EntrySpot, Spot, self.codec)),
            types=types,
        )

    def _set_policy(self, cls: type[TurnObject], delivery: Any) -> None:
        if not isinstance(delivery, Policy):
            raise TypeMismatch(f"{cls.__name__}: delivery={delivery!r}; use AtMostOnce() or AtLeastOnce(attempts)")
        self._policies[cls.__name__] = delivery

    def _check_class(self, cls: Any, base: type[TurnObject], decorator: str) -> None:
        if not (isinstance(cls, type) and issubclass(cls, base)):
            shown = getattr(cls, "__name__", repr(cls))
            raise TypeMismatch(f"@app.{decorator} on {shown}: write `class {shown}({base.__name__})`")
        if cls.__name__ in self._actors or cls.__name__ in self._spots:
            raise AlreadyExists(f"app {self.name!r} has a {cls.__name__} already; names are addresses: rename one")
        if len(cls.__name__.encode()) > NAME_BYTES_MAX:
            raise TypeMismatch(f"{cls.__name__}: a class's name has {NAME_BYTES_MAX} bytes at most; shorten it")


def _check_requests(cls: type[TurnObject]) -> None:
    """Resolve the request types of the deciding callbacks now, not when the first one comes."""
    for callback, index in (("on_create", 1), ("on_actor_join", 2)):
        if hasattr(cls, callback):
            parameter_type(getattr(cls, callback), index)


E2 = TypeVar("E2", bound=StrEnum)


def _choice(app: str, what: str, value: str, choices: type[E2]) -> E2:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(f'"{choice.value}"' for choice in choices)
        raise TypeMismatch(f"App({app!r}): {what}={value!r}; it is one of {known}") from None


def _checked_hook(name: str, function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise TypeMismatch(f"@app.{name} marks a function; {function!r} is none")
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    if len(needed) > 1:
        raise TypeMismatch(f"@app.{name} {function.__qualname__} takes {len(needed)} arguments; it gets one at most")
    checked: Callable[..., Any] = function
    return checked
