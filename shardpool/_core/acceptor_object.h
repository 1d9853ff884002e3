/* The binding's view of an acceptor, shared by acceptor.c, acceptor_calls.c and acceptor_resume.c. */
#ifndef SP_ACCEPTOR_OBJECT_H
#define SP_ACCEPTOR_OBJECT_H

#include "sp_python.h"

#include "loop.h"
#include "resume.h"

typedef struct {
    PyObject_HEAD
    NodeObject *owner;
    struct sp_engine *engine;
} AcceptorObject;

/* The connection of a client address that Python knows, or NULL: it has gone. */
static inline struct sp_connection *sp_acceptor_live(AcceptorObject *self, unsigned long long client)
{
    struct sp_connection *c = sp_engine_find(self->engine, client);
    return c == NULL || c->stage == SP_STAGE_DETACHED ? NULL : c;
}

/* acceptor_calls.c: methods about one client */
extern PyMethodDef sp_acceptor_calls[];

/* acceptor_resume.c: methods about sessions and sockets that come apart and together */
extern PyMethodDef sp_acceptor_resume_calls[];

#endif
