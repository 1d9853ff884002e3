/* What a shard sends: to clients through their acceptor, to objects by admission, to processes as infrastructure.
 *
 * A record for an acceptor that finds the link full is kept, and the executor stops after the turn that made it
 * (it is blocked) until the acceptor has made room and rung: what one turn can send bounds what is kept.
 * Completions and control are kept without blocking: there is at most one per open ask or session.
 */
#include "shard.h"

void sp_shard_poke(ShardObject *self)
{
    if (self->running || self->poked)
        return;
    self->poked = true;
    PyObject *result = PyObject_CallNoArgs(self->hooks.poke);
    if (result == NULL)
        PyErr_WriteUnraisable(self->hooks.poke);
    Py_XDECREF(result);
}

static bool keep_record(ShardObject *self, const struct sp_kept *head, const void *payload)
{
    struct sp_kept *kept = PyMem_RawMalloc(sizeof *kept + head->length);
    if (kept == NULL) {
        PyErr_NoMemory();
        return false;
    }
    *kept = *head;
    memcpy(kept->payload, payload, head->length);
    struct sp_keep *keep = &self->kept[head->process][head->stream];
    if (keep->first == NULL && head->stream == SP_STREAM_DATA) {
        self->kept_data++;
        self->ex.blocked = true;
    }
    if (keep->first == NULL)
        keep->first = kept;
    else
        keep->last->next = kept;
    keep->last = kept;
    /* Ask to be rung; if there is room by now, the next flush finds it without a ring. */
    if (sp_writer_want(&self->ex.node->peers[head->process].writers[head->stream], sp_record_size(head->length)))
        sp_shard_poke(self);
    return true;
}

static bool write_now(ShardObject *self, const struct sp_kept *head, const void *payload)
{
    struct sp_peer *peer = &self->ex.node->peers[head->process];
    struct sp_record *record = sp_node_claim(peer, (enum sp_stream)head->stream, head->length, head->kind);
    if (record == NULL)
        return false;
    record->flags = head->flags;
    record->target = head->target;
    record->a = head->a;
    record->b = head->b;
    memcpy(sp_record_payload(record), payload, head->length);
    sp_node_publish(peer, (enum sp_stream)head->stream);
    return true;
}

/* Writes or keeps one record; false with an exception if it can never fit. */
bool sp_shard_write(ShardObject *self, uint32_t process, enum sp_stream stream, uint16_t kind, uint16_t flags,
                    uint64_t target, uint64_t a, uint64_t b, const void *payload, size_t length)
{
    struct sp_node *node = self->ex.node;
    if (process >= node->geometry.processes) {
        PyErr_Format(PyExc_ValueError, "no process %u on this node of %u", process, node->geometry.processes);
        return false;
    }
    uint64_t limit = node->peers[process].writers[stream].capacity / 4;
    if (sp_record_size(length) > limit) {
        PyErr_Format(PyExc_ValueError, "a message of %zu bytes exceeds what a link takes (%llu): raise %s", length,
                     (unsigned long long)(limit - SP_RECORD_HEAD),
                     stream == SP_STREAM_DATA ? "link_bytes" : "infra_bytes");
        return false;
    }
    struct sp_kept head = {
        .process = process, .stream = (uint16_t)stream, .kind = kind, .flags = flags, .length = (uint32_t)length,
        .target = target, .a = a, .b = b,
    };
    self->messages_out++;
    self->bytes_out += length;
    if (self->kept[process][stream].first != NULL || !write_now(self, &head, payload))
        return keep_record(self, &head, payload);
    sp_shard_poke(self);
    return true;
}

static void flush_stream(ShardObject *self, uint32_t process, int stream)
{
    struct sp_keep *keep = &self->kept[process][stream];
    while (keep->first != NULL) {
        struct sp_kept *kept = keep->first;
        if (!write_now(self, kept, kept->payload)) {
            if (!sp_writer_want(&self->ex.node->peers[process].writers[stream], sp_record_size(kept->length)))
                return;
            if (!write_now(self, kept, kept->payload))
                return;
        }
        keep->first = kept->next;
        PyMem_RawFree(kept);
    }
    if (stream == SP_STREAM_DATA)
        self->kept_data--;
}

