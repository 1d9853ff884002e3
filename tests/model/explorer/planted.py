"""Mistakes to put into copies of the real headers; each must be found by the explorer.

python tests/model/explorer/planted.py NAME DIRECTORY     writes the headers with that mistake, to be compiled by hand
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

CORE = Path(__file__).resolve().parents[3] / "shardpool" / "_core"

LOADS_DONE = "        uint64_t done = sp_load_seq_cst(&a->slot->done);\n"
LOADS_WORD = (
    "        sp_pair now = { .low = sp_load_acquire(&a->slot->word.low), "
    ".high = sp_load_acquire(&a->slot->word.high) };\n"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake: what stands in a header, what to put there, and the run that finds it."""

    name: str
    header: str
    old: str
    new: str
    run: str
    program: str = "admission"


FAULTS = (
    Fault(
        "sleeps without looking again",
        "node.h",
        "if (sp_load_seq_cst(&reader->ring->producer) != reader->position && !reader->stalled) {",
        "if (false) {",
        "",
    ),
    Fault(
        "rings before the token",
        "schedule.h",
        "    if (sp_admission_settle(node, a))\n        sp_token_write(a->writer, a->address);\n"
        "    sp_intent_step(intent, SP_STEP_NONE);\n    a->shard->bell_due = true;\n",
        "    bool owed = sp_admission_settle(node, a);\n    sp_node_ring(node, a->shard);\n    if (owed)\n"
        "        sp_token_write(a->writer, a->address);\n    sp_intent_step(intent, SP_STEP_NONE);\n",
        "",
    ),
    Fault(
        "no token",
        "schedule.h",
        "    if (sp_admission_settle(node, a))\n        sp_token_write(a->writer, a->address);\n",
        "    sp_admission_settle(node, a);\n",
        "",
    ),
    Fault(
        "goes idle whatever is in flight",
        "schedule.h",
        "bool in_flight = (now & SP_IN_FLIGHT_MASK) != 0;",
        "bool in_flight = false;",
        "",
    ),
    Fault(
        "forgets what was committed during the drain",
        "word.h",
        "return sp_word_phase(word) == SP_RUNNING ? next | SP_DIRTY : next;",
        "return next;",
        "",
    ),
    Fault(
        "returns the permit before it is Idle",
        "schedule.h",
        "        if (!sp_compare_exchange(&slot->word.low, &now, next)) {\n            if (end == SP_END_IDLE)\n"
        "                sp_operation_end(node); /* what ends otherwise must not look like this after a death */\n"
        "            continue;\n        }\n        if (end == SP_END_IDLE) {\n"
        "            /* after the phase, not before: else more objects run than permits say (S4) */\n"
        "            sp_permit_give(node, &node->peers[node->self]);\n",
        "        if (end == SP_END_IDLE)\n            sp_permit_give(node, &node->peers[node->self]);\n"
        "        if (!sp_compare_exchange(&slot->word.low, &now, next)) {\n            if (end == SP_END_IDLE)\n"
        "                sp_permit_take(node, &node->peers[node->self], true);\n"
        "            continue;\n        }\n        if (end == SP_END_IDLE) {\n",
        "",
    ),
    Fault(
        "looks before Running only",
        "executor.h",
        "    if (!sp_schedule_start(&ex->slots[index])) {\n"
        "        sp_gate_give(ex, ex->objects[index].gate, index);\n        return;\n    }\n"
        "    sp_executor_look(ex); /* after Running, not before (E3) */\n",
        "    sp_executor_look(ex);\n    if (!sp_schedule_start(&ex->slots[index])) {\n"
        "        sp_gate_give(ex, ex->objects[index].gate, index);\n        return;\n    }\n",
        "",
    ),
    Fault(
        "publishes without a permit",
        "schedule.h",
        "        if (!sp_permit_take(node, a->shard, a->forced)) {",
        "        if (false) {",
        "",
    ),
    Fault(
        "judges a lane by an old reservation and a new done",
        "schedule.h",
        LOADS_DONE + LOADS_WORD,
        LOADS_WORD + LOADS_DONE,
        "",
    ),
    Fault(
        "does not wake who waits for a lane",
        "executor.h",
        "    if (sp_load_seq_cst(&slot->waiters) != 0)\n        sp_waiters_ring(ex->node, slot);\n    sp_gate_give",
        "    sp_gate_give",
        "--lane=1",
    ),
    Fault(
        "accepts for a tenant that is gone",
        "schedule.h",
        "        if (sp_word_generation(now.low) != sp_address_generation(a->address))\n            return SP_STALE;\n",
        "",
        "--seal=vacate --preemptions=1",
    ),
    Fault(
        "linking is no token",
        "lane.h",
        "    if (sp_schedule_wanted(slot, true)) {",
        "    if (false) {",
        "--die=stop",
    ),
    Fault(
        "clears the declaration, then rings",
        "node.h",
        "    sp_doorbell_write(peer->doorbell); /* D2 */\n    sp_compare_exchange(&peer->header->parked, &epoch, 0);\n",
        "    if (sp_compare_exchange(&peer->header->parked, &epoch, 0))\n        sp_doorbell_write(peer->doorbell);\n",
        "--die=stop",
    ),
    Fault(
        "cancels a dead producer's batch whatever the ring says",
        "settle.h",
        "        if (producer == intent->position) /* T2 */\n",
        "",
        "--die=producer --preemptions=1",
    ),
    Fault(
        "commits a dead producer's batch whatever the ring says",
        "settle.h",
        "        if (producer == intent->position) /* T2 */\n"
        "            return sp_settle_cancel(node, shard, slot, process, reserved);\n",
        "",
        "--die=producer --preemptions=1",
    ),
    Fault(
        "sends no token for the dead",
        "settle.h",
        "    if (owed && shard != &node->peers[process] && !sp_settle_token(node, shard, address)) {",
        "    if (false) {",
        "--die=producer --preemptions=1",
    ),
    Fault(
        "rings after a death only who is parked",
        "settle.h",
        "        sp_doorbell_write(node->peers[i].doorbell); /* T3 */",
        "        sp_node_ring(node, &node->peers[i]);",
        "--die=shard --lane=1 --preemptions=1",
    ),
    Fault(
        "takes an announced permit for a taken one",
        "settle.h",
        "        if (reached)\n            sp_permit_give(node, shard);\n        return false;\n    case SP_STEP_GIVE:",
        "        sp_permit_give(node, shard);\n        return false;\n    case SP_STEP_GIVE:",
        "--die=producer --preemptions=1",
    ),
    Fault(
        "cancels without giving the permit back",
        "settle.h",
        "        if (last && !sealed)\n            sp_permit_give(node, shard); /* after the phase (S4) */\n",
        "",
        "--die=producer --preemptions=1",
    ),
    Fault(
        "links again what a dead shard had linked",
        "settle.h",
        "        && sp_settle_is_linked(node, shard, record, producer, stream, reader.position))",
        "        && false)",
        "--die=shard --preemptions=0",
    ),
    Fault(
        "runs a finished record again",
        "settle.h",
        "    if (mark == 0 || slot->done == slot->mark_done)",
        "    if (true)",
        "--die=shard --preemptions=0",
    ),
    Fault(
        "leaves an operation announced that did not take place",
        "schedule.h",
        "            if (end == SP_END_IDLE)\n"
        "                sp_operation_end(node); /* what ends otherwise must not look like this after a death */\n",
        "",
        "--die=shard --preemptions=2",
    ),
    Fault(
        "forgets a dead shard's announced operation",
        "settle.h",
        "        if (phase != SP_RUNNING && !reached)",
        "        if (false)",
        "--die=shard --preemptions=0",
    ),
    Fault(
        "takes a second permit for a turn that was resuming",
        "settle.h",
        "        if (phase == SP_WAITING && reached)",
        "        if (false)",
        "--die=shard --suspend --preemptions=0",
    ),
    Fault(
        "two claims of an id may both become owners",
        "directory.h",
        "            if (sp_compare_exchange(&entry->state, &state, sp_entry_with(state, SP_ENTRY_WITHDRAWN)))\n"
        "                break;",
        "            break;",
        "",
        "directory",
    ),
    Fault(
        "a claim does not look again",
        "directory.h",
        "        says = sp_directory_contest(node, key, own);",
        "        says = SP_DIRECTORY_ABSENT;",
        "",
        "directory",
    ),
    Fault(
        "a removed entry keeps its address",
        "directory.h",
        "    if (entry == NULL || address == 0 || !sp_compare_exchange(&entry->route, &address, 0))",
        "    if (entry == NULL || address == 0 || sp_load_acquire(&entry->route) != address)",
        "",
        "directory",
    ),
)


def plant(fault: Fault, directory: Path) -> None:
    """Copy the headers into a directory, one of them with the mistake."""
    for header in CORE.glob("*.h"):
        shutil.copy(header, directory)
    path = directory / fault.header
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise SystemExit(
            f"{fault.header} no longer has the code that the mistake {fault.name!r} replaces, or has it twice: "
            f"bring planted.py up to date:\n{fault.old}"
        )
    path.write_text(text.replace(fault.old, fault.new))


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in {fault.name for fault in FAULTS}:
        print(__doc__)
        print("\n".join(fault.name for fault in FAULTS))
        return 2
    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    plant(next(fault for fault in FAULTS if fault.name == sys.argv[1]), directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
