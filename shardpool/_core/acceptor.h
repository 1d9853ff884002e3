/* The acceptor's engine, without Python: what it holds, and the small steps that everything else is made of.
 *
 * Flow        epoll -> input.h (read, split, admit) -> the own inbox -> output.h (append) -> one write per connection.
 *             What is rare (handshakes, hellos, TLS, WebSocket's corner cases, last words) goes to Python as an event
 *             and comes back as a call.
 * Owner       the acceptor's one thread. Nothing here blocks except the wait in epoll.
 * Invariants
 *   A1  reading a socket stops, and only that one, while its messages find no room; they are kept in order
 *   A2  DETACH is posted once for every session that was bound, whatever ends it, and is never dropped: what finds no
 *       room waits in `pending`. A lost connection alone ends a session only where none is kept
 *   A3  only sp_engine_drop closes a socket; it is called between two events, never while input is processed
 *   A4  everything a shard wrote is checked before it is used; a ring that makes no sense is left alone for good
 */
#ifndef SP_ACCEPTOR_H
#define SP_ACCEPTOR_H

#include <errno.h>
#include <sys/epoll.h>
#include <time.h>

#include "addresses.h"
#include "connection.h"
#include "flight.h"
#include "schedule.h"

#define SP_READ_BYTES 65536U
#define SP_READ_BYTES_SHORT 4096U /* when the acceptor holds much already */
#define SP_KEPT_COPY 4096U        /* unfinished input up to this moves to the read buffer; larger grows in its own */
#define SP_KIND_OPERATION SP_KIND_CUSTOM /* to a shard's system object: a trusted program's request */
#define SP_BATCH 256U
#define SP_RETRY_AT_ONCE 256U
#define SP_PERMIT_RETRY_NS UINT64_C(5000000)
#define SP_ACCEPT_AT_ONCE 64U
#define SP_STARVED_RETRY_NS UINT64_C(100000000)
#define SP_LINGER_MS 2000U
#define SP_LISTENERS 16U
#define SP_WATCHED 4U

/* What epoll reports: the kind in the top byte; for a connection, below it, generation and index as in its address. */
#define SP_TAG_CONNECTION UINT64_C(0)
#define SP_TAG_LISTENER UINT64_C(1)
#define SP_TAG_DOORBELL UINT64_C(2)
#define SP_TAG_WATCHED UINT64_C(3)

enum sp_event_kind {
    SP_EVENT_OPENED = 1, /* a: listener; payload: address of the peer. Not for TCP with envelope: nothing to decide */
    SP_EVENT_BYTES = 2,  /* payload: as received, for HTTP or TLS */
    SP_EVENT_HELLO = 3,  /* payload: the JSON of H; answer with attach() or end() */
    SP_EVENT_BOUND = 4,  /* a: session id; b: it can be kept; answer with welcome() */
    SP_EVENT_FRAME = 5,  /* payload: a raw WebSocket frame; answer with proceed() */
    SP_EVENT_PLAIN = 6,  /* payload: to be encrypted; answer with cipher() */
    SP_EVENT_ENDING = 7, /* a: close code; b: foreign | framing << 4 | transport << 8; payload: reason. Answer: finish() */
    SP_EVENT_CLOSED = 8, /* a: close code; not for TCP: Python keeps nothing for it */
    SP_EVENT_READY = 9,  /* client: the watched descriptor */
    SP_EVENT_STARVED = 10, /* a: errno of accept; at most one per second */
    SP_EVENT_CORRUPT = 11, /* a: process; b: stream */
    SP_EVENT_RECORD = 12,  /* client: record kind; a, b, payload: of a record that only Python reads */
    SP_EVENT_DRAINED = 13, /* what was written with `more` is out */
};

enum sp_slow_client { SP_SLOW_WAIT = 0, SP_SLOW_DROP_OLDEST = 1, SP_SLOW_CLOSE = 2 };

