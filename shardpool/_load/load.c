/* shardpool._load: the Python face of the load engine (connection.h, run.h). No logic of its own beyond checking arguments. */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE 1
#include <Python.h>

#include "broadcast.h"
#include "probe.h"
#include "run.h"

#include <sys/resource.h>

#define STEP_NS (SECOND_NS / 10)

typedef struct {
    PyObject_HEAD
    struct engine *engine;
    bool busy;
} LoadObject;

static int choice(const char *what, const char *value, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(value, names[i]) == 0)
            return i;
    PyErr_Format(PyExc_ValueError, "%s %s: use %s or %s%s%s", what, value, names[0], names[1], names[2] ? " or " : "", names[2] ? names[2] : "");
    return -1;
}

static bool load_payload(struct engine *engine, Py_buffer *payload, Py_ssize_t size)
{
    if (payload->buf != NULL) {
        if (engine->check != CHECK_NONE) {
            PyErr_SetString(PyExc_ValueError, "a payload of your own cannot be checked: use check='none', or size= instead of payload=");
            return false;
        }
        if (payload->len == 0 || payload->len > FRAME_BYTES_MAX / 2) {
            PyErr_Format(PyExc_ValueError, "payload of %zd bytes: use 1 to %d", payload->len, FRAME_BYTES_MAX / 2);
            return false;
        }
        return bytes_append(&engine->payload, payload->buf, (size_t)payload->len) || PyErr_NoMemory() != NULL;
    }
    if (size < (engine->check == CHECK_NONE ? 1 : 8) || size > FRAME_BYTES_MAX / 2) {
        PyErr_Format(PyExc_ValueError, "size %zd: use 8 to %d (from 1 with check='none')", size, FRAME_BYTES_MAX / 2);
        return false;
    }
    uint8_t *at = bytes_room(&engine->payload, (size_t)size);
    if (at == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < size; i++)
        at[i] = (uint8_t)(i * 31 + 7);
    engine->payload.length = (size_t)size;
    return true;
}

static bool load_engine(struct engine *engine, const char *host, int port, const char *path, Py_buffer *hello, Py_ssize_t connections)
{
    if (port < 1 || port > 65535 || strlen(host) >= sizeof engine->host || strlen(path) >= sizeof engine->path) {
        PyErr_SetString(PyExc_ValueError, "address: a host and a path of less than 256 characters, and a port from 1 to 65535");
        return false;
    }
    if (connections < 1 || connections > 1000000) {
        PyErr_Format(PyExc_ValueError, "connections %zd: use 1 to 1000000", connections);
        return false;
    }
    strcpy(engine->host, host);
    strcpy(engine->path, path);
    snprintf(engine->service, sizeof engine->service, "%d", port);
    engine->count = (uint32_t)connections;
    engine->plan.senders = engine->count;
    engine->random = (uint32_t)now_ns() | 1u;
    engine->connections = calloc((size_t)connections, sizeof *engine->connections);
    engine->dirty = calloc((size_t)connections, sizeof *engine->dirty);
    if (engine->connections == NULL || engine->dirty == NULL || (hello->len != 0 && !bytes_append(&engine->hello, hello->buf, (size_t)hello->len))) {
        PyErr_NoMemory();
        return false;
    }
    engine->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    return true;
}

