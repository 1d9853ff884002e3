"""App: its options, its registrations, and what compile() makes sure of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from shardpool import Actor, AlreadyExists, App, NotConfigured, Session, Spot, TypeMismatch, on
from shardpool.app import Move, SecondLogin
from shardpool.directory import placement


class Player(Actor):
    pass


class Room(Spot):
    pass


def test_defaults() -> None:
    """P-13: json with the envelope; a client that does not read makes senders wait."""
    app = App("arena")
    assert (app.codec.value, app.envelope, app.slow_client.value, app.origins) == ("json", True, "wait", ())


def test_static_dir_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-13: acceptors serve it whatever their directory is."""
    monkeypatch.chdir(tmp_path)
    assert App("a", static_dir="web").static_dir == tmp_path / "web"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "1 to 40 bytes"),
        ({"name": "a\nb"}, "printable"),
        ({"codec": "xml"}, '"json", "msgpack", "raw"'),
        ({"envelope": False}, 'codec="raw"'),
        ({"slow_client": "drop"}, '"drop-oldest"'),
        ({"second_login": "no"}, '"replace", "refuse", "allow"'),
        ({"origins": "https://x"}, "give a list"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    """O-2: at once, with value and choices."""
    with pytest.raises(TypeMismatch) as caught:
        App(**{"name": "arena", **options})
    assert says in str(caught.value)


def test_first_actor_is_the_entry_unless_one_says_so() -> None:
    """P-7: sessions get a fresh entry actor."""
    app = App("a")
    app.actor(Player)

    @app.actor(entry=True, move="never")
    class Guest(Actor):
        pass

    made = app.compile()
    assert made.entry.cls is Guest
    assert made.entry.move is Move.NEVER
    assert made.find(Player).cls is Player
    with pytest.raises(AlreadyExists, match="entry=True"):

        @app.actor(entry=True)
        class Third(Actor):
            pass


def test_app_without_an_actor_cannot_run() -> None:
    """O-2: nobody would answer its clients."""
    with pytest.raises(NotConfigured, match=r"@app\.actor"):
        App("a").compile()


def test_registrations_check_what_they_get() -> None:
    """O-2: wrong base, name taken, unknown mode, two session handlers, unregistered class."""
    app = App("a")
    app.actor(Player)
    with pytest.raises(TypeMismatch, match=r"class Player\(Spot\)"):
        app.spot(Player)  # type: ignore[call-overload]
    with pytest.raises(AlreadyExists, match="has a Player already"):
        app.actor(Player)
    with pytest.raises(NotConfigured, match="mode='peractor'"):
        app.spot(mode="peractor")(Room)
    with pytest.raises(TypeMismatch, match="Player move='teleport'"):
        App("b").actor(move="teleport")(Player)

    @app.session
    class Door(Session):
        pass

    with pytest.raises(AlreadyExists, match="Door"):

        @app.session
        class Window(Session):
            pass

    with pytest.raises(NotConfigured, match="Room is not part of app 'a'"):
        app.compile().find(Room)


def test_handler_mistakes_come_out_at_compile() -> None:
    """O-2: registering is cheap; compile() checks everything, before anything runs."""
    app = App("a")

    @app.actor
    class Broken(Actor):
        @on
        def go(self, msg: int) -> None: ...

    with pytest.raises(TypeMismatch, match=r"Broken\.go"):
        app.compile()


def test_hooks_take_one_argument_at_most() -> None:
    """T-39: on_start and on_stop, once per shard."""
    app = App("a")

    @app.on_start
    def start(shard: int) -> None: ...

    @app.on_stop
    async def stop() -> None: ...

    assert app.start_hooks == [start]
    assert app.stop_hooks == [stop]
    with pytest.raises(TypeMismatch, match="takes 2 arguments"):
        app.on_start(lambda a, b: None)


def test_policies_are_enums() -> None:
    """T-39: second logins."""
    assert App("a", second_login="refuse").second_login is SecondLogin.REFUSE


def test_placement_is_the_same_everywhere_and_spreads() -> None:
    """P-26: a hash of type and id, unless the type says where."""
    shards = [placement(Room, f"room{n}", 4) for n in range(400)]
    assert shards == [placement(Room, f"room{n}", 4) for n in range(400)]
    assert all(60 < shards.count(k) < 140 for k in range(4))
    assert placement(Room, "room7", 1) == 0

    class Zone(Spot):
        @staticmethod
        def shard_of(id: str) -> int:
            return int(id)

    assert [placement(Zone, str(n), 4) for n in range(6)] == [0, 1, 2, 3, 0, 1]

    class Wrong(Spot):
        @staticmethod
        def shard_of(id: str) -> Any:
            return "x"

    with pytest.raises(NotConfigured, match="whole number"):
        placement(Wrong, "1", 4)


class Point(Struct):
    x: int


def test_instances_keep_the_users_state_apart() -> None:
    """T-38: what is shardpool's is not in an object's __dict__."""
    player = Player()
    assert vars(player) == {}
