/* Python's Directory: the node's directory as one process sees it. No logic of its own. */
#include "sp_python.h"

#include "directory.h"

typedef struct {
    PyObject_HEAD
    NodeObject *owner;
} DirectoryObject;

static int directory_init(DirectoryObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", NULL};
    NodeObject *owner;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &NodeType, &owner))
        return -1;
    if (!owner->attached) {
        PyErr_SetString(PyExc_ValueError, "the node is not attached");
        return -1;
    }
    Py_XSETREF(self->owner, (NodeObject *)Py_NewRef(owner));
    return 0;
}

static void directory_dealloc(DirectoryObject *self)
{
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static bool take_key(DirectoryObject *self, const char *bytes, Py_ssize_t length, struct sp_directory_key *key)
{
    if (self->owner == NULL) {
        PyErr_SetString(PyExc_ValueError, "the directory has no node");
        return false;
    }
    if (length < 1 || length > SP_DIRECTORY_KEY) {
        PyErr_Format(PyExc_ValueError, "a key has 1 to %d bytes, this one %zd: use a shorter app, type or id",
                     SP_DIRECTORY_KEY, length);
        return false;
    }
    *key = sp_directory_key(&self->owner->node, (const uint8_t *)bytes, (size_t)length);
    return true;
}

static bool is_address(unsigned long long address)
{
    if (sp_address_generation(address) != 0)
        return true;
    PyErr_Format(PyExc_ValueError, "%llu is no object address", address);
    return false;
}

static PyObject *directory_claim(DirectoryObject *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t length;
    struct sp_directory_key key;
    if (!PyArg_ParseTuple(args, "y#", &bytes, &length) || !take_key(self, bytes, length, &key))
        return NULL;
    uint64_t says = sp_directory_claim(&self->owner->node, &key);
    return Py_BuildValue("NK", PyBool_FromLong(says == SP_DIRECTORY_ABSENT), (unsigned long long)says);
}

static PyObject *directory_find(DirectoryObject *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t length;
    struct sp_directory_key key;
    if (!PyArg_ParseTuple(args, "y#", &bytes, &length) || !take_key(self, bytes, length, &key))
        return NULL;
    return PyLong_FromUnsignedLongLong(sp_directory_find(&self->owner->node, &key));
}

static PyObject *directory_publish(DirectoryObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "address", "properties", NULL};
    const char *bytes, *properties = "";
    Py_ssize_t length, properties_length = 0;
    unsigned long long address;
    struct sp_directory_key key;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#K|y#", names, &bytes, &length, &address, &properties,
                                     &properties_length)
        || !take_key(self, bytes, length, &key) || !is_address(address))
        return NULL;
    if (properties_length > SP_DIRECTORY_PROPERTIES)
        return PyErr_Format(PyExc_ValueError, "properties have at most %d bytes encoded, these %zd: publish fewer",
                            SP_DIRECTORY_PROPERTIES, properties_length);
    return PyBool_FromLong(sp_directory_publish(&self->owner->node, &key, address, (const uint8_t *)properties,
                                                (size_t)properties_length));
}

static PyObject *directory_withdraw(DirectoryObject *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t length;
    struct sp_directory_key key;
    if (!PyArg_ParseTuple(args, "y#", &bytes, &length) || !take_key(self, bytes, length, &key))
        return NULL;
    return PyBool_FromLong(sp_directory_withdraw(&self->owner->node, &key));
}

static PyObject *directory_move(DirectoryObject *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t length;
    unsigned long long old, new;
    struct sp_directory_key key;
    if (!PyArg_ParseTuple(args, "y#KK", &bytes, &length, &old, &new) || !take_key(self, bytes, length, &key)
        || !is_address(old) || !is_address(new))
        return NULL;
    return PyBool_FromLong(sp_directory_move(&self->owner->node, &key, old, new));
}

static PyObject *directory_remove(DirectoryObject *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t length;
    unsigned long long address;
    struct sp_directory_key key;
    if (!PyArg_ParseTuple(args, "y#K", &bytes, &length, &address) || !take_key(self, bytes, length, &key)
        || !is_address(address))
        return NULL;
    return PyBool_FromLong(sp_directory_remove(&self->owner->node, &key, address));
}

