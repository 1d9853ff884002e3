"""The test kit: an app in one process, with a clock that the test moves and a seed that decides what comes first.

Importing it imports the worker processes' code: it is for tests and no part of a server. See docs/testing.md.
"""

from shardpool.testing.client import Answer, Client
from shardpool.testing.dice import SEED_VARIABLE
from shardpool.testing.kit import Kit
from shardpool.testing.limits import Endless, NotSettled

__all__ = ["SEED_VARIABLE", "Answer", "Client", "Endless", "Kit", "NotSettled"]
