"""Mistakes to make in a copy of the package, and what of the suite must fail with each.

Those of the memory protocol are in tests/model/explorer/planted.py, where the explorer finds them; these are the ones
that only real processes, real sockets or real time bring to light.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planting.variants import Edit


class Finder(Enum):
    """What finds it; the arguments in a Fault are that program's."""

    TORTURE = "scripts/torture"
    SUITE = "pytest"


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake."""

    name: str
    edits: tuple[Edit, ...]
    finder: Finder
    arguments: str


def suite(name: str, test: str, *edits: Edit) -> Fault:
    """A fault that a test of the suite finds."""
    return Fault(name, edits, Finder.SUITE, test)


def torture(name: str, arguments: str, *edits: Edit) -> Fault:
    """A fault that a torture run finds."""
    return Fault(name, edits, Finder.TORTURE, arguments)


# The seed is fixed: a fault that one run finds is found by that run again, as far as the moment of a kill goes.
QUIET = "--victims none --messages 3000 --seconds 5 --deadline 4 --seed 1"
SHARDS = "--victims shards --messages 20000 --seconds 20 --period 250 --clients 60 --deadline 8 --seed 1"
TURNS = "tests/model/test_turns_state_machine.py"

FAULTS = (
    suite(
        "workers outlive their supervisor",
        "tests/processes/test_shard_life.py::test_dies_with_its_supervisor",
        Edit("boot.py", "if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:", "if libc is None:"),
    ),
    suite(
        "programs that user code starts inherit the pool's memory",
        "tests/faults/test_descriptors.py",
        Edit("boot.py", "        os.set_inheritable(fd, False)\n", "        os.set_inheritable(fd, True)\n"),
    ),
    suite(
        "the run directory is not locked",
        "tests/processes/test_supervisor_life.py::test_second_pool_of_the_name_is_refused",
        Edit(
            "runtime_dir.py",
            "        fcntl.flock(fd, kind | fcntl.LOCK_NB)\n",
            "        fcntl.fcntl(fd, fcntl.F_GETFD)\n",
        ),
    ),
    suite(
        "a worker that dies is started for ever",
        "tests/processes/test_supervisor_life.py::test_crash_loop_costs_its_place_and_not_the_pool",
        Edit("supervisor/restart_policy.py", "        if len(recent) > self.intensity:\n", "        if False:\n"),
    ),
    suite(
        "a stale address is delivered to the slot's next tenant",
        "tests/unit/test_executor.py::test_a_stale_generation_is_refused_never_delivered",
        Edit(
            "_core/schedule.h",
            "        if (sp_word_generation(now.low) != sp_address_generation(a->address))\n",
            "        if (false)\n",
        ),
        Edit(
            "_core/objects.h",
            "sp_word_generation(sp_load_relaxed(&ex->slots[slot].word.low)) != sp_address_generation(address))",
            "false)",
        ),
    ),
    suite(
        "an unmasked WebSocket frame is taken",
        "tests/clients/test_bad_input_websocket.py::test_a_frame_that_breaks_the_rules_ends_its_connection",
        Edit("_core/websocket.h", "if ((second & 0x80) == 0 || (first & 0x30) != 0", "if ((first & 0x30) != 0"),
    ),
    suite(
        "a declared length is believed",
        "tests/clients/test_bad_input_tcp.py::test_a_length_or_frame_that_cannot_be_ends_its_connection_at_once",
        Edit("_core/framing.h", "    if (size > limit)\n        return SP_FOUND_TOO_BIG; /* F1 */\n", ""),
    ),
    suite(
        "a late reply goes to whoever asks now",
        "tests/faults/test_catalogue.py::test_a_late_reply_is_nobody_elses",
        Edit(
            "client/asks.py",
            "        future = self._open.get(number)\n",
            "        future = self._open.get(number) or next(iter(self._open.values()), None)\n",
        ),
    ),
    suite(
        "any page may open a WebSocket",
        "tests/clients/test_websocket_conformance.py tests/unit/test_http.py tests/unit/test_websocket.py",
        Edit("workers/websocket.py", '        if origin is None or "*" in self.origins:\n', "        if True:\n"),
    ),
    suite(
        "a handler that fails has its Joins run",
        TURNS,
        Edit(
            "workers/joins.py",
            "            self._keep(address, [intent for intent in mine if intent.turn != turn])\n",
            "            self._keep(address, mine)\n",
        ),
    ),
    suite(
        "a moved actor's queue arrives in reverse",
        TURNS,
        Edit("workers/moves.py", "for record in records if _travels(", "for record in reversed(records) if _travels("),
    ),
    suite(
        "an actor that joins a Spot keeps its own gate",
        TURNS,
        Edit("workers/joins.py", "        shard.share_gate(seat.address, spot._seat.address)\n", ""),
    ),
    suite(
        "an actor moves without its state",
        TURNS,
        Edit("workers/moves.py", "                restore(actor, arrival.state)\n", "                pass\n"),
    ),
    suite(
        "a resume token is good for ever",
        "tests/unit/test_acceptor_resume.py",
        Edit("_core/resume.h", "    sp_retained_rotate(entry, token, resume->fresh);\n", ""),
    ),
    suite(
        "kept frames are not sent again",
        "tests/unit/test_acceptor_resume.py",
        Edit("_core/resume.h", "|| !sp_resume_replay(e, place)) {", ") {"),
    ),
    suite(
        "a message that was cut off runs again in spite of at-most-once",
        "tests/unit/test_shard_delivery.py",
        Edit(
            "workers/begun.py",
            "        self._answer(record)\n        return Fate.DROP\n",
            "        return Fate.AGAIN\n",
        ),
    ),
    suite(
        "at-least-once is at-most-once",
        "tests/unit/test_shard_delivery.py",
        Edit("workers/begun.py", "if begun < owner.policy.attempts and", "if begun < 0 and"),
    ),
    suite(
        "who asked and was cut off is told nothing",
        "tests/unit/test_shard_succession.py",
        Edit("workers/begun.py", "        self._answer(record)\n", ""),
    ),
    suite(
        "a dead letter is counted and not written",
        "tests/unit/test_shard_delivery.py",
        Edit("workers/letters.py", "            self._file.append(letters)\n", "            len(letters)\n"),
    ),
    suite(
        "nobody rings the doorbell",
        "tests/unit/test_executor.py -k parking",
        Edit("_core/node.h", "    sp_doorbell_write(peer->doorbell); /* D2 */\n", ""),
    ),
    torture(
        "a pad at the ring's end is forgotten",
        QUIET,
        Edit("_core/ring.h", "        w->position += left;\n        offset = 0;\n", "        offset = 0;\n"),
    ),
    torture(
        "a reader gives back what it still reads",
        QUIET,
        Edit(
            "_core/ring.h",
            "    w->consumer = sp_load_acquire(&w->ring->consumer);\n"
            "    return w->position + need - w->consumer <= w->capacity;\n}\n\n/* Next",
            "    w->consumer = sp_load_acquire(&w->ring->consumer);\n    return true;\n}\n\n/* Next",
        ),
    ),
    torture(
        "application records run in the wrong order",
        QUIET,
        Edit(
            "_core/lane.h",
            "    if (chain->last == 0)\n        __atomic_store_n(&chain->first, unit, __ATOMIC_RELEASE);\n    else\n",
            "    if (chain->last == 0) {\n        __atomic_store_n(&chain->first, unit, __ATOMIC_RELEASE);\n"
            "    } else if (sp_arena_cell(&ex->arena, chain->first)->kind == SP_KIND_FRAME) {\n"
            "        sp_arena_cell(&ex->arena, unit)->next = chain->first;\n"
            "        __atomic_store_n(&chain->first, unit, __ATOMIC_RELEASE);\n        return;\n    } else\n",
        ),
    ),
    torture(
        "a successor forgets what hung in the lanes",
        SHARDS,
        Edit("_core/adopt.h", "waiting += sp_chain_adopt(ex, &slot->lanes[SP_LANE_APPLICATION], used);", ""),
    ),
    torture(
        "what a dead process had begun is not settled",
        f"{SHARDS} --points",
        Edit(
            "supervisor/recovery.py",
            "[process for process in self._since if settle(self._memory.node, process)]",
            "list(self._since)",
        ),
    ),
    torture(
        "a dead shard's linked records are linked again",
        f"{SHARDS} --points",
        Edit(
            "_core/ring.h",
            "    if (linked <= published) /* else `consumer` is behind a pad that `linked` is not (R1) */\n"
            "        r->position += linked;\n",
            "",
        ),
    ),
    torture(
        "the room of a finished record is not returned",
        QUIET,
        Edit(
            "_core/lane.h",
            "    sp_store_release(&slot->done, sp_fields_add(slot->done, charge));\n",
            "",
        ),
    ),
)
