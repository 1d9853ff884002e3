"""Tests of starting a process that cannot outlive the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from shardpool import _core

PARENT = """\
import os, sys, time
from shardpool import _core
print(_core.spawn(b"/bin/sleep", [b"sleep", b"600"], [], [], []), flush=True)
time.sleep(600)
"""


def start(script: str, descriptors: list[int], held_back: list[int]) -> int:
    program = os.fsencode(sys.executable)
    environment = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
    arguments = [program, b"-c", script.encode()]
    return _core.spawn(program, arguments, environment, descriptors, held_back)


def test_child_dies_with_its_parent_before_it_could_have_asked_for_that() -> None:
    """M-17, P-1: a program that knows nothing of death signals dies, too."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.ppid() == parent.pid
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.005)


def test_child_inherits_what_is_named_and_nothing_else() -> None:
    """P-1: descriptors under their numbers, signals as the kernel has them but those held back, its own group."""
    named, unnamed = os.memfd_create("named"), os.memfd_create("unnamed")
    script = f"""if True:
        import os, signal
        assert os.pread({named}, 1, 0) == b"", "named"
        try:
            os.fstat({unnamed})
        except OSError:
            pass
        else:
            raise AssertionError("unnamed")
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {{signal.SIGTERM}}
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        assert os.getpgrp() == os.getpid()
        assert os.read(0, 1) == b""
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        pid = start(script, [named], [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(named)
        os.close(unnamed)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_program_that_cannot_be_started_is_an_error_and_no_child() -> None:
    """P-4, O-2: the kernel's reason; nobody is left to be reaped."""
    children = psutil.Process().children()
    with pytest.raises(FileNotFoundError):
        _core.spawn(b"/nowhere/program", [b"program"], [], [], [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        _core.spawn(b"/bin/true", [b"true"], [], [1 << 20], [])
    with pytest.raises(ValueError, match="no descriptor"):
        _core.spawn(b"/bin/true", [b"true"], [], [-1], [])
    with pytest.raises(TypeError):
        _core.spawn(b"/bin/true", ["true"], [], [], [])  # type: ignore[list-item]
    assert psutil.Process().children() == children
