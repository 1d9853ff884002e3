/* The acceptor's engine; see the acceptor's part. */
#include "sp_python.h"

int sp_add_acceptor(PyObject *module)
{
    (void)module;
    return 0;
}
