"""What is done in shared memory after a death."""

from shardpool.supervisor.memory import Memory


def settle(memory: Memory, process: int) -> None:
    """Finish what a dead producer had begun, and ring every inbox it could have written to.

    Called by: the supervisor, after the process was reaped and before its successor is started.
    """
    memory.node.ring_all()
