"""The oracle: sorts every message into one class, from the ledger and the dead letters alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from torturing.ledger import Ledger, Seen, Told

BAD = ("lost", "twice", "reordered", "torn")
CLASSES = ("once", "reported", "refused", "unknown", *BAD)
EXAMPLES = 5


@dataclass(slots=True)
class Verdict:
    """Numbers by class, of messages and of hops between shards; examples of what must not be."""

    messages: Counter[str] = field(default_factory=Counter)
    hops: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is lost, twice, reordered or torn."""
        return not any(counts[name] for counts in (self.messages, self.hops) for name in BAD)

    def add(self, counts: Counter[str], found: str, message: int, why: str) -> None:
        """Count one."""
        counts[found] += 1
        if found in BAD and len(self.examples) < EXAMPLES:
            self.examples.append(f"message {message} {found}: {why}")


def judge(ledger: Ledger, dead: Set[int], dead_hops: Set[int], connections_may_die: bool, lenient: bool) -> Verdict:
    """Sort everything.

    Args: dead, dead_hops: numbers of the messages that the dead letters name. connections_may_die: acceptors were
    killed, so that what was sent to one and not answered may never have been read. lenient: sends without an answer
    may vanish with their shard, and nothing is said about them.
    """
    verdict = Verdict()
    doubt = connections_may_die or lenient
    for message in range(ledger.sizes.messages):
        told = Told(ledger.told[message])
        if told & Told.SENT:
            found, why = _sort(ledger, message, told, message in dead, doubt, lenient)
            verdict.add(verdict.messages, found, message, why)
        hop = _sort_hop(ledger, message, message in dead_hops, lenient)
        if hop is not None:
            verdict.add(verdict.hops, hop[0], message, hop[1])
    return verdict


def _sort(ledger: Ledger, message: int, told: Told, dead: bool, doubt: bool, lenient: bool) -> tuple[str, str]:
    run, seen, pushed = ledger.run[message], Seen(ledger.seen[message]), ledger.pushed[message]
    facts = f"run {run}, pushed {pushed}, told {told!r}, seen {seen!r}, dead letter {dead}"
    if run > 1 or pushed > 1 or (run == 1 and told & Told.REFUSED):
        return "twice", facts
    if seen & Seen.REORDERED:
        return "reordered", facts
    if seen & Seen.TORN or told & Told.WRONG:
        return "torn", facts
    if told & Told.ANSWERED and run == 0:
        return "lost", facts
    # Nobody can say what a killed acceptor had read; but what has run was answered, and that is not lost.
    if told & Told.SILENT and not (told & Told.CUT and doubt and (run == 0 or lenient)):
        return "lost", facts
    if told & (Told.REPORTED | Told.REFUSED):
        return ("reported" if told & Told.REPORTED else "refused"), facts
    if run == 1:
        return "once", facts
    if dead:
        return "reported", facts
    return ("unknown" if doubt else "lost"), facts


def _sort_hop(ledger: Ledger, message: int, dead: bool, lenient: bool) -> tuple[str, str] | None:
    sent, run, seen = ledger.hop_sent[message], ledger.hop_run[message], Seen(ledger.seen[message])
    if not sent and not run:
        return None
    facts = f"hop sent {sent}, run {run}, seen {seen!r}, dead letter {dead}"
    if run > 1:
        return "twice", facts
    if seen & Seen.HOP_REORDERED:
        return "reordered", facts
    if seen & Seen.HOP_TORN:
        return "torn", facts
    if run == 1:
        return "once", facts
    if dead:
        return "reported", facts
    return ("unknown" if lenient else "lost"), facts


def gaps(answers: list[tuple[int, list[float]]], deaths: list[float]) -> list[float]:
    """Seconds from a death to the next answer, for each session that lived there then.

    Args: answers: (session, its sorted times) of sessions at home on the shard that died; deaths: sorted times.
    """
    found = []
    for _, times in answers:
        at = 0
        for death in deaths:
            while at < len(times) and times[at] < death:
                at += 1
            if 0 < at < len(times):
                found.append(times[at] - death)
    return found


def returns(back: list[float], deaths: list[float]) -> list[float]:
    """Seconds from the last death before it to each return of a session. Args: both: monotonic seconds."""
    ordered = sorted(deaths)
    found = []
    for at in back:
        before = bisect_right(ordered, at)
        if before:
            found.append(at - ordered[before - 1])
    return found
