/* Python's Node: attaching a node's segments and reading what runs in them. No protocol logic. */
#include "sp_python.h"

#include <sys/mman.h>
#include <sys/stat.h>

static const char *const counter_names[SP_COUNTERS] = {
    "messages_in", "messages_out", "bytes_in", "bytes_out", "batches", "turns", "failed", "refused_lane",
    "refused_permit", "refused_stale", "dropped", "parks", "wakes", "rung", "sessions", "objects", "ready",
    "connections", "accepted", "closed", "running_slot", "running_since_ns", "late_replies", "quarantined",
};

static void node_detach(NodeObject *self)
{
    for (uint32_t i = 0; i < SP_MAX_PROCESSES; i++)
        if (self->node.peers[i].base != NULL)
            munmap(self->node.peers[i].base, self->node.peers[i].size);
    memset(&self->node, 0, sizeof self->node);
    self->attached = false;
}

static uint8_t *segment_map(int fd, uint64_t *size)
{
    struct stat status;
    if (fstat(fd, &status) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    if (status.st_size < (off_t)SP_PAGE) {
        PyErr_Format(PyExc_ValueError, "descriptor %d holds no segment: %lld bytes", fd, (long long)status.st_size);
        return NULL;
    }
    *size = (uint64_t)status.st_size;
    void *base = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    return base;
}

static int node_attach_one(NodeObject *self, uint32_t process, int fd, int doorbell)
{
    uint64_t size;
    uint8_t *base = segment_map(fd, &size);
    if (base == NULL)
        return -1;
    struct sp_node *node = &self->node;
    const struct sp_header *header = (const struct sp_header *)(const void *)base;
    if (process == 0)
        node->geometry = header->geometry;
    const char *fault = sp_geometry_fault(&header->geometry);
    if (fault == NULL && memcmp(&header->geometry, &node->geometry, sizeof node->geometry) != 0)
        fault = "its geometry is another node's";
    if (fault == NULL && (header->process != process || size != sp_segment_size(&node->geometry, process)))
        fault = "its size or process number is not what the geometry says";
    if (fault != NULL) {
        munmap(base, size);
        PyErr_Format(PyExc_ValueError, "segment of process %u: %s", process, fault);
        return -1;
    }
    sp_node_attach_peer(node, process, base, size, doorbell);
    return 0;
}

static int node_init(NodeObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"process", "segments", "doorbells", NULL};
    unsigned int process;
    PyObject *segments, *doorbells;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IO!O!", names, &process, &PyList_Type, &segments, &PyList_Type,
                                     &doorbells))
        return -1;
    node_detach(self);
    self->node.self = process;
    Py_ssize_t count = PyList_GET_SIZE(segments);
    if (count > (Py_ssize_t)SP_MAX_PROCESSES || PyList_GET_SIZE(doorbells) != count || process >= count) {
        PyErr_SetString(PyExc_ValueError, "needs one segment and one doorbell per process, and its own among them");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long fd = PyLong_AsLong(PyList_GET_ITEM(segments, i));
        long doorbell = PyLong_AsLong(PyList_GET_ITEM(doorbells, i));
        if (PyErr_Occurred() || node_attach_one(self, (uint32_t)i, (int)fd, (int)doorbell) < 0) {
            node_detach(self);
            return -1;
        }
    }
    if (self->node.geometry.processes != (uint32_t)count) {
        PyErr_Format(PyExc_ValueError, "%zd segments for %u processes", count, self->node.geometry.processes);
        node_detach(self);
        return -1;
    }
    self->attached = true;
    return 0;
}

