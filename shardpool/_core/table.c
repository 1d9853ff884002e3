/* Python's Table: how one class of objects decodes, dispatches and answers, compiled once per app and codec. */
#include "shard.h"

static int table_traverse(TableObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->decode);
    Py_VISIT(self->handlers);
    Py_VISIT(self->encode);
    Py_VISIT(self->call_decode);
    Py_VISIT(self->call_encode);
    Py_VISIT(self->lifecycle);
    return 0;
}

static int table_clear(TableObject *self)
{
    Py_CLEAR(self->decode);
    Py_CLEAR(self->handlers);
    Py_CLEAR(self->encode);
    Py_CLEAR(self->call_decode);
    Py_CLEAR(self->call_encode);
    Py_CLEAR(self->lifecycle);
    return 0;
}

static void table_dealloc(TableObject *self)
{
    PyObject_GC_UnTrack(self);
    table_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int table_check_handlers(PyObject *handlers)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(handlers, &at, &key, &value)) {
        if (PyType_Check(key) && PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 2
            && PyCallable_Check(PyTuple_GET_ITEM(value, 0)) && PyLong_Check(PyTuple_GET_ITEM(value, 1)))
            continue;
        PyErr_Format(PyExc_TypeError, "handlers[%R] must map a type to (function, flags), not %R", key, value);
        return -1;
    }
    return 0;
}

static int table_init(TableObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"decode", "handlers", "encode", "call_decode", "call_encode", "lifecycle", NULL};
    PyObject *decode, *handlers, *encode, *call_decode, *call_encode, *lifecycle;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!OOOO", names, &decode, &PyDict_Type, &handlers, &encode,
                                     &call_decode, &call_encode, &lifecycle)
        || table_check_handlers(handlers) < 0)
        return -1;
    table_clear(self);
    self->handlers = PyDict_Copy(handlers);
    if (self->handlers == NULL)
        return -1;
    self->decode = decode == Py_None ? NULL : Py_NewRef(decode);
    self->encode = encode == Py_None ? NULL : Py_NewRef(encode);
    self->call_decode = Py_NewRef(call_decode);
    self->call_encode = Py_NewRef(call_encode);
    self->lifecycle = Py_NewRef(lifecycle);
    PyObject *raw = PyDict_GetItemWithError(self->handlers, (PyObject *)&PyBytes_Type);
    if (raw == NULL && PyErr_Occurred())
        return -1;
    self->raw_handler = raw == NULL ? NULL : PyTuple_GET_ITEM(raw, 0);
    self->raw_flags = raw == NULL ? 0 : PyLong_AsLong(PyTuple_GET_ITEM(raw, 1));
    return 0;
}

PyTypeObject TableType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardpool._core.Table",
    .tp_basicsize = sizeof(TableObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Decoders, handlers and encoders of one class of objects.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)table_init,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_traverse = (traverseproc)table_traverse,
    .tp_clear = (inquiry)table_clear,
};

int sp_add_table(PyObject *module)
{
    if (PyType_Ready(&TableType) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Table", (PyObject *)&TableType);
}
