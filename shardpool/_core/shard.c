/* Python's Shard: the executor's life and its run loop. Turns are in turn.c, objects and gates in
 * objects.c, sends in outbound.c. */
#include "shard.h"

static void shard_infra(void *context, uint32_t process, struct sp_record *record)
{
    ShardObject *self = context;
    PyObject *result;
    const char *payload = (const char *)sp_record_payload(record);
    if (record->kind == SP_KIND_CALL_REPLY)
        result = PyObject_CallFunction(self->hooks.reply, "KKy#", record->a, record->b, payload, (Py_ssize_t)record->length);
    else
        result = PyObject_CallFunction(self->hooks.control, "iIKKy#", (int)record->kind, (unsigned)process, record->a,
                                       record->b, payload, (Py_ssize_t)record->length);
    if (result == NULL)
        PyErr_WriteUnraisable(self->hooks.control);
    Py_XDECREF(result);
}

/* ValueError: `text` with the address in hexadecimal behind it. */
void sp_value_error(const char *text, uint64_t address)
{
    char message[160];
    snprintf(message, sizeof message, "%s %016llx", text, (unsigned long long)address);
    PyErr_SetString(PyExc_ValueError, message);
}

void sp_shard_count_objects(ShardObject *self, int64_t change)
{
    self->objects += (uint64_t)change;
    sp_gauge(self->ex.node, SP_COUNT_OBJECTS, self->objects);
}

/* Frees a settled sealed slot and the Python half of what lived there. */
void sp_shard_vacate(ShardObject *self, uint32_t slot)
{
    struct sp_tenant tenant = self->tenants[slot];
    self->tenants[slot] = (struct sp_tenant){NULL, NULL, NULL};
    sp_executor_vacate(&self->ex, slot);
    sp_shard_count_objects(self, -1);
    Py_XDECREF(tenant.target);
    Py_XDECREF(tenant.table);
    Py_XDECREF(tenant.context);
}

/* What an object has not run, in order within each lane: (kind, flags, a, b, payload). */
PyObject *sp_shard_records(ShardObject *self, uint32_t index)
{
    struct sp_slot *slot = &self->ex.slots[index];
    PyObject *list = PyList_New(0);
    for (int lane = 0; list != NULL && lane < 2; lane++) {
        for (uint32_t unit = slot->lanes[lane].first; list != NULL && unit != 0;) {
            struct sp_cell *cell = sp_arena_cell(&self->ex.arena, unit);
            PyObject *item = Py_BuildValue("iiKKy#", (int)cell->kind, (int)cell->flags, cell->a, cell->b,
                                           (const char *)sp_cell_payload(cell), (Py_ssize_t)cell->length);
            if (item == NULL || PyList_Append(list, item) < 0)
                Py_CLEAR(list);
            Py_XDECREF(item);
            unit = cell->next;
        }
    }
    return list;
}

static void shard_sealed(void *context, uint32_t index)
{
    ShardObject *self = context;
    struct sp_slot *slot = &self->ex.slots[index];
    bool ending = self->ex.objects[index].ending;
    if (!ending || slot->lanes[0].first != 0 || slot->lanes[1].first != 0) {
        PyObject *hook = ending ? self->hooks.dropped : self->hooks.sealed;
        PyObject *records = sp_shard_records(self, index);
        PyObject *result =
            records == NULL ? NULL : PyObject_CallFunction(hook, "KN", sp_executor_address(&self->ex, index), records);
        if (result == NULL)
            PyErr_WriteUnraisable(hook);
        Py_XDECREF(result);
    }
    if (ending)
        sp_shard_vacate(self, index);
}

static void shard_resumed(void *context, uint32_t index)
{
    ShardObject *self = context;
    PyObject *result = PyObject_CallFunction(self->hooks.resumed, "K", sp_executor_address(&self->ex, index));
    if (result == NULL)
        PyErr_WriteUnraisable(self->hooks.resumed);
    Py_XDECREF(result);
}

static int take_hook(PyObject *hooks, const char *name, PyObject **out, bool optional)
{
    *out = PyObject_GetAttrString(hooks, name);
    if (*out == Py_None && optional)
        Py_CLEAR(*out);
    return *out == NULL && PyErr_Occurred() ? -1 : 0;
}