static void node_dealloc(NodeObject *self)
{
    node_detach(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static struct sp_peer *node_peer(NodeObject *self, PyObject *arg)
{
    unsigned long process = PyLong_AsUnsignedLong(arg);
    if (process == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (!self->attached || process >= self->node.geometry.processes) {
        PyErr_Format(PyExc_ValueError, "process %lu of %u", process, self->node.geometry.processes);
        return NULL;
    }
    return &self->node.peers[process];
}

static PyObject *node_counters(NodeObject *self, PyObject *arg)
{
    struct sp_peer *peer = node_peer(self, arg);
    PyObject *result = peer == NULL ? NULL : PyDict_New();
    if (result == NULL)
        return NULL;
    int failed = 0;
    for (int i = 0; i < SP_COUNTERS; i++)
        failed |= sp_put_number(result, counter_names[i], sp_load_relaxed(&peer->header->counters[i]));
    failed |= sp_put_number(result, "permits_used", sp_load_relaxed(&peer->header->permits) & SP_PERMIT_MASK);
    failed |= sp_put_number(result, "parked", sp_load_relaxed(&peer->header->parked) != 0);
    if (failed)
        Py_CLEAR(result);
    return result;
}

static PyObject *node_slot(NodeObject *self, PyObject *args)
{
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "K", &address))
        return NULL;
    struct sp_peer *shard = self->attached ? sp_node_shard(&self->node, address) : NULL;
    if (shard == NULL || sp_address_index(address) >= self->node.geometry.slots)
        return PyErr_Format(PyExc_ValueError, "no slot at object address %llu", address);
    const struct sp_slot *slot = &shard->slots[sp_address_index(address)];
    uint64_t word = sp_load_acquire(&slot->word.low);
    uint64_t held = sp_fields_subtract(sp_load_relaxed(&slot->word.high), sp_load_relaxed(&slot->done));
    PyObject *result = PyDict_New();
    if (result == NULL)
        return NULL;
    int failed = sp_put_number(result, "phase", (uint64_t)sp_word_phase(word));
    failed |= sp_put_number(result, "generation", sp_word_generation(word));
    failed |= sp_put_number(result, "dirty", (word & SP_DIRTY) != 0);
    failed |= sp_put_number(result, "sealed", (word & SP_SEALED_BIT) != 0);
    failed |= sp_put_number(result, "in_flight", (word & SP_IN_FLIGHT_MASK) >> SP_IN_FLIGHT_SHIFT);
    failed |= sp_put_number(result, "application_records", held & 0xFFF);
    failed |= sp_put_number(result, "lifecycle_records", held >> SP_LIFECYCLE_RECORDS_SHIFT & 0x1FF);
    failed |= sp_put_number(result, "session", slot->session);
    failed |= sp_put_number(result, "client", slot->client);
    failed |= sp_put_number(result, "route", sp_load_acquire(&slot->route));
    failed |= sp_put_number(result, "kind", slot->kind);
    failed |= sp_put_number(result, "turn", slot->turn);
    failed |= sp_put_number(result, "mark", slot->mark);
    if (failed)
        Py_CLEAR(result);
    return result;
}

static PyObject *node_ring_all(NodeObject *self, PyObject *unused)
{
    (void)unused;
    for (uint32_t i = 0; i < self->node.geometry.processes; i++)
        sp_doorbell_write(self->node.peers[i].doorbell); /* D3 */
    Py_RETURN_NONE;
}

static PyObject *node_set_closing(NodeObject *self, PyObject *arg)
{
    int closing = PyObject_IsTrue(arg);
    if (closing < 0)
        return NULL;
    for (uint32_t i = 0; i < self->node.geometry.processes; i++)
        sp_store_release(&self->node.peers[i].header->closing, (uint64_t)closing);
    Py_RETURN_NONE;
}

static PyMethodDef node_methods[] = {
    {"counters", (PyCFunction)node_counters, METH_O,
     "What one process has counted, by name. From any process, at any time."},
    {"slot", (PyCFunction)node_slot, METH_VARARGS, "Phase, queue and route of one object by its address, as it is now."},
    {"ring_all", (PyCFunction)node_ring_all, METH_NOARGS, "Rings every process whatever it declared; after a death."},
    {"set_closing", (PyCFunction)node_set_closing, METH_O, "Lets application admissions answer SHUTTING_DOWN, or again not."},
    {0},
};

static PyObject *node_get(NodeObject *self, void *closure)
{
    switch ((intptr_t)closure) {
    case 0:
        return PyLong_FromUnsignedLong(self->node.self);
    case 1:
        return PyLong_FromUnsignedLong(self->node.geometry.acceptors);
    case 2:
        return PyLong_FromUnsignedLong(self->node.geometry.shards);
    default:
        return PyLong_FromUnsignedLong(self->node.geometry.slots);
    }
}

static PyGetSetDef node_getset[] = {
    {"process", (getter)node_get, NULL, "This process's index.", (void *)0},
    {"acceptors", (getter)node_get, NULL, "Number of acceptors.", (void *)1},
    {"shards", (getter)node_get, NULL, "Number of shards.", (void *)2},
    {"slots", (getter)node_get, NULL, "Slots per shard.", (void *)3},
    {0},
};

PyTypeObject NodeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardpool._core.Node",
    .tp_basicsize = sizeof(NodeObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The node's shared memory as one of its processes sees it.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)node_init,
    .tp_dealloc = (destructor)node_dealloc,
    .tp_methods = node_methods,
    .tp_getset = node_getset,
};

int sp_add_node(PyObject *module)
{
    if (PyType_Ready(&NodeType) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Node", (PyObject *)&NodeType);
}
