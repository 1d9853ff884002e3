/* One client connection as the acceptor keeps it, and the table of all of them.
 *
 * Stages     HANDSHAKE (HTTP or TLS: Python's) -> HELLO -> ATTACHING (until the shard said BOUND) -> BOUND -> ENDING
 *            (nothing is read or sent any more except the last bytes that Python gives) -> gone, the place is free.
 *            Bare connections skip HELLO; local ones have no session: BOUND to a shard's system object.
 *            A session that is kept outlives its socket: ENDING -> DETACHED, until another socket takes the place of
 *            the lost one (resume.h) or the window is over. The client address stays the session's name all the time.
 * Memory     A connection without unfinished input and unsent output owns nothing but this struct.
 * Invariants
 *   C1  a client address names a connection only while its generation is the connection's
 *   C2  structs never move: chunks are added, not grown
 */
#ifndef SP_CONNECTION_H
#define SP_CONNECTION_H

#include "layout.h"
#include "retained.h"
#include "unsent.h"

enum sp_transport {
    SP_TRANSPORT_TCP = 0,
    SP_TRANSPORT_WS = 1,
    SP_TRANSPORT_TLS = 2,
    SP_TRANSPORT_WSS = 3,
    SP_TRANSPORT_LOCAL = 4,
};

enum sp_stage {
    SP_STAGE_FREE = 0,
    SP_STAGE_RELAY, /* bytes come and go as they are: the session is another acceptor's (workers/relays.py) */
    SP_STAGE_HANDSHAKE,
    SP_STAGE_HELLO,
    SP_STAGE_ATTACHING,
    SP_STAGE_BOUND,
    SP_STAGE_ENDING,
    SP_STAGE_FLUSHED, /* the last bytes are out; waits for the client's end of stream */
    SP_STAGE_DETACHED, /* no socket: the session waits for its client (retained.h) */
};

/* Why a connection's input waits. */
enum sp_blocked { SP_BLOCKED_NO = 0, SP_BLOCKED_BELL, SP_BLOCKED_PERMIT };

struct sp_inbound {
    uint8_t *bytes;
    uint32_t start;
    uint32_t end;
    uint32_t capacity;
};

struct sp_connection {
    int fd;
    uint32_t generation;
    uint32_t index;
    uint32_t armed; /* what epoll watches for */
    uint8_t transport;
    uint8_t framing;
    uint8_t stage;
    uint8_t blocked;
    bool tls;
    bool local;        /* a trusted program on the host */
    bool envelope;     /* frames have kinds */
    bool compressed;
    bool fragmented;   /* WebSocket: between the fragments of a message, all frames are the library's */
    bool python_turn;  /* a frame was given to Python; input goes on with its `proceed` */
    bool last_text;    /* WebSocket: the client's last message was text */
    bool dirty;        /* in the engine's list of connections to write to */
    bool listed;       /* in the engine's list of blocked connections */
    bool xoff;         /* the shards were told to pause; reading is paused as well */
    bool finished;     /* ENDING: the last bytes were given */
    bool pinged;
    bool tell_drained; /* Python has more to write */
    bool answering;    /* it is not done: nothing is read until it wrote the last, or requests would pile up with it */
    bool plain_given; /* TLS: Python encrypts, its answer is due */
    uint64_t actor;
    uint64_t session_slot;
    uint64_t session;
    struct sp_kept_session *kept; /* what outlives the socket, or NULL */
    uint64_t address_key; /* for the limit per address; 0: not counted */
    uint64_t rate_due_ns; /* messages_per_second: when the bucket is empty again */
    uint32_t sequence;
    uint32_t acknowledged;
    uint32_t since_ms;    /* of the stage */
    uint32_t received_ms; /* anything from the client */
    uint32_t sent_ms;     /* last progress of the output */
    struct sp_inbound in;
    struct sp_unsent out;
    struct sp_unsent *cipher; /* TLS: encrypted bytes that wait for the socket */
};

_Static_assert(sizeof(struct sp_connection) <= 256, "an idle connection costs at most 256 bytes here");

#define SP_CONNECTION_CHUNK 256U

struct sp_connections {
    struct sp_connection **chunks;
    uint32_t chunk_count;
    uint32_t used;  /* places that were ever given out */
    uint32_t live;
    uint32_t first_generation; /* of a place's first tenant */
    uint32_t *free; /* places given back */
    uint32_t free_count;
};

static inline struct sp_connection *sp_connection_at(struct sp_connections *table, uint32_t index)
{
    return &table->chunks[index / SP_CONNECTION_CHUNK][index % SP_CONNECTION_CHUNK];
}

/* The connection of a client address, or NULL (C1). */
static inline struct sp_connection *sp_connection_find(struct sp_connections *table, uint32_t acceptor, uint64_t client)
{
    uint32_t index = sp_address_index(client);
    if (sp_address_number(client) != acceptor || index >= table->used)
        return NULL;
    struct sp_connection *c = sp_connection_at(table, index);
    if (c->stage == SP_STAGE_FREE || c->generation != sp_address_generation(client))
        return NULL;
    return c;
}

