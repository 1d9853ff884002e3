"""The Python client (asyncio) of docs/protocol.md.

async with connect("tcp://127.0.0.1:7000") as client:
    print(await client.ask({"type": "move", "dx": 1.0, "dy": 0.0}))
"""

from shardpool.client.client import Client
from shardpool.client.connection import connect
from shardpool.client.errors import Closed, ServerError
from shardpool.client.settings import ClientSettings, Statistics
from shardpool.wire import Resume, Welcome

__all__ = ["Client", "ClientSettings", "Closed", "Resume", "ServerError", "Statistics", "Welcome", "connect"]