void sp_shard_flush_kept(ShardObject *self)
{
    for (uint32_t process = 0; process < self->ex.node->geometry.processes; process++)
        for (int stream = 0; stream < 2; stream++)
            if (self->kept[process][stream].first != NULL)
                flush_stream(self, process, stream);
    self->ex.blocked = self->kept_data != 0;
}

static PyObject *write_to_client(ShardObject *self, uint64_t client, uint16_t kind, uint64_t b, const Py_buffer *payload)
{
    if (sp_node_acceptor(self->ex.node, client) == NULL) {
        sp_value_error("no acceptor has a client at", client);
        return NULL;
    }
    if (!sp_shard_write(self, 1 + sp_address_number(client), SP_STREAM_DATA, kind, 0, client, client, b, payload->buf,
                        (size_t)payload->len))
        return NULL;
    return PyBool_FromLong(!self->ex.blocked);
}

static PyObject *shard_push(ShardObject *self, PyObject *args)
{
    unsigned long long client;
    Py_buffer payload;
    if (!PyArg_ParseTuple(args, "Ky*", &client, &payload))
        return NULL;
    PyObject *result = write_to_client(self, client, SP_KIND_PUSH, 0, &payload);
    PyBuffer_Release(&payload);
    return result;
}

static PyObject *answer_client(ShardObject *self, PyObject *args, uint16_t kind)
{
    unsigned long long client, request;
    Py_buffer payload;
    if (!PyArg_ParseTuple(args, "KKy*", &client, &request, &payload))
        return NULL;
    PyObject *result = write_to_client(self, client, kind, request, &payload);
    PyBuffer_Release(&payload);
    return result;
}

static PyObject *shard_reply_client(ShardObject *self, PyObject *args) { return answer_client(self, args, SP_KIND_REPLY); }

static PyObject *shard_error_client(ShardObject *self, PyObject *args) { return answer_client(self, args, SP_KIND_ERROR); }

static PyObject *shard_close_client(ShardObject *self, PyObject *args) { return answer_client(self, args, SP_KIND_CLOSE); }

static PyObject *shard_reply_call(ShardObject *self, PyObject *args)
{
    unsigned int process;
    unsigned long long call, status;
    Py_buffer payload;
    if (!PyArg_ParseTuple(args, "IKKy*", &process, &call, &status, &payload))
        return NULL;
    bool written = sp_shard_write(self, process, SP_STREAM_INFRA, SP_KIND_CALL_REPLY, 0, 0, call, status, payload.buf,
                                  (size_t)payload.len);
    PyBuffer_Release(&payload);
    return written ? Py_NewRef(Py_True) : NULL;
}

static PyObject *shard_post_process(ShardObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"process", "kind", "a", "b", "payload", NULL};
    unsigned int process;
    unsigned short kind;
    unsigned long long a = 0, b = 0;
    Py_buffer payload = {.buf = "", .len = 0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IH|KKy*", names, &process, &kind, &a, &b, &payload))
        return NULL;
    bool written = sp_shard_write(self, process, SP_STREAM_INFRA, kind, 0, a, a, b, payload.buf, (size_t)payload.len);
    if (payload.obj != NULL)
        PyBuffer_Release(&payload);
    return written ? PyBool_FromLong(self->kept[process][SP_STREAM_INFRA].first == NULL) : NULL;
}

