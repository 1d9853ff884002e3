/* From the own inbox to the sockets: records become frames in per-connection buffers, one write each per turn.
 *
 * Back pressure   beyond a quarter of outbound_bytes the shards are told to pause (XOFF) and the socket is not read;
 *                 below half of that they may go on (XON). At outbound_bytes the policy for slow clients decides; with
 *                 `wait`, what was under way when the shards were told still fits up to twice the limit.
 * Order           numbers are given when a frame is appended; the welcome goes before whatever on_connect pushed.
 */
#ifndef SP_OUTPUT_H
#define SP_OUTPUT_H

#include "pending.h"

static inline void sp_output_ease(struct sp_engine *e, struct sp_connection *c)
{
    if (!c->xoff || c->stage >= SP_STAGE_ENDING || sp_unsent_size(&c->out) > e->settings.outbound_bytes / 8)
        return;
    c->xoff = false;
    if (c->kept != NULL)
        c->kept->paused = 0;
    sp_engine_tell_shards(e, c, SP_KIND_XON);
}

/* Whether `size` more bytes may wait for this connection; drops or ends by the policy. */
static inline bool sp_output_permits(struct sp_engine *e, struct sp_connection *c, uint32_t size)
{
    uint64_t held = sp_unsent_size(&c->out) + (uint64_t)size;
    if (held <= e->settings.outbound_bytes)
        return true;
    if (e->settings.slow_client == SP_SLOW_DROP_OLDEST) {
        uint32_t wanted = (uint32_t)(held - e->settings.outbound_bytes) + e->settings.outbound_bytes / 8;
        struct sp_dropped dropped = sp_unsent_drop(&c->out, (enum sp_framing)c->framing, c->envelope, wanted);
        sp_count(e->node, SP_COUNT_DROPPED, dropped.count);
        if (c->envelope)
            c->sequence -= dropped.count;
        if (c->kept != NULL && dropped.count > 0)
            sp_retained_renumber(&e->retained, c->kept, dropped.first, dropped.last, dropped.count);
        if (held - dropped.bytes <= e->settings.outbound_bytes)
            return true;
    } else if (e->settings.slow_client == SP_SLOW_WAIT) {
        bool moves = sp_elapsed_ms(e, c->sent_ms) <= e->settings.send_timeout_ms;
        if (moves && held <= 2 * (uint64_t)e->settings.outbound_bytes)
            return true;
    }
    sp_engine_end_text(e, c, SP_CLOSE_SLOW, "the client does not read fast enough: outbound_bytes are waiting for it");
    return false;
}

static inline void sp_output_pause(struct sp_engine *e, struct sp_connection *c)
{
    if (c->xoff || sp_unsent_size(&c->out) <= e->settings.outbound_bytes / 4)
        return;
    c->xoff = true;
    if (c->kept != NULL)
        c->kept->paused = 1;
    sp_engine_tell_shards(e, c, SP_KIND_XOFF);
    sp_engine_arm(e, c);
}

/* A numbered frame for a client that is away. What it misses must fit as a whole: else its session ends, at once rather
 * than in vain at the end of the window. No sender waits for a client that is not there. */
static inline void sp_output_away(struct sp_engine *e, struct sp_connection *c, uint8_t kind, uint32_t request,
                                  const uint8_t *body, uint32_t length)
{
    c->sequence = c->sequence + 1 == 0 ? 1 : c->sequence + 1;
    if (sp_retained_append(&e->retained, c->kept, kind, c->sequence, request, body, length))
        return;
    if (c->stage == SP_STAGE_DETACHED)
        sp_engine_forget(e, c, SP_CLOSE_SLOW);
    else
        sp_engine_detach(e, c, SP_CLOSE_SLOW);
}

static inline unsigned sp_output_header(uint8_t *head, enum sp_framing framing, bool text, uint32_t length)
{
    if (framing == SP_FRAMING_WEBSOCKET)
        return sp_ws_header(head, text ? SP_WS_TEXT : SP_WS_BINARY, length);
    sp_put_big_endian_32(head, length);
    return 4;
}

