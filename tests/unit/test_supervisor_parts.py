"""Tests of the supervisor's smaller parts: addresses, private directory, stalls, readiness datagrams."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shardpool import runtime_dir
from shardpool.exit_codes import EXPLANATIONS, ExitCode
from shardpool.supervisor.call_command import read_message
from shardpool.supervisor.death import Death
from shardpool.supervisor.listeners import Address, check_key_file, open_listeners, parse_address
from shardpool.supervisor.notify import Notify
from shardpool.supervisor.preparation import check_app
from shardpool.supervisor.refusal import Refusal
from shardpool.supervisor.stall import Progress, observe


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:7000", Address("tcp", "127.0.0.1", 7000, "tcp://127.0.0.1:7000")),
        ("wss://[::1]:0/", Address("wss", "::1", 0, "wss://[::1]:0/")),
        ("ws://localhost:80", Address("ws", "localhost", 80, "ws://localhost:80")),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    """P-13: transport, host and port."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tpc://127.0.0.1:7000", "did you mean tcp://?"),
        ("127.0.0.1:7000", "is no transport"),
        ("7000", "is no transport"),
        ("tcp://127.0.0.1", "the port is missing"),
        ("tcp://:7000", "the host is missing"),
        ("tcp://127.0.0.1:70000", "Port out of range"),
        ("tcp://127.0.0.1:x", "tcp://127.0.0.1:x"),
        ("ws://127.0.0.1:7000/path", "something else than host and port"),
        ("tcp://[::1:7000", "tcp://[::1:7000"),
    ],
)
def test_bad_addresses_are_refused_with_a_remedy(text: str, part: str) -> None:
    """O-2, P-20: what is wrong with it, and how one is written."""
    with pytest.raises(Refusal) as caught:
        parse_address(text)
    assert part in str(caught.value)
    assert caught.value.exit_code is ExitCode.CONFIG


