/* From the sockets: one read, all its frames; messages in batches to the session's object, the rest dealt with here.
 *
 * Order       what came first is dealt with first: a frame that is no message ends the batch before it, and waits with it
 *             when that finds no room. Only acknowledgements, which may be taken twice, do not.
 */
#ifndef SP_INPUT_H
#define SP_INPUT_H

#include "publication.h"

/* messages_per_second: a bucket that holds one second's worth. */
static inline bool sp_input_within_rate(struct sp_engine *e, struct sp_connection *c, uint32_t count)
{
    if (e->settings.messages_per_second == 0)
        return true;
    uint64_t due = c->rate_due_ns > e->now_ns ? c->rate_due_ns : e->now_ns;
    c->rate_due_ns = due + (uint64_t)count * UINT64_C(1000000000) / e->settings.messages_per_second;
    return c->rate_due_ns - e->now_ns <= UINT64_C(1000000000);
}

static inline enum sp_found sp_input_next(struct sp_engine *e, struct sp_connection *c, uint8_t *bytes, uint64_t length,
                                          struct sp_piece *piece)
{
    if (c->framing == SP_FRAMING_WEBSOCKET)
        return sp_ws_next(bytes, length, e->settings.frame_bytes, c->compressed, c->fragmented, piece);
    return sp_frame_next(bytes, length, e->settings.frame_bytes, piece);
}

static inline void sp_input_too_big(struct sp_engine *e, struct sp_connection *c, const uint8_t *bytes, uint64_t length)
{
    enum sp_foreign foreign = c->framing == SP_FRAMING_TCP && !c->tls ? sp_foreign_protocol(bytes, length) : SP_FOREIGN_NO;
    static const char http[] = "this address speaks shardpool's TCP protocol, not HTTP: use the ws:// or wss:// address";
    static const char tls[] = "this address is not TLS: use the tls:// or wss:// address";
    if (foreign == SP_FOREIGN_HTTP)
        sp_engine_end(e, c, SP_CLOSE_PROTOCOL, http, sizeof http - 1, foreign);
    else if (foreign == SP_FOREIGN_TLS)
        sp_engine_end(e, c, SP_CLOSE_PROTOCOL, tls, sizeof tls - 1, foreign);
    else
        sp_engine_end_text(e, c, c->framing == SP_FRAMING_WEBSOCKET ? SP_CLOSE_MESSAGE_TOO_BIG : SP_CLOSE_FRAME_TOO_BIG,
                           "the frame is longer than the limit (frame_bytes)");
}

/* Deals with what is no message of the session's actor. Returns the bytes that were used. */
static inline uint32_t sp_input_other(struct sp_engine *e, struct sp_connection *c, enum sp_found found, uint8_t *bytes,
                                      uint32_t length, const struct sp_piece *piece)
{
    switch (found) {
    case SP_FOUND_OTHER:
    case SP_FOUND_ILLEGAL: {
        uint32_t size = found == SP_FOUND_OTHER ? (uint32_t)piece->size : length;
        c->python_turn = true;
        sp_engine_event(e, SP_EVENT_FRAME, sp_client_address(e, c), 0, 0, bytes, size);
        return size;
    }
    case SP_FOUND_TOO_BIG:
        sp_input_too_big(e, c, bytes, length);
        return length;
    case SP_FOUND_EMPTY:
        sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, "a frame of length 0");
        return length;
    default:
        return 0;
    }
}

/* Takes note of an acknowledgement, which clients send in the middle of their messages: it does not end a batch, and
 * may be read again when what came before it has to wait. False: the frame is none, or acknowledges too much. */
static inline bool sp_input_acknowledged(struct sp_engine *e, struct sp_connection *c, const uint8_t *frame, uint32_t length)
{
    if (length != 5 || frame[0] != 'K' || !c->envelope)
        return false;
    uint32_t number = sp_big_endian_32(frame + 1);
    if ((int32_t)(number - c->sequence) > 0)
        return false;
    if ((int32_t)(number - c->acknowledged) > 0) {
        c->acknowledged = number;
        if (c->kept != NULL)
            sp_retained_acknowledge(&e->retained, c->kept, number);
    }
    return true;
}