enum sp_close_code {
    SP_CLOSE_NORMAL = 1000,
    SP_CLOSE_GOING_AWAY = 1001,
    SP_CLOSE_LOST = 1006,
    SP_CLOSE_MESSAGE_TOO_BIG = 1009,
    SP_CLOSE_PROTOCOL = 4400,
    SP_CLOSE_HELLO_TIMEOUT = 4408,
    SP_CLOSE_REPLACED = 4409,
    SP_CLOSE_IDLE = 4410,
    SP_CLOSE_FRAME_TOO_BIG = 4413,
    SP_CLOSE_RATE = 4429,
    SP_CLOSE_SLOW = 4453,
    SP_CLOSE_INTERNAL = 4500,
    SP_CLOSE_UNAVAILABLE = 4503,
    SP_CLOSE_FULL = 4529,
};

struct sp_acceptor_settings {
    bool envelope;
    uint32_t frame_bytes;
    uint32_t hello_bytes;
    uint32_t hello_timeout_ms;
    uint32_t handshake_timeout_ms;
    uint32_t heartbeat_ms;
    uint32_t idle_timeout_ms;
    uint32_t send_timeout_ms;
    uint32_t connections;
    uint32_t connections_per_address;
    uint32_t handshakes_per_second;
    uint32_t messages_per_second; /* 0: no limit */
    uint64_t inbound_bytes;
    uint32_t outbound_bytes;
    uint32_t slow_client;
    uint32_t resume_window_ms; /* 0: sessions end with their connection */
    uint32_t resume_bytes_per_session;
};

struct sp_event {
    uint32_t kind;
    uint32_t length;
    uint64_t client;
    uint64_t a;
    uint64_t b;
    uint8_t *payload;
};

/* A growing list; `head` is where taking goes on. */
struct sp_list {
    uint64_t *items;
    uint32_t head;
    uint32_t count; /* end of the items, counted from 0 */
    uint32_t capacity;
};

/* An infrastructure record that found no room. */
struct sp_pending {
    uint64_t client; /* with ATTACH: pointless once this connection is gone */
    uint64_t target; /* 0: not to an object but to the process */
    uint64_t a;
    uint64_t b;
    uint32_t process;
    uint32_t length;
    uint16_t kind;
    uint8_t *payload;
};

struct sp_listener {
    int fd;
    uint32_t transport;
    bool armed;
};

struct sp_message {
    uint8_t *bytes;
    uint32_t length;
    uint32_t request;
    uint32_t end; /* where it ends in the input */
    uint16_t flags;
};

struct sp_engine {
    struct sp_node *node;
    uint32_t acceptor;
    int epoll;
    struct sp_acceptor_settings settings;
    uint64_t now_ns; /* read once per pass */
    uint32_t now_ms;
    struct sp_connections connections;
    struct sp_retained retained;
    uint64_t doubtful[SP_MAX_PROCESSES][2]; /* inbox positions of records that a predecessor may have dealt with */
    uint32_t detached; /* places without a socket; not among connections.live */
    struct sp_addresses addresses;
    struct sp_spare spare;
    struct sp_listener listeners[SP_LISTENERS];
    uint32_t listener_count;
    bool accepting; /* false: draining */
    bool reading;
    bool failed;    /* no memory for an event: the process cannot go on */
    uint64_t accept_due_ns;  /* the limit of handshakes: when its bucket is empty again */
    uint64_t rearm_ns;       /* when listeners that were switched off are tried again; 0: none is off */
    uint64_t starved_log_ns; /* no second event before */
    int watched[SP_WATCHED];
    uint32_t watched_count;
    struct sp_event *events;
    uint32_t event_count;
    uint32_t event_capacity;
    struct sp_list dirty;
    struct sp_list blocked;
    uint32_t retry_left; /* blocked connections to look at since the doorbell */
    uint64_t permit_due_ns;
    struct sp_pending *pending;
    uint32_t pending_count;
    uint32_t pending_capacity;
    bool pending_due;
    bool more; /* the inbox was not emptied: do not sleep */
    uint64_t held; /* bytes of unfinished input */
    uint64_t sweep_due_ns;
    uint64_t sweep_period_ns;
    struct sp_flight *flights; /* SP_FLIGHT_PLACES per shard */
    uint8_t *errors[8];        /* by outcome: body of E */
    uint32_t error_lengths[8];
    struct sp_message batch[SP_BATCH];
    uint8_t scratch[SP_KEPT_COPY + SP_READ_BYTES];
};

static inline uint64_t sp_engine_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline void sp_engine_tick(struct sp_engine *e)
{
    e->now_ns = sp_engine_clock();
    e->now_ms = (uint32_t)(e->now_ns / 1000000);
}

