"""`shardpool bench` as people run it, and the parts of scripts/bench that decide."""

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COMMAND = "import sys; from shardpool.bench_command import main; sys.exit(main(sys.argv[1:]))"
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts fake servers; each call returns a URL."""
    with contextlib.ExitStack() as stack:

        def start(transport: str = "tcp", **options: str) -> str:
            arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
            command = [sys.executable, str(HERE / "bench_fake_server.py"), "--transport", transport, *arguments]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            stack.enter_context(process.stdout)
            return f"{transport}://127.0.0.1:{process.stdout.readline().strip()}"

        yield start


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments, "--warm-up", "0.1", "--seconds", "0.3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("traffic", [[], ["--outstanding", "8"], ["--rate", "500"], ["--mode", "pipelined"]])
def test_quantiles_are_printed(serve: Serve, transport: str, traffic: list[str]) -> None:
    done = bench(serve(transport), "--connections", "3", "--check", "counter", *traffic)
    assert done.returncode == 0, done.stderr
    assert "per second" in done.stdout
    assert "p50" in done.stdout
    assert "p99.9" in done.stdout


def test_json_has_everything_and_a_json_payload_goes_as_it_is(serve: Serve) -> None:
    url = serve()
    done = bench(url, "--json", "--payload-json", '{"type": "limits"}', "--auth-json", '{"name": "x"}')
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["url"] == url
    assert found["messages"] == found["latency_us"]["count"] > 0
    assert found["errors"] == 0


def test_bare_servers_can_be_driven(serve: Serve) -> None:
    done = bench(serve(framing="bare"), "--bare", "--check", "counter")
    assert done.returncode == 0, done.stderr


def test_failed_messages_are_counted_named_and_make_the_exit_code(serve: Serve) -> None:
    done = bench(serve(fault="error"))
    assert done.returncode == 11
    assert "saturated" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["http://127.0.0.1:1"], 2, "tcp://HOST:PORT"),
        (["tcp://127.0.0.1"], 2, "has no port"),
        (["tcp://127.0.0.1:99999"], 2, "range"),
        (["tcp://127.0.0.1:1"], 6, "refused"),
        (["tcp://127.0.0.1:1", "--payload-json", "{"], 2, "is not JSON"),
        (["tcp://127.0.0.1:1", "--mode", "rate"], 2, "--rate N"),
        (["tcp://127.0.0.1:1", "--rate", "5", "--outstanding", "3"], 2, "--mode pipelined"),
        (["tcp://127.0.0.1:1", "--connections", "0"], 2, "from 1"),
        (["tcp://127.0.0.1:1", "--check", "echo", "--size", "3"], 2, "size 3"),
    ],
)
def test_mistakes_get_one_line_with_the_remedy(arguments: list[str], code: int, words: str) -> None:
    """O-2: no traceback for a user's mistake."""
    done = bench(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plot_is_drawn_or_the_missing_extra_is_named(serve: Serve, tmp_path: Path) -> None:
    picture = tmp_path / "latency.png"
    done = bench(serve(), "--plot", str(picture))
    if importlib.util.find_spec("matplotlib") is None:
        assert done.returncode == 2
        assert "shardpool[plot]" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_scripts_bench_names_its_rows_and_refuses_others() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "bench")]
    shown = subprocess.run([*script, "--help"], capture_output=True, text=True, check=True).stdout
    assert "tcp-1000x16" in shown
    refused = subprocess.run([*script, "tcp-9"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no row 'tcp-9'" in refused.stderr
