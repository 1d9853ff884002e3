/* What the binding's files share: the attached node behind a Python Node object. */
#ifndef SP_PYTHON_H
#define SP_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "schedule.h"

typedef struct {
    PyObject_HEAD
    struct sp_node node;
    bool attached;
} NodeObject;

extern PyTypeObject NodeType;

/* geometry.c: bytes of one process's segment; and what is wrong with a geometry, NULL if nothing is. */
uint64_t sp_segment_size(const struct sp_geometry *g, uint32_t process);
const char *sp_geometry_fault(const struct sp_geometry *g);

static inline int sp_put_number(PyObject *dict, const char *name, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int failed = number == NULL ? -1 : PyDict_SetItemString(dict, name, number);
    Py_XDECREF(number);
    return failed;
}

/* Each adds its types to the module; 0, or -1 with an exception set. */
int sp_add_geometry(PyObject *module);
int sp_add_node(PyObject *module);
int sp_add_shard(PyObject *module);
int sp_add_acceptor(PyObject *module);
int sp_add_producer(PyObject *module);
int sp_add_directory(PyObject *module);
int sp_add_settle(PyObject *module);
int sp_add_audit(PyObject *module);
int sp_add_spawn(PyObject *module);

#endif