/* Appends one frame of `prefix` and `body`. */
static inline bool sp_output_append(struct sp_engine *e, struct sp_connection *c, bool text, const uint8_t *prefix,
                                    uint32_t prefix_length, const uint8_t *body, uint32_t length)
{
    uint8_t head[10 + 16];
    unsigned size = sp_output_header(head, (enum sp_framing)c->framing, text, prefix_length + length);
    if (prefix_length > 0)
        memcpy(head + size, prefix, prefix_length);
    size += prefix_length;
    if (!sp_output_permits(e, c, size + length))
        return false;
    if (sp_unsent_size(&c->out) == 0)
        c->sent_ms = e->now_ms;
    uint8_t *place = sp_unsent_room(&c->out, &e->spare, (enum sp_framing)c->framing, size + length);
    if (place == NULL) {
        sp_engine_end_text(e, c, SP_CLOSE_INTERNAL, "the server is out of memory");
        return false;
    }
    memcpy(place, head, size);
    if (length > 0)
        memcpy(place + size, body, length);
    c->out.end += size + length;
    sp_engine_dirty(e, c);
    sp_output_pause(e, c);
    return true;
}

/* M, R or E: takes the session's next number. */
static inline void sp_output_numbered(struct sp_engine *e, struct sp_connection *c, uint8_t kind, uint32_t request,
                                      const uint8_t *body, uint32_t length)
{
    uint8_t prefix[9];
    prefix[0] = kind;
    uint32_t number = c->sequence + 1;
    if (number == 0)
        number = 1;
    sp_put_big_endian_32(prefix + 1, number);
    sp_put_big_endian_32(prefix + 5, request);
    uint32_t before = c->sequence;
    if (c->local)
        sp_put_big_endian_32(prefix + 1, 0);
    else
        c->sequence = number;
    bool well = sp_output_append(e, c, false, prefix, kind == 'M' ? 5 : 9, body, length);
    if (c->kept != NULL) /* it may be ending by now: then this waits for the client's return */
        sp_retained_append(&e->retained, c->kept, kind, c->sequence, request, body, length);
    if (well) {
        /* a drop on the way renumbered what waits: this frame comes right behind it */
        if (c->sequence != number && !c->local) {
            uint32_t size = length + (kind == 'M' ? 5U : 9U);
            uint8_t *frame = c->out.bytes + c->out.end - size;
            sp_put_big_endian_32(frame + 1, c->sequence);
        }
        return;
    }
    if (c->kept == NULL)
        c->sequence = before;
}

static inline void sp_output_control(struct sp_engine *e, struct sp_connection *c, uint8_t kind, const uint8_t *body,
                                     uint32_t length)
{
    sp_output_append(e, c, false, &kind, 1, body, length);
}

/* A whole frame that was made elsewhere. */
static inline bool sp_output_raw(struct sp_engine *e, struct sp_connection *c, const uint8_t *frame, uint32_t length)
{
    uint8_t *place = sp_unsent_room(&c->out, &e->spare, (enum sp_framing)c->framing, length);
    if (place == NULL)
        return false;
    memcpy(place, frame, length);
    c->out.end += length;
    sp_engine_dirty(e, c);
    sp_output_pause(e, c);
    return true;
}

static inline void sp_output_ping(struct sp_engine *e, struct sp_connection *c)
{
    static const uint8_t websocket_ping[2] = {0x80 | SP_WS_PING, 0};
    if (c->envelope) {
        sp_output_control(e, c, 'P', NULL, 0);
        return;
    }
    if (c->framing != SP_FRAMING_WEBSOCKET)
        return;
    sp_output_raw(e, c, websocket_ping, sizeof websocket_ping);
}

/* One record for a client: the app's message, reply or error. */
static inline void sp_output_message(struct sp_engine *e, uint64_t client, const struct sp_record *record,
                                     const uint8_t *body, uint32_t length)
{
    struct sp_connection *c = sp_engine_find(e, client);
    bool away = c != NULL && c->stage >= SP_STAGE_ENDING && c->kept != NULL;
    if (c == NULL || (!away && c->stage != SP_STAGE_BOUND && c->stage != SP_STAGE_ATTACHING)) {
        sp_count(e->node, SP_COUNT_DROPPED, 1);
        return;
    }
    if (c->kept != NULL && sp_retained_has(&e->retained, c->kept))
        return; /* the predecessor made it */
    sp_count(e->node, SP_COUNT_MESSAGES_OUT, 1);
    if (!c->envelope) {
        bool text = record->kind == SP_KIND_REPLY ? (record->flags & SP_FLAG_TEXT) != 0 : c->last_text;
        if (record->kind != SP_KIND_ERROR)
            sp_output_append(e, c, text, NULL, 0, body, length);
        return;
    }
    uint8_t kind = record->kind == SP_KIND_REPLY ? 'R' : record->kind == SP_KIND_ERROR ? 'E' : 'M';
    if (away)
        sp_output_away(e, c, kind, (uint32_t)record->b, body, length);
    else
        sp_output_numbered(e, c, kind, (uint32_t)record->b, body, length);
}

