"""What `serve` prints when the pool serves."""

import os
from collections.abc import Sequence

from shardpool.supervisor.plan import Plan


def welcome(plan: Plan) -> Sequence[str]:
    """One line per listening address, and what to do next."""
    shards, acceptors = plan.settings["workers"], plan.settings["acceptors"]
    counts = f"{shards} shard{'s'[: shards != 1]}, {acceptors} acceptor{'s'[: acceptors != 1]}"
    lines = [f"{plan.name}: serving {plan.app} with {counts} (pid {os.getpid()})"]
    public = [listener for listener in plan.listeners if listener.transport != "local"]
    for listener in public:
        lines.append(f"  listening on {listener.address}")
    if not public:
        lines.append("  listening for programs of this host only: add --bind tcp://127.0.0.1:7000 for clients")
    else:
        lines.append(f'  connect: shardpool.client.connect("{public[0].address}"), or see docs/protocol.md')
    where = f"--run-dir {plan.run_dir.path}" if plan.settings["run_dir"] else f"--name {plan.name}"
    lines.append(f"  look: shardpool status {where}    stop: Ctrl-C, or shardpool stop {where}")
    return lines
