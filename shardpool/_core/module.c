/* The extension module shardpool._core: types and constants, no logic. */
#include "sp_python.h"

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"MAX_PROCESSES", (long)SP_MAX_PROCESSES},
        {"ACCEPTED", SP_ACCEPTED}, {"LANE_FULL", SP_LANE_FULL}, {"SATURATED", SP_SATURATED},
        {"SEALED", SP_SEALED}, {"STALE", SP_STALE}, {"SHUTTING_DOWN", SP_SHUTTING_DOWN},
        {"LINK_FULL", SP_LINK_FULL}, {"TOO_BIG", SP_TOO_BIG},
        {"KIND_FRAME", SP_KIND_FRAME}, {"KIND_CALL", SP_KIND_CALL}, {"KIND_TIMER", SP_KIND_TIMER},
        {"KIND_ATTACH", SP_KIND_ATTACH}, {"KIND_DETACH", SP_KIND_DETACH}, {"KIND_CUSTOM", SP_KIND_CUSTOM},
        {"KIND_RESUMED", SP_KIND_RESUMED},
        {"KIND_RECOVER", SP_KIND_RECOVER}, {"QUARANTINE_DEATHS", SP_QUARANTINE_DEATHS}, {"LIFE_OPEN", SP_LIFE_OPEN}, {"LIFE_LEAVING", SP_LIFE_LEAVING},
        {"LIFE_ARRIVING", SP_LIFE_ARRIVING}, {"LIFE_ENDING", SP_LIFE_ENDING},
        {"KIND_BOUND", SP_KIND_BOUND}, {"KIND_REFUSED", SP_KIND_REFUSED}, {"KIND_ROUTE", SP_KIND_ROUTE},
        {"KIND_PUSH", SP_KIND_PUSH}, {"KIND_REPLY", SP_KIND_REPLY}, {"KIND_ERROR", SP_KIND_ERROR},
        {"KIND_PUBLISH", SP_KIND_PUBLISH}, {"KIND_CLOSE", SP_KIND_CLOSE},
        {"KIND_XOFF", SP_KIND_XOFF}, {"KIND_XON", SP_KIND_XON}, {"KIND_CALL_REPLY", SP_KIND_CALL_REPLY},
        {"FLAG_ASK", SP_FLAG_ASK}, {"FLAG_BARE", SP_FLAG_BARE}, {"FLAG_TEXT", SP_FLAG_TEXT},
    };
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shardpool._core",
    .m_doc = "Shared-memory links, slots, admission, the shard's executor and the acceptor's engine.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL)
        return NULL;
    static int (*const parts[])(PyObject *) = {
        add_constants, sp_add_geometry, sp_add_node, sp_add_shard, sp_add_acceptor,
        sp_add_producer, sp_add_directory, sp_add_settle, sp_add_audit, sp_add_spawn,
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i](module) == 0)
            continue;
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