/* A frame that is neither S nor a well-formed A. */
static inline void sp_input_control(struct sp_engine *e, struct sp_connection *c, const uint8_t *frame, uint32_t length)
{
    switch (length == 0 ? 0 : frame[0]) {
    case 'K':
        sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, length == 5 ? "an acknowledgement of a number that was never sent"
                                                                : "K needs a number of 4 bytes");
        return;
    case 'P':
        if (length <= 126)
            sp_output_control(e, c, 'O', frame + 1, length - 1);
        else
            sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, "a ping carries at most 125 bytes");
        return;
    case 'O':
        if (length > 126)
            sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, "a pong carries at most 125 bytes");
        return;
    case 'B':
        sp_engine_end_text(e, c, SP_CLOSE_NORMAL, "bye");
        return;
    case 'A':
        sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, "A needs an id of 4 bytes other than 0");
        return;
    case 'H':
        sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, "a second H");
        return;
    default:
        sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, "a frame of unknown kind");
    }
}

/* Turns a piece into a message for the actor; false if it is none. */
static inline bool sp_input_message(const struct sp_connection *c, const struct sp_piece *piece, struct sp_message *message)
{
    if (!c->envelope) {
        *message = (struct sp_message){.bytes = piece->bytes, .length = piece->length,
                                       .flags = (uint16_t)(SP_FLAG_BARE | (piece->text ? SP_FLAG_TEXT : 0))};
        return true;
    }
    if (piece->length >= 1 && piece->bytes[0] == 'S' && !c->local) {
        *message = (struct sp_message){.bytes = piece->bytes + 1, .length = piece->length - 1};
        return true;
    }
    if (piece->length >= 5 && piece->bytes[0] == 'A') {
        *message = (struct sp_message){.bytes = piece->bytes + 5, .length = piece->length - 5,
                                       .request = sp_big_endian_32(piece->bytes + 1), .flags = SP_FLAG_ASK};
        return message->request != 0;
    }
    return false;
}

/* Takes messages for the actor off the input until something else comes or the batch is full, publishes them, and deals
 * with the something else. Returns the bytes that were used; 0: nothing can be done now. */
static inline uint32_t sp_input_session(struct sp_engine *e, struct sp_connection *c, uint8_t *bytes, uint32_t length)
{
    uint32_t count = 0;
    uint32_t at = 0;
    uint64_t size = 0;
    uint64_t quarter = e->node->geometry.link_bytes / 4;
    struct sp_piece piece = {0};
    enum sp_found found = SP_FOUND_INCOMPLETE;
    bool control = false;
    while (count < SP_BATCH) {
        found = sp_input_next(e, c, bytes + at, length - at, &piece);
        if (found != SP_FOUND_MESSAGE)
            break;
        if (sp_input_acknowledged(e, c, piece.bytes, piece.length)) {
            at += (uint32_t)piece.size;
            if (count > 0)
                e->batch[count - 1].end = at;
            continue;
        }
        struct sp_message *message = &e->batch[count];
        control = !sp_input_message(c, &piece, message);
        size += control ? 0 : sp_record_size(message->length);
        if (control || (count > 0 && size > quarter))
            break;
        at += (uint32_t)piece.size;
        message->end = at;
        c->last_text = piece.text;
        count++;
    }
    if (count > 0) {
        uint32_t done = sp_publication_run(e, c, e->batch, count);
        if (!sp_input_within_rate(e, c, done))
            sp_engine_end_text(e, c, SP_CLOSE_RATE, "more messages than messages_per_second");
        if (done < count || c->stage != SP_STAGE_BOUND)
            return done == 0 ? 0 : e->batch[done - 1].end;
    }
    if (found == SP_FOUND_MESSAGE && !control)
        return at; /* the batch was full */
    if (control) {
        sp_input_control(e, c, piece.bytes, piece.length);
        return at + (uint32_t)piece.size;
    }
    return at + sp_input_other(e, c, found, bytes + at, length - at, &piece);
}

