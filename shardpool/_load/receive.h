/* What comes in on a connection: replies checked against what was sent, pushes counted, hello and handshake on the way. */
#ifndef SHARDPOOL_LOAD_RECEIVE_H
#define SHARDPOOL_LOAD_RECEIVE_H

#include "connection.h"

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
    engine->tally.reply_ns_last = now;
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
    engine->tally.push_ns_last = now;
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
