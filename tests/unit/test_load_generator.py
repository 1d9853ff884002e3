"""The load generator against a counter server that is right, and against ones that are not."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from shardpool._load import Load, ping_pong

SERVER = Path(__file__).parent.parent / "processes" / "bench_fake_server.py"
Serve = Callable[..., int]
Transport = Literal["tcp", "ws"]
Framing = Literal["bare", "session"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts fake servers; each call returns a port."""
    with contextlib.ExitStack() as stack:

        def start(**options: str) -> int:
            arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
            process = subprocess.Popen([sys.executable, str(SERVER), *arguments], stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            stack.enter_context(process.stdout)
            return int(process.stdout.readline())

        yield start


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("framing", ["bare", "session"])
@pytest.mark.parametrize("outstanding", [1, 16])
def test_a_right_server_passes_every_check(
    serve: Serve, transport: Transport, framing: Framing, outstanding: int
) -> None:
    """P-9, P-13: each reply belongs to its message; numbered frames are acknowledged; pings are answered."""
    load = Load(
        "127.0.0.1", serve(transport=transport, framing=framing), connections=7, transport=transport, framing=framing
    )
    load.connect(5)
    for _ in range(2):
        result = load.run(0.2, outstanding=outstanding)
        assert (result["errors"], result["unfinished"], result["error"]) == (0, 0, "")
        assert result["messages"] == result["sent"] == result["latency_us"]["count"] > 7 * outstanding
        assert result["connections"] == 7
    assert (b'"codec":"raw"' in load.welcome) == (framing == "session")
    load.close()


@pytest.mark.parametrize("size", [8, 15, 16, 120, 126, 4000, 60_000])
@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_payloads_of_all_header_sizes_come_back_whole(serve: Serve, transport: Transport, size: int) -> None:
    load = Load("127.0.0.1", serve(transport=transport), transport=transport, size=size)
    load.connect(5)
    result = load.run(0.1, outstanding=2)
    assert result["messages"] > 0
    assert result["errors"] == 0, result["error"]
    load.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong-counter", "carries 6 where 5 was expected"),
        ("wrong-payload", "payload is not the one"),
        ("error", "saturated"),
        ("vanish", "closed by the server"),
        ("reorder", "was expected"),
    ],
)
def test_a_wrong_reply_is_an_error_that_says_what_was_wrong(serve: Serve, fault: str, words: str) -> None:
    load = Load("127.0.0.1", serve(fault=fault))
    load.connect(5)
    result = load.run(0.2, outstanding=2)
    assert result["errors"] > 0
    assert words in result["error"]


def test_replies_may_come_in_any_order_where_nothing_is_counted(serve: Serve) -> None:
    load = Load("127.0.0.1", serve(fault="reorder"), check="none")
    load.connect(5)
    result = load.run(0.2, outstanding=2, grace=0.3)
    assert result["errors"] == 0, result["error"]
    assert result["messages"] > 10


def test_an_echo_does_not_pass_for_a_counter(serve: Serve) -> None:
    load = Load("127.0.0.1", serve(framing="bare"), framing="bare", check="echo")
    load.connect(5)
    assert load.run(0.1)["errors"] > 0


def test_a_silent_server_ends_a_run_in_time_and_leaves_nothing_to_run_again(serve: Serve) -> None:
    load = Load("127.0.0.1", serve(fault="silent"), connections=3)
    load.connect(5)
    start = time.monotonic()
    result = load.run(0.2, grace=0.3)
    assert 0.4 < time.monotonic() - start < 2.0
    assert (result["messages"], result["unfinished"]) == (0, 3)
    with pytest.raises(ConnectionError, match="no connection"):
        load.run(0.1)


def test_a_stall_counts_for_every_message_that_was_due_in_it(serve: Serve) -> None:
    """The fixed rate has no coordinated omission: 300 ms of silence at 200 per second delay some 60 messages."""
    load = Load("127.0.0.1", serve(fault="late"))
    load.connect(5)
    result = load.run(1.0, rate=200)
    assert (result["errors"], result["sent"]) == (0, 200)
    slow = sum(count for lower, count in result["histogram_us"] if lower > 50_000)
    assert 30 <= slow <= 80
    assert result["latency_us"]["max"] >= 290_000


def test_a_rate_is_kept_and_spread_over_all_connections(serve: Serve) -> None:
    load = Load("127.0.0.1", serve(), connections=50)
    load.connect(5)
    result = load.run(1.0, rate=1000)
    assert result["sent"] == result["messages"] == 1000
    assert 900 < result["rate"] < 1100


@pytest.mark.parametrize("load_of", [{"rate": 1000.0}, {"outstanding": 1}])
def test_what_a_server_pushes_by_itself_is_no_time_of_the_run(serve: Serve, load_of: dict[str, Any]) -> None:
    """O-18: a room's ticks go on after the last reply; messages per second count until that."""
    load = Load("127.0.0.1", serve(fault="ticks"), connections=2)
    load.connect(5)
    result = load.run(0.5, **load_of)
    assert result["errors"] == 0
    assert result["pushes"] > 50
    assert 0.45 < result["seconds"] < 0.7


def test_refusals_name_their_reason(serve: Serve) -> None:
    with pytest.raises(ConnectionError, match="no entry"):
        Load("127.0.0.1", serve(fault="refuse")).connect(5)
    with pytest.raises(ConnectionError, match="refused"):
        Load("127.0.0.1", 1).connect(5)
    with pytest.raises(TimeoutError, match="in time"):
        Load("127.0.0.1", serve(), transport="ws").connect(0.3)
    with pytest.raises(TimeoutError, match="no welcome"):
        Load("127.0.0.1", serve(framing="bare", fault="silent")).connect(0.3)


@pytest.mark.parametrize(
    "options",
    [{"size": 7}, {"size": 1 << 20}, {"connections": 0}, {"transport": "udp"}, {"check": "x"}, {"payload": b"x"}],
)
def test_arguments_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="use"):
        Load("127.0.0.1", 7000, **options)  # type: ignore[arg-type]


def test_a_run_lets_other_threads_run_and_ends_by_a_signal(serve: Serve) -> None:
    load = Load("127.0.0.1", serve())
    load.connect(5)
    seen: list[int] = []
    ticking = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    ticking.start()
    with pytest.raises(KeyboardInterrupt):
        load.run(30, progress=lambda seconds, messages, errors: seen.append(messages))
    ticking.join()


def test_progress_comes_about_every_second(serve: Serve) -> None:
    load = Load("127.0.0.1", serve())
    load.connect(5)
    seen: list[tuple[float, int, int]] = []
    load.run(2.5, progress=lambda *numbers: seen.append(numbers))
    assert len(seen) == 2
    assert seen[0][1] < seen[1][1]


def test_quantiles_ascend_and_come_from_the_histogram(serve: Serve) -> None:
    load = Load("127.0.0.1", serve(), connections=4)
    load.connect(5)
    result = load.run(0.3)
    latency = result["latency_us"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    assert sum(count for _, count in result["histogram_us"]) == latency["count"]
    assert result["histogram_us"] == sorted(result["histogram_us"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_placement_probe_is_a_plausible_time() -> None:
    assert 5 < ping_pong() < 100_000
