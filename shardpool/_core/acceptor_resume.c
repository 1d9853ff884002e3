/* What Python says about sessions that outlive their socket, and sockets that change their acceptor. */
#define _GNU_SOURCE
#include "acceptor_object.h"

static PyObject *acceptor_resume(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned long long client, session;
    unsigned int received;
    Py_buffer digest, fresh, frame;
    if (!PyArg_ParseTuple(args, "KKIy*y*y*", &client, &session, &received, &digest, &fresh, &frame))
        return NULL;
    PyObject *result = NULL;
    uint64_t address = 0;
    if (digest.len != SP_DIGEST_BYTES || fresh.len != SP_DIGEST_BYTES) {
        PyErr_Format(PyExc_ValueError, "a digest has %u bytes", SP_DIGEST_BYTES);
    } else {
        struct sp_connection *c = sp_acceptor_live(self, client);
        struct sp_resume resume = {.session = session, .received = received, .digest = digest.buf, .fresh = fresh.buf,
                                   .welcome = frame.buf, .length = (uint32_t)frame.len};
        enum sp_resumed resumed = SP_RESUME_GONE;
        if (c != NULL && c->stage == SP_STAGE_ATTACHING && c->session == 0)
            resumed = sp_engine_resume(e, c, &resume, &address);
        result = Py_BuildValue("IK", (unsigned)resumed, (unsigned long long)address);
    }
    PyBuffer_Release(&digest);
    PyBuffer_Release(&fresh);
    PyBuffer_Release(&frame);
    return result;
}