static inline struct sp_connection *sp_connection_take(struct sp_connections *table)
{
    if (table->free_count > 0) {
        table->live++;
        return sp_connection_at(table, table->free[--table->free_count]);
    }
    if (table->used == table->chunk_count * SP_CONNECTION_CHUNK) {
        uint32_t chunks = table->chunk_count + 1;
        void *free_list = realloc(table->free, (size_t)chunks * SP_CONNECTION_CHUNK * sizeof *table->free);
        if (free_list == NULL)
            return NULL;
        table->free = free_list;
        void *list = realloc(table->chunks, chunks * sizeof *table->chunks);
        if (list == NULL)
            return NULL;
        table->chunks = list;
        table->chunks[table->chunk_count] = calloc(SP_CONNECTION_CHUNK, sizeof **table->chunks);
        if (table->chunks[table->chunk_count] == NULL)
            return NULL;
        table->chunk_count = chunks;
    }
    struct sp_connection *c = sp_connection_at(table, table->used);
    c->index = table->used++;
    c->generation = ((table->first_generation & 0xFFFFFF) | 1);
    table->live++;
    return c;
}

static inline void sp_connection_give(struct sp_connections *table, struct sp_connection *c)
{
    uint32_t index = c->index;
    uint32_t generation = (c->generation + 1) & 0xFFFFFF;
    *c = (struct sp_connection){.fd = -1, .index = index, .generation = generation == 0 ? 1 : generation};
    table->free[table->free_count++] = index;
    table->live--;
}

static inline void sp_connections_close(struct sp_connections *table)
{
    for (uint32_t i = 0; i < table->chunk_count; i++)
        free(table->chunks[i]);
    free(table->chunks);
    free(table->free);
    *table = (struct sp_connections){0};
}

/* The socket is gone; what is of the session stays. */
static inline void sp_connection_unplug(struct sp_connection *c)
{
    struct sp_connection session = {
        .fd = -1, .stage = SP_STAGE_DETACHED, .envelope = true, .generation = c->generation, .index = c->index,
        .dirty = c->dirty, .listed = c->listed, .actor = c->actor, .session_slot = c->session_slot, .session = c->session,
        .kept = c->kept, .sequence = c->sequence, .acknowledged = c->acknowledged,
    };
    *c = session;
}

/* Exchanges the sockets of two places, with all that is of the socket; the sessions stay where they are. Flags that stand
 * for lists of addresses (dirty, listed) stay, too. */
static inline void sp_connection_swap(struct sp_connection *a, struct sp_connection *b)
{
    struct sp_connection old = *a;
    const struct sp_connection other = *b;
    *a = other;
    *b = old;
    const struct sp_connection *from[2] = {&old, &other};
    struct sp_connection *to[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        to[i]->generation = from[i]->generation;
        to[i]->index = from[i]->index;
        to[i]->dirty = from[i]->dirty;
        to[i]->listed = from[i]->listed;
        to[i]->xoff = from[i]->xoff;
        to[i]->actor = from[i]->actor;
        to[i]->session_slot = from[i]->session_slot;
        to[i]->session = from[i]->session;
        to[i]->kept = from[i]->kept;
        to[i]->sequence = from[i]->sequence;
        to[i]->acknowledged = from[i]->acknowledged;
    }
}

/* Unfinished input. */

static inline uint32_t sp_inbound_size(const struct sp_inbound *in) { return in->end - in->start; }

static inline void sp_inbound_free(struct sp_inbound *in)
{
    free(in->bytes);
    *in = (struct sp_inbound){0};
}

/* Room for `more` bytes at `end`; grows with what arrives, never by what a length announces. */
static inline bool sp_inbound_room(struct sp_inbound *in, uint32_t more)
{
    if (in->capacity - in->end >= more)
        return true;
    uint32_t size = sp_inbound_size(in);
    if (in->start > 0) {
        memmove(in->bytes, in->bytes + in->start, size);
        in->start = 0;
        in->end = size;
    }
    if (in->capacity - in->end >= more)
        return true;
    uint64_t capacity = (uint64_t)size + more;
    if (in->capacity > 0 && capacity < (uint64_t)in->capacity * 2)
        capacity = (uint64_t)in->capacity * 2;
    if (capacity > UINT32_MAX)
        return false;
    uint8_t *bytes = realloc(in->bytes, capacity);
    if (bytes == NULL)
        return false;
    in->bytes = bytes;
    in->capacity = (uint32_t)capacity;
    return true;
}

static inline bool sp_inbound_append(struct sp_inbound *in, const uint8_t *bytes, uint32_t length)
{
    if (!sp_inbound_room(in, length))
        return false;
    memcpy(in->bytes + in->end, bytes, length);
    in->end += length;
    return true;
}

#endif
