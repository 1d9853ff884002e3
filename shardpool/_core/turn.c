/* One turn: a record becomes a call of user code, its result a reply. The message path of the shard.
 *
 * No asyncio object, lock, clock call or log per message: an async handler is stepped once under a stand-in task and
 * becomes a real task (hooks.adopt) only if it suspends.
 */
#include "shard.h"

struct handler {
    PyObject *function;
    long flags;
};

/* The message of a record as a new reference; NULL with an exception: it does not decode. */
static PyObject *record_message(const TableObject *table, struct sp_cell *cell)
{
    PyObject *payload = PyBytes_FromStringAndSize((const char *)sp_cell_payload(cell), (Py_ssize_t)cell->length);
    PyObject *decode = cell->kind == SP_KIND_FRAME ? table->decode : table->call_decode;
    if (payload == NULL || decode == NULL)
        return payload;
    PyObject *message = PyObject_CallOneArg(decode, payload);
    Py_DECREF(payload);
    return message;
}

static bool find_handler(const TableObject *table, PyObject *message, struct handler *found)
{
    if (PyBytes_CheckExact(message) && table->raw_handler != NULL) {
        *found = (struct handler){table->raw_handler, table->raw_flags};
        return true;
    }
    PyObject *entry = PyDict_GetItemWithError(table->handlers, (PyObject *)Py_TYPE(message));
    if (entry == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_LookupError, "no handler takes %.200s", Py_TYPE(message)->tp_name);
        return false;
    }
    *found = (struct handler){PyTuple_GET_ITEM(entry, 0), PyLong_AsLong(PyTuple_GET_ITEM(entry, 1))};
    return true;
}

static PyObject *call_handler(const struct handler *handler, PyObject *target, PyObject *message)
{
    PyObject *args[3] = {NULL, target, message};
    size_t count = (handler->flags & SP_HANDLER_NO_ARGUMENT) != 0 ? 1 : 2;
    return PyObject_Vectorcall(handler->function, args + 1, count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static PyObject *call_lifecycle(const TableObject *table, PyObject *target, struct sp_cell *cell)
{
    return PyObject_CallFunction(table->lifecycle, "OiKKy#", target, (int)cell->kind, (unsigned long long)cell->a,
                                 (unsigned long long)cell->b, (const char *)sp_cell_payload(cell),
                                 (Py_ssize_t)cell->length);
}

/* Answers a finished record; false with an exception set if the reply cannot be encoded. */
bool sp_shard_answer(ShardObject *self, uint32_t slot, struct sp_cell *cell, PyObject *result)
{
    TableObject *table = self->tenants[slot].table;
    bool call = cell->kind == SP_KIND_CALL;
    if (call ? cell->a == 0 : cell->kind != SP_KIND_FRAME)
        return true;
    if (!call && (cell->flags & SP_FLAG_ASK) == 0 && ((cell->flags & SP_FLAG_BARE) == 0 || result == Py_None))
        return true;
    PyObject *encode = call ? table->call_encode : table->encode;
    PyObject *body = encode == NULL ? Py_NewRef(result) : PyObject_CallOneArg(encode, result);
    if (body == NULL)
        return false;
    if (!PyBytes_Check(body)) {
        PyErr_Format(PyExc_TypeError, "a raw handler must return bytes, not %.200s", Py_TYPE(body)->tp_name);
        Py_DECREF(body);
        return false;
    }
    const char *bytes = PyBytes_AS_STRING(body);
    size_t length = (size_t)PyBytes_GET_SIZE(body);
    if (call)
        sp_shard_write(self, (uint32_t)cell->b, SP_STREAM_INFRA, SP_KIND_CALL_REPLY, 0, 0, cell->a, 0, bytes, length);
    else
        sp_shard_write(self, 1 + sp_address_number(cell->a), SP_STREAM_DATA, SP_KIND_REPLY,
                       (uint16_t)(cell->flags & (SP_FLAG_BARE | SP_FLAG_TEXT)), cell->a, cell->a, cell->b, bytes, length);
    Py_DECREF(body);
    return true;
}

/* The exception that is set: told to the hook, which logs it and words the error for whoever asked. A client hears
 * of it even if it did not ask: its E then has id 0. */
void sp_shard_failed(ShardObject *self, uint32_t slot, struct sp_cell *cell)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    self->failed++;
    PyObject *body = PyObject_CallFunction(self->hooks.failed, "KiOy#", sp_executor_address(&self->ex, slot), (int)cell->kind,
                                           value, (const char *)sp_cell_payload(cell), (Py_ssize_t)cell->length);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    if (body == NULL) {
        PyErr_WriteUnraisable(self->hooks.failed); /* T-27: a failing logger changes nothing */
        body = PyBytes_FromString("");
    }
    const char *bytes = body != NULL && PyBytes_Check(body) ? PyBytes_AS_STRING(body) : "";
    size_t length = body != NULL && PyBytes_Check(body) ? (size_t)PyBytes_GET_SIZE(body) : 0;
    if (cell->kind == SP_KIND_CALL && cell->a != 0)
        sp_shard_write(self, (uint32_t)cell->b, SP_STREAM_INFRA, SP_KIND_CALL_REPLY, 0, 0, cell->a, 1, bytes, length);
    else if (cell->kind == SP_KIND_FRAME && (cell->flags & SP_FLAG_BARE) == 0)
        sp_shard_write(self, 1 + sp_address_number(cell->a), SP_STREAM_DATA, SP_KIND_ERROR, 0, cell->a, cell->a,
                       (cell->flags & SP_FLAG_ASK) != 0 ? cell->b : 0, bytes, length);
    Py_XDECREF(body);
}

static void call_task_hook(ShardObject *self, PyObject *hook, PyObject *stub)
{
    PyObject *args[2] = {self->hooks.loop, stub};
    PyObject *result = PyObject_Vectorcall(hook, args, 2, NULL);
    if (result == NULL)
        PyErr_WriteUnraisable(hook);
    Py_XDECREF(result);
}

/* The first step of a coroutine under a stand-in task; its outcome as PyIter_Send's. */
static PySendResult first_step(ShardObject *self, PyObject *coroutine, PyObject **stub, PyObject **result)
{
    *result = NULL;
    *stub = NULL;
    if (self->hooks.enter_task == NULL) {
        *result = Py_NewRef(Py_None);
        *stub = Py_NewRef(Py_None);
        return PYGEN_NEXT;
    }
    *stub = PyObject_CallNoArgs(self->hooks.stub);
    if (*stub == NULL)
        return PYGEN_ERROR;
    call_task_hook(self, self->hooks.enter_task, *stub);
    PySendResult sent = PyIter_Send(coroutine, Py_None, result);
    if (sent == PYGEN_ERROR) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        call_task_hook(self, self->hooks.leave_task, *stub);
        PyErr_Restore(type, value, traceback);
    } else {
        call_task_hook(self, self->hooks.leave_task, *stub);
    }
    return sent;
}