/* Wraps after 49 days, as the stamps do: only differences are used. */
static inline uint32_t sp_elapsed_ms(const struct sp_engine *e, uint32_t since_ms) { return e->now_ms - since_ms; }

static inline uint64_t sp_client_address(const struct sp_engine *e, const struct sp_connection *c)
{
    return sp_address(e->acceptor, c->generation, c->index);
}

static inline struct sp_connection *sp_engine_find(struct sp_engine *e, uint64_t client)
{
    return sp_connection_find(&e->connections, e->acceptor, client);
}

static inline bool sp_list_push(struct sp_list *list, uint64_t item)
{
    if (list->count == list->capacity) {
        if (list->head > list->capacity / 2) {
            memmove(list->items, list->items + list->head, (list->count - list->head) * sizeof *list->items);
            list->count -= list->head;
            list->head = 0;
        } else {
            uint32_t capacity = list->capacity == 0 ? 256 : list->capacity * 2;
            uint64_t *items = realloc(list->items, capacity * sizeof *items);
            if (items == NULL)
                return false;
            list->items = items;
            list->capacity = capacity;
        }
    }
    list->items[list->count++] = item;
    return true;
}

static inline uint32_t sp_list_size(const struct sp_list *list) { return list->count - list->head; }

static inline void sp_engine_event(struct sp_engine *e, enum sp_event_kind kind, uint64_t client, uint64_t a, uint64_t b,
                                   const void *payload, uint32_t length)
{
    if (e->event_count == e->event_capacity) {
        uint32_t capacity = e->event_capacity == 0 ? 64 : e->event_capacity * 2;
        struct sp_event *events = realloc(e->events, capacity * sizeof *events);
        if (events == NULL) {
            e->failed = true;
            return;
        }
        e->events = events;
        e->event_capacity = capacity;
    }
    uint8_t *copy = NULL;
    if (length > 0) {
        copy = malloc(length);
        if (copy == NULL) {
            e->failed = true;
            return;
        }
        memcpy(copy, payload, length);
    }
    e->events[e->event_count++] =
        (struct sp_event){.kind = kind, .length = length, .client = client, .a = a, .b = b, .payload = copy};
}

static inline void sp_engine_dirty(struct sp_engine *e, struct sp_connection *c)
{
    if (!c->dirty && sp_list_push(&e->dirty, sp_client_address(e, c)))
        c->dirty = true;
}

/* How much of `out` may go out now: before the welcome only what precedes the session's frames (HTTP's 101). */
static inline uint32_t sp_output_end(const struct sp_connection *c)
{
    return c->stage == SP_STAGE_ATTACHING && c->envelope ? c->out.boundary : c->out.end;
}

static inline bool sp_output_waits(const struct sp_connection *c)
{
    if (c->tls)
        return c->cipher != NULL && sp_unsent_size(c->cipher) > 0;
    return sp_output_end(c) > c->out.start;
}

/* Has epoll watch for what this connection can use now. */
static inline void sp_engine_arm(struct sp_engine *e, struct sp_connection *c)
{
    if (c->stage == SP_STAGE_DETACHED)
        return;
    bool in = e->reading && c->blocked == SP_BLOCKED_NO && !c->xoff && !c->python_turn && !c->answering;
    if (c->stage == SP_STAGE_ATTACHING && sp_inbound_size(&c->in) > 0)
        in = false;
    if (c->stage == SP_STAGE_ENDING)
        in = false;
    if (c->stage == SP_STAGE_FLUSHED)
        in = true;
    bool out = !c->dirty && sp_output_waits(c);
    uint32_t events = (in ? (uint32_t)EPOLLIN : 0) | (out ? (uint32_t)EPOLLOUT : 0);
    if (events == c->armed)
        return;
    struct epoll_event event = {.events = events, .data.u64 = sp_client_address(e, c) & ~(UINT64_C(255) << 56)};
    if (epoll_ctl(e->epoll, EPOLL_CTL_MOD, c->fd, &event) == 0)
        c->armed = events;
}

static inline void sp_engine_free_input(struct sp_engine *e, struct sp_connection *c)
{
    e->held -= c->in.capacity;
    sp_inbound_free(&c->in);
}

#endif
