"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Signals as a terminal has them: a run in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
