/* Execution gates: the right to run, shared by the objects of one Spot. At most one turn per gate (E1).
 *
 * Private memory of the shard. An object that finds its gate held waits in the gate's queue, in order of arrival,
 * and keeps its permit; a suspended turn that wants its gate back waits in the same queue.
 */
#ifndef SP_GATE_H
#define SP_GATE_H

#include "objects.h"

/* Takes the gate for an object, or leaves the object in the gate's queue. */
static inline bool sp_gate_take(struct sp_executor *ex, uint32_t slot)
{
    struct sp_object *object = &ex->objects[slot];
    struct sp_gate *gate = &ex->objects[object->gate].own;
    if (gate->holder == 0)
        gate->holder = slot + 1;
    if (gate->holder == slot + 1)
        return true;
    object->waiting = 1;
    object->gate_next = 0;
    if (gate->last == 0)
        gate->first = slot + 1;
    else
        ex->objects[gate->last - 1].gate_next = slot + 1;
    gate->last = slot + 1;
    return false;
}

/* Gives the gate back, if the object holds it (a turn that yielded may not); the first that waits has it then. */
static inline void sp_gate_give(struct sp_executor *ex, uint32_t gate_slot, uint32_t slot)
{
    struct sp_gate *gate = &ex->objects[gate_slot].own;
    if (gate->holder != slot + 1)
        return;
    gate->holder = gate->first;
    if (gate->first == 0)
        return;
    uint32_t next = gate->first - 1;
    struct sp_object *object = &ex->objects[next];
    gate->first = object->gate_next;
    if (gate->first == 0)
        gate->last = 0;
    object->waiting = 0;
    if (object->resuming) {
        object->resuming = 0;
        ex->resumed(ex->context, next);
    } else {
        sp_executor_queue(ex, next);
    }
}

#endif
