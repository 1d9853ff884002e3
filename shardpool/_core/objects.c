/* The objects of a shard as Python makes, ends, seals and moves them, and the gates of their suspended turns. */
#include "shard.h"

static PyObject *shard_allocate(ShardObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "target", "table", "client", "session", NULL};
    unsigned long long kind, client = 0, session = 0;
    PyObject *target;
    TableObject *table;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KOO!|KK", names, &kind, &target, &TableType, &table, &client, &session))
        return NULL;
    PyObject *context = PyContext_CopyCurrent();
    if (context == NULL)
        return NULL;
    uint32_t index = sp_executor_allocate(&self->ex);
    if (index == self->ex.node->geometry.slots) {
        Py_DECREF(context);
        return PyLong_FromLong(0);
    }
    self->tenants[index] = (struct sp_tenant){Py_NewRef(target), (TableObject *)Py_NewRef(table), context};
    struct sp_slot *slot = &self->ex.slots[index];
    slot->kind = kind;
    slot->client = client;
    slot->session = session;
    sp_shard_count_objects(self, 1);
    return PyLong_FromUnsignedLongLong(sp_executor_address(&self->ex, index));
}

/* The slot of a live object of this shard, or `slots` with ValueError set. */
uint32_t sp_shard_own_slot(ShardObject *self, PyObject *arg)
{
    unsigned long long address = PyLong_AsUnsignedLongLong(arg);
    uint32_t none = self->ex.node->geometry.slots;
    if (address == (unsigned long long)-1 && PyErr_Occurred())
        return none;
    uint32_t slot = sp_executor_slot(&self->ex, address);
    if (slot == none || !self->ex.objects[slot].live) {
        sp_value_error("no object of this shard at", address);
        return none;
    }
    return slot;
}

static PyObject *seal_slot(ShardObject *self, uint32_t slot)
{
    if (sp_schedule_seal(self->ex.node, &self->ex.slots[slot]))
        sp_executor_queue(&self->ex, slot);
    sp_shard_poke(self);
    Py_RETURN_TRUE;
}

static PyObject *shard_release(ShardObject *self, PyObject *arg)
{
    uint32_t slot = sp_shard_own_slot(self, arg);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    self->ex.objects[slot].ending = 1;
    self->ex.slots[slot].life = SP_LIFE_ENDING;
    return seal_slot(self, slot);
}

static PyObject *shard_seal(ShardObject *self, PyObject *arg)
{
    uint32_t slot = sp_shard_own_slot(self, arg);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    self->ex.slots[slot].life = SP_LIFE_LEAVING;
    return seal_slot(self, slot);
}

static PyObject *shard_unseal(ShardObject *self, PyObject *arg)
{
    uint32_t slot = sp_shard_own_slot(self, arg);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    self->ex.slots[slot].life = SP_LIFE_OPEN;
    sp_schedule_unseal(&self->ex.slots[slot]);
    sp_executor_queue(&self->ex, slot);
    sp_waiters_ring(self->ex.node, &self->ex.slots[slot]);
    sp_shard_poke(self);
    Py_RETURN_NONE;
}

static PyObject *shard_vacate(ShardObject *self, PyObject *arg)
{
    uint32_t slot = sp_shard_own_slot(self, arg);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    if (sp_word_phase(self->ex.slots[slot].word.low) != SP_RUNNING || (self->ex.slots[slot].word.low & SP_SEALED_BIT) == 0) {
        PyErr_SetString(PyExc_ValueError, "only a settled sealed object can be vacated: call seal and wait for hooks.sealed");
        return NULL;
    }
    sp_shard_vacate(self, slot);
    Py_RETURN_NONE;
}

/* place(address, records): records as hooks.sealed gave them at the source. False: no memory, or nobody lives there any
 * more; nothing was placed. */
static PyObject *shard_place(ShardObject *self, PyObject *args)
{
    PyObject *address, *records;
    if (!PyArg_ParseTuple(args, "OO!", &address, &PyList_Type, &records))
        return NULL;
    uint32_t slot = sp_shard_own_slot(self, address);
    if (slot == self->ex.node->geometry.slots) {
        if (!PyErr_ExceptionMatches(PyExc_ValueError))
            return NULL;
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    bool placed = true;
    for (Py_ssize_t i = 0; placed && i < PyList_GET_SIZE(records); i++) {
        int kind, flags;
        unsigned long long a, b;
        Py_buffer payload;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(records, i), "iiKKy*", &kind, &flags, &a, &b, &payload))
            return NULL;
        struct sp_cell head = {
            .length = (uint32_t)payload.len, .kind = (uint16_t)kind, .flags = (uint16_t)flags, .a = a, .b = b,
            .producer = (uint16_t)self->ex.node->self,
        };
        placed = sp_executor_place(&self->ex, slot, &head, payload.buf);
        PyBuffer_Release(&payload);
    }
    if (placed && PyList_GET_SIZE(records) > 0)
        sp_executor_open_object(&self->ex, slot);
    sp_shard_poke(self);
    return PyBool_FromLong(placed);
}

