"""Every callback of user code: the one list (T-39). `python -m shardpool.callbacks` prints docs/turns.md."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Callback:
    """One row: whose it is, under which gate and in which lane it runs, when, and what it may answer or raise."""

    name: str
    owner: str
    gate: str
    lane: str
    when: str
    answers: str
    raising: str


_LOGGED = "logged; nothing else changes"

CALLBACKS: tuple[Callback, ...] = (
    Callback(
        "on_start(shard)",
        "app",
        "–",
        "–",
        "once per shard, before its first turn",
        "nothing",
        "the shard does not start; the supervisor says why",
    ),
    Callback("on_stop(shard)", "app", "–", "–", "once per shard, after its last turn", "nothing", _LOGGED),
    Callback(
        "on_connect(hello)",
        "session",
        "its own",
        "lifecycle",
        "first, before any frame",
        "None, Accept(identity, actor, id) or Refuse(reason)",
        "Rejected: refused with 4401; anything else: refused with 4500",
    ),
    Callback(
        "on_replaced()",
        "session",
        "its own",
        "lifecycle",
        "the same identity came in again and takes over",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_recover()",
        "session, actor, Spot",
        "as its handlers'",
        "lifecycle, before all others",
        "its shard died and this fresh object takes its place; a Spot's before its members'",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_resume()",
        "session, actor",
        "its own, then its actor's",
        "lifecycle",
        "the client came back to its session, over a new connection",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_disconnect(reason)",
        "session",
        "its own",
        "lifecycle",
        "exactly once, when the session is over",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_create(request)",
        "actor, Spot",
        "its own",
        "lifecycle",
        "first, before any message",
        "None to accept, False or Reject(reply)",
        "Rejected: a no; anything else fails the create",
    ),
    Callback("on_ready()", "actor, Spot", "its own", "lifecycle", "accepted, before any message", "nothing", _LOGGED),
    Callback(
        "on_actor_join(actor, request)",
        "Spot",
        "the Spot's",
        "lifecycle",
        "an actor wants in",
        "None to accept, False or Reject(reply)",
        "Rejected: a no; anything else fails the Join",
    ),
    Callback(
        "on_actor_joined(actor)",
        "Spot",
        "the Spot's",
        "lifecycle",
        "it is a member, before its on_joined",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_joined(outcome)",
        "actor",
        "the new Spot's, or the old one's",
        "lifecycle",
        "a deferred Join ended, before the messages that waited",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_actor_leave(actor)",
        "Spot",
        "the Spot's",
        "lifecycle",
        "it is no member any more: another Spot, or the end of its session",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_disconnect(reason)",
        "actor",
        "its Spot's or its own",
        "lifecycle",
        "once, after its session's, before it leaves its Spot and ends",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "on_close(reason)",
        "actor, Spot",
        "its Spot's or its own",
        "lifecycle",
        "once, at its end: disconnected, closed or shutdown",
        "nothing",
        _LOGGED,
    ),
    Callback(
        "@on handlers",
        "actor, Spot",
        "its Spot's or its own",
        "application",
        "a message, in order of acceptance",
        "the reply of an ask",
        "an ask gets the error (errors.md); logged and counted; the object goes on",
    ),
    Callback(
        "@every handlers",
        "actor, Spot",
        "its Spot's or its own",
        "application",
        "due, never overlapping itself; missed ticks are skipped",
        "nothing",
        "logged and counted; the timer goes on",
    ),
)

_HEAD = """# Turns and callbacks

A *turn* is the stretch in which one handler runs with its gate. At most one turn per gate runs at any moment:

| object | gate |
|---|---|
| SpotWide Spot | one for its handlers, timers and callbacks and those of its members |
| actor in the entry Spot, session | its own |

Plain `await` keeps the turn: the next record of that gate waits. `await call.yielding()` gives the Spot's gate back
meanwhile: read again what you had read, another turn may have changed it. On one gate there is nothing to lock.

Each object has two queues: *application* (messages, ticks) and *lifecycle* (everything else below), which goes first,
but after eight lifecycle turns in a row one application turn is owed.

A Join is deferred: `self.join(Room, id).defer()` registers it, it runs when the handler has ended well and its reply
was encoded, before the actor's next message; a handler that raises drops what it registered. A Spot on another shard
has the actor move there: its attributes travel as MessagePack (or what `capture()` returns and `restore(state)` takes),
its queue travels, its session follows. `@app.actor(move="never")` keeps it home, `"recreate"` starts a fresh one there.

What one object sends to another arrives in the order of its sends, also while the other one moves. A sender that moves
itself starts anew: what it sends from its new shard may overtake what it sent before. Where that matters, ask.

## When a shard dies

Its sessions, actors and Spots go on in the next process under their ids: clients stay connected, queued messages run
once and in order, a Spot has its members, timers start again. What was in attributes is gone: the objects are made by
`__init__` and hear `on_recover()` before anything else; load there what you saved, and tell clients what they must say
again. The message whose handler was cut off becomes a dead letter and its asker gets `Unavailable`; with
`@app.actor(delivery=AtLeastOnce(3))` (or `@app.spot`) it runs again, three times at most. An object in whose handlers
the shard died twice, with none that ended well in between, is quarantined: it runs nothing until `shardpool
dead-letters release TYPE ID`. Other shards' asks to the dead one get `Unavailable` at once; a Join that was not decided
ends with `on_joined(error)`. Every kind of call against every kind of failure: [delivery.md](delivery.md).

## Callbacks

Each may be `def` or `async def`. This table is printed by `python -m shardpool.callbacks` from the one in code.

| callback | of | gate | queue | when | may return | if it raises |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """docs/turns.md."""
    return _HEAD + "".join(
        f"| `{c.name}` | {c.owner} | {c.gate} | {c.lane} | {c.when} | {c.answers} | {c.raising} |\n" for c in CALLBACKS
    )


if __name__ == "__main__":
    sys.stdout.write(page())