static inline uint32_t sp_input_hello(struct sp_engine *e, struct sp_connection *c, uint8_t *bytes, uint32_t length)
{
    struct sp_piece piece = {0};
    /* the declared length decides, before the rest is awaited */
    if (c->framing == SP_FRAMING_TCP && length >= 4) {
        uint32_t declared = sp_big_endian_32(bytes);
        if (declared > e->settings.hello_bytes + 1 && declared <= e->settings.frame_bytes) {
            sp_engine_end_text(e, c, SP_CLOSE_FRAME_TOO_BIG, "the hello is longer than the limit (hello_bytes)");
            return length;
        }
    }
    enum sp_found found = sp_input_next(e, c, bytes, length, &piece);
    if (found == SP_FOUND_INCOMPLETE && length > e->settings.hello_bytes + 16)
        sp_engine_end_text(e, c, SP_CLOSE_FRAME_TOO_BIG, "the hello is longer than the limit (hello_bytes)");
    if (found != SP_FOUND_MESSAGE)
        return sp_input_other(e, c, found, bytes, length, &piece);
    if (piece.length > e->settings.hello_bytes + 1) {
        sp_engine_end_text(e, c, SP_CLOSE_FRAME_TOO_BIG, "the hello is longer than the limit (hello_bytes)");
        return length;
    }
    if (piece.length == 0 || piece.bytes[0] != 'H') {
        sp_engine_end_text(e, c, SP_CLOSE_PROTOCOL, "the first frame must be H, the hello");
        return length;
    }
    c->stage = SP_STAGE_ATTACHING;
    sp_engine_event(e, SP_EVENT_HELLO, sp_client_address(e, c), 0, 0, piece.bytes + 1, piece.length - 1);
    return (uint32_t)piece.size;
}

/* Works through input as far as it goes; returns the bytes that were used. Never drops the connection (A3). */
static inline uint32_t sp_input_process(struct sp_engine *e, struct sp_connection *c, uint8_t *bytes, uint32_t length)
{
    uint32_t at = 0;
    while (at < length && c->blocked == SP_BLOCKED_NO && !c->python_turn) {
        uint32_t used = 0;
        switch (c->stage) {
        case SP_STAGE_RELAY:
        case SP_STAGE_HANDSHAKE:
            sp_engine_event(e, SP_EVENT_BYTES, sp_client_address(e, c), 0, 0, bytes + at, length - at);
            return length;
        case SP_STAGE_HELLO:
            used = sp_input_hello(e, c, bytes + at, length - at);
            break;
        case SP_STAGE_BOUND:
            used = sp_input_session(e, c, bytes + at, length - at);
            break;
        case SP_STAGE_ATTACHING:
            break;
        default:
            return length;
        }
        if (used == 0)
            break;
        at += used;
    }
    return c->stage >= SP_STAGE_ENDING ? length : at;
}

static inline void sp_input_overfull(struct sp_engine *e, struct sp_connection *c)
{
    if (e->held > e->settings.inbound_bytes && c->in.capacity > SP_READ_BYTES_SHORT)
        sp_engine_end_text(e, c, SP_CLOSE_FULL, "the server holds as much unfinished input as it may (inbound_bytes)");
}

/* Works through input that lies elsewhere and keeps what is left. */
static inline void sp_input_take(struct sp_engine *e, struct sp_connection *c, uint8_t *bytes, uint32_t length)
{
    uint32_t used = sp_input_process(e, c, bytes, length);
    if (used == length) {
        sp_engine_free_input(e, c);
    } else {
        uint32_t before = c->in.capacity;
        c->in.start = c->in.end = 0;
        bool kept = sp_inbound_append(&c->in, bytes + used, length - used);
        e->held += c->in.capacity - before;
        if (!kept)
            sp_engine_end_text(e, c, SP_CLOSE_INTERNAL, "the server is out of memory");
        else
            sp_input_overfull(e, c);
    }
    sp_engine_arm(e, c);
}

/* Works through the kept input. */
static inline void sp_input_resume(struct sp_engine *e, struct sp_connection *c)
{
    uint32_t used = sp_input_process(e, c, c->in.bytes + c->in.start, sp_inbound_size(&c->in));
    c->in.start += used > sp_inbound_size(&c->in) ? sp_inbound_size(&c->in) : used;
    if (sp_inbound_size(&c->in) == 0)
        sp_engine_free_input(e, c);
    sp_engine_arm(e, c);
}

