/* A successor's side of a shard's death, and what its objects note down in shared memory for the next one. */
#include "shard.h"

#include "adopt.h"

/* A live object of the predecessor: (address, kind, session, client, route, begun record or None, spot, life, sealed,
 * deaths, attempts, turn). */
static PyObject *adopted_object(ShardObject *self, uint32_t index)
{
    struct sp_slot *slot = &self->ex.slots[index];
    PyObject *begun = Py_NewRef(Py_None);
    if (slot->mark != 0) {
        struct sp_cell *cell = sp_arena_cell(&self->ex.arena, (uint32_t)slot->mark);
        Py_SETREF(begun, Py_BuildValue("iiKKy#", (int)cell->kind, (int)cell->flags, cell->a, cell->b,
                                       (const char *)sp_cell_payload(cell), (Py_ssize_t)cell->length));
        if (begun == NULL)
            return NULL;
    }
    bool sealed = (sp_load_acquire(&slot->word.low) & SP_SEALED_BIT) != 0;
    return Py_BuildValue("KKKKKNKiNiiK", sp_executor_address(&self->ex, index), slot->kind, slot->session, slot->client,
                         sp_load_acquire(&slot->route), begun, slot->spot, (int)slot->life, PyBool_FromLong(sealed),
                         (int)slot->deaths, (int)slot->attempts, slot->turn);
}