static PyObject *load_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"host", "port", "connections", "transport", "framing", "path", "hello", "check", "size", "payload", NULL};
    static const char *const transports[] = {"tcp", "ws", NULL}, *const framings[] = {"bare", "session", NULL},
                             *const checks[] = {"none", "echo", "counter", NULL};
    const char *host, *transport = "tcp", *framing = "session", *path = "/", *check = "counter";
    int port;
    Py_ssize_t connections = 1, size = 64;
    Py_buffer hello = {0}, payload = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "si|$nsssy*snz*:Load", names, &host, &port, &connections, &transport, &framing, &path, &hello,
                                     &check, &size, &payload))
        return NULL;
    LoadObject *self = NULL;
    int chosen_transport = choice("transport", transport, transports);
    int chosen_framing = chosen_transport < 0 ? -1 : choice("framing", framing, framings);
    int chosen_check = chosen_framing < 0 ? -1 : choice("check", check, checks);
    if (chosen_check >= 0 && (self = (LoadObject *)type->tp_alloc(type, 0)) != NULL) {
        self->engine = calloc(1, sizeof *self->engine);
        if (self->engine == NULL) {
            PyErr_NoMemory();
        } else {
            self->engine->epoll = -1;
            self->engine->websocket = chosen_transport == 1;
            self->engine->framing = (enum framing)chosen_framing;
            self->engine->check = (enum check)chosen_check;
        }
        if (self->engine == NULL || !load_engine(self->engine, host, port, path, &hello, connections) ||
            !load_payload(self->engine, &payload, size))
            Py_CLEAR(self);
    }
    if (hello.buf != NULL)
        PyBuffer_Release(&hello);
    if (payload.buf != NULL)
        PyBuffer_Release(&payload);
    return (PyObject *)self;
}

static void load_dealloc(LoadObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->engine != NULL)
        engine_free(self->engine);
    free(self->engine);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool load_enter(LoadObject *self)
{
    if (self->busy || self->engine->epoll < 0) {
        PyErr_SetString(PyExc_RuntimeError, self->busy ? "this load is running" : "this load is closed");
        return false;
    }
    self->busy = true;
    return true;
}

static PyObject *load_connect(LoadObject *self, PyObject *args)
{
    double timeout = 10.0;
    if (!PyArg_ParseTuple(args, "|d:connect", &timeout) || !load_enter(self))
        return NULL;
    struct engine *engine = self->engine;
    uint64_t end = now_ns() + (uint64_t)(timeout * 1e9);
    bool done = false, interrupted = false;
    engine->error[0] = '\0';
    while (!done && !interrupted && now_ns() < end) {
        Py_BEGIN_ALLOW_THREADS
        done = (engine->address_length == 0 && !resolve(engine)) || open_step(engine, now_ns() + STEP_NS);
        Py_END_ALLOW_THREADS
        interrupted = PyErr_CheckSignals() != 0;
    }
    self->busy = false;
    if (interrupted)
        return NULL;
    if (engine->failed_memory)
        return PyErr_NoMemory();
    if (engine->ready == engine->count)
        Py_RETURN_NONE;
    PyErr_Format(done ? PyExc_ConnectionError : PyExc_TimeoutError, "%u of %u connections to %s:%s are not ready: %s",
                 engine->count - engine->ready, engine->count, engine->host, engine->service,
                 engine->error[0] != '\0' ? engine->error : engine->framing == FRAMING_SESSION ? "no welcome came in time" : "no answer in time");
    return NULL;
}

static PyObject *latency_dict(const struct histogram *histogram)
{
    double mean = histogram->count ? (double)histogram->sum / (double)histogram->count : 0.0;
    return Py_BuildValue("{s:K,s:d,s:d,s:d,s:d,s:d,s:d}", "count", (unsigned long long)histogram->count, "mean", mean / 1e3, "p50",
                         (double)histogram_quantile(histogram, 0.50) / 1e3, "p90", (double)histogram_quantile(histogram, 0.90) / 1e3, "p99",
                         (double)histogram_quantile(histogram, 0.99) / 1e3, "p99.9", (double)histogram_quantile(histogram, 0.999) / 1e3, "max",
                         (double)histogram->max / 1e3);
}