/* Steps a coroutine: its result, or NULL; *suspended then tells a suspension from an exception. */
static PyObject *step_coroutine(ShardObject *self, uint32_t slot, PyObject *coroutine, bool *suspended)
{
    PyObject *stub, *result;
    PySendResult sent = first_step(self, coroutine, &stub, &result);
    PyObject *value = NULL;
    if (sent == PYGEN_RETURN) {
        value = result;
    } else if (sent == PYGEN_NEXT) {
        PyObject *context = self->tenants[slot].context;
        PyObject *adopted = PyObject_CallFunction(self->hooks.adopt, "KKOOOO", sp_executor_address(&self->ex, slot),
                                                  (unsigned long long)self->turn, coroutine, result, stub, context);
        *suspended = adopted != NULL;
        Py_XDECREF(adopted);
        Py_XDECREF(result);
    }
    Py_XDECREF(stub);
    Py_DECREF(coroutine);
    return value;
}

/* Runs the handler in the object's context: the result, or NULL with *suspended or an exception set. */
static PyObject *run_handler(ShardObject *self, uint32_t slot, struct sp_cell *cell, bool *suspended)
{
    struct sp_tenant *tenant = &self->tenants[slot];
    PyObject *result;
    bool coroutine;
    if (cell->kind == SP_KIND_FRAME || cell->kind == SP_KIND_CALL) {
        struct handler handler;
        PyObject *message = record_message(tenant->table, cell);
        if (message == NULL || !find_handler(tenant->table, message, &handler)) {
            Py_XDECREF(message);
            return NULL;
        }
        result = call_handler(&handler, tenant->target, message);
        Py_DECREF(message);
        coroutine = (handler.flags & SP_HANDLER_ASYNC) != 0;
    } else {
        result = call_lifecycle(tenant->table, tenant->target, cell);
        coroutine = result != NULL && PyCoro_CheckExact(result);
    }
    if (result != NULL && coroutine && PyCoro_CheckExact(result))
        result = step_coroutine(self, slot, result, suspended);
    return result;
}

enum sp_turn sp_shard_turn(void *context, uint32_t slot, struct sp_cell *cell)
{
    ShardObject *self = context;
    struct sp_tenant *tenant = &self->tenants[slot];
    if (tenant->table == NULL) {
        sp_count(self->ex.node, SP_COUNT_DROPPED, 1);
        return SP_TURN_FAILED;
    }
    PyObject *target = Py_NewRef(tenant->target); /* the turn may release its own object */
    self->current = sp_executor_address(&self->ex, slot);
    self->turn = self->ex.slots[slot].turn;
    self->turns++;
    if (cell->kind == SP_KIND_FRAME) {
        self->messages_in++;
        self->bytes_in += cell->length;
    }
    bool suspended = false;
    PyContext_Enter(tenant->context);
    PyObject *result = run_handler(self, slot, cell, &suspended);
    PyContext_Exit(self->tenants[slot].context);
    bool failed = !suspended && (result == NULL || !sp_shard_answer(self, slot, cell, result));
    if (failed)
        sp_shard_failed(self, slot, cell);
    Py_XDECREF(result);
    Py_DECREF(target);
    self->current = 0;
    return suspended ? SP_TURN_SUSPENDED : failed ? SP_TURN_FAILED : SP_TURN_DONE;
}
