/* The binding's view of a shard: Python's Table and Shard objects, shared by shard.c, turn.c and outbound.c. */
#ifndef SP_SHARD_H
#define SP_SHARD_H

#include "sp_python.h"

#include "executor.h"
#include "flight.h"

#define SP_HANDLER_NO_ARGUMENT 1L
#define SP_HANDLER_ASYNC 2L

typedef struct {
    PyObject_HEAD
    PyObject *decode; /* NULL: raw, the message is the payload */
    PyObject *handlers;
    PyObject *encode; /* NULL: replies are bytes */
    PyObject *call_decode;
    PyObject *call_encode;
    PyObject *lifecycle;
    PyObject *raw_handler; /* borrowed from handlers: the entry for bytes */
    long raw_flags;
} TableObject;

extern PyTypeObject TableType;

/* What Python keeps for one slot. */
struct sp_tenant {
    PyObject *target;
    TableObject *table;
    PyObject *context; /* contextvars context of the object's turns */
};

/* A record that found its link full; sent in order before anything else goes to that peer's stream. */
struct sp_kept {
    struct sp_kept *next;
    uint32_t process;
    uint16_t stream;
    uint16_t kind;
    uint16_t flags;
    uint32_t length;
    uint64_t target, a, b;
    uint8_t payload[];
};

struct sp_keep {
    struct sp_kept *first;
    struct sp_kept *last;
};

struct sp_hooks {
    PyObject *poke, *failed, *adopt, *reply, *control, *resumed, *sealed, *dropped;
    PyObject *loop, *enter_task, *leave_task, *stub;
};

typedef struct {
    PyObject_HEAD
    NodeObject *owner;
    struct sp_executor ex;
    struct sp_tenant *tenants;
    struct sp_flight *flights; /* per shard: what is under way to its objects (M-3) */
    struct sp_hooks hooks;
    struct sp_keep kept[SP_MAX_PROCESSES][2];
    uint32_t kept_data; /* streams with kept data records: while not 0 the executor is blocked */
    bool running;
    bool poked;
    uint64_t objects; /* live ones, the predecessor's included */
    uint64_t current;
    uint64_t turn;
    uint64_t messages_in, messages_out, bytes_in, bytes_out, turns, failed;
} ShardObject;

extern PyTypeObject ShardType;

int sp_add_table(PyObject *module);

/* turn.c */
enum sp_turn sp_shard_turn(void *context, uint32_t slot, struct sp_cell *cell);
bool sp_shard_answer(ShardObject *self, uint32_t slot, struct sp_cell *cell, PyObject *result);
void sp_shard_failed(ShardObject *self, uint32_t slot, struct sp_cell *cell);

/* shard.c */
void sp_shard_vacate(ShardObject *self, uint32_t slot);
void sp_shard_count_objects(ShardObject *self, int64_t change);
void sp_value_error(const char *text, uint64_t address);
PyObject *sp_shard_records(ShardObject *self, uint32_t slot);

/* objects.c */
uint32_t sp_shard_own_slot(ShardObject *self, PyObject *address);
extern PyMethodDef sp_object_methods[];

/* succession.c */
extern PyMethodDef sp_succession_methods[];

/* outbound.c */
bool sp_shard_write(ShardObject *self, uint32_t process, enum sp_stream stream, uint16_t kind, uint16_t flags,
                    uint64_t target, uint64_t a, uint64_t b, const void *payload, size_t length);
void sp_shard_flush_kept(ShardObject *self);
void sp_shard_poke(ShardObject *self);
extern PyMethodDef sp_outbound_methods[];

#endif