static inline bool sp_output_publish(struct sp_engine *e, struct sp_record *record)
{
    uint32_t count;
    if (record->length < 8)
        return false;
    memcpy(&count, sp_record_payload(record), sizeof count);
    if (((uint64_t)record->length - 8) / 8 < count)
        return false; /* A4 */
    const uint8_t *addresses = sp_record_payload(record) + 8;
    const uint8_t *body = addresses + (uint64_t)count * 8;
    uint32_t length = record->length - 8 - count * 8;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t client;
        memcpy(&client, addresses + (uint64_t)i * 8, sizeof client);
        sp_output_message(e, client, record, body, length);
    }
    return true;
}

/* Writes what waits, once. False: the connection is gone. */
static inline bool sp_output_send(struct sp_engine *e, struct sp_connection *c, struct sp_unsent *out, uint32_t end)
{
    if (out->start == end)
        return true;
    ssize_t sent = send(c->fd, out->bytes + out->start, end - out->start, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0)
        return errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
    sp_count(e->node, SP_COUNT_BYTES_OUT, (uint64_t)sent);
    if (sent > 0)
        c->sent_ms = e->now_ms;
    out->start += (uint32_t)sent;
    if (out->start == out->end)
        sp_unsent_free(out, &e->spare);
    return true;
}

static inline bool sp_output_send_tls(struct sp_engine *e, struct sp_connection *c)
{
    if (c->cipher != NULL && !sp_output_send(e, c, c->cipher, c->cipher->end))
        return false;
    bool busy = c->cipher != NULL && sp_unsent_size(c->cipher) > 0;
    uint32_t end = sp_output_end(c);
    if (busy || c->plain_given || end <= c->out.start)
        return true;
    uint32_t length = end - c->out.start;
    sp_engine_event(e, SP_EVENT_PLAIN, sp_client_address(e, c), 0, 0, c->out.bytes + c->out.start, length);
    c->plain_given = true;
    c->out.start = end;
    if (c->out.start == c->out.end)
        sp_unsent_free(&c->out, &e->spare);
    return true;
}

/* Writes what waits for a connection; may drop it. */
static inline void sp_output_flush(struct sp_engine *e, struct sp_connection *c)
{
    c->dirty = false;
    if (c->stage == SP_STAGE_DETACHED)
        return;
    bool well = c->tls ? sp_output_send_tls(e, c) : sp_output_send(e, c, &c->out, sp_output_end(c));
    if (!well) {
        sp_engine_drop(e, c, SP_CLOSE_LOST);
        return;
    }
    sp_output_ease(e, c);
    if (c->tell_drained && sp_unsent_size(&c->out) == 0 && !sp_output_waits(c) && !c->plain_given) {
        c->tell_drained = false;
        sp_engine_event(e, SP_EVENT_DRAINED, sp_client_address(e, c), 0, 0, NULL, 0);
    }
    if (c->stage == SP_STAGE_ENDING && c->finished && !c->plain_given && !sp_output_waits(c)
        && sp_unsent_size(&c->out) == 0) {
        shutdown(c->fd, SHUT_WR);
        c->stage = SP_STAGE_FLUSHED;
        c->since_ms = e->now_ms;
    }
    sp_engine_arm(e, c);
}

static inline void sp_output_flush_all(struct sp_engine *e)
{
    for (uint32_t i = e->dirty.head; i < e->dirty.count; i++) {
        struct sp_connection *c = sp_engine_find(e, e->dirty.items[i]);
        if (c != NULL)
            sp_output_flush(e, c);
    }
    e->dirty.head = e->dirty.count = 0;
}

#endif