static int append_found(PyObject *list, const struct sp_directory_found *found)
{
    PyObject *item = Py_BuildValue("y#Ky#", (const char *)found->key, (Py_ssize_t)found->key_length,
                                   (unsigned long long)found->address, (const char *)found->properties,
                                   (Py_ssize_t)found->properties_length);
    int result = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return result;
}

static PyObject *directory_list(DirectoryObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"prefix", "limit", "after", NULL};
    const char *prefix, *after = "";
    Py_ssize_t length, limit, after_length = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#n|y#", names, &prefix, &length, &limit, &after, &after_length))
        return NULL;
    if (self->owner == NULL || limit < 0) {
        PyErr_SetString(PyExc_ValueError, "needs a node, and a limit that is not negative");
        return NULL;
    }
    const struct sp_node *node = &self->owner->node;
    PyObject *list = PyList_New(0);
    struct sp_directory_found found;
    for (uint32_t place = 0; list != NULL && place < node->geometry.directory_entries; place++) {
        if (!sp_directory_read(node, place, (const uint8_t *)prefix, (size_t)length, &found))
            continue;
        size_t shorter = found.key_length < (size_t)after_length ? found.key_length : (size_t)after_length;
        int order = memcmp(found.key, after, shorter);
        if (order < 0 || (order == 0 && found.key_length <= (size_t)after_length))
            continue;
        if (append_found(list, &found) < 0)
            Py_CLEAR(list);
    }
    if (list == NULL || PyList_Sort(list) < 0) {
        Py_XDECREF(list);
        return NULL;
    }
    PyObject *page = PyList_GetSlice(list, 0, limit);
    Py_DECREF(list);
    return page;
}

static PyMethodDef directory_methods[] = {
    {"claim", (PyCFunction)directory_claim, METH_VARARGS,
     "claim(key): (True, 0), the caller creates the object and calls publish or withdraw; or (False, address, "
     "DIRECTORY_CREATING or DIRECTORY_FULL)."},
    {"find", (PyCFunction)directory_find, METH_VARARGS, "find(key): the address, DIRECTORY_CREATING, or 0."},
    {"publish", (PyCFunction)(void (*)(void))directory_publish, METH_VARARGS | METH_KEYWORDS,
     "Enters the address of what was claimed, or changes the properties of what lives there."},
    {"withdraw", (PyCFunction)directory_withdraw, METH_VARARGS, "Gives a claim up."},
    {"move", (PyCFunction)directory_move, METH_VARARGS, "move(key, old, new): True if the address was still the old one."},
    {"remove", (PyCFunction)directory_remove, METH_VARARGS, "Takes an entry out, if it still has this address."},
    {"list", (PyCFunction)(void (*)(void))directory_list, METH_VARARGS | METH_KEYWORDS,
     "list(prefix, limit, after=b\"\"): (key, address, properties) of the entries behind a key, in order of their keys."},
    {0},
};

static PyTypeObject DirectoryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardpool._core.Directory",
    .tp_basicsize = sizeof(DirectoryObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Where ids live on this node, as one process sees it; every call answers at once.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)directory_init,
    .tp_dealloc = (destructor)directory_dealloc,
    .tp_methods = directory_methods,
};

int sp_add_directory(PyObject *module)
{
    if (PyType_Ready(&DirectoryType) < 0
        || PyModule_AddIntConstant(module, "DIRECTORY_CREATING", (long)SP_DIRECTORY_CREATING) < 0
        || PyModule_AddIntConstant(module, "DIRECTORY_FULL", (long)SP_DIRECTORY_FULL) < 0
        || PyModule_AddIntConstant(module, "DIRECTORY_KEY_BYTES", SP_DIRECTORY_KEY) < 0
        || PyModule_AddIntConstant(module, "DIRECTORY_PROPERTIES_BYTES", SP_DIRECTORY_PROPERTIES) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Directory", (PyObject *)&DirectoryType);
}