/* One record into an object's lane. */
static enum sp_outcome admit(ShardObject *self, uint64_t address, uint16_t kind, uint64_t a, uint64_t b, bool lifecycle,
                             const Py_buffer *payload)
{
    struct sp_admission admission = {
        .address = address,
        .lane = lifecycle ? SP_LANE_LIFECYCLE : SP_LANE_APPLICATION,
        .stream = lifecycle ? SP_STREAM_INFRA : SP_STREAM_DATA,
        .charge = sp_charge(lifecycle ? SP_LANE_LIFECYCLE : SP_LANE_APPLICATION, (uint64_t)payload->len),
        .bytes = sp_record_size((uint64_t)payload->len),
        .largest = sp_record_size((uint64_t)payload->len),
        .forced = lifecycle,
    };
    /* Lifecycle is bounded by its lane and goes through the other ring. */
    struct sp_flight *flights = NULL;
    enum sp_outcome outcome = SP_LINK_FULL;
    struct sp_peer *shard = lifecycle ? NULL : sp_node_shard(self->ex.node, address);
    if (shard != NULL)
        flights = self->flights + (size_t)sp_address_number(address) * SP_FLIGHT_PLACES;
    if (flights == NULL || sp_flight_allows(flights, &shard->writers[SP_STREAM_DATA], address, admission.bytes))
        outcome = sp_admission_begin(self->ex.node, &admission);
    if (outcome != SP_ACCEPTED) {
        enum sp_counter counter = outcome == SP_SATURATED ? SP_COUNT_REFUSED_PERMIT
            : outcome == SP_STALE || outcome == SP_SEALED ? SP_COUNT_REFUSED_STALE : SP_COUNT_REFUSED_LANE;
        sp_count(self->ex.node, counter, 1);
        return outcome;
    }
    struct sp_record *record = sp_admission_record(&admission, (uint32_t)payload->len, kind);
    record->a = a;
    record->b = b;
    memcpy(sp_record_payload(record), payload->buf, (size_t)payload->len);
    if (flights != NULL)
        sp_flight_note(flights, admission.writer, address, admission.bytes);
    sp_admission_commit(self->ex.node, &admission);
    sp_shard_poke(self);
    return SP_ACCEPTED;
}

static PyObject *shard_send(ShardObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "payload", "call_id", NULL};
    unsigned long long address, call = 0;
    Py_buffer payload;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ky*|K", names, &address, &payload, &call))
        return NULL;
    enum sp_outcome outcome = admit(self, address, SP_KIND_CALL, call, self->ex.node->self, false, &payload);
    PyBuffer_Release(&payload);
    return PyLong_FromLong(outcome);
}

static PyObject *shard_post(ShardObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "kind", "a", "b", "payload", "lifecycle", NULL};
    unsigned long long address, a = 0, b = 0;
    unsigned short kind;
    int lifecycle = 1;
    Py_buffer payload = {.buf = "", .len = 0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KH|KKy*p", names, &address, &kind, &a, &b, &payload, &lifecycle))
        return NULL;
    PyObject *result;
    if (kind >= SP_KIND_TOKEN || kind == SP_KIND_PAD)
        result = PyErr_Format(PyExc_ValueError, "kind %u is not one that an object takes (1 to 30)", (unsigned)kind);
    else
        result = PyLong_FromLong(admit(self, address, kind, a, b, lifecycle != 0, &payload));
    if (payload.obj != NULL)
        PyBuffer_Release(&payload);
    return result;
}

/* The client addresses of `clients` as an array to be freed with PyMem_Free; NULL with an exception. */
static uint64_t *client_array(PyObject *clients, Py_ssize_t *count)
{
    if (PyBytes_Check(clients)) {
        *count = PyBytes_GET_SIZE(clients) / 8;
        uint64_t *array = PyMem_Malloc((size_t)*count * 8 + 8);
        if (array == NULL)
            PyErr_NoMemory();
        else
            memcpy(array, PyBytes_AS_STRING(clients), (size_t)*count * 8);
        return array;
    }
    PyObject *fast = PySequence_Fast(clients, "clients must be a sequence of client addresses");
    if (fast == NULL)
        return NULL;
    *count = PySequence_Fast_GET_SIZE(fast);
    uint64_t *array = PyMem_Malloc((size_t)*count * 8 + 8);
    for (Py_ssize_t i = 0; array != NULL && i < *count; i++) {
        array[i] = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(fast, i));
        if (array[i] == UINT64_MAX && PyErr_Occurred()) {
            PyMem_Free(array);
            array = NULL;
        }
    }
    Py_DECREF(fast);
    return array;
}