static PyObject *histogram_list(const struct histogram *histogram)
{
    PyObject *list = PyList_New(0);
    for (unsigned index = 0; list != NULL && index < HISTOGRAM_BUCKETS; index++) {
        if (histogram->buckets[index] == 0)
            continue;
        PyObject *pair = Py_BuildValue("(dK)", (double)histogram_floor(index) / 1e3, (unsigned long long)histogram->buckets[index]);
        if (pair == NULL || PyList_Append(list, pair) != 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static PyObject *run_result(struct engine *engine, const struct rusage *before, const struct rusage *after)
{
    struct tally *tally = &engine->tally;
    uint64_t last = tally->replies != 0 ? tally->reply_ns_last : tally->push_ns_last;
    uint64_t end = last > tally->end_ns || engine->plan.mode == MODE_WINDOW ? last : tally->end_ns;
    double seconds = end > tally->start_ns ? (double)(end - tally->start_ns) / 1e9 : 0.0;
    uint64_t messages = tally->replies != 0 ? tally->replies : tally->pushes;
    return Py_BuildValue("{s:K,s:K,s:K,s:d,s:d,s:N,s:N,s:N,s:N,s:K,s:K,s:s,s:I,s:K,s:K,s:d,s:d}", "messages", (unsigned long long)messages, "sent",
                         (unsigned long long)tally->sent, "pushes", (unsigned long long)tally->pushes, "seconds", seconds, "rate",
                         seconds > 0 ? (double)messages / seconds : 0.0, "latency_us", latency_dict(&tally->reply_ns), "push_latency_us",
                         latency_dict(&tally->push_ns), "histogram_us", histogram_list(&tally->reply_ns), "push_histogram_us",
                         histogram_list(&tally->push_ns), "errors", (unsigned long long)tally->errors, "unfinished",
                         (unsigned long long)tally->unfinished, "error", engine->error, "connections", engine->ready, "bytes_sent",
                         (unsigned long long)tally->bytes_sent, "bytes_received", (unsigned long long)tally->bytes_received, "cpu_user",
                         seconds_of(after->ru_utime) - seconds_of(before->ru_utime), "cpu_system",
                         seconds_of(after->ru_stime) - seconds_of(before->ru_stime));
}

static bool call_progress(struct engine *engine, PyObject *progress, uint64_t now)
{
    const struct tally *tally = &engine->tally;
    PyObject *answer = PyObject_CallFunction(progress, "dKK", (double)(now - tally->start_ns) / 1e9,
                                             (unsigned long long)(tally->replies != 0 ? tally->replies : tally->pushes),
                                             (unsigned long long)tally->errors);
    Py_XDECREF(answer);
    return answer != NULL;
}

static bool plan_from(LoadObject *self, struct plan *plan, double seconds, double rate, Py_ssize_t outstanding, Py_ssize_t senders, int receive,
                      double grace)
{
    if (!(seconds > 0 && seconds <= 86400) || !(grace >= 0 && grace <= 3600) || !(rate >= 0 && rate <= 1e8)) {
        PyErr_SetString(PyExc_ValueError, "run: seconds above 0 up to 86400, grace 0 to 3600, rate 0 to 100000000");
        return false;
    }
    if (outstanding < 1 || outstanding > 65536 || senders < -1 || senders == 0 || senders > (Py_ssize_t)self->engine->count) {
        PyErr_Format(PyExc_ValueError, "run: outstanding %zd (1 to 65536), senders %zd (1 to the %u connections)", outstanding, senders,
                     self->engine->count);
        return false;
    }
    *plan = (struct plan){
        .mode = receive ? MODE_RECEIVE : rate > 0 ? MODE_RATE : MODE_WINDOW,
        .duration_ns = (uint64_t)(seconds * 1e9),
        .grace_ns = (uint64_t)(grace * 1e9),
        .interval_ns = rate > 0 ? 1e9 / rate : 0.0,
        .outstanding = (uint32_t)outstanding,
        .senders = receive ? 0 : senders < 0 ? self->engine->count : (uint32_t)senders,
    };
    return true;
}

static PyObject *load_run(LoadObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"seconds", "outstanding", "rate", "senders", "receive", "grace", "progress", NULL};
    double seconds, rate = 0.0, grace = 2.0;
    Py_ssize_t outstanding = 1, senders = -1;
    int receive = 0;
    PyObject *progress = Py_None;
    struct plan plan;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d|$ndnpdO:run", names, &seconds, &outstanding, &rate, &senders, &receive, &grace, &progress) ||
        !plan_from(self, &plan, seconds, rate, outstanding, senders, receive, grace) || !load_enter(self))
        return NULL;
    struct engine *engine = self->engine;
    if (engine->ready == 0) {
        self->busy = false;
        PyErr_Format(PyExc_ConnectionError, "no connection to %s:%s is open%s%s", engine->host, engine->service,
                     engine->error[0] != '\0' ? ": " : "; call connect() first", engine->error);
        return NULL;
    }
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    bool done = false, started = true, failed = false;
    uint64_t reported = now_ns();
    Py_BEGIN_ALLOW_THREADS
    started = run_begin(engine, &plan);
    Py_END_ALLOW_THREADS
    while (started && !done && !failed) {
        Py_BEGIN_ALLOW_THREADS
        done = run_step(engine, now_ns() + STEP_NS);
        Py_END_ALLOW_THREADS
        failed = PyErr_CheckSignals() != 0;
        uint64_t now = now_ns();
        if (!failed && !done && progress != Py_None && now - reported >= SECOND_NS) {
            reported = now;
            failed = !call_progress(engine, progress, now);
        }
    }
    run_end(engine);
    getrusage(RUSAGE_THREAD, &after);
    self->busy = false;
    if (failed)
        return NULL;
    if (!started || engine->failed_memory)
        return PyErr_NoMemory();
    return run_result(engine, &before, &after);
}

static PyObject *load_close(LoadObject *self, PyObject *Py_UNUSED(ignored))
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this load is running");
        return NULL;
    }
    engine_free(self->engine);
    Py_RETURN_NONE;
}