static PyObject *shard_target(ShardObject *self, PyObject *arg)
{
    unsigned long long address = PyLong_AsUnsignedLongLong(arg);
    if (address == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    uint32_t slot = sp_executor_slot(&self->ex, address);
    if (slot == self->ex.node->geometry.slots || self->tenants[slot].target == NULL)
        Py_RETURN_NONE;
    return Py_NewRef(self->tenants[slot].target);
}

static PyObject *shard_share_gate(ShardObject *self, PyObject *args)
{
    PyObject *address, *owner;
    if (!PyArg_ParseTuple(args, "OO", &address, &owner))
        return NULL;
    uint32_t slot = sp_shard_own_slot(self, address);
    uint32_t gate = PyErr_Occurred() ? slot : sp_shard_own_slot(self, owner);
    if (PyErr_Occurred())
        return NULL;
    struct sp_object *object = &self->ex.objects[slot];
    if (object->waiting) {
        PyErr_SetString(PyExc_ValueError, "an object that waits for its gate cannot change it");
        return NULL;
    }
    if (object->gate != gate) {
        sp_gate_give(&self->ex, object->gate, slot);
        object->gate = gate;
    }
    sp_shard_poke(self);
    Py_RETURN_NONE;
}

static PyObject *shard_release_gate(ShardObject *self, PyObject *arg)
{
    uint32_t slot = sp_shard_own_slot(self, arg);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    self->ex.objects[slot].yielded = 1;
    sp_gate_give(&self->ex, self->ex.objects[slot].gate, slot);
    sp_shard_poke(self);
    Py_RETURN_NONE;
}

static PyObject *shard_acquire_gate(ShardObject *self, PyObject *arg)
{
    uint32_t slot = sp_shard_own_slot(self, arg);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    struct sp_object *object = &self->ex.objects[slot];
    object->yielded = 0;
    if (sp_gate_take(&self->ex, slot))
        Py_RETURN_TRUE;
    object->resuming = 1;
    Py_RETURN_FALSE;
}

static PyObject *shard_finish(ShardObject *self, PyObject *args)
{
    PyObject *address, *result, *error;
    unsigned long long turn;
    if (!PyArg_ParseTuple(args, "OKOO", &address, &turn, &result, &error))
        return NULL;
    uint32_t slot = sp_shard_own_slot(self, address);
    if (slot == self->ex.node->geometry.slots) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    struct sp_object *object = &self->ex.objects[slot];
    if (object->suspended == 0 || self->ex.slots[slot].turn != turn)
        Py_RETURN_FALSE; /* T-26: an old number changes nothing */
    struct sp_cell *cell = sp_arena_cell(&self->ex.arena, object->suspended);
    if (error != Py_None)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    bool failed = error != Py_None || !sp_shard_answer(self, slot, cell, result);
    if (failed)
        sp_shard_failed(self, slot, cell);
    sp_executor_finish(&self->ex, slot, turn, failed ? SP_BOOK_FAILED : SP_BOOK_HANDLED);
    sp_shard_poke(self);
    Py_RETURN_TRUE;
}

static PyObject *shard_set_client(ShardObject *self, PyObject *args)
{
    PyObject *address;
    unsigned long long client;
    if (!PyArg_ParseTuple(args, "OK", &address, &client))
        return NULL;
    uint32_t slot = sp_shard_own_slot(self, address);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    self->ex.slots[slot].client = client;
    Py_RETURN_NONE;
}

static PyObject *shard_set_route(ShardObject *self, PyObject *args)
{
    PyObject *address;
    unsigned long long route;
    if (!PyArg_ParseTuple(args, "OK", &address, &route))
        return NULL;
    uint32_t slot = sp_shard_own_slot(self, address);
    if (slot == self->ex.node->geometry.slots)
        return NULL;
    sp_store_release(&self->ex.slots[slot].route, route);
    Py_RETURN_NONE;
}

PyMethodDef sp_object_methods[] = {
    {"allocate", (PyCFunction)(void (*)(void))shard_allocate, METH_VARARGS | METH_KEYWORDS,
     "A slot for an object: its address, or 0 when all are taken."},
    {"release", (PyCFunction)shard_release, METH_O, "Ends an object."},
    {"seal", (PyCFunction)shard_seal, METH_O, "Seals an object in order to move it; hooks.sealed follows."},
    {"unseal", (PyCFunction)shard_unseal, METH_O, "The object goes on here."},
    {"vacate", (PyCFunction)shard_vacate, METH_O, "The object has left; its slot is free."},
    {"place", (PyCFunction)shard_place, METH_VARARGS, "Puts the records of a moved object into its new lanes, in order."},
    {"target", (PyCFunction)shard_target, METH_O, "The Python object at an address, or None."},
    {"share_gate", (PyCFunction)shard_share_gate, METH_VARARGS, "Puts an object under another's gate, or its own."},
    {"release_gate", (PyCFunction)shard_release_gate, METH_O, "A suspended turn gives its gate back."},
    {"acquire_gate", (PyCFunction)shard_acquire_gate, METH_O, "A suspended turn asks for its gate."},
    {"finish", (PyCFunction)shard_finish, METH_VARARGS, "Ends a suspended turn."},
    {"set_client", (PyCFunction)shard_set_client, METH_VARARGS, "The client address of an object's session."},
    {"set_route", (PyCFunction)shard_set_route, METH_VARARGS, "The bound object of a session slot."},
    {0},
};
