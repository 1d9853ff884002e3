/* Python's audit: a look at a shard's books from outside. */
#include "sp_python.h"

#include "audit.h"

static PyObject *as_dict(const struct sp_audit *audit)
{
    static const char *const books[SP_BOOKS] = {
        [SP_BOOK_LINKED] = "accepted",     [SP_BOOK_PLACED] = "moved_in", [SP_BOOK_HANDLED] = "handled",
        [SP_BOOK_FAILED] = "failed",       [SP_BOOK_LETTERS] = "dead_lettered", [SP_BOOK_UNRUN] = "unrun",
        [SP_BOOK_MOVED] = "moved_out",
    };
    const struct {
        const char *name;
        uint64_t value;
    } rest[] = {
        {"objects", audit->objects}, {"in_lanes", audit->in_lanes}, {"in_links", audit->in_links},
        {"judged", audit->judged}, {"off", audit->off}, {"first_off", audit->first_off},
        {"damaged", audit->damaged}, {"permits", audit->permits}, {"permits_needed", audit->permits_needed},
        {"routes", audit->routes}, {"stray_routes", audit->stray_routes}, {"moved", audit->moved},
    };
    PyObject *dict = PyDict_New();
    int failed = dict == NULL;
    for (int book = 0; !failed && book < SP_BOOKS; book++)
        failed = sp_put_number(dict, books[book], audit->books[book]);
    for (size_t i = 0; !failed && i < sizeof rest / sizeof rest[0]; i++)
        failed = sp_put_number(dict, rest[i].name, rest[i].value);
    if (failed)
        Py_CLEAR(dict);
    return dict;
}

static PyObject *audit(PyObject *module, PyObject *args)
{
    (void)module;
    NodeObject *owner;
    unsigned int shard;
    if (!PyArg_ParseTuple(args, "O!I", &NodeType, &owner, &shard))
        return NULL;
    if (!owner->attached || shard >= owner->node.geometry.shards)
        return PyErr_Format(PyExc_ValueError, "there are shards 0 to %u, not %u", owner->node.geometry.shards - 1, shard);
    struct sp_audit found;
    if (!sp_audit_shard(&owner->node, 1 + owner->node.geometry.acceptors + shard, &found))
        return PyErr_NoMemory();
    return as_dict(&found);
}

static PyMethodDef audit_functions[] = {
    {"audit", audit, METH_VARARGS, "audit(node, shard): what its books, lanes, links and permits say; from any process."},
    {0},
};

int sp_add_audit(PyObject *module) { return PyModule_AddFunctions(module, audit_functions); }
