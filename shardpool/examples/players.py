"""Simulated players for the arena: half over TCP, half over WebSocket, all through the Python client.

python -m shardpool.examples.players --tcp tcp://127.0.0.1:7000 --ws ws://127.0.0.1:7001 --run-dir DIR

Each player moves on a fixed schedule; a move's latency counts from when it was due, not from when it was sent, so
that a stall of the server shows in every move it delayed.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from shardpool.client import Client, connect
from shardpool.errors import Rejected, ShardpoolError
from shardpool.examples.arena import HEIGHT, WIDTH, Enter, Move

CONNECTING_AT_ONCE = 32
JOIN_TIMEOUT = 15.0


class Position(msgspec.Struct):
    """Reply to a move."""

    x: float
    y: float


class Joined(msgspec.Struct, tag="joined"):
    """How an enter went."""

    room: str
    accepted: bool
    you: str
    why: Any = None


class Positions(msgspec.Struct, tag="positions"):
    """Where everybody in the room is: name, x, y by id."""

    players: dict[str, tuple[str, float, float]]


@dataclass(slots=True)
class Tally:
    """What all players saw since it was last emptied."""

    latencies: list[float] = field(default_factory=list)
    positions: int = 0
    failures: int = 0

    def add(self, other: Tally) -> None:
        self.latencies += other.latencies
        self.positions += other.positions
        self.failures += other.failures


class Player:
    """One simulated player. Args: rate: moves per second; tally: where it counts."""

    def __init__(self, number: int, transport: str, room: str, tally: Tally) -> None:
        self.transport = transport
        self.room = room
        self.neighbours = 0  # most players seen in one list, this one included
        self.error = ""
        self._name = f"player {number}"
        self._random = random.Random(number)
        self._tally = tally
        self._joined: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()

    async def play(self, address: str, rate: float, gate: asyncio.Semaphore, start: asyncio.Event, end: float) -> None:
        """Connect, enter, wait for the others, move until the time is over."""
        try:
            async with gate:
                client = await connect(address)
            try:
                await self._enter(client)
                await start.wait()
                await self._move(client, rate, time.monotonic() + end)
            finally:
                await client.close()
        except (ShardpoolError, TimeoutError) as error:
            self.error = f"{self._name} ({self.transport}): {error or 'timed out while it entered its room'}"
            self._tally.failures += 1

    @property
    def entered(self) -> bool:
        return self._joined.done() or bool(self.error)

    async def _enter(self, client: Client) -> None:
        client.on(Joined, self._on_joined)
        client.on(Positions, self._on_positions)
        await client.send(Enter(self.room, self._name))
        joined = await asyncio.wait_for(asyncio.shield(self._joined), JOIN_TIMEOUT)
        if not joined.accepted:
            raise Rejected(f"not let into {self.room}: {joined.why}")

    async def _move(self, client: Client, rate: float, end: float) -> None:
        due = time.monotonic() + self._random.random() / rate
        heading = self._random.random() * 2 * math.pi
        while due < end:
            await asyncio.sleep(due - time.monotonic())
            heading += self._random.uniform(-0.6, 0.6)
            try:
                where = await client.ask(Move(math.cos(heading), math.sin(heading)), reply=Position)
            except ShardpoolError as error:
                self.error = self.error or f"{self._name}: {error}"
                self._tally.failures += 1
                if client.closed is not None:
                    return
            else:
                self._tally.latencies.append(time.monotonic() - due)
                if where.x in (0.0, WIDTH) or where.y in (0.0, HEIGHT):
                    heading += math.pi / 2
            due += 1 / rate

    def _on_joined(self, message: Joined) -> None:
        if not self._joined.done():
            self._joined.set_result(message)

    def _on_positions(self, message: Positions) -> None:
        self._tally.positions += 1
        self.neighbours = max(self.neighbours, len(message.players))


def quantiles(latencies: Sequence[float], *wanted: float) -> list[float]:
    """Milliseconds at the wanted shares (0 to 1) of the sorted latencies; nan when there are none."""
    ordered = sorted(latencies)
    if not ordered:
        return [math.nan for _ in wanted]
    return [ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3 for share in wanted]


async def run(args: argparse.Namespace) -> int:
    """Play; returns the exit code: 0, or 1 when anything failed."""
    addresses = {name: address for name, address in (("tcp", args.tcp), ("ws", args.ws)) if address}
    transports = list(addresses)
    second, total = Tally(), Tally()
    players = [
        Player(n, transports[n // args.rooms % len(transports)], f"room {n % args.rooms + 1}", second)
        for n in range(args.players)
    ]
    gate, start = asyncio.Semaphore(CONNECTING_AT_ONCE), asyncio.Event()
    began = time.monotonic()
    tasks = [
        asyncio.create_task(player.play(addresses[player.transport], args.rate, gate, start, args.seconds))
        for player in players
    ]
    while not all(player.entered for player in players):
        await asyncio.sleep(0.01)
    print(f"{len(players)} players entered {args.rooms} rooms in {time.monotonic() - began:.2f} s", flush=True)
    start.set()
    began = time.monotonic()
    last = began
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=1.0)
        now = time.monotonic()
        if now - last > 0.5:
            print(progress(now - began, now - last, second, players), flush=True)
        last = now
        total.add(second)
        second.latencies.clear()
        second.positions = second.failures = 0
    print(summary(time.monotonic() - began, total, players, args), flush=True)
    await asyncio.gather(*tasks)
    alone = [
        player for player in players if args.players >= 2 * args.rooms and player.neighbours < 2 and not player.error
    ]
    if alone:
        print(f"{len(alone)} players never saw another one", file=sys.stderr)
    return 1 if total.failures or alone or not total.latencies else 0


def progress(at: float, seconds: float, tally: Tally, players: Sequence[Player]) -> str:
    """One line for one second."""
    median, high = quantiles(tally.latencies, 0.5, 0.99)
    moves, positions = len(tally.latencies) / seconds, tally.positions / seconds
    return (
        f"{at:4.0f} s  {len(players)} players  {moves:8,.0f} moves/s  {positions:8,.0f} position lists/s  "
        f"p50 {median:6.2f} ms  p99 {high:6.2f} ms" + (f"  {tally.failures} failed" if tally.failures else "")
    )


def summary(seconds: float, total: Tally, players: Sequence[Player], args: argparse.Namespace) -> str:
    """What is said at the end."""
    shown = quantiles(total.latencies, 0.5, 0.9, 0.99, 0.999, 1.0)
    names = ("p50", "p90", "p99", "p99.9", "max")
    by_transport = {name: sum(player.transport == name for player in players) for name in ("tcp", "ws")}
    messages = (2 * len(total.latencies) + total.positions) / seconds
    lines = [
        "",
        f"players   {len(players)} ({by_transport['tcp']} over TCP, {by_transport['ws']} over WebSocket), "
        f"{args.rate:g} moves/s each, in {args.rooms} rooms",
        f"messages  {messages:,.0f}/s: {len(total.latencies):,} moves with replies and {total.positions:,} position "
        f"lists in {seconds:.1f} s, {total.failures} failures",
        "latency   " + "  ".join(f"{name} {value:.2f} ms" for name, value in zip(names, shown, strict=True)),
    ]
    lines += [f"failed    {player.error}" for player in players if player.error][:5]
    return "\n".join(lines)


def shard_numbers(run_dir: str) -> str:
    """What the pool says of itself, per process. Args: run_dir: of the pool."""
    program = Path(sys.executable).with_name("shardpool")
    command = [str(program), "status", "--run-dir", run_dir, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"shardpool status failed: {done.stderr.strip()}"
    lines = []
    for row in msgspec.json.decode(done.stdout)["processes"]:
        counters = row["counters"]
        name = f"{row['role']} {row['index'] + 1}"
        figures = f"{counters.get('messages_in', 0):>9,} messages in  {counters.get('messages_out', 0):>9,} out"
        if row["role"] == "shard":
            figures += f"  {counters.get('turns', 0):>9,} turns  {counters.get('objects', 0):>4} objects"
        else:
            figures += f"  {counters.get('accepted', 0):>9,} connections accepted"
        lines.append(f"{name:<10}{figures}  {row['cpu_percent']:3.0f} % CPU  {row['rss_bytes'] / 2**20:4.0f} MiB")
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tcp", metavar="ADDRESS", help="tcp://HOST:PORT or tls://HOST:PORT")
    parser.add_argument("--ws", metavar="ADDRESS", help="ws://HOST:PORT or wss://HOST:PORT")
    parser.add_argument("--players", type=int, default=60, metavar="N")
    parser.add_argument("--rooms", type=int, default=6, metavar="N")
    parser.add_argument("--rate", type=float, default=10.0, metavar="N", help="moves per second of each player (10)")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="N", help="how long they move (6)")
    parser.add_argument("--run-dir", metavar="DIR", help="show this pool's own numbers at the end")
    args = parser.parse_args(arguments)
    if not (args.tcp or args.ws):
        parser.error("where do the players go? give --tcp, --ws or both")
    for name in ("players", "rooms", "rate", "seconds"):
        if getattr(args, name) <= 0:
            parser.error(f"--{name} {getattr(args, name)}: give a number above 0")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(sys.argv[1:] if arguments is None else arguments)
    code = uvloop.run(run(args))
    if args.run_dir:
        print("\n" + shard_numbers(args.run_dir), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
