/* Python's Geometry and Node: making segments, attaching them, reading what runs. No protocol logic. */
#define _GNU_SOURCE
#include "sp_python.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "arena.h"
#include "directory.h"

typedef struct {
    PyObject_HEAD
    struct sp_geometry geometry;
} GeometryObject;

static PyTypeObject GeometryType;

static const char *const counter_names[SP_COUNTERS] = {
    "messages_in", "messages_out", "bytes_in", "bytes_out", "batches", "turns", "failed", "refused_lane",
    "refused_permit", "refused_stale", "dropped", "parks", "wakes", "rung", "sessions", "objects", "ready",
    "connections", "accepted", "closed", "running_slot", "running_since_ns", "late_replies",
};

static uint64_t segment_size(const struct sp_geometry *g, uint32_t process)
{
    if (process == 0)
        return sp_align(sp_slots_offset(g) + sp_directory_size(g), SP_PAGE);
    if (process <= g->acceptors)
        return sp_retained_arena_offset(g) + g->resume_bytes;
    return sp_arena_offset(g) + g->arena_bytes;
}

static bool power_of_two(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

/* NULL, or what is wrong. */
static const char *geometry_fault(const struct sp_geometry *g)
{
    if (g->magic != SP_MAGIC || g->version != SP_VERSION)
        return "not a segment of this version";
    if (g->acceptors < 1 || g->shards < 1 || g->processes != 1 + g->acceptors + g->shards)
        return "needs at least one acceptor and one shard";
    if (g->processes > SP_MAX_PROCESSES)
        return "more than 40 processes (supervisor, acceptors, shards): use fewer workers or acceptors";
    if (!power_of_two(g->link_bytes) || !power_of_two(g->infra_bytes) || g->link_bytes < 4096 || g->infra_bytes < 4096
        || g->link_bytes > UINT64_C(1) << 30 || g->infra_bytes > UINT64_C(1) << 30)
        return "link_bytes and infra_bytes must be powers of two from 4 KiB to 1 GiB";
    if (g->arena_bytes == 0 || g->arena_bytes % SP_ARENA_PAGE != 0 || g->arena_bytes > UINT64_C(1) << 35)
        return "arena_bytes must be a multiple of 64 KiB, at most 32 GiB";
    if (g->slots < 2 || g->slots > UINT32_C(1) << 24 || g->permits < 1 || g->permits >= g->slots)
        return "slots must be 2 to 16777216 and permits at least 1 and fewer than slots";
    if (g->lane_records < 1 || g->lane_records > SP_APPLICATION_RECORDS_MAX || g->lifecycle_records < 1
        || g->lifecycle_records > SP_LIFECYCLE_RECORDS_MAX)
        return "lane_records must be 1 to 4095 and lifecycle_records 1 to 511";
    if (g->lane_bytes / SP_UNIT > SP_APPLICATION_UNITS_MASK / 2
        || g->lifecycle_bytes / SP_UNIT > SP_LIFECYCLE_UNITS_MASK / 2)
        return "lane_bytes must be at most 128 MiB and lifecycle_bytes at most 8 MiB";
    if (!power_of_two(g->directory_entries))
        return "directory_entries must be a power of two";
    if (g->resume_bytes % SP_ARENA_PAGE != 0 || g->resume_bytes > UINT64_C(1) << 35 || g->resume_entries > UINT64_C(1) << 24
        || (g->resume_bytes == 0) != (g->resume_entries == 0))
        return "resume_bytes must be a multiple of 64 KiB, at most 32 GiB, and 0 only together with resume_entries";
    return NULL;
}

static int geometry_init(GeometryObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"acceptors", "shards", "slots", "permits", "link_bytes", "infra_bytes", "arena_bytes",
                            "lane_records", "lane_bytes", "lifecycle_records", "lifecycle_bytes", "directory_entries",
                            "resume_bytes", "resume_entries", NULL};
    unsigned int acceptors, shards, slots = 65536, permits = 4096, lane_records = 1024, lifecycle_records = 128;
    unsigned int directory_entries = 16384;
    unsigned long long link = 1U << 20, infra = 1U << 18, arena = 64U << 20, lane = 64U << 20, lifecycle = 4U << 20;
    unsigned long long resume_bytes = 0, resume_entries = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "II|$IIKKKIKIKIKK", names, &acceptors, &shards, &slots, &permits, &link,
                                     &infra, &arena, &lane_records, &lane, &lifecycle_records, &lifecycle,
                                     &directory_entries, &resume_bytes, &resume_entries))
        return -1;
    self->geometry = (struct sp_geometry){
        .magic = SP_MAGIC, .version = SP_VERSION, .processes = 1 + acceptors + shards, .acceptors = acceptors,
        .shards = shards, .slots = slots, .permits = permits, .lane_records = lane_records,
        .lifecycle_records = lifecycle_records, .directory_entries = directory_entries, .lane_bytes = lane,
        .lifecycle_bytes = lifecycle, .link_bytes = link, .infra_bytes = infra, .arena_bytes = arena,
        .resume_bytes = resume_bytes, .resume_entries = resume_entries,
    };
    const char *fault = geometry_fault(&self->geometry);
    if (fault != NULL) {
        PyErr_SetString(PyExc_ValueError, fault);
        return -1;
    }
    if (getrandom(self->geometry.hash_key, sizeof self->geometry.hash_key, 0) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

static PyObject *geometry_segment_size(GeometryObject *self, PyObject *arg)
{
    unsigned long process = PyLong_AsUnsignedLong(arg);
    if (process == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (process >= self->geometry.processes)
        return PyErr_Format(PyExc_ValueError, "process %lu of %u", process, self->geometry.processes);
    return PyLong_FromUnsignedLongLong(segment_size(&self->geometry, (uint32_t)process));
}

static PyMethodDef geometry_methods[] = {
    {"segment_size", (PyCFunction)geometry_segment_size, METH_O, "Bytes of the segment of one process."},
    {0},
};

static PyTypeObject GeometryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardpool._core.Geometry",
    .tp_basicsize = sizeof(GeometryObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Sizes of a node's shared memory, validated.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)geometry_init,
    .tp_methods = geometry_methods,
};

static void segment_format(uint8_t *base, const struct sp_geometry *g, uint32_t process)
{
    struct sp_header *header = (struct sp_header *)(void *)base;
    header->geometry = *g;
    header->process = process;
    header->role = process == 0 ? SP_ROLE_SUPERVISOR : process <= g->acceptors ? SP_ROLE_ACCEPTOR : SP_ROLE_SHARD;
    if (header->role != SP_ROLE_SHARD)
        return;
    struct sp_slot *slots = (struct sp_slot *)(void *)(base + sp_slots_offset(g));
    for (uint32_t i = 0; i < g->slots; i++)
        slots[i].word.low = UINT64_C(1) << SP_GENERATION_SHIFT;
}

static PyObject *create_segment(PyObject *module, PyObject *args)
{
    (void)module;
    GeometryObject *geometry;
    unsigned int process;
    if (!PyArg_ParseTuple(args, "O!I", &GeometryType, &geometry, &process))
        return NULL;
    const struct sp_geometry *g = &geometry->geometry;
    if (process >= g->processes)
        return PyErr_Format(PyExc_ValueError, "process %u of %u", process, g->processes);
    uint64_t size = segment_size(g, process);
    int fd = memfd_create("shardpool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    /* Reserved now, so that a full memory is an error here and not SIGBUS at some first touch later. */
    int error = posix_fallocate(fd, 0, (off_t)size);
    void *base = MAP_FAILED;
    if (error == 0) {
        base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
            error = errno;
    }
    if (error != 0) {
        if (base != MAP_FAILED)
            munmap(base, size);
        close(fd);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    segment_format(base, g, process);
    munmap(base, size);
    return PyLong_FromLong(fd);
}

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
    const char *fault = geometry_fault(&header->geometry);
    if (fault == NULL && memcmp(&header->geometry, &node->geometry, sizeof node->geometry) != 0)
        fault = "its geometry is another node's";
    if (fault == NULL && (header->process != process || size != segment_size(&node->geometry, process)))
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

static int put_number(PyObject *dict, const char *name, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int result = number == NULL ? -1 : PyDict_SetItemString(dict, name, number);
    Py_XDECREF(number);
    return result;
}

static PyObject *node_counters(NodeObject *self, PyObject *arg)
{
    struct sp_peer *peer = node_peer(self, arg);
    PyObject *result = peer == NULL ? NULL : PyDict_New();
    if (result == NULL)
        return NULL;
    int failed = 0;
    for (int i = 0; i < SP_COUNTERS; i++)
        failed |= put_number(result, counter_names[i], sp_load_relaxed(&peer->header->counters[i]));
    failed |= put_number(result, "permits_used", sp_load_relaxed(&peer->header->permits) & SP_PERMIT_MASK);
    failed |= put_number(result, "parked", sp_load_relaxed(&peer->header->parked) != 0);
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
    int failed = put_number(result, "phase", (uint64_t)sp_word_phase(word));
    failed |= put_number(result, "generation", sp_word_generation(word));
    failed |= put_number(result, "dirty", (word & SP_DIRTY) != 0);
    failed |= put_number(result, "sealed", (word & SP_SEALED_BIT) != 0);
    failed |= put_number(result, "in_flight", (word & SP_IN_FLIGHT_MASK) >> SP_IN_FLIGHT_SHIFT);
    failed |= put_number(result, "application_records", held & 0xFFF);
    failed |= put_number(result, "lifecycle_records", held >> SP_LIFECYCLE_RECORDS_SHIFT & 0x1FF);
    failed |= put_number(result, "session", slot->session);
    failed |= put_number(result, "client", slot->client);
    failed |= put_number(result, "route", sp_load_acquire(&slot->route));
    failed |= put_number(result, "kind", slot->kind);
    failed |= put_number(result, "turn", slot->turn);
    failed |= put_number(result, "mark", slot->mark);
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

static PyMethodDef node_functions[] = {
    {"create_segment", create_segment, METH_VARARGS,
     "Makes the segment of one process (memfd, reserved and sealed) and returns its descriptor; the supervisor only."},
    {0},
};

int sp_add_node(PyObject *module)
{
    if (PyType_Ready(&GeometryType) < 0 || PyType_Ready(&NodeType) < 0)
        return -1;
    if (PyModule_AddObjectRef(module, "Geometry", (PyObject *)&GeometryType) < 0
        || PyModule_AddObjectRef(module, "Node", (PyObject *)&NodeType) < 0)
        return -1;
    return PyModule_AddFunctions(module, node_functions);
}
