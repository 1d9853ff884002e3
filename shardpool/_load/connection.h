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
    uint64_t start_ns, end_ns, last_ns;
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

/* ---- out ---- */

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

/* ---- in ---- */

static bool payload_matches(struct engine *engine, struct connection *connection, uint32_t number, uint64_t stamp, const uint8_t *body,
                            size_t length)
{
    size_t size = engine->payload.length;
    if (engine->check == CHECK_NONE)
        return true;
    if (length != size) {
        note_error(engine, "connection %u: a reply of %zu bytes to a message of %zu", connection_number(engine, connection), length, size);
        return false;
    }
    uint64_t value = get_u64_le(body);
    uint64_t expected = engine->check == CHECK_COUNTER ? ++connection->counter : ~(uint64_t)number;
    if (value != expected) {
        note_error(engine, "connection %u: the reply carries %llu where %llu was expected", connection_number(engine, connection),
                   (unsigned long long)value, (unsigned long long)expected);
        connection->counter = value;
        return false;
    }
    size_t checked = size >= PAYLOAD_STAMPED ? PAYLOAD_STAMPED : 8;
    if ((checked == PAYLOAD_STAMPED && get_u64_le(body + 8) != stamp) ||
        memcmp(body + checked, engine->payload.data + checked, size - checked) != 0) {
        note_error(engine, "connection %u: the reply's payload is not the one that was sent", connection_number(engine, connection));
        return false;
    }
    return true;
}

/* `body` NULL: an error answered the message, already noted. */
static void take_reply(struct engine *engine, struct connection *connection, uint32_t number, const uint8_t *body, size_t length, uint64_t now)
{
    uint64_t *slot = &connection->stamps[number & engine->mask];
    if (connection->in_flight == 0 || *slot == 0 || connection->next - number > engine->window + 1) {
        note_error(engine, "connection %u: a reply to message %u, which is not on its way", connection_number(engine, connection), number);
        return;
    }
    uint64_t stamp = *slot;
    *slot = 0;
    connection->in_flight--;
    engine->in_flight--;
    engine->tally.last_ns = now;
    if (engine->plan.mode == MODE_WINDOW && now < engine->tally.end_ns) {
        connection->due++;
        engine->owed++;
    }
    if (body == NULL)
        return;
    engine->tally.replies++;
    histogram_add(&engine->tally.reply_ns, now > stamp ? now - stamp : 0);
    payload_matches(engine, connection, number, stamp, body, length);
}

static void take_push(struct engine *engine, const uint8_t *body, size_t length, uint64_t now)
{
    engine->tally.pushes++;
    engine->tally.last_ns = now;
    if (engine->check == CHECK_NONE || length < PAYLOAD_STAMPED)
        return;
    uint64_t stamp = get_u64_le(body + 8);
    if (stamp != 0 && stamp <= now && now - stamp < 60 * SECOND_NS)
        histogram_add(&engine->tally.push_ns, now - stamp);
}

static void take_numbered(struct engine *engine, struct connection *connection, uint32_t seq)
{
    if (seq != ++connection->seq) {
        note_error(engine, "connection %u: frame number %u where %u was expected", connection_number(engine, connection), seq, connection->seq);
        connection->seq = seq;
    }
}

static void become_ready(struct engine *engine, struct connection *connection)
{
    connection->state = READY;
    engine->ready++;
}

static void take_session_frame(struct engine *engine, struct connection *connection, const uint8_t *body, size_t length, uint64_t now)
{
    static const uint8_t least[256] = {['W'] = 1, ['M'] = 5, ['R'] = 9, ['E'] = 9, ['P'] = 1, ['O'] = 1, ['C'] = 1};
    if (length == 0 || least[body[0]] == 0 || length < least[body[0]]) {
        note_error(engine, "connection %u: a frame of %zu bytes that is none of this protocol", connection_number(engine, connection), length);
        return drop(engine, connection);
    }
    switch (body[0]) {
    case 'W':
        if (connection->state == READY)
            return note_error(engine, "connection %u: a second welcome", connection_number(engine, connection));
        if (engine->welcome.length == 0 && !bytes_append(&engine->welcome, body + 1, length - 1))
            engine->failed_memory = true;
        return become_ready(engine, connection);
    case 'R':
        take_numbered(engine, connection, get_u32(body + 1));
        return take_reply(engine, connection, get_u32(body + 5), body + 9, length - 9, now);
    case 'M':
        take_numbered(engine, connection, get_u32(body + 1));
        return take_push(engine, body + 5, length - 5, now);
    case 'E':
        take_numbered(engine, connection, get_u32(body + 1));
        note_error(engine, "connection %u: error %.*s", connection_number(engine, connection), (int)(length - 9 < 160 ? length - 9 : 160), body + 9);
        if (get_u32(body + 5) != 0)
            take_reply(engine, connection, get_u32(body + 5), NULL, 0, now);
        return;
    case 'P':
        return write_frame(engine, connection, WS_BINARY, "O", 1, body + 1, length - 1);
    case 'C':
        note_error(engine, "connection %u: closed by the server: %.*s", connection_number(engine, connection),
                   (int)(length - 1 < 160 ? length - 1 : 160), body + 1);
        return drop(engine, connection);
    default:
        return;
    }
}

static void take_frame(struct engine *engine, struct connection *connection, const struct frame_in *frame, uint64_t now)
{
    switch (frame->opcode) {
    case WS_PING:
        return write_frame(engine, connection, WS_PONG, frame->body, frame->length, NULL, 0);
    case WS_PONG:
        return;
    case WS_CLOSE:
        note_error(engine, "connection %u: WebSocket closed by the server, code %u", connection_number(engine, connection),
                   frame->length >= 2 ? (unsigned)frame->body[0] << 8 | frame->body[1] : 1005u);
        return drop(engine, connection);
    default:
        if (engine->framing == FRAMING_SESSION)
            return take_session_frame(engine, connection, frame->body, frame->length, now);
        if (connection->in_flight == 0 && connection_number(engine, connection) >= engine->plan.senders)
            return take_push(engine, frame->body, frame->length, now);
        if (connection->oldest == 0)
            connection->oldest = 1;
        return take_reply(engine, connection, connection->oldest++, frame->body, frame->length, now);
    }
}

static void say_hello(struct engine *engine, struct connection *connection)
{
    if (engine->framing != FRAMING_SESSION)
        return become_ready(engine, connection);
    connection->state = GREETING;
    write_frame(engine, connection, WS_BINARY, "H", 1, engine->hello.data, engine->hello.length);
}

/* Bytes consumed of the answer to the WebSocket handshake: 0 until its head is complete. */
static size_t take_upgrade(struct engine *engine, struct connection *connection, const uint8_t *data, size_t length)
{
    const uint8_t *end = memmem(data, length, "\r\n\r\n", 4);
    if (end == NULL) {
        if (length > 16384) {
            note_error(engine, "connection %u: no end of the answer to the WebSocket handshake", connection_number(engine, connection));
            drop(engine, connection);
        }
        return 0;
    }
    size_t head = (size_t)(end - data) + 4;
    if (head < 12 || memcmp(data, "HTTP/1.1 101", 12) != 0 || memmem(data, head, WS_ACCEPT, strlen(WS_ACCEPT)) == NULL) {
        note_error(engine, "connection %u: no WebSocket here: %.*s", connection_number(engine, connection), (int)(head < 80 ? head - 4 : 80), data);
        drop(engine, connection);
        return 0;
    }
    say_hello(engine, connection);
    return head;
}

static void serve_readable(struct engine *engine, struct connection *connection)
{
    size_t have = connection->left.length;
    if (have != 0)
        memcpy(engine->in, connection->left.data, have);
    ssize_t got = recv(connection->fd, engine->in + have, IN_BYTES - have, 0);
    if (got <= 0) {
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        note_error(engine, "connection %u: %s", connection_number(engine, connection), got == 0 ? "closed by the server" : strerror(errno));
        return drop(engine, connection);
    }
    uint64_t now = now_ns();
    engine->tally.bytes_received += (uint64_t)got;
    have += (size_t)got;
    size_t at = 0;
    if (connection->state == UPGRADING)
        at = take_upgrade(engine, connection, engine->in, have);
    while (connection->state == GREETING || connection->state == READY) {
        struct frame_in frame;
        ptrdiff_t taken = frame_split(engine->in + at, have - at, engine->websocket, &frame);
        if (taken < 0) {
            note_error(engine, "connection %u: a frame that cannot be read (longer than %d bytes, or in pieces)",
                       connection_number(engine, connection), FRAME_BYTES_MAX);
            drop(engine, connection);
        }
        if (taken <= 0)
            break;
        at += (size_t)taken;
        take_frame(engine, connection, &frame, now);
    }
    if (connection->state == CLOSED) {
        engine->out.length = 0;
        return;
    }
    connection->left.length = 0;
    if (have != at && !bytes_append(&connection->left, engine->in + at, have - at))
        engine->failed_memory = true;
    uint32_t unacknowledged = connection->seq - connection->acked;
    if (unacknowledged >= ACK_FRAMES || (unacknowledged != 0 && now - connection->acked_ns > SECOND_NS))
        acknowledge(engine, connection, now);
    flush(engine, connection, now);
}

#endif