static PyObject *load_welcome(LoadObject *self, void *Py_UNUSED(closure))
{
    return PyBytes_FromStringAndSize((const char *)self->engine->welcome.data, (Py_ssize_t)self->engine->welcome.length);
}

static PyObject *module_ping_pong(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    double round_trip;
    Py_BEGIN_ALLOW_THREADS
    round_trip = probe_round_trip();
    Py_END_ALLOW_THREADS
    return PyFloat_FromDouble(round_trip);
}

static PyMethodDef load_methods[] = {
    {"connect", (PyCFunction)load_connect, METH_VARARGS, "Open all connections, with hello and welcome where the framing has them."},
    {"run", (PyCFunction)(void (*)(void))load_run, METH_VARARGS | METH_KEYWORDS, "Drive the server for some seconds and return what was measured."},
    {"close", (PyCFunction)load_close, METH_NOARGS, "Say goodbye and close all connections."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef load_attributes[] = {
    {"welcome", (getter)load_welcome, NULL, "JSON of the first welcome; empty in bare framing.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot load_slots[] = {
    {Py_tp_new, (void *)load_new},         {Py_tp_dealloc, (void *)load_dealloc}, {Py_tp_methods, load_methods},
    {Py_tp_getset, load_attributes},       {Py_tp_doc, (void *)"Many client connections to one server, driven from C."},
    {0, NULL},
};
static PyType_Spec load_spec = {.name = "shardpool._load.Load", .basicsize = sizeof(LoadObject), .flags = Py_TPFLAGS_DEFAULT, .slots = load_slots};

static PyObject *module_broadcast(PyObject *Py_UNUSED(module), PyObject *argument)
{
    int listener = PyObject_AsFileDescriptor(argument), status = 0;
    struct broadcast *broadcast = listener < 0 ? NULL : calloc(1, sizeof *broadcast);
    if (broadcast == NULL)
        return listener < 0 ? NULL : PyErr_NoMemory();
    if (broadcast_begin(broadcast, listener) == 0) {
        while (status == 0 && PyErr_CheckSignals() == 0) {
            Py_BEGIN_ALLOW_THREADS
            status = broadcast_turn(broadcast);
            Py_END_ALLOW_THREADS
        }
    }
    close(broadcast->epoll);
    free(broadcast);
    return PyErr_Occurred() ? NULL : PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef module_methods[] = {
    {"broadcast", module_broadcast, METH_O, "Serve a listening socket: each frame read goes to every connection. Ends by signal."},
    {"ping_pong", module_ping_pong, METH_NOARGS, "Median nanoseconds of a round trip between two CPUs; 0.0 with one CPU."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &load_spec, NULL);
    if (type == NULL)
        return -1;
    int status = PyModule_AddObjectRef(module, "Load", type);
    Py_DECREF(type);
    return status;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};
static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "shardpool._load", .m_doc = "Load generator for framed TCP and WebSocket servers.",
    .m_methods = module_methods, .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__load(void)
{
    return PyModuleDef_Init(&module);
}
