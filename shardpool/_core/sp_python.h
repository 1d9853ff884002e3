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

/* Each adds its types to the module; 0, or -1 with an exception set. */
int sp_add_node(PyObject *module);
int sp_add_shard(PyObject *module);
int sp_add_acceptor(PyObject *module);
int sp_add_producer(PyObject *module);
int sp_add_directory(PyObject *module);
int sp_add_settle(PyObject *module);
int sp_add_audit(PyObject *module);

#endif
