/* What Python says about one client: calls into the engine, most of them answers to its events. A client that has gone
 * meanwhile is no error: the call does nothing. */
#define _GNU_SOURCE
#include "acceptor_object.h"

static PyObject *acceptor_attach(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned long long client, session;
    unsigned int shard;
    Py_buffer hello;
    if (!PyArg_ParseTuple(args, "KKIy*", &client, &session, &shard, &hello))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (shard >= e->node->geometry.shards) {
        PyBuffer_Release(&hello);
        return PyErr_Format(PyExc_ValueError, "shard %u of %u", shard, e->node->geometry.shards);
    }
    if (c != NULL && c->stage < SP_STAGE_BOUND) {
        c->session = session;
        c->stage = SP_STAGE_ATTACHING;
        if (c->envelope)
            c->kept = sp_retained_begin(&e->retained, c->index, session, client);
        struct sp_pending attach = {
            .client = client, .target = sp_address(shard, 1, 0), .kind = SP_KIND_ATTACH, .a = session, .b = client,
            .payload = hello.buf, .length = (uint32_t)hello.len,
        };
        if (sp_post(e, attach) == SP_POST_POINTLESS)
            sp_engine_end_text(e, c, SP_CLOSE_UNAVAILABLE, "the session's shard is out of service");
        sp_engine_arm(e, c);
    }
    PyBuffer_Release(&hello);
    Py_RETURN_NONE;
}

static void bind_client(struct sp_engine *e, struct sp_connection *c, const uint8_t *welcome, uint32_t length)
{
    if (c->envelope) {
        uint8_t head[10];
        unsigned size = sp_output_header(head, (enum sp_framing)c->framing, false, length);
        uint8_t *place = sp_unsent_insert(&c->out, &e->spare, (enum sp_framing)c->framing, size + length);
        if (place == NULL) {
            sp_engine_end_text(e, c, SP_CLOSE_INTERNAL, "the server is out of memory");
            return;
        }
        memcpy(place, head, size);
        memcpy(place + size, welcome, length);
    }
    c->stage = SP_STAGE_BOUND;
    c->since_ms = c->received_ms = c->sent_ms = e->now_ms;
    sp_engine_dirty(e, c);
    sp_input_resume(e, c);
}

static PyObject *acceptor_welcome(AcceptorObject *self, PyObject *args)
{
    unsigned long long client;
    Py_buffer frame, digest = {.buf = NULL};
    if (!PyArg_ParseTuple(args, "Ky*|y*", &client, &frame, &digest))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->stage == SP_STAGE_ATTACHING && c->actor != 0) {
        if (c->kept != NULL && digest.len == SP_DIGEST_BYTES)
            sp_retained_hold(c->kept, digest.buf);
        bind_client(self->engine, c, frame.buf, (uint32_t)frame.len);
    }
    PyBuffer_Release(&frame);
    if (digest.obj != NULL)
        PyBuffer_Release(&digest);
    Py_RETURN_NONE;
}

static PyObject *acceptor_bind_local(AcceptorObject *self, PyObject *args)
{
    unsigned long long client, address;
    Py_buffer frame;
    if (!PyArg_ParseTuple(args, "KKy*", &client, &address, &frame))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->local && c->stage == SP_STAGE_ATTACHING) {
        c->actor = address;
        bind_client(self->engine, c, frame.buf, (uint32_t)frame.len);
    }
    PyBuffer_Release(&frame);
    Py_RETURN_NONE;
}

static PyObject *acceptor_established(AcceptorObject *self, PyObject *args)
{
    unsigned long long client;
    int websocket, compressed;
    if (!PyArg_ParseTuple(args, "Kpp", &client, &websocket, &compressed))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->stage == SP_STAGE_HANDSHAKE) {
        c->framing = websocket ? SP_FRAMING_WEBSOCKET : SP_FRAMING_TCP;
        c->compressed = compressed != 0;
        c->stage = c->envelope ? SP_STAGE_HELLO : SP_STAGE_ATTACHING;
        c->since_ms = self->engine->now_ms;
    }
    Py_RETURN_NONE;
}

static PyObject *acceptor_feed(AcceptorObject *self, PyObject *args)
{
    unsigned long long client;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "Ky*", &client, &bytes))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL)
        sp_input_feed(self->engine, c, bytes.buf, (uint32_t)bytes.len);
    PyBuffer_Release(&bytes);
    Py_RETURN_NONE;
}

static PyObject *acceptor_proceed(AcceptorObject *self, PyObject *args)
{
    unsigned long long client;
    int fragmented, text = 0;
    Py_buffer message = {.buf = NULL};
    if (!PyArg_ParseTuple(args, "Kp|z*p", &client, &fragmented, &message, &text))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->python_turn && c->stage < SP_STAGE_ENDING) {
        c->python_turn = false;
        c->fragmented = fragmented != 0;
        if (message.buf != NULL && !sp_input_put_back(self->engine, c, text != 0, message.buf, (uint32_t)message.len))
            sp_engine_end_text(self->engine, c, SP_CLOSE_INTERNAL, "the server is out of memory");
        else
            sp_input_resume(self->engine, c);
    }
    if (message.buf != NULL)
        PyBuffer_Release(&message);
    Py_RETURN_NONE;
}