static PyObject *acceptor_taken(AcceptorObject *self, PyObject *arg)
{
    unsigned long long session = PyLong_AsUnsignedLongLong(arg);
    if (session == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    const struct sp_kept_session *entry = sp_retained_find(&self->engine->retained, session);
    return PyLong_FromUnsignedLongLong(entry == NULL ? 0 : entry->taken);
}

/* Another acceptor goes on with a socket of which only bytes are known: none that is encrypted or compressed here. */
static bool can_move(const struct sp_connection *c)
{
    return c != NULL && c->stage == SP_STAGE_ATTACHING && c->envelope && !c->tls && !c->compressed && !c->fragmented
        && !c->python_turn && c->session == 0;
}

static PyObject *acceptor_socket_of(AcceptorObject *self, PyObject *arg)
{
    unsigned long long client = PyLong_AsUnsignedLongLong(arg);
    if (client == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (!can_move(c))
        Py_RETURN_NONE;
    const char *in = c->in.bytes == NULL ? "" : (const char *)c->in.bytes + c->in.start;
    const char *out = c->out.bytes == NULL ? "" : (const char *)c->out.bytes + c->out.start;
    return Py_BuildValue("iIIy#y#", c->fd, (unsigned)c->transport, (unsigned)c->framing, in,
                         (Py_ssize_t)sp_inbound_size(&c->in), out, (Py_ssize_t)sp_unsent_size(&c->out));
}

static PyObject *acceptor_let_go(AcceptorObject *self, PyObject *arg)
{
    unsigned long long client = PyLong_AsUnsignedLongLong(arg);
    if (client == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (can_move(c)) {
        /* closing alone would leave it to this epoll: the socket lives on elsewhere */
        epoll_ctl(self->engine->epoll, EPOLL_CTL_DEL, c->fd, NULL);
        sp_engine_drop(self->engine, c, SP_CLOSE_LOST);
    }
    Py_RETURN_NONE;
}

static PyObject *acceptor_take_socket(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    int fd;
    unsigned int transport, framing;
    Py_buffer in, out;
    if (!PyArg_ParseTuple(args, "iIIy*y*", &fd, &transport, &framing, &in, &out))
        return NULL;
    uint64_t client = 0;
    if (transport <= SP_TRANSPORT_WS && framing <= SP_FRAMING_RAW)
        client = sp_engine_take_socket(e, fd, (enum sp_transport)transport, (enum sp_framing)framing);
    struct sp_connection *c = sp_engine_find(e, client);
    if (c != NULL) {
        if (!sp_unsent_append(&c->out, &e->spare, (enum sp_framing)framing, out.buf, (uint32_t)out.len))
            sp_engine_end_text(e, c, SP_CLOSE_INTERNAL, "the server is out of memory");
        if (in.len > 0)
            sp_input_feed(e, c, in.buf, (uint32_t)in.len);
        sp_engine_dirty(e, c);
    }
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    return PyLong_FromUnsignedLongLong(client);
}

static PyObject *acceptor_relay(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned long long client;
    int fd;
    if (!PyArg_ParseTuple(args, "Ki", &client, &fd))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    bool can = c != NULL && c->stage == SP_STAGE_ATTACHING && c->envelope && c->tls && !c->compressed && !c->fragmented
        && !c->python_turn && c->session == 0;
    uint64_t end = can ? sp_engine_take_socket(e, fd, SP_TRANSPORT_WS, SP_FRAMING_RAW) : 0;
    if (end == 0)
        Py_RETURN_NONE;
    sp_engine_find(e, end)->stage = SP_STAGE_RELAY;
    PyObject *parts = Py_BuildValue("KIy#", (unsigned long long)end, (unsigned)c->framing,
                                    c->in.bytes == NULL ? "" : (const char *)c->in.bytes + c->in.start,
                                    (Py_ssize_t)sp_inbound_size(&c->in));
    sp_engine_free_input(e, c);
    c->stage = SP_STAGE_RELAY;
    sp_engine_dirty(e, c);
    sp_engine_arm(e, c);
    return parts;
}

static PyObject *acceptor_hold(AcceptorObject *self, PyObject *args)
{
    unsigned long long client;
    int on;
    if (!PyArg_ParseTuple(args, "Kp", &client, &on))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->stage == SP_STAGE_RELAY) {
        c->answering = on != 0;
        sp_engine_arm(self->engine, c);
    }
    Py_RETURN_NONE;
}

static PyObject *acceptor_unsent(AcceptorObject *self, PyObject *arg)
{
    unsigned long long client = PyLong_AsUnsignedLongLong(arg);
    if (client == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    const struct sp_connection *c = sp_acceptor_live(self, client);
    if (c == NULL)
        return Py_BuildValue("II", 0, 0);
    return Py_BuildValue("II", sp_unsent_size(&c->out) + (c->plain_given ? 1U : 0U),
                         c->cipher == NULL ? 0 : sp_unsent_size(c->cipher));
}

static PyObject *acceptor_take_over(AcceptorObject *self, PyObject *arg)
{
    unsigned long kind = PyLong_AsUnsignedLong(arg);
    if (kind == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    uint32_t adopted = 0;
    if (self->engine->retained.entries != NULL && !sp_engine_adopt(self->engine, &adopted))
        return PyErr_NoMemory();
    return Py_BuildValue("II", adopted, sp_engine_end_predecessors(self->engine, kind));
}

PyMethodDef sp_acceptor_resume_calls[] = {
    {"resume", (PyCFunction)acceptor_resume, METH_VARARGS,
     "Gives a session its client back: (outcome, client address from here on)."},
    {"taken", (PyCFunction)acceptor_taken, METH_O, "How many messages of a kept session's client were taken, from its first."},
    {"socket_of", (PyCFunction)acceptor_socket_of, METH_O,
     "What another acceptor needs of a connection that said hello: (fd, transport, framing, in, out), or None: it cannot move."},
    {"let_go", (PyCFunction)acceptor_let_go, METH_O, "Forgets a connection that another acceptor has by now."},
    {"take_socket", (PyCFunction)acceptor_take_socket, METH_VARARGS,
     "A connection of another acceptor, its hello said; its address here, 0: no room, the descriptor is not taken."},
    {"relay", (PyCFunction)acceptor_relay, METH_VARARGS,
     "A TLS connection that said hello passes bytes on from here, by way of Python; takes the descriptor of the near end: "
     "(address of the near end, framing, input so far), or None: not possible, the descriptor is not taken."},
    {"hold", (PyCFunction)acceptor_hold, METH_VARARGS, "Whether a relayed connection is not read for now."},
    {"unsent", (PyCFunction)acceptor_unsent, METH_O, "Bytes that wait for a connection: (not encrypted, with those given to Python at least 1; encrypted)."},
    {"take_over", (PyCFunction)acceptor_take_over, METH_O,
     "Before the first connection: adopts the sessions that a dead predecessor kept and ends the others (slots of that "
     "kind); how many of each."},
    {0},
};
