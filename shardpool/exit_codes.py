"""The exit codes of every shardpool command, and of the workers' reports to the supervisor."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process's exit code says; documented in docs/settings.md (O-2)."""

    OK = 0
    INTERNAL = 1  # a bug: the only case that prints a traceback
    USAGE = 2  # argparse's own code for a bad command line
    CONFIG = 3
    PORT = 4
    APP = 5
    NOT_RUNNING = 6
    ALREADY_RUNNING = 7
    WORKERS = 8
    KILLED = 9
    NO_ANSWER = 10
    REFUSED = 11
    UNBALANCED = 12
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it


EXPLANATIONS: dict[ExitCode, str] = {
    ExitCode.OK: "done; for `serve`: stopped on request, everything drained",
    ExitCode.INTERNAL: "a bug in shardpool; the traceback belongs in a report",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.CONFIG: "a setting is unknown, out of range or contradicts another, or a file it names cannot be used",
    ExitCode.PORT: "a listening address cannot be bound (taken, not ours, not permitted)",
    ExitCode.APP: "the app's module is missing or raises at import, or has no such app",
    ExitCode.NOT_RUNNING: "no such pool is running",
    ExitCode.ALREADY_RUNNING: "a pool of this name is already running",
    ExitCode.WORKERS: "no shard or no acceptor could be kept running",
    ExitCode.KILLED: "stopped, but a worker died meanwhile, or did not end in time and was killed",
    ExitCode.NO_ANSWER: "the pool runs but did not answer, or did not stop, in time",
    ExitCode.REFUSED: "`call`: the object was not found, or refused or failed the message; `restart`, `drain`: the "
    "pool cannot do that now, or the restart ended early",
    ExitCode.UNBALANCED: "`audit`: records are missing or too many, or other books do not balance",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C before the pool was up",
}