static PyObject *acceptor_write(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned long long client;
    Py_buffer bytes;
    int more = 0;
    if (!PyArg_ParseTuple(args, "Ky*|p", &client, &bytes, &more))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->stage < SP_STAGE_ENDING) {
        if (sp_unsent_size(&c->out) == 0)
            c->sent_ms = e->now_ms;
        if (c->stage == SP_STAGE_RELAY)
            c->tell_drained = true; /* whether it is read meanwhile, hold() says */
        else
            c->tell_drained = c->answering = more != 0;
        /* a WebSocket control frame may stand between the app's frames; before that stage there are no frames */
        bool well = c->framing == SP_FRAMING_WEBSOCKET && c->stage == SP_STAGE_BOUND
            ? sp_output_raw(e, c, bytes.buf, (uint32_t)bytes.len)
            : sp_unsent_append(&c->out, &e->spare, (enum sp_framing)c->framing, bytes.buf, (uint32_t)bytes.len);
        if (!well)
            sp_engine_end_text(e, c, SP_CLOSE_INTERNAL, "the server is out of memory");
        sp_engine_dirty(e, c);
    }
    PyBuffer_Release(&bytes);
    Py_RETURN_NONE;
}

static PyObject *acceptor_cipher(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned long long client;
    Py_buffer bytes;
    int answers = 0;
    if (!PyArg_ParseTuple(args, "Ky*|p", &client, &bytes, &answers))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->tls) {
        if (answers)
            c->plain_given = false;
        if (c->cipher == NULL)
            c->cipher = calloc(1, sizeof *c->cipher);
        /* without these bytes the rest of its TLS makes no sense: it ends, and no other connection */
        if (c->cipher == NULL || !sp_unsent_append(c->cipher, &e->spare, SP_FRAMING_RAW, bytes.buf, (uint32_t)bytes.len))
            sp_engine_drop(e, c, SP_CLOSE_INTERNAL);
        else
            sp_engine_dirty(e, c);
    }
    PyBuffer_Release(&bytes);
    Py_RETURN_NONE;
}

static PyObject *acceptor_end(AcceptorObject *self, PyObject *args)
{
    unsigned long long client;
    unsigned int code;
    int lost = 0;
    Py_buffer reason;
    if (!PyArg_ParseTuple(args, "KIy*|p", &client, &code, &reason, &lost))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL)
        sp_engine_end_as(self->engine, c, code, reason.buf, (uint32_t)reason.len, SP_FOREIGN_NO,
                         sp_engine_keeps(c, lost ? SP_CLOSE_LOST : code));
    PyBuffer_Release(&reason);
    Py_RETURN_NONE;
}

static PyObject *acceptor_finish(AcceptorObject *self, PyObject *args)
{
    struct sp_engine *e = self->engine;
    unsigned long long client;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "Ky*", &client, &bytes))
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL && c->stage != SP_STAGE_FLUSHED) {
        if (c->stage != SP_STAGE_ENDING) {
            sp_engine_detach(e, c, SP_CLOSE_NORMAL);
            c->stage = SP_STAGE_ENDING;
            c->since_ms = e->now_ms;
            sp_engine_free_input(e, c);
        }
        if (bytes.len > 0)
            sp_unsent_append(&c->out, &e->spare, (enum sp_framing)c->framing, bytes.buf, (uint32_t)bytes.len);
        c->finished = true;
        sp_engine_dirty(e, c);
    }
    PyBuffer_Release(&bytes);
    Py_RETURN_NONE;
}

static PyObject *acceptor_drop(AcceptorObject *self, PyObject *arg)
{
    unsigned long long client = PyLong_AsUnsignedLongLong(arg);
    if (client == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    struct sp_connection *c = sp_acceptor_live(self, client);
    if (c != NULL)
        sp_engine_drop(self->engine, c, SP_CLOSE_LOST);
    Py_RETURN_NONE;
}

PyMethodDef sp_acceptor_calls[] = {
    {"attach", (PyCFunction)acceptor_attach, METH_VARARGS, "Announces a session to its home shard."},
    {"welcome", (PyCFunction)acceptor_welcome, METH_VARARGS, "Answers EVENT_BOUND: the W frame, then what waited."},
    {"bind_local", (PyCFunction)acceptor_bind_local, METH_VARARGS, "Binds a trusted program to a system object."},
    {"established", (PyCFunction)acceptor_established, METH_VARARGS, "The handshake is over: frames from here on."},
    {"feed", (PyCFunction)acceptor_feed, METH_VARARGS, "Input that did not come off the socket: decrypted, or left over."},
    {"proceed", (PyCFunction)acceptor_proceed, METH_VARARGS, "Answers EVENT_FRAME, with the message it completed."},
    {"write", (PyCFunction)acceptor_write, METH_VARARGS, "Writes bytes as they are; with more: EVENT_DRAINED follows."},
    {"cipher", (PyCFunction)acceptor_cipher, METH_VARARGS, "Encrypted bytes; the answer to EVENT_PLAIN if so said."},
    {"end", (PyCFunction)acceptor_end, METH_VARARGS, "Ends a connection; EVENT_ENDING follows."},
    {"finish", (PyCFunction)acceptor_finish, METH_VARARGS, "The last bytes; then the connection is closed."},
    {"drop", (PyCFunction)acceptor_drop, METH_O, "Closes at once."},
    {0},
};
