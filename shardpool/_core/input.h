/* From the sockets to the shards: one read, all its frames, one admission for the session's actor.
 *
 * Outcomes    LANE_FULL, SEALED, LINK_FULL, and a full quarter of the link: the frames stay, the socket is not read, the
 *             doorbell brings them back. SATURATED and STALE are answered with E, frame by frame. A bare connection, which
 *             has no E, waits when the shard is saturated and is closed when its object is gone.
 */
#ifndef SP_INPUT_H
#define SP_INPUT_H

#include "output.h"

static inline void sp_input_block(struct sp_engine *e, struct sp_connection *c, enum sp_blocked why)
{
    c->blocked = (uint8_t)why;
    if (!c->listed)
        c->listed = sp_list_push(&e->blocked, sp_client_address(e, c));
    if (why == SP_BLOCKED_PERMIT && e->permit_due_ns == 0)
        e->permit_due_ns = e->now_ns + SP_PERMIT_RETRY_NS;
}

/* Reads the route again; true if the session's messages go elsewhere by now. */
static inline bool sp_input_reroute(struct sp_engine *e, struct sp_connection *c)
{
    struct sp_peer *shard = c->session_slot == 0 ? NULL : sp_node_shard(e->node, c->session_slot);
    uint32_t index = sp_address_index(c->session_slot);
    if (shard == NULL || index >= e->node->geometry.slots)
        return false;
    const struct sp_slot *slot = &shard->slots[index];
    if (sp_word_generation(sp_load_acquire(&slot->word.low)) != sp_address_generation(c->session_slot))
        return false;
    /* acquire: pairs with the release of the new route, behind which the moved records are placed */
    uint64_t route = sp_load_acquire(&slot->route);
    if (route == 0 || route == c->actor)
        return false;
    c->actor = route;
    return true;
}

/* Tries to publish the first `count` messages. On LINK_FULL the caller must ask to be rung. */
static inline enum sp_outcome sp_input_admit(struct sp_engine *e, struct sp_connection *c, const struct sp_message *messages,
                                             uint32_t count, struct sp_admission *a)
{
    *a = (struct sp_admission){.address = c->actor, .lane = SP_LANE_APPLICATION, .stream = SP_STREAM_DATA};
    uint64_t payload = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size = sp_record_size(messages[i].length);
        a->charge += sp_charge(SP_LANE_APPLICATION, messages[i].length);
        a->bytes += size;
        a->largest = size > a->largest ? size : a->largest;
        payload += messages[i].length;
    }
    struct sp_flight *flights = NULL;
    if (sp_address_number(c->actor) < e->node->geometry.shards) {
        flights = e->flights + (size_t)sp_address_number(c->actor) * SP_FLIGHT_PLACES;
        a->shard = sp_node_shard(e->node, c->actor);
        a->writer = &a->shard->writers[SP_STREAM_DATA];
        if (!sp_flight_allows(flights, a->writer, c->actor, a->bytes))
            return SP_LINK_FULL;
    }
    enum sp_outcome outcome = sp_admission_begin(e->node, a);
    if (outcome != SP_ACCEPTED)
        return outcome;
    uint64_t client = sp_client_address(e, c);
    uint16_t kind = c->local ? SP_KIND_OPERATION : SP_KIND_FRAME;
    for (uint32_t i = 0; i < count; i++) {
        struct sp_record *record = sp_admission_record(a, messages[i].length, kind);
        record->flags |= messages[i].flags;
        record->a = client;
        record->b = messages[i].request;
        memcpy(sp_record_payload(record), messages[i].bytes, messages[i].length);
    }
    sp_admission_commit(e->node, a);
    sp_flight_note(flights, a->writer, c->actor, a->bytes);
    sp_count(e->node, SP_COUNT_MESSAGES_IN, count);
    sp_count(e->node, SP_COUNT_BYTES_IN, payload);
    sp_count(e->node, SP_COUNT_BATCHES, 1);
    return SP_ACCEPTED;
}

/* Answers messages that will not be delivered. */
static inline void sp_input_refuse(struct sp_engine *e, struct sp_connection *c, const struct sp_message *messages,
                                   uint32_t count, enum sp_outcome outcome)
{
    sp_count(e->node, outcome == SP_SATURATED ? SP_COUNT_REFUSED_PERMIT : SP_COUNT_REFUSED_STALE, count);
    for (uint32_t i = 0; i < count && c->stage == SP_STAGE_BOUND; i++)
        sp_output_numbered(e, c, 'E', messages[i].request, e->errors[outcome], e->error_lengths[outcome]);
}

