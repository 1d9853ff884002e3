"""README's first command, with its options turned down."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "scripts" / "demo"), "--players", "6", "--rooms", "2", "--seconds", "1"]


def is_set_up() -> bool:
    return (ROOT / ".venv" / "installed").is_file()


pytestmark = pytest.mark.skipif(not is_set_up(), reason="scripts/task setup was not run here: the demo would install")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_the_demo_ends_its_server(number: signal.Signals) -> None:
    """P-17: Ctrl-C, kill, or a terminal that is closed."""
    demo = subprocess.Popen([*COMMAND, "--stay"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert demo.stdout is not None
    with demo.stdout:
        assert any("in a browser" in line for line in demo.stdout)
        servers = psutil.Process(demo.pid).children(recursive=True)
        assert servers
        os.kill(demo.pid, number)
        said = demo.stdout.read()
    assert demo.wait(30) == 0
    assert "all well" in said
    assert not [process for process in servers if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
