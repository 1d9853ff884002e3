/* Python's Geometry: the sizes of a node's memory, validated; and making its segments. */
#define _GNU_SOURCE
#include "sp_python.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "arena.h"
#include "directory.h"

typedef struct {
    PyObject_HEAD
    struct sp_geometry geometry;
} GeometryObject;

static PyTypeObject GeometryType;

uint64_t sp_segment_size(const struct sp_geometry *g, uint32_t process)
{
    if (process == 0)
        return sp_align(sp_slots_offset(g) + sp_directory_size(g), SP_PAGE);
    if (process <= g->acceptors)
        return sp_retained_arena_offset(g) + g->resume_bytes;
    return sp_arena_offset(g) + g->arena_bytes;
}

static bool power_of_two(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

const char *sp_geometry_fault(const struct sp_geometry *g)
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
    const char *fault = sp_geometry_fault(&self->geometry);
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
    return PyLong_FromUnsignedLongLong(sp_segment_size(&self->geometry, (uint32_t)process));
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
    uint64_t size = sp_segment_size(g, process);
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

static PyMethodDef geometry_functions[] = {
    {"create_segment", create_segment, METH_VARARGS,
     "Makes the segment of one process (memfd, reserved and sealed) and returns its descriptor; the supervisor only."},
    {0},
};

int sp_add_geometry(PyObject *module)
{
    if (PyType_Ready(&GeometryType) < 0 || PyModule_AddObjectRef(module, "Geometry", (PyObject *)&GeometryType) < 0)
        return -1;
    return PyModule_AddFunctions(module, geometry_functions);
}