static int take_hooks(struct sp_hooks *to, PyObject *hooks)
{
    const struct {
        const char *name;
        PyObject **out;
        bool optional;
    } wanted[] = {
        {"poke", &to->poke, false}, {"failed", &to->failed, false}, {"adopt", &to->adopt, false},
        {"reply", &to->reply, false}, {"control", &to->control, false}, {"resumed", &to->resumed, false},
        {"sealed", &to->sealed, false}, {"dropped", &to->dropped, false}, {"loop", &to->loop, true}, {"enter_task", &to->enter_task, true},
        {"leave_task", &to->leave_task, true}, {"stub", &to->stub, true},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (take_hook(hooks, wanted[i].name, wanted[i].out, wanted[i].optional) < 0)
            return -1;
    return 0;
}

static int shard_init(ShardObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "shard", "hooks", "time_budget_ns", NULL};
    NodeObject *owner;
    unsigned int shard;
    PyObject *hooks;
    unsigned long long budget_ns = 10000000;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!IO|K", names, &NodeType, &owner, &shard, &hooks, &budget_ns))
        return -1;
    if (self->owner != NULL || !owner->attached || owner->node.self != 1 + owner->node.geometry.acceptors + shard) {
        PyErr_Format(PyExc_ValueError, "the node is not attached as shard %u, or the Shard is in use", shard);
        return -1;
    }
    self->tenants = PyMem_RawCalloc(owner->node.geometry.slots, sizeof *self->tenants);
    self->flights = PyMem_RawCalloc((size_t)owner->node.geometry.shards * SP_FLIGHT_PLACES, sizeof *self->flights);
    if (self->tenants == NULL || self->flights == NULL || !sp_executor_open(&self->ex, &owner->node, budget_ns)) {
        PyErr_NoMemory();
        return -1;
    }
    self->ex.context = self;
    self->ex.turn = sp_shard_turn;
    self->ex.infra = shard_infra;
    self->ex.sealed = shard_sealed;
    self->ex.resumed = shard_resumed;
    self->owner = (NodeObject *)Py_NewRef(owner);
    return take_hooks(&self->hooks, hooks);
}

