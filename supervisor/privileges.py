"""Becoming another user after the ports are bound, and the descriptors that a server needs."""

import os
import pwd
import resource

from shardpool.exit_codes import ExitCode
from shardpool.supervisor.refusal import Refusal


def find_user(name: str) -> pwd.struct_passwd:
    """Look a user up before anything is bound; raises Refusal."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise Refusal(f"user {name!r} does not exist", "create it, or leave --user out", ExitCode.CONFIG) from None
    if os.geteuid() not in (0, user.pw_uid):
        raise Refusal(f"cannot become user {name!r}", "start as root, or leave --user out", ExitCode.CONFIG)
    return user


def become(user: pwd.struct_passwd) -> None:
    """Drop to a user, with its groups, for good."""
    if os.geteuid() == user.pw_uid:
        return
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open descriptors as far as permitted.

    Returns: the limit that workers inherit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard
