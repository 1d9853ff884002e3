/* The load engine: many client connections on one epoll, one thread, no allocation per message.
 *
 * A connection is opened (TCP, WebSocket handshake, hello and welcome), then a run sends and receives on all of them:
 *
 *   window   every sender keeps `outstanding` messages on their way; 1 is the closed loop
 *   rate     message j is due at start + j * interval on sender j % senders, whether or not the server keeps up; its latency
 *            counts from when it was due, so a stall is seen by every message that should have been sent in it
 *   receive  nothing is sent; what the server pushes is counted
 *
 * Per readable connection and turn there is one recv and at most one send, with all acknowledgements and messages that have
 * become due in it. Everything is bounded: the time of a run and of its end, the bytes of a frame, the messages on their way. */
#ifndef SHARDPOOL_LOAD_CONNECTION_H
#define SHARDPOOL_LOAD_CONNECTION_H

#include "clock.h"
#include "histogram.h"
#include "wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    IN_BYTES = 2 * FRAME_BYTES_MAX,
    BATCH_BYTES = 256 * 1024,
    EVENTS = 512,
    CONNECTING_MAX = 64,
    RATE_WINDOW = 1024,
    ACK_FRAMES = 64,
    PAYLOAD_STAMPED = 16, /* bytes 0-8: the number, 8-16: when it was due */
};
#define QUIET_NS 50000000ull

enum state { CLOSED, CONNECTING, UPGRADING, GREETING, READY };
enum framing { FRAMING_BARE, FRAMING_SESSION };
enum check { CHECK_NONE, CHECK_ECHO, CHECK_COUNTER };
enum mode { MODE_WINDOW, MODE_RATE, MODE_RECEIVE };

struct connection {
    int fd;
    enum state state;
    bool blocked;            /* EPOLLOUT is asked for: `pending` did not fit into the socket */
    bool dirty;              /* on the list of connections that owe messages in this turn (rate) */
    uint32_t due;            /* messages to send as soon as there is room */
    uint32_t in_flight;
    uint32_t next;           /* number of the next message; the id of an ask; 0 is skipped */
    uint32_t oldest;         /* number of the next reply expected (bare framing answers in order) */
    uint32_t seq, acked;     /* numbered frames received and acknowledged (session framing) */
    uint64_t acked_ns;
    uint64_t counter;        /* last value the server's per-session counter had */
    uint64_t scheduled;      /* messages sent in this run (rate) */
    uint64_t *stamps;        /* when message `number & mask` was due; 0 = no such message on its way */
    struct bytes left;       /* an incomplete frame */
    struct bytes pending;    /* what the socket did not take; sent before anything else */
};

struct plan {
    enum mode mode;
    uint64_t duration_ns, grace_ns;
    double interval_ns;
    uint32_t outstanding;
    uint32_t senders;
};

struct tally {
    uint64_t start_ns, end_ns;
    uint64_t reply_ns_last, push_ns_last; /* when the last of each came; a room's ticks come for ever */
    uint64_t sent, replies, pushes, errors, unfinished;
    uint64_t bytes_sent, bytes_received;
    struct histogram reply_ns, push_ns;
};

struct engine {
    bool websocket;
    enum framing framing;
    enum check check;
    char host[256], service[16], path[256];
    struct bytes hello, payload, welcome;
    struct sockaddr_storage address;
    socklen_t address_length;
    int epoll;
    uint32_t count, opened, ready, alive;
    struct connection *connections;
    uint32_t window, mask;   /* slots of each `stamps` */
    uint32_t random;
    bool failed_memory;
    char error[256];         /* the first thing that went wrong, as a sentence */
    struct plan plan;
    struct tally tally;
    uint64_t in_flight, owed, issued;
    uint32_t *dirty, dirty_count;
    struct bytes out;
    uint8_t in[IN_BYTES];
};

__attribute__((format(printf, 2, 3))) static void note_error(struct engine *engine, const char *format, ...)
{
    engine->tally.errors++;
    if (engine->error[0] != '\0')
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(engine->error, sizeof engine->error, format, arguments);
    va_end(arguments);
}

static uint32_t connection_number(const struct engine *engine, const struct connection *connection)
{
    return (uint32_t)(connection - engine->connections);
}

static void watch(struct engine *engine, struct connection *connection, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u32 = connection_number(engine, connection)};
    if (epoll_ctl(engine->epoll, operation, connection->fd, &event) != 0)
        note_error(engine, "epoll_ctl: %s", strerror(errno));
}

static void drop(struct engine *engine, struct connection *connection)
{
    if (connection->state == CLOSED)
        return;
    if (connection->state == READY)
        engine->ready--;
    close(connection->fd);
    connection->state = CLOSED;
    connection->fd = -1;
    engine->alive--;
    engine->in_flight -= connection->in_flight;
    engine->owed -= connection->due;
    engine->tally.unfinished += connection->in_flight + connection->due;
    connection->in_flight = connection->due = 0;
    connection->pending.length = connection->left.length = 0;
}

static struct bytes *output(struct engine *engine, struct connection *connection)
{
    return connection->pending.length != 0 ? &connection->pending : &engine->out;
}

static uint32_t next_key(struct engine *engine)
{
    uint32_t x = engine->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return engine->random = x;
}

static void write_frame(struct engine *engine, struct connection *connection, unsigned opcode, const void *head, size_t head_length,
                        const void *tail, size_t tail_length)
{
    struct frame_out frame;
    if (!frame_begin(output(engine, connection), engine->websocket, opcode, next_key(engine), head_length + tail_length, &frame)) {
        engine->failed_memory = true;
        return;
    }
    memcpy(frame.body, head, head_length);
    if (tail_length != 0)
        memcpy(frame.body + head_length, tail, tail_length);
    frame_end(&frame);
}

static void write_message(struct engine *engine, struct connection *connection, uint64_t stamp)
{
    uint8_t head[5];
    size_t head_length = 0, size = engine->payload.length;
    if (connection->next == 0)
        connection->next = 1;
    uint32_t number = connection->next++;
    if (engine->framing == FRAMING_SESSION) {
        head[0] = 'A';
        put_u32(head + 1, number);
        head_length = 5;
    }
    struct frame_out frame;
    if (!frame_begin(&engine->out, engine->websocket, WS_BINARY, next_key(engine), head_length + size, &frame)) {
        engine->failed_memory = true;
        return;
    }
    memcpy(frame.body, head, head_length);
    uint8_t *payload = frame.body + head_length;
    memcpy(payload, engine->payload.data, size);
    if (engine->check != CHECK_NONE) {
        /* Complemented, so that an echo that counts nothing cannot pass for a counter. */
        put_u64_le(payload, ~(uint64_t)number);
        if (size >= PAYLOAD_STAMPED)
            put_u64_le(payload + 8, stamp);
    }
    frame_end(&frame);
    connection->stamps[number & engine->mask] = stamp;
    connection->in_flight++;
    connection->due--;
    engine->owed--;
    engine->in_flight++;
    engine->tally.sent++;
}

static uint64_t stamp_of_next(const struct engine *engine, struct connection *connection, uint64_t now)
{
    if (engine->plan.mode != MODE_RATE)
        return now;
    double position = (double)connection_number(engine, connection) + (double)connection->scheduled * (double)engine->plan.senders;
    connection->scheduled++;
    return engine->tally.start_ns + (uint64_t)(position * engine->plan.interval_ns);
}

/* A slot is taken while its message is unanswered; answers of one connection may come in any order. */
static bool may_send(const struct engine *engine, const struct connection *connection)
{
    uint32_t next = connection->next == 0 ? 1 : connection->next;
    return connection->due != 0 && connection->stamps[next & engine->mask] == 0;
}

/* False when the connection is gone or blocked. */
static bool send_bytes(struct engine *engine, struct connection *connection, struct bytes *bytes)
{
    if (bytes->length == 0)
        return true;
    ssize_t sent = send(connection->fd, bytes->data, bytes->length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        note_error(engine, "connection %u: send: %s", connection_number(engine, connection), strerror(errno));
        bytes->length = 0;
        drop(engine, connection);
        return false;
    }
    size_t taken = sent > 0 ? (size_t)sent : 0;
    engine->tally.bytes_sent += taken;
    size_t rest = bytes->length - taken;
    if (rest == 0) {
        bytes->length = 0;
        return true;
    }
    if (bytes == &connection->pending) {
        memmove(bytes->data, bytes->data + taken, rest);
        bytes->length = rest;
    } else {
        if (!bytes_append(&connection->pending, bytes->data + taken, rest))
            engine->failed_memory = true;
        bytes->length = 0;
    }
    if (!connection->blocked) {
        connection->blocked = true;
        watch(engine, connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    }
    return false;
}

static void acknowledge(struct engine *engine, struct connection *connection, uint64_t now)
{
    uint8_t head[5] = {'K'};
    put_u32(head + 1, connection->seq);
    write_frame(engine, connection, WS_BINARY, head, sizeof head, NULL, 0);
    connection->acked = connection->seq;
    connection->acked_ns = now;
}

/* Sends what parsing has put into the output, and the messages that are due, in as few sends as the socket allows. */
static void flush(struct engine *engine, struct connection *connection, uint64_t now)
{
    if (connection->pending.length != 0 && !send_bytes(engine, connection, &connection->pending))
        return;
    if (connection->blocked) {
        connection->blocked = false;
        watch(engine, connection, EPOLL_CTL_MOD, EPOLLIN);
    }
    do {
        while (engine->out.length < BATCH_BYTES && may_send(engine, connection))
            write_message(engine, connection, stamp_of_next(engine, connection, now));
        if (!send_bytes(engine, connection, &engine->out))
            return;
    } while (may_send(engine, connection));
}

#endif