def test_taken_port_is_one_line_with_a_remedy_and_the_rest_is_closed() -> None:
    """O-2: port taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refusal) as caught:
            open_listeners([parse_address("tcp://127.0.0.1:0"), parse_address(f"ws://127.0.0.1:{port}")])
    assert str(caught.value).startswith(f"cannot listen on ws://127.0.0.1:{port}: Address already in use: ")
    assert caught.value.exit_code is ExitCode.PORT


def test_listeners_are_bound_and_named_by_their_real_port() -> None:
    """P-20: port 0 is any free one, and people see which."""
    [(sock, listener)] = open_listeners([parse_address("tcp://localhost:0")])
    with sock:
        assert listener.address == f"tcp://127.0.0.1:{sock.getsockname()[1]}"
        assert not sock.getblocking()
        assert not os.get_inheritable(listener.fd)


def test_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """P-30: key file modes are checked."""
    key = tmp_path / "key.pem"
    key.touch(mode=0o600)
    check_key_file(str(key))
    key.chmod(0o644)
    with pytest.raises(Refusal, match="chmod 600"):
        check_key_file(str(key))
    with pytest.raises(Refusal, match="No such file"):
        check_key_file(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("arena", "arena:app"),
        ("arena.py", "name the module, not the file: arena:app"),
        ("games/arena.py", "games.arena:app"),
        ("arena:", "arena:app"),
        (":app", "arena:app"),
        ("arena:app:x", "arena:app"),
        ("a b:app", "MODULE:APP"),
    ],
)
def test_what_names_no_app_is_refused_with_the_right_form(text: str, part: str) -> None:
    """O-2: the remedy is what to type."""
    with pytest.raises(Refusal, match=part):
        check_app(text)
    assert check_app("games.arena:app") == "games.arena:app"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_directory_is_private_and_locked(environ: dict[str, str], tmp_path: Path) -> None:
    """P-3: a 0700 directory; a second pool of the name is refused while the first one lives."""
    found, lock = runtime_dir.create("arena", None, environ)
    assert found.path == tmp_path / "shardpool" / "arena"
    assert stat.S_IMODE(found.path.stat().st_mode) == 0o700
    assert found.pid() == os.getpid()
    with pytest.raises(runtime_dir.AlreadyRunning, match=f"pid {os.getpid()}"):
        runtime_dir.create("arena", None, environ)
    assert runtime_dir.find(None, None, environ)[0] == found
    os.close(lock)
    assert found.pid() is None


def test_what_a_killed_pool_left_is_replaced(environ: dict[str, str]) -> None:
    """M-17: stale sockets and lock files are recognised by the lock, not by their being there."""
    found, lock = runtime_dir.create("arena", None, environ)
    found.local.touch()
    os.close(lock)  # what the kernel does at SIGKILL
    with pytest.raises(runtime_dir.NotRunning, match="no pool is running"):
        runtime_dir.find(None, None, environ)
    again, lock = runtime_dir.create("arena", None, environ)
    assert not again.local.exists()
    runtime_dir.remove(again)
    os.close(lock)
    assert not again.path.exists()


def test_several_pools_must_be_named(environ: dict[str, str]) -> None:
    """P-20: the message lists them."""
    locks = [runtime_dir.create(name, None, environ)[1] for name in ("arena", "chat")]
    with pytest.raises(runtime_dir.Ambiguous, match="arena, chat"):
        runtime_dir.find(None, None, environ)
    assert runtime_dir.find("chat", None, environ)[0].path.name == "chat"
    with pytest.raises(runtime_dir.NotRunning, match=r'no pool named "char" .*running: arena, chat'):
        runtime_dir.find("char", None, environ)
    for lock in locks:
        os.close(lock)


def test_directories_that_others_could_have_made_are_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """P-27, P-31: a directory that others can enter, a link, a long path, a bad name."""
    open_dir = tmp_path / "open"
    open_dir.mkdir(mode=0o755)
    with pytest.raises(runtime_dir.RunDirError, match="chmod 700"):
        runtime_dir.create("arena", str(open_dir), environ)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(runtime_dir.RunDirError, match="not a directory of this user"):
        runtime_dir.create("arena", str(link), environ)
    with pytest.raises(runtime_dir.RunDirError, match="too long for a Unix socket"):
        runtime_dir.create("arena", str(tmp_path / ("x" * 100)), environ)
    for name in ("../up", "", "a/b", ".hidden", "x" * 41):
        with pytest.raises(runtime_dir.RunDirError, match="not usable"):
            runtime_dir.create(name, None, environ)


def test_stall_is_reported_twice_and_only_while_something_is_due() -> None:
    """P-4, O-8: judged by the turn counter that the loop itself writes; the second time its stack is there."""
    busy = {"turns": 7, "running_slot": 3, "running_since_ns": int(100e9), "ready": 0}
    seen, stall = observe(None, busy, 100.0, 5.0)
    assert stall is None
    seen, stall = observe(seen, busy, 104.9, 5.0)
    assert stall is None
    seen, stall = observe(seen, busy, 105.0, 5.0)
    assert stall is not None
    assert (stall.seconds, stall.slot) == (5.0, 3)
    assert not stall.again
    seen, stall = observe(seen, busy, 105.4, 5.0)
    assert stall is None
    seen, stall = observe(seen, busy, 105.5, 5.0)
    assert stall is not None
    assert stall.again
    seen, stall = observe(seen, busy, 120.0, 5.0)
    assert stall is None
    seen, stall = observe(seen, {**busy, "turns": 8}, 121.0, 5.0)
    assert (seen, stall) == (Progress(8, 121.0), None)
    idle = {"turns": 8, "running_slot": 0, "running_since_ns": 0, "ready": 0}
    for now in (130.0, 200.0):
        seen, stall = observe(seen, idle, now, 5.0)
        assert stall is None
    seen, stall = observe(seen, {**idle, "ready": 2}, 206.0, 5.0)
    assert stall is not None
    assert stall.slot == 0


def test_service_manager_is_told(tmp_path: Path) -> None:
    """P-17: sd_notify; nobody listening is no error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        notify = Notify(str(tmp_path / "notify"))
        notify.ready("arena: 2 shards")
        assert manager.recv(100) == b"READY=1\nSTATUS=arena: 2 shards"
        notify.stopping()
        assert manager.recv(100).startswith(b"STOPPING=1\n")
    notify.ready("nobody")
    Notify(None).ready("nobody")
    Notify("@shardpool-no-such").stopping()


def test_deaths_are_told_by_name() -> None:
    """P-4: exit code or signal; a kill that nobody asked for hints at memory."""
    assert Death(exit_code=3).text == "ended with exit code 3"
    assert Death(signal=11).text == "was killed by SIGSEGV"
    assert "out of memory?" in Death(signal=9).text
    assert Death(signal=64).text.startswith("was killed by ")


def test_every_exit_code_is_explained() -> None:
    """O-2: exit codes are documented."""
    assert set(EXPLANATIONS) == set(ExitCode)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_privileges_are_dropped_for_good() -> None:
    """P-31: uid, gid and groups of the user, with no way back."""
    script = (
        "import os; from shardpool.supervisor.privileges import become, find_user\n"
        "user = find_user('nobody'); become(user)\n"
        "assert os.getresuid() == (user.pw_uid,) * 3 and os.getresgid() == (user.pw_gid,) * 3\n"
        "assert 0 not in os.getgroups()\n"
        "try: os.setuid(0)\n"
        "except PermissionError: print('dropped')\n"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"dropped\n"


@pytest.mark.parametrize(
    ("text", "message"), [("limits", {"type": "limits"}), ('{"type": "move", "dx": 1}', {"type": "move", "dx": 1})]
)
def test_message_of_a_call_is_a_name_or_an_object(text: str, message: dict[str, object]) -> None:
    """P-20: `call` takes what a client would send."""
    assert read_message(text) == message


@pytest.mark.parametrize("text", ['{"dx": 1}', "[1]", "{", "two words", ""])
def test_message_that_is_neither_is_refused(text: str) -> None:
    """O-2: with the form it should have."""
    with pytest.raises(Refusal, match="MESSAGE"):
        read_message(text)
