/* The binding's view of an acceptor, shared by acceptor.c and acceptor_calls.c. */
#ifndef SP_ACCEPTOR_OBJECT_H
#define SP_ACCEPTOR_OBJECT_H

#include "sp_python.h"

#include "loop.h"

typedef struct {
    PyObject_HEAD
    NodeObject *owner;
    struct sp_engine *engine;
} AcceptorObject;

/* acceptor_calls.c: methods about one client */
extern PyMethodDef sp_acceptor_calls[];

#endif
