/* Python's settle: what the supervisor calls after a death. */
#include "sp_python.h"

#include "settle.h"

static PyObject *settle(PyObject *module, PyObject *args)
{
    (void)module;
    NodeObject *owner;
    unsigned int process;
    if (!PyArg_ParseTuple(args, "O!I", &NodeType, &owner, &process))
        return NULL;
    if (!owner->attached || owner->node.self != 0 || process == 0 || process >= owner->node.geometry.processes)
        return PyErr_Format(PyExc_ValueError, "the supervisor settles for process 1 to %u, not for %u",
                            owner->node.geometry.processes - 1, process);
    return PyBool_FromLong(sp_settle(&owner->node, process));
}

static PyMethodDef settle_functions[] = {
    {"settle", settle, METH_VARARGS,
     "settle(node, process): ends in shared memory what a dead process had begun and rings all. False: call again "
     "before its successor is started."},
    {0},
};

int sp_add_settle(PyObject *module) { return PyModule_AddFunctions(module, settle_functions); }