/* Puts a WebSocket message that Python assembled before the kept input, as a frame with the key 0: it then takes the same
 * way as all others, and waits where they would. */
static inline bool sp_input_put_back(struct sp_engine *e, struct sp_connection *c, bool text, const uint8_t *message,
                                     uint32_t length)
{
    uint8_t head[10 + 4];
    unsigned size = sp_ws_header(head, text ? SP_WS_TEXT : SP_WS_BINARY, length);
    head[1] |= 0x80;
    memset(head + size, 0, 4);
    size += 4;
    struct sp_inbound in = {0};
    uint32_t rest = sp_inbound_size(&c->in);
    if (!sp_inbound_room(&in, size + length + rest))
        return false;
    memcpy(in.bytes, head, size);
    memcpy(in.bytes + size, message, length);
    if (rest > 0)
        memcpy(in.bytes + size + length, c->in.bytes + c->in.start, rest);
    in.end = size + length + rest;
    sp_engine_free_input(e, c);
    c->in = in;
    e->held += in.capacity;
    return true;
}

/* Adds to the kept input and works through it. */
static inline void sp_input_feed(struct sp_engine *e, struct sp_connection *c, const uint8_t *bytes, uint32_t length)
{
    if (c->stage >= SP_STAGE_ENDING || c->stage == SP_STAGE_FREE)
        return;
    uint32_t before = c->in.capacity;
    bool kept = sp_inbound_append(&c->in, bytes, length);
    e->held += c->in.capacity - before;
    if (!kept) {
        sp_engine_end_text(e, c, SP_CLOSE_INTERNAL, "the server is out of memory");
        return;
    }
    sp_input_resume(e, c);
    if (c->stage < SP_STAGE_ENDING)
        sp_input_overfull(e, c);
}

/* One read. May drop the connection. */
static inline void sp_input_read(struct sp_engine *e, struct sp_connection *c)
{
    uint32_t kept = c->tls ? 0 : sp_inbound_size(&c->in);
    uint32_t ask = e->held > e->settings.inbound_bytes / 2 ? SP_READ_BYTES_SHORT : SP_READ_BYTES;
    uint8_t *place = e->scratch + kept;
    bool in_place = kept > SP_KEPT_COPY;
    if (in_place) {
        uint32_t before = c->in.capacity;
        bool room = sp_inbound_room(&c->in, ask);
        e->held += c->in.capacity - before;
        if (!room) {
            sp_engine_drop(e, c, SP_CLOSE_INTERNAL);
            return;
        }
        place = c->in.bytes + c->in.end;
    } else if (kept > 0) {
        memcpy(e->scratch, c->in.bytes + c->in.start, kept);
    }
    ssize_t got = recv(c->fd, place, ask, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        sp_engine_drop(e, c, SP_CLOSE_LOST);
        return;
    }
    c->received_ms = e->now_ms;
    c->pinged = false;
    if (c->stage >= SP_STAGE_ENDING)
        return;
    if (c->tls) {
        sp_engine_event(e, SP_EVENT_BYTES, sp_client_address(e, c), 1, 0, place, (uint32_t)got);
    } else if (in_place) {
        c->in.end += (uint32_t)got;
        sp_input_resume(e, c);
        if (c->stage < SP_STAGE_ENDING)
            sp_input_overfull(e, c);
    } else {
        sp_input_take(e, c, e->scratch, kept + (uint32_t)got);
    }
}

/* Looks again at blocked connections; bounded per call, in turn. */
static inline void sp_input_retry(struct sp_engine *e)
{
    uint32_t left = e->retry_left < SP_RETRY_AT_ONCE ? e->retry_left : SP_RETRY_AT_ONCE;
    e->retry_left -= left;
    for (; left > 0 && sp_list_size(&e->blocked) > 0; left--) {
        struct sp_connection *c = sp_engine_find(e, e->blocked.items[e->blocked.head++]);
        if (c == NULL)
            continue;
        c->listed = false;
        if (c->blocked == SP_BLOCKED_NO)
            continue;
        c->blocked = SP_BLOCKED_NO;
        sp_input_resume(e, c);
    }
    if (sp_list_size(&e->blocked) == 0)
        e->blocked.head = e->blocked.count = 0;
}

#endif
