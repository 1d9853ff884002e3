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
    {"socket_of", (PyCFunction)acceptor_socket_of, METH_O,
     "What another acceptor needs of a connection that said hello: (fd, transport, framing, in, out), or None: it cannot move."},
    {"let_go", (PyCFunction)acceptor_let_go, METH_O, "Forgets a connection that another acceptor has by now."},
    {"take_socket", (PyCFunction)acceptor_take_socket, METH_VARARGS,
     "A connection of another acceptor, its hello said; its address here, 0: no room, the descriptor is not taken."},
    {"take_over", (PyCFunction)acceptor_take_over, METH_O,
     "Before the first connection: adopts the sessions that a dead predecessor kept and ends the others (slots of that "
     "kind); how many of each."},
    {0},
};
