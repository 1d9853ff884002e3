/* Python's Acceptor: its life, its loop, and its events as tuples (kind, client, a, b, payload); what is said to one
 * client is in acceptor_calls.c. No protocol here. */
#define _GNU_SOURCE
#include "acceptor_object.h"
#include "acceptor_settings.h"

static void engine_close(struct sp_engine *e)
{
    for (uint32_t i = 0; i < e->connections.used; i++) {
        struct sp_connection *c = sp_connection_at(&e->connections, i);
        if (c->stage == SP_STAGE_FREE || c->stage == SP_STAGE_DETACHED)
            continue;
        close(c->fd);
        sp_inbound_free(&c->in);
        free(c->out.bytes);
        if (c->cipher != NULL)
            free(c->cipher->bytes);
        free(c->cipher);
    }
    sp_connections_close(&e->connections);
    for (uint32_t i = 0; i < e->spare.count; i++)
        free(e->spare.buffers[i]);
    for (uint32_t i = 0; i < e->event_count; i++)
        free(e->events[i].payload);
    for (uint32_t i = 0; i < e->pending_count; i++)
        free(e->pending[i].payload);
    for (size_t i = 0; i < sizeof e->errors / sizeof e->errors[0]; i++)
        free(e->errors[i]);
    free(e->events);
    free(e->pending);
    free(e->dirty.items);
    free(e->blocked.items);
    free(e->flights);
    free(e->addresses.places);
    sp_retained_free(&e->retained);
    if (e->epoll >= 0)
        close(e->epoll);
    free(e);
}