static PyObject *shard_adopt(ShardObject *self, PyObject *unused)
{
    (void)unused;
    if (self->ex.free_slot != 0) {
        PyErr_SetString(PyExc_ValueError, "adopt comes before the first allocate");
        return NULL;
    }
    uint32_t live = sp_executor_adopt(&self->ex);
    if (live == UINT32_MAX)
        return PyErr_NoMemory();
    sp_shard_count_objects(self, live);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < self->ex.free_slot; i++) {
        if (!self->ex.objects[i].live || self->ex.objects[i].ending)
            continue;
        PyObject *item = adopted_object(self, i);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* restore(address, target, table, skip_begun, recover=False): the Python half of an adopted object, which runs from here
 * on. False: no memory for the recovery record. */
static PyObject *shard_restore(ShardObject *self, PyObject *args)
{
    PyObject *address, *target;
    TableObject *table;
    int skip_begun, recover = 0;
    if (!PyArg_ParseTuple(args, "OOO!p|p", &address, &target, &TableType, &table, &skip_begun, &recover))
        return NULL;
    uint32_t index = sp_shard_own_slot(self, address);
    if (index == self->ex.node->geometry.slots)
        return NULL;
    PyObject *context = PyContext_CopyCurrent();
    if (context == NULL)
        return NULL;
    if (self->tenants[index].table != NULL) {
        Py_DECREF(context);
        PyErr_SetString(PyExc_ValueError, "that object has its Python half already");
        return NULL;
    }
    self->tenants[index] = (struct sp_tenant){Py_NewRef(target), (TableObject *)Py_NewRef(table), context};
    struct sp_slot *slot = &self->ex.slots[index];
    sp_executor_settle_begun(&self->ex, slot, skip_begun ? SP_BEGUN_DROP : SP_BEGUN_AGAIN);
    bool placed = !recover || sp_executor_place_recovery(&self->ex, slot);
    sp_executor_take_up(&self->ex, index);
    if (recover && placed)
        sp_executor_open_object(&self->ex, index); /* nothing, if it is Runnable */
    sp_shard_poke(self);
    return PyBool_FromLong(placed);
}

static PyObject *shard_queued(ShardObject *self, PyObject *arg)
{
    uint32_t index = sp_shard_own_slot(self, arg);
    return index == self->ex.node->geometry.slots ? NULL : sp_shard_records(self, index);
}

static PyObject *shard_turn_of(ShardObject *self, PyObject *arg)
{
    uint32_t index = sp_shard_own_slot(self, arg);
    return index == self->ex.node->geometry.slots ? NULL : PyLong_FromUnsignedLongLong(self->ex.slots[index].turn);
}

/* pardon(address, table): an object that was quarantined runs its messages again. */
static PyObject *shard_pardon(ShardObject *self, PyObject *args)
{
    PyObject *address;
    TableObject *table;
    if (!PyArg_ParseTuple(args, "OO!", &address, &TableType, &table))
        return NULL;
    uint32_t index = sp_shard_own_slot(self, address);
    if (index == self->ex.node->geometry.slots)
        return NULL;
    self->ex.slots[index].deaths = 0;
    TableObject *before = self->tenants[index].table;
    self->tenants[index].table = (TableObject *)Py_NewRef(table);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* The object whose suspended turn goes on now, 0: it has stopped again; for status, and to know who was at it when the
 * process died. */
static PyObject *shard_stepping(ShardObject *self, PyObject *arg)
{
    unsigned long long address = PyLong_AsUnsignedLongLong(arg);
    if (address == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    sp_gauge(self->ex.node, SP_COUNT_RUNNING_SLOT, sp_address_index(address));
    sp_gauge(self->ex.node, SP_COUNT_RUNNING_SINCE_NS, address == 0 ? 0 : sp_clock_ns());
    Py_RETURN_NONE;
}

static PyObject *shard_note_quarantined(ShardObject *self, PyObject *arg)
{
    unsigned long count = PyLong_AsUnsignedLong(arg);
    if (count == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    sp_gauge(self->ex.node, SP_COUNT_QUARANTINED, count);
    Py_RETURN_NONE;
}

static PyObject *shard_set_spot(ShardObject *self, PyObject *args)
{
    PyObject *address;
    unsigned long long spot;
    if (!PyArg_ParseTuple(args, "OK", &address, &spot))
        return NULL;
    uint32_t index = sp_shard_own_slot(self, address);
    if (index == self->ex.node->geometry.slots)
        return NULL;
    sp_store_release(&self->ex.slots[index].spot, spot);
    Py_RETURN_NONE;
}

static PyObject *shard_set_life(ShardObject *self, PyObject *args)
{
    PyObject *address;
    unsigned char life;
    if (!PyArg_ParseTuple(args, "Ob", &address, &life))
        return NULL;
    uint32_t index = sp_shard_own_slot(self, address);
    if (index == self->ex.node->geometry.slots)
        return NULL;
    __atomic_store_n(&self->ex.slots[index].life, life, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* Route of an object of any shard, or None: nobody lives at that address. */
static PyObject *shard_route_of(ShardObject *self, PyObject *arg)
{
    unsigned long long address = PyLong_AsUnsignedLongLong(arg);
    if (address == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    struct sp_peer *shard = sp_node_shard(self->ex.node, address);
    if (shard == NULL || sp_address_index(address) >= self->ex.node->geometry.slots)
        Py_RETURN_NONE;
    const struct sp_slot *slot = &shard->slots[sp_address_index(address)];
    uint64_t route = sp_load_acquire(&slot->route);
    if (sp_word_generation(sp_load_acquire(&slot->word.low)) != sp_address_generation(address))
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(route);
}

/* How many processes have died in a place; what was settled after a death was counted before any doorbell rang. */
static PyObject *shard_incarnation(ShardObject *self, PyObject *arg)
{
    unsigned long process = PyLong_AsUnsignedLong(arg);
    if (process == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (process >= self->ex.node->geometry.processes)
        return PyErr_Format(PyExc_ValueError, "no process %lu on this node", process);
    return PyLong_FromUnsignedLongLong(sp_load_acquire(&self->ex.node->peers[process].header->incarnation));
}

/* Notes that this process leaves between two turns: what it has taken in is its successor's. */
static PyObject *shard_hand_over(ShardObject *self, PyObject *unused)
{
    (void)unused;
    struct sp_header *header = sp_node_header(self->ex.node);
    sp_store_release(&header->handed_over, sp_load_relaxed(&header->incarnation) + 1);
    Py_RETURN_NONE;
}

/* Whether the last process in a place left so. */
static PyObject *shard_was_handed_over(ShardObject *self, PyObject *arg)
{
    unsigned long process = PyLong_AsUnsignedLong(arg);
    if (process == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (process >= self->ex.node->geometry.processes)
        return PyErr_Format(PyExc_ValueError, "no process %lu on this node", process);
    const struct sp_header *header = self->ex.node->peers[process].header;
    return PyBool_FromLong(sp_load_acquire(&header->handed_over) == sp_load_acquire(&header->incarnation)
                           && sp_load_acquire(&header->incarnation) != 0);
}

PyMethodDef sp_succession_methods[] = {
    {"hand_over", (PyCFunction)shard_hand_over, METH_NOARGS, "This process leaves; its successor goes on between two turns."},
    {"was_handed_over", (PyCFunction)shard_was_handed_over, METH_O, "Whether the last process in a place left so."},
    {"adopt", (PyCFunction)shard_adopt, METH_NOARGS, "Takes the segment of a predecessor over; its live objects."},
    {"restore", (PyCFunction)shard_restore, METH_VARARGS, "The Python half of an adopted object."},
    {"queued", (PyCFunction)shard_queued, METH_O, "What an object has not run, in order within each lane."},
    {"turn_of", (PyCFunction)shard_turn_of, METH_O, "Number of an object's last turn."},
    {"pardon", (PyCFunction)shard_pardon, METH_VARARGS, "An object that was quarantined runs its messages again."},
    {"stepping", (PyCFunction)shard_stepping, METH_O, "The object whose suspended turn goes on now; 0: none."},
    {"note_quarantined", (PyCFunction)shard_note_quarantined, METH_O, "How many objects are quarantined, for status."},
    {"set_spot", (PyCFunction)shard_set_spot, METH_VARARGS, "Notes the Spot that an actor is in; 0: the entry Spot."},
    {"set_life", (PyCFunction)shard_set_life, METH_VARARGS, "Notes what a successor must know about an object's move."},
    {"route_of", (PyCFunction)shard_route_of, METH_O, "Route of an object of any shard; None: nobody lives there."},
    {"incarnation", (PyCFunction)shard_incarnation, METH_O, "How many processes have died in a process's place."},
    {0},
};