/* What one refusal means for the connection. */
enum sp_input_next { SP_INPUT_RETRY, SP_INPUT_REFUSED, SP_INPUT_STOP };

static inline enum sp_input_next sp_input_refused(struct sp_engine *e, struct sp_connection *c, enum sp_outcome outcome,
                                                  struct sp_admission *a, bool *asked)
{
    switch (outcome) {
    case SP_SEALED:
        if (sp_input_reroute(e, c))
            return SP_INPUT_RETRY;
        __attribute__((fallthrough));
    case SP_LANE_FULL:
        if (!*asked) {
            sp_waiters_join(e->node, a->slot);
            *asked = true;
            return SP_INPUT_RETRY;
        }
        sp_count(e->node, SP_COUNT_REFUSED_LANE, 1);
        sp_input_block(e, c, SP_BLOCKED_BELL);
        return SP_INPUT_STOP;
    case SP_LINK_FULL:
        if (!*asked) {
            *asked = true;
            sp_writer_want(a->writer, a->bytes + a->largest + 2 * SP_RECORD_HEAD);
            return SP_INPUT_RETRY;
        }
        sp_input_block(e, c, SP_BLOCKED_BELL);
        return SP_INPUT_STOP;
    case SP_STALE:
        if (sp_input_reroute(e, c))
            return SP_INPUT_RETRY;
        if (c->envelope)
            return SP_INPUT_REFUSED;
        sp_engine_end_text(e, c, SP_CLOSE_UNAVAILABLE, "the object behind this connection is gone");
        return SP_INPUT_STOP;
    case SP_SATURATED:
        if (c->envelope)
            return SP_INPUT_REFUSED;
        sp_input_block(e, c, SP_BLOCKED_PERMIT);
        return SP_INPUT_STOP;
    case SP_TOO_BIG:
        sp_engine_end_text(e, c, c->framing == SP_FRAMING_WEBSOCKET ? SP_CLOSE_MESSAGE_TOO_BIG : SP_CLOSE_FRAME_TOO_BIG,
                           "the message is larger than a quarter of the link to its shard (link_bytes)");
        return SP_INPUT_STOP;
    default:
        sp_engine_end_text(e, c, SP_CLOSE_GOING_AWAY, "the server is stopping");
        return SP_INPUT_STOP;
    }
}

/* Publishes messages in order; returns how many are done with (delivered or answered). */
static inline uint32_t sp_input_publish(struct sp_engine *e, struct sp_connection *c, const struct sp_message *messages,
                                        uint32_t count)
{
    uint32_t done = 0;
    uint32_t tries = 0;
    bool asked = false;
    while (done < count && c->stage == SP_STAGE_BOUND) {
        struct sp_admission a;
        uint32_t part = count - done;
        enum sp_outcome outcome = sp_input_admit(e, c, messages + done, part, &a);
        /* a lane or link with little room takes a part, so that a batch larger than either never waits for ever */
        while ((outcome == SP_LANE_FULL || outcome == SP_LINK_FULL) && part > 1) {
            part /= 2;
            outcome = sp_input_admit(e, c, messages + done, part, &a);
        }
        if (outcome == SP_ACCEPTED) {
            done += part;
            continue;
        }
        /* bounded: routes that keep changing are taken up again with the next doorbell */
        enum sp_input_next next = ++tries > 8 ? SP_INPUT_STOP : sp_input_refused(e, c, outcome, &a, &asked);
        if (next == SP_INPUT_REFUSED) {
            sp_input_refuse(e, c, messages + done, part, outcome);
            done += part;
        } else if (next == SP_INPUT_STOP) {
            if (c->stage == SP_STAGE_BOUND && c->blocked == SP_BLOCKED_NO)
                sp_input_block(e, c, SP_BLOCKED_PERMIT);
            break;
        }
    }
    return done;
}

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
static inline bool sp_input_acknowledged(struct sp_connection *c, const uint8_t *frame, uint32_t length)
{
    if (length != 5 || frame[0] != 'K' || !c->envelope)
        return false;
    uint32_t number = sp_big_endian_32(frame + 1);
    if ((int32_t)(number - c->sequence) > 0)
        return false;
    if ((int32_t)(number - c->acknowledged) > 0)
        c->acknowledged = number;
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
        if (sp_input_acknowledged(c, piece.bytes, piece.length)) {
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
        uint32_t done = sp_input_publish(e, c, e->batch, count);
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