static void acceptor_dealloc(AcceptorObject *self)
{
    if (self->engine != NULL)
        engine_close(self->engine);
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int engine_open(struct sp_engine *e, struct sp_node *node, uint32_t acceptor)
{
    e->node = node;
    e->acceptor = acceptor;
    e->accepting = e->reading = true;
    e->sweep_period_ns = sp_sweep_period_ns(&e->settings);
    e->flights = calloc((size_t)node->geometry.shards * SP_FLIGHT_PLACES, sizeof *e->flights);
    if (e->flights == NULL || !sp_addresses_grow(&e->addresses, node->geometry.hash_key[0])) {
        PyErr_NoMemory();
        return -1;
    }
    /* spread over the range, so that client addresses of a predecessor are not taken for ours */
    e->connections.first_generation = (uint32_t)sp_load_relaxed(&sp_node_header(node)->incarnation) * 0x9E3779U;
    memset(e->doubtful, 0xFF, sizeof e->doubtful);
    const struct sp_geometry *g = &node->geometry;
    bool keeps = e->settings.resume_window_ms > 0 && g->resume_bytes > 0;
    if (keeps && !sp_retained_open(&e->retained, node->peers[node->self].base, g, e->settings.resume_bytes_per_session)) {
        PyErr_NoMemory();
        return -1;
    }
    sp_engine_tick(e);
    /* Edge-triggered and never read: each ring is reported once, and a wake costs no read. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = SP_TAG_DOORBELL << 56};
    e->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (e->epoll < 0 || epoll_ctl(e->epoll, EPOLL_CTL_ADD, node->peers[node->self].doorbell, &event) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

static int acceptor_init(AcceptorObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "acceptor", "settings", NULL};
    NodeObject *owner;
    unsigned int acceptor;
    PyObject *settings;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!IO!", names, &NodeType, &owner, &acceptor, &PyDict_Type, &settings))
        return -1;
    if (self->engine != NULL || !owner->attached || owner->node.self != 1 + acceptor
        || acceptor >= owner->node.geometry.acceptors) {
        PyErr_Format(PyExc_ValueError, "the node is not attached as acceptor %u, or the Acceptor is in use", acceptor);
        return -1;
    }
    self->engine = calloc(1, sizeof *self->engine);
    if (self->engine == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->engine->epoll = -1;
    self->owner = (NodeObject *)Py_NewRef(owner);
    if (sp_take_settings(&self->engine->settings, settings) < 0)
        return -1;
    return engine_open(self->engine, &owner->node, acceptor);
}

static PyObject *acceptor_listen(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    int fd;
    unsigned int transport;
    if (!PyArg_ParseTuple(args, "iI", &fd, &transport))
        return NULL;
    if (e->listener_count == SP_LISTENERS || transport > SP_TRANSPORT_LOCAL)
        return PyErr_Format(PyExc_ValueError, "transport %u, or more than %u listeners", transport, SP_LISTENERS);
    e->listeners[e->listener_count] = (struct sp_listener){.fd = fd, .transport = transport};
    if (!sp_listener_arm(e, e->listener_count, true))
        return PyErr_SetFromErrno(PyExc_OSError);
    e->listener_count++;
    Py_RETURN_NONE;
}

static PyObject *acceptor_watch(AcceptorObject *self, PyObject *arg)
{
    struct sp_engine *e = self->engine;
    long fd = PyLong_AsLong(arg);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (e->watched_count == SP_WATCHED)
        return PyErr_Format(PyExc_ValueError, "more than %u watched descriptors", SP_WATCHED);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = SP_TAG_WATCHED << 56 | e->watched_count};
    if (epoll_ctl(e->epoll, EPOLL_CTL_ADD, (int)fd, &event) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    e->watched[e->watched_count++] = (int)fd;
    Py_RETURN_NONE;
}

static PyObject *acceptor_set_error(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned int outcome;
    Py_buffer body;
    if (!PyArg_ParseTuple(args, "Iy*", &outcome, &body))
        return NULL;
    uint8_t *copy = outcome < sizeof e->errors / sizeof e->errors[0] ? malloc((size_t)body.len + 1) : NULL;
    if (copy != NULL) {
        memcpy(copy, body.buf, (size_t)body.len);
        free(e->errors[outcome]);
        e->errors[outcome] = copy;
        e->error_lengths[outcome] = (uint32_t)body.len;
    }
    PyBuffer_Release(&body);
    return copy == NULL ? PyErr_Format(PyExc_ValueError, "outcome %u", outcome) : Py_NewRef(Py_None);
}

static PyObject *take_events(struct sp_engine *e)
{
    PyObject *list = PyList_New(e->event_count);
    for (uint32_t i = 0; list != NULL && i < e->event_count; i++) {
        struct sp_event *event = &e->events[i];
        PyObject *item = Py_BuildValue("IKKKy#", event->kind, event->client, event->a, event->b,
                                       event->payload == NULL ? "" : (const char *)event->payload, (Py_ssize_t)event->length);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    for (uint32_t i = 0; i < e->event_count; i++)
        free(e->events[i].payload);
    e->event_count = 0;
    return list;
}

/* Waits until something is there to do, or for what is left of the limit; the interpreter is free meanwhile. */
static int engine_wait(struct sp_engine *e, struct epoll_event *events, int limit_ms)
{
    uint64_t sleep_ns = sp_loop_sleep(e);
    int timeout = sp_loop_timeout_ms(sleep_ns, limit_ms);
    int count;
    bool parked = timeout != 0 && sp_node_park(e->node);
    if (!parked)
        return epoll_wait(e->epoll, events, SP_EPOLL_EVENTS, 0);
    Py_BEGIN_ALLOW_THREADS
    count = epoll_wait(e->epoll, events, SP_EPOLL_EVENTS, timeout);
    Py_END_ALLOW_THREADS
    sp_store_seq_cst(&sp_node_header(e->node)->parked, 0);
    sp_count(e->node, SP_COUNT_WAKES, 1);
    return count;
}

static PyObject *acceptor_poll(AcceptorObject *self, PyObject *arg)
{
    struct sp_engine *e = self->engine;
    struct epoll_event events[SP_EPOLL_EVENTS];
    long limit_ms = PyLong_AsLong(arg);
    if (limit_ms == -1 && PyErr_Occurred())
        return NULL;
    sp_engine_tick(e);
    uint64_t deadline = limit_ms < 0 ? UINT64_MAX : e->now_ns + (uint64_t)limit_ms * 1000000;
    sp_loop_settle(e, false); /* what Python's calls since the last poll led to */
    do {
        int left = limit_ms < 0 ? -1 : deadline <= e->now_ns ? 0 : (int)((deadline - e->now_ns + 999999) / 1000000);
        int count = engine_wait(e, events, left);
        if (count < 0 && errno != EINTR)
            return PyErr_SetFromErrno(PyExc_OSError);
        if (count < 0 && PyErr_CheckSignals() < 0)
            return NULL;
        sp_engine_tick(e);
        sp_loop_settle(e, sp_loop_events(e, events, count));
    } while (e->event_count == 0 && e->now_ns < deadline);
    if (e->failed)
        return PyErr_NoMemory();
    return take_events(e);
}

static PyObject *acceptor_end_all(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned int code;
    Py_buffer reason;
    if (!PyArg_ParseTuple(args, "Iy*", &code, &reason))
        return NULL;
    for (uint32_t i = 0; i < e->connections.used; i++) {
        struct sp_connection *c = sp_connection_at(&e->connections, i);
        if (c->stage != SP_STAGE_FREE)
            sp_engine_end(e, c, code, reason.buf, (uint32_t)reason.len, SP_FOREIGN_NO);
    }
    PyBuffer_Release(&reason);
    Py_RETURN_NONE;
}

static PyObject *acceptor_stop_accepting(AcceptorObject *self, PyObject *unused)
{
    (void)unused;
    self->engine->accepting = false;
    sp_listeners_arm(self->engine, false);
    Py_RETURN_NONE;
}

static PyObject *acceptor_stop_reading(AcceptorObject *self, PyObject *unused)
{
    (void)unused;
    struct sp_engine *e = self->engine;
    e->reading = false;
    for (uint32_t i = 0; i < e->connections.used; i++) {
        struct sp_connection *c = sp_connection_at(&e->connections, i);
        if (c->stage != SP_STAGE_FREE)
            sp_engine_arm(e, c);
    }
    Py_RETURN_NONE;
}

static PyObject *acceptor_settled(AcceptorObject *self, void *unused)
{
    (void)unused;
    struct sp_engine *e = self->engine;
    return PyBool_FromLong(sp_list_size(&e->blocked) == 0 && e->pending_count == 0);
}

static PyObject *acceptor_detached(AcceptorObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(self->engine->detached);
}

static PyObject *acceptor_connections(AcceptorObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(self->engine->connections.live);
}

static PyMethodDef acceptor_methods[] = {
    {"listen", (PyCFunction)acceptor_listen, METH_VARARGS, "Accepts from a listening socket of one transport."},
    {"watch", (PyCFunction)acceptor_watch, METH_O, "Reports a descriptor as EVENT_READY while it is readable."},
    {"set_error", (PyCFunction)acceptor_set_error, METH_VARARGS, "The body of E for an outcome of an admission."},
    {"poll", (PyCFunction)acceptor_poll, METH_O,
     "Works until there are events for Python or the time (ms; negative: none) is over; returns the events."},
    {"end_all", (PyCFunction)acceptor_end_all, METH_VARARGS, "Ends every connection."},
    {"stop_accepting", (PyCFunction)acceptor_stop_accepting, METH_NOARGS, "New connections wait in the backlog."},
    {"stop_reading", (PyCFunction)acceptor_stop_reading, METH_NOARGS, "Reads no more; what was read is published."},
    {0},
};

static PyGetSetDef acceptor_getset[] = {
    {"settled", (getter)acceptor_settled, NULL, "Nothing that was read or owed to a shard waits here.", NULL},
    {"detached", (getter)acceptor_detached, NULL, "Number of sessions that wait for their clients.", NULL},
    {"connections", (getter)acceptor_connections, NULL, "Number of open connections.", NULL},
    {0},
};

static PyTypeObject AcceptorType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardpool._core.Acceptor",
    .tp_basicsize = sizeof(AcceptorObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "An acceptor's engine: sockets, frames, admissions, writes.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)acceptor_init,
    .tp_dealloc = (destructor)acceptor_dealloc,
    .tp_methods = acceptor_methods,
    .tp_getset = acceptor_getset,
};

/* tp_methods holds one table: the others are added as tp_methods would have been. */
static int add_methods(PyMethodDef *methods)
{
    for (PyMethodDef *method = methods; method->ml_name != NULL; method++) {
        PyObject *descriptor = PyDescr_NewMethod(&AcceptorType, method);
        int added = descriptor == NULL ? -1 : PyDict_SetItemString(AcceptorType.tp_dict, method->ml_name, descriptor);
        Py_XDECREF(descriptor);
        if (added < 0)
            return -1;
    }
    return 0;
}

int sp_add_acceptor(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"EVENT_OPENED", SP_EVENT_OPENED}, {"EVENT_BYTES", SP_EVENT_BYTES}, {"EVENT_HELLO", SP_EVENT_HELLO},
        {"EVENT_BOUND", SP_EVENT_BOUND}, {"EVENT_FRAME", SP_EVENT_FRAME}, {"EVENT_PLAIN", SP_EVENT_PLAIN},
        {"EVENT_ENDING", SP_EVENT_ENDING}, {"EVENT_CLOSED", SP_EVENT_CLOSED}, {"EVENT_READY", SP_EVENT_READY},
        {"EVENT_STARVED", SP_EVENT_STARVED}, {"EVENT_CORRUPT", SP_EVENT_CORRUPT}, {"EVENT_RECORD", SP_EVENT_RECORD},
        {"EVENT_DRAINED", SP_EVENT_DRAINED},
        {"TRANSPORT_TCP", SP_TRANSPORT_TCP}, {"TRANSPORT_WS", SP_TRANSPORT_WS}, {"TRANSPORT_TLS", SP_TRANSPORT_TLS},
        {"TRANSPORT_WSS", SP_TRANSPORT_WSS}, {"TRANSPORT_LOCAL", SP_TRANSPORT_LOCAL},
        {"FRAMING_TCP", SP_FRAMING_TCP}, {"FRAMING_WEBSOCKET", SP_FRAMING_WEBSOCKET}, {"FRAMING_RAW", SP_FRAMING_RAW},
        {"SLOW_WAIT", SP_SLOW_WAIT}, {"SLOW_DROP_OLDEST", SP_SLOW_DROP_OLDEST}, {"SLOW_CLOSE", SP_SLOW_CLOSE},
        {"RESUMED", SP_RESUMED}, {"RESUME_GONE", SP_RESUME_GONE}, {"RESUME_REFUSED", SP_RESUME_REFUSED},
        {"RESUME_TOO_OLD", SP_RESUME_TOO_OLD},
    };
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    if (PyType_Ready(&AcceptorType) < 0)
        return -1;
    if (add_methods(sp_acceptor_calls) < 0 || add_methods(sp_acceptor_resume_calls) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Acceptor", (PyObject *)&AcceptorType);
}
