/* Python's publish_frames and drain_links: the acceptor's side of the message path without sockets, for benchmarks
 * and tests of the shard alone. */
#include "sp_python.h"

static PyObject *publish_frames(PyObject *module, PyObject *args)
{
    (void)module;
    NodeObject *owner;
    unsigned long long address, client;
    Py_buffer payload;
    unsigned int count;
    int flags;
    unsigned long long first = 1;
    if (!PyArg_ParseTuple(args, "O!KKy*Ii|K", &NodeType, &owner, &address, &client, &payload, &count, &flags, &first))
        return NULL;
    struct sp_node *node = &owner->node;
    uint64_t charge = 0;
    for (unsigned int i = 0; i < count; i++)
        charge = sp_fields_add(charge, sp_charge(SP_LANE_APPLICATION, (uint64_t)payload.len));
    struct sp_admission admission = {
        .address = address, .lane = SP_LANE_APPLICATION, .stream = SP_STREAM_DATA, .charge = charge,
        .bytes = count * sp_record_size((uint64_t)payload.len), .largest = sp_record_size((uint64_t)payload.len),
    };
    enum sp_outcome outcome = sp_admission_begin(node, &admission);
    if (outcome == SP_ACCEPTED) {
        for (unsigned int i = 0; i < count; i++) {
            struct sp_record *record = sp_admission_record(&admission, (uint32_t)payload.len, SP_KIND_FRAME);
            record->flags = (uint16_t)(record->flags | flags);
            record->a = client;
            record->b = first + i;
            memcpy(sp_record_payload(record), payload.buf, (size_t)payload.len);
        }
        sp_admission_commit(node, &admission);
        sp_node_ring_due(node);
    }
    PyBuffer_Release(&payload);
    return PyLong_FromLong(outcome);
}

/* Reads everything in the inbox away; returns the number of records, or those up to `keep` as tuples. */
static PyObject *drain_links(PyObject *module, PyObject *args)
{
    (void)module;
    NodeObject *owner;
    int keep = 0;
    if (!PyArg_ParseTuple(args, "O!|p", &NodeType, &owner, &keep))
        return NULL;
    struct sp_node *node = &owner->node;
    PyObject *list = keep ? PyList_New(0) : NULL;
    Py_ssize_t count = 0;
    for (uint32_t producer = 0; producer < node->geometry.processes; producer++) {
        for (int stream = 1; stream >= 0; stream--) {
            struct sp_reader *reader = &node->readers[producer][stream];
            struct sp_record *record;
            while (sp_reader_next(reader, &record) == SP_READ_RECORD) {
                count++;
                if (list != NULL) {
                    PyObject *item = Py_BuildValue("iiKKKy#", (int)record->kind, (int)record->flags, record->target,
                                                   record->a, record->b, (const char *)sp_record_payload(record),
                                                   (Py_ssize_t)record->length);
                    if (item == NULL || PyList_Append(list, item) < 0) {
                        Py_XDECREF(item);
                        Py_DECREF(list);
                        return NULL;
                    }
                    Py_DECREF(item);
                }
                sp_reader_advance(reader, record);
            }
            sp_node_release(node, producer, (enum sp_stream)stream);
        }
    }
    return list != NULL ? list : PyLong_FromSsize_t(count);
}

static PyMethodDef producer_functions[] = {
    {"publish_frames", publish_frames, METH_VARARGS,
     "publish_frames(node, address, client, payload, count, flags): one batch of client frames; the outcome."},
    {"drain_links", drain_links, METH_VARARGS,
     "drain_links(node, keep=False): reads the inbox away; the number of records, or (kind, flags, target, a, b, payload)."},
    {0},
};

int sp_add_producer(PyObject *module) { return PyModule_AddFunctions(module, producer_functions); }