/* One record with the body once and the addresses of all `clients` of one acceptor; several if a link could not
 * take one so large. The scratch holds them; false with an exception. */
static bool publish_to(ShardObject *self, uint32_t acceptor, const uint64_t *clients, size_t count, const Py_buffer *body,
                       uint8_t *scratch, size_t most)
{
    size_t in = 0;
    uint64_t *list = (uint64_t *)(void *)(scratch + 8);
    for (size_t i = 0; i <= count; i++) {
        if (i < count && sp_address_number(clients[i]) == acceptor)
            list[in++] = clients[i];
        if (in == 0 || (in < most && i < count))
            continue;
        uint32_t head[2] = {(uint32_t)in, 0};
        memcpy(scratch, head, sizeof head);
        memcpy(list + in, body->buf, (size_t)body->len);
        if (!sp_shard_write(self, 1 + acceptor, SP_STREAM_DATA, SP_KIND_PUBLISH, 0, 0, in, 0, scratch,
                            8 + in * 8 + (size_t)body->len))
            return false;
        in = 0;
    }
    return true;
}

static PyObject *shard_publish(ShardObject *self, PyObject *args)
{
    PyObject *clients;
    Py_buffer body;
    if (!PyArg_ParseTuple(args, "Oy*", &clients, &body))
        return NULL;
    struct sp_node *node = self->ex.node;
    size_t limit = (size_t)node->geometry.link_bytes / 4 - SP_RECORD_HEAD - 16;
    Py_ssize_t count = 0;
    uint64_t *array = NULL;
    uint8_t *scratch = NULL;
    PyObject *result = NULL;
    if ((size_t)body.len + 8 > limit) {
        PyErr_Format(PyExc_ValueError, "a message of %zd bytes exceeds what a link takes (%zu): raise link_bytes", body.len,
                     limit - 8);
        goto end;
    }
    array = client_array(clients, &count);
    if (array == NULL)
        goto end;
    size_t most = (limit - (size_t)body.len) / 8;
    scratch = PyMem_Malloc(8 + (size_t)count * 8 + (size_t)body.len);
    if (scratch == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (uint32_t acceptor = 0; acceptor < node->geometry.acceptors; acceptor++)
        if (!publish_to(self, acceptor, array, (size_t)count, &body, scratch, most))
            goto end;
    result = PyLong_FromSsize_t(count);
end:
    PyMem_Free(scratch);
    PyMem_Free(array);
    PyBuffer_Release(&body);
    return result;
}

PyMethodDef sp_outbound_methods[] = {
    {"push", (PyCFunction)shard_push, METH_VARARGS, "One message to a client; False: its link is full, it is kept."},
    {"reply_client", (PyCFunction)shard_reply_client, METH_VARARGS, "Answers a client's ask from outside its turn."},
    {"error_client", (PyCFunction)shard_error_client, METH_VARARGS, "An error for a client's ask, or with id 0 for none."},
    {"close_client", (PyCFunction)shard_close_client, METH_VARARGS, "Closes a connection behind what was sent to it."},
    {"reply_call", (PyCFunction)shard_reply_call, METH_VARARGS, "Completes another process's ask."},
    {"post_process", (PyCFunction)(void (*)(void))shard_post_process, METH_VARARGS | METH_KEYWORDS,
     "An infrastructure record to a process."},
    {"send", (PyCFunction)(void (*)(void))shard_send, METH_VARARGS | METH_KEYWORDS,
     "Publishes a message to an object; the outcome as an int."},
    {"post", (PyCFunction)(void (*)(void))shard_post, METH_VARARGS | METH_KEYWORDS,
     "Publishes a record that only Python reads to an object; the outcome as an int."},
    {"publish", (PyCFunction)shard_publish, METH_VARARGS, "One message to many clients, one record per acceptor."},
    {0},
};