static void shard_dealloc(ShardObject *self)
{
    if (self->owner != NULL) {
        for (uint32_t slot = 0; slot < self->ex.node->geometry.slots; slot++) {
            Py_XDECREF(self->tenants[slot].target);
            Py_XDECREF(self->tenants[slot].table);
            Py_XDECREF(self->tenants[slot].context);
        }
        sp_executor_close(&self->ex);
    }
    PyMem_RawFree(self->tenants);
    PyMem_RawFree(self->flights);
    PyObject **hooks = (PyObject **)&self->hooks;
    for (size_t i = 0; i < sizeof self->hooks / sizeof *hooks; i++)
        Py_XDECREF(hooks[i]);
    for (uint32_t process = 0; process < SP_MAX_PROCESSES; process++)
        for (int stream = 0; stream < 2; stream++)
            for (struct sp_kept *kept = self->kept[process][stream].first, *next; kept != NULL; kept = next) {
                next = kept->next;
                PyMem_RawFree(kept);
            }
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static void store_counters(ShardObject *self)
{
    struct sp_node *node = self->ex.node;
    sp_gauge(node, SP_COUNT_MESSAGES_IN, self->messages_in);
    sp_gauge(node, SP_COUNT_MESSAGES_OUT, self->messages_out);
    sp_gauge(node, SP_COUNT_BYTES_IN, self->bytes_in);
    sp_gauge(node, SP_COUNT_BYTES_OUT, self->bytes_out);
    sp_gauge(node, SP_COUNT_TURNS, self->turns);
    sp_gauge(node, SP_COUNT_FAILED, self->failed);
    sp_gauge(node, SP_COUNT_READY, sp_ready_count(&self->ex.ready));
}

/* What runs and since when, once per object and not per record: status shows it while the shard is stuck. */
static void mark_running(ShardObject *self, uint32_t slot, uint64_t now)
{
    sp_gauge(self->ex.node, SP_COUNT_RUNNING_SLOT, slot);
    sp_gauge(self->ex.node, SP_COUNT_RUNNING_SINCE_NS, now);
}

static PyObject *shard_run(ShardObject *self, PyObject *arg)
{
    unsigned long long budget_ns = PyLong_AsUnsignedLongLong(arg);
    if (budget_ns == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    struct sp_executor *ex = &self->ex;
    self->running = true;
    self->poked = false;
    sp_shard_flush_kept(self);
    sp_executor_look(ex);
    uint64_t now = sp_clock_ns();
    uint64_t deadline = now + budget_ns;
    unsigned objects = 0;
    while (!ex->blocked) {
        if (sp_ready_count(&ex->ready) == 0) {
            sp_executor_look(ex);
            if (sp_ready_count(&ex->ready) == 0)
                break;
        }
        uint32_t slot = sp_ready_pop(&ex->ready);
        mark_running(self, slot, now);
        sp_executor_run_object(ex, slot);
        if (budget_ns == 0)
            break; /* one object: the caller decides what happens between two */
        if (++objects % SP_RING_EVERY == 0) {
            sp_node_ring_due(ex->node);
            now = sp_clock_ns();
            if (now > deadline)
                break;
        }
        if (ex->blocked)
            sp_shard_flush_kept(self);
    }
    mark_running(self, 0, 0);
    sp_node_ring_due(ex->node);
    store_counters(self);
    self->running = false;
    if (PyErr_CheckSignals() < 0)
        return NULL;
    return PyBool_FromLong(sp_ready_count(&ex->ready) != 0 && !ex->blocked);
}

static PyObject *shard_park(ShardObject *self, PyObject *unused)
{
    (void)unused;
    sp_node_ring_due(self->ex.node);
    if (self->ex.blocked) {
        sp_shard_flush_kept(self);
        if (!self->ex.blocked)
            Py_RETURN_FALSE;
        /* Blocked: only the acceptor's ring matters, whatever lies in the links. */
        Py_RETURN_TRUE;
    }
    return PyBool_FromLong(sp_executor_park(&self->ex));
}

static PyObject *shard_wake(ShardObject *self, PyObject *unused)
{
    (void)unused;
    sp_node_wake(self->ex.node);
    Py_RETURN_NONE;
}

static PyObject *shard_get(ShardObject *self, void *closure)
{
    switch ((intptr_t)closure) {
    case 0:
        return PyLong_FromUnsignedLongLong(self->current);
    case 1:
        return PyLong_FromUnsignedLongLong(self->turn);
    default:
        return PyBool_FromLong(self->ex.blocked);
    }
}

static int shard_set_sessions(ShardObject *self, PyObject *value, void *closure)
{
    (void)closure;
    unsigned long count = value == NULL ? (unsigned long)-1 : PyLong_AsUnsignedLong(value);
    if (count == (unsigned long)-1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "sessions cannot be deleted");
        return -1;
    }
    sp_gauge(self->ex.node, SP_COUNT_SESSIONS, count);
    return 0;
}

static PyObject *shard_get_sessions(ShardObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(sp_load_relaxed(&sp_node_header(self->ex.node)->counters[SP_COUNT_SESSIONS]));
}

static PyGetSetDef shard_getset[] = {
    {"sessions", (getter)shard_get_sessions, (setter)shard_set_sessions, "How many sessions live here, for status.", NULL},
    {"current", (getter)shard_get, NULL, "Address of the object whose turn runs now, 0 outside a turn.", (void *)0},
    {"turn", (getter)shard_get, NULL, "Number of the turn that runs now.", (void *)1},
    {"blocked", (getter)shard_get, NULL, "Whether an outbound link is full.", (void *)2},
    {0},
};

static PyMethodDef shard_methods[] = {
    {"run", (PyCFunction)shard_run, METH_O, "Runs ready objects, one if the budget is 0; True: more is ready."},
    {"park", (PyCFunction)shard_park, METH_NOARGS, "Declares the shard parked; True: it may sleep."},
    {"wake", (PyCFunction)shard_wake, METH_NOARGS, "Takes the doorbell's ring."},
    {0},
};

PyTypeObject ShardType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardpool._core.Shard",
    .tp_basicsize = sizeof(ShardObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The executor of one shard.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)shard_init,
    .tp_dealloc = (destructor)shard_dealloc,
    .tp_methods = shard_methods,
    .tp_getset = shard_getset,
};

static int add_methods(PyMethodDef *methods)
{
    for (PyMethodDef *method = methods; method->ml_name != NULL; method++) {
        PyObject *descriptor = PyDescr_NewMethod(&ShardType, method);
        int failed = descriptor == NULL || PyDict_SetItemString(ShardType.tp_dict, method->ml_name, descriptor) < 0;
        Py_XDECREF(descriptor);
        if (failed)
            return -1;
    }
    return 0;
}

int sp_add_shard(PyObject *module)
{
    if (sp_add_table(module) < 0 || PyType_Ready(&ShardType) < 0 || add_methods(sp_object_methods) < 0
        || add_methods(sp_succession_methods) < 0 || add_methods(sp_outbound_methods) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "HANDLER_NO_ARGUMENT", SP_HANDLER_NO_ARGUMENT) < 0
        || PyModule_AddIntConstant(module, "HANDLER_ASYNC", SP_HANDLER_ASYNC) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Shard", (PyObject *)&ShardType);
}
