/* Infrastructure records from an acceptor to shards: sent at once, or kept until there is room.
 *
 * ATTACH and DETACH are admissions into the lifecycle lane (forced: they need no free permit); XOFF and XON go to the
 * shard's process. Order per session holds: DETACH is only posted once the session is bound.
 */
#ifndef SP_PENDING_H
#define SP_PENDING_H

#include "acceptor.h"

enum sp_posted { SP_POSTED, SP_POST_WAITS_LANE, SP_POST_WAITS_LINK, SP_POST_POINTLESS };

static inline bool sp_post_waits(enum sp_posted posted)
{
    return posted == SP_POST_WAITS_LANE || posted == SP_POST_WAITS_LINK;
}

static inline enum sp_posted sp_post_object(struct sp_engine *e, const struct sp_pending *p)
{
    struct sp_admission a = {.address = p->target, .lane = SP_LANE_LIFECYCLE, .stream = SP_STREAM_INFRA,
                             .charge = sp_charge(SP_LANE_LIFECYCLE, p->length), .bytes = sp_record_size(p->length),
                             .largest = sp_record_size(p->length), .forced = true};
    bool asked = false;
    for (;;) {
        switch (sp_admission_begin(e->node, &a)) {
        case SP_ACCEPTED: {
            struct sp_record *record = sp_admission_record(&a, p->length, p->kind);
            record->a = p->a;
            record->b = p->b;
            if (p->length > 0)
                memcpy(sp_record_payload(record), p->payload, p->length);
            sp_admission_commit(e->node, &a);
            return SP_POSTED;
        }
        case SP_LANE_FULL:
        case SP_SEALED:
            if (asked)
                return SP_POST_WAITS_LANE;
            sp_waiters_join(e->node, a.slot);
            asked = true;
            continue;
        case SP_LINK_FULL:
            if (asked || !sp_writer_want(a.writer, a.bytes + a.largest + 2 * SP_RECORD_HEAD))
                return SP_POST_WAITS_LINK;
            asked = true;
            continue;
        default:
            return SP_POST_POINTLESS; /* the object has ended */
        }
    }
}

static inline enum sp_posted sp_post_process(struct sp_engine *e, const struct sp_pending *p)
{
    struct sp_peer *peer = &e->node->peers[p->process];
    struct sp_record *record = sp_node_claim(peer, SP_STREAM_INFRA, p->length, p->kind);
    if (record == NULL && sp_writer_want(&peer->writers[SP_STREAM_INFRA], 2 * sp_record_size(p->length) + 2 * SP_RECORD_HEAD))
        record = sp_node_claim(peer, SP_STREAM_INFRA, p->length, p->kind);
    if (record == NULL)
        return SP_POST_WAITS_LINK;
    record->target = p->target;
    record->a = p->a;
    record->b = p->b;
    if (p->length > 0)
        memcpy(sp_record_payload(record), p->payload, p->length);
    sp_node_publish(peer, SP_STREAM_INFRA);
    return SP_POSTED;
}

static inline enum sp_posted sp_post_try(struct sp_engine *e, const struct sp_pending *p)
{
    if (p->kind == SP_KIND_ATTACH && sp_engine_find(e, p->client) == NULL)
        return SP_POST_POINTLESS;
    return p->target != 0 ? sp_post_object(e, p) : sp_post_process(e, p);
}

/* Sends the record, or keeps a copy of it until it can be sent. */
static inline enum sp_posted sp_post(struct sp_engine *e, struct sp_pending p)
{
    if (e->pending_count == 0) {
        enum sp_posted posted = sp_post_try(e, &p);
        if (!sp_post_waits(posted))
            return posted;
    } else {
        e->pending_due = true;
    }
    if (e->pending_count == e->pending_capacity) {
        uint32_t capacity = e->pending_capacity == 0 ? 64 : e->pending_capacity * 2;
        struct sp_pending *pending = realloc(e->pending, capacity * sizeof *pending);
        if (pending == NULL) {
            e->failed = true;
            return SP_POST_WAITS_LINK;
        }
        e->pending = pending;
        e->pending_capacity = capacity;
    }
    if (p.length == 0) {
        p.payload = NULL; /* the caller's pointer must not be kept, let alone freed */
    } else {
        uint8_t *copy = malloc(p.length);
        if (copy == NULL) {
            e->failed = true;
            return SP_POST_WAITS_LINK;
        }
        memcpy(copy, p.payload, p.length);
        p.payload = copy;
    }
    e->pending[e->pending_count++] = p;
    return SP_POST_WAITS_LINK;
}

/* Tries what is kept, in order. A full link holds up the rest for that shard; a full or sealed lane only what goes
 * to the same object, of which there may be many for ATTACH alone. */
static inline void sp_pending_retry(struct sp_engine *e)
{
    uint64_t no_link = 0; /* a bit per process */
    uint64_t no_attach = 0;
    uint32_t kept = 0;
    e->pending_due = false;
    for (uint32_t i = 0; i < e->pending_count; i++) {
        struct sp_pending *p = &e->pending[i];
        uint32_t process = p->target != 0 ? 1 + e->node->geometry.acceptors + sp_address_number(p->target) : p->process;
        uint64_t bit = UINT64_C(1) << (process & 63);
        bool attach = p->kind == SP_KIND_ATTACH;
        enum sp_posted posted = SP_POST_WAITS_LINK;
        if ((no_link & bit) == 0)
            posted = attach && (no_attach & bit) != 0 ? SP_POST_WAITS_LANE : sp_post_try(e, p);
        if (posted == SP_POST_WAITS_LINK)
            no_link |= bit;
        if (posted == SP_POST_WAITS_LANE && attach)
            no_attach |= bit;
        if (sp_post_waits(posted)) {
            e->pending[kept++] = *p;
        } else {
            free(p->payload);
        }
    }
    e->pending_count = kept;
}

/* Tells the session's object that its client is gone; once. Nothing of the session is kept. */
static inline void sp_engine_detach(struct sp_engine *e, struct sp_connection *c, uint32_t code)
{
    if (c->session_slot != 0) {
        struct sp_pending detach = {.target = c->session_slot, .kind = SP_KIND_DETACH, .a = code, .b = sp_client_address(e, c)};
        c->session_slot = 0; /* A2 */
        sp_post(e, detach);
    }
    /* only now: a successor that finds no entry ends the session by its slot */
    if (c->kept != NULL)
        sp_retained_close(&e->retained, c->kept);
    c->kept = NULL;
}

/* Whether the session outlives the end of its connection with that code. */
static inline bool sp_engine_keeps(const struct sp_connection *c, uint32_t code)
{
    return c->kept != NULL && c->kept->state == SP_KEPT_HELD
        && (code == SP_CLOSE_LOST || code == SP_CLOSE_IDLE || code == SP_CLOSE_SLOW);
}

/* Before the first connection: ends the sessions of an acceptor that died in this place and did not keep them. A session that is only now
 * being bound for one of its clients is ended when BOUND comes. Returns how many were found. */
static inline uint32_t sp_engine_end_predecessors(struct sp_engine *e, uint64_t kind)
{
    uint32_t found = 0;
    for (uint32_t shard = 0; shard < e->node->geometry.shards; shard++) {
        struct sp_peer *peer = sp_node_shard(e->node, sp_address(shard, 1, 0));
        for (uint32_t index = 0; index < e->node->geometry.slots; index++) {
            struct sp_slot *slot = &peer->slots[index];
            uint64_t generation = sp_word_generation(sp_load_acquire(&slot->word.low));
            uint64_t client = sp_load_relaxed(&slot->client);
            if (sp_load_relaxed(&slot->kind) != kind || client == 0 || sp_address_number(client) != e->acceptor)
                continue;
            const struct sp_connection *c = sp_engine_find(e, client);
            if (c != NULL && c->session_slot == sp_address(shard, generation, index))
                continue; /* it was kept */
            /* should the slot have a new tenant by now, the generation no longer fits and the record is refused */
            sp_post(e, (struct sp_pending){.target = sp_address(shard, generation, index), .kind = SP_KIND_DETACH,
                                           .a = SP_CLOSE_LOST, .b = client});
            found++;
        }
    }
    return found;
}

static inline void sp_engine_tell_shards(struct sp_engine *e, const struct sp_connection *c, enum sp_kind kind)
{
    for (uint32_t shard = 0; shard < e->node->geometry.shards; shard++)
        sp_post(e, (struct sp_pending){.process = 1 + e->node->geometry.acceptors + shard, .kind = (uint16_t)kind,
                                       .a = sp_client_address(e, c)});
}

/* Ends a session that has no socket, and frees its place. */
static inline void sp_engine_forget(struct sp_engine *e, struct sp_connection *c, uint32_t code)
{
    sp_engine_detach(e, c, code);
    e->detached--;
    e->connections.live++; /* it counts again, to be given back */
    sp_connection_give(&e->connections, c);
}

/* Begins the end of a connection: no more input, no more messages; Python says the last words (finish). `keep`: the
 * session, if it can be kept, waits for its client. */
static inline void sp_engine_end_as(struct sp_engine *e, struct sp_connection *c, uint32_t code, const char *reason,
                                    uint32_t length, enum sp_foreign foreign, bool keep)
{
    if (c->stage == SP_STAGE_DETACHED) {
        sp_engine_forget(e, c, code);
        return;
    }
    if (c->stage >= SP_STAGE_ENDING) {
        if (!keep)
            sp_engine_detach(e, c, code); /* the app ended a session whose connection was ending already */
        return;
    }
    if (!keep)
        sp_engine_detach(e, c, code);
    if (c->stage == SP_STAGE_ATTACHING)
        c->out.end = c->out.boundary; /* without a welcome nothing of the session goes out */
    if (code == SP_CLOSE_SLOW && c->out.bytes != NULL) {
        /* whoever does not read must not cost memory until the linger is over */
        sp_unsent_settle(&c->out, (enum sp_framing)c->framing);
        c->out.end = c->out.boundary;
    }
    c->stage = SP_STAGE_ENDING;
    c->since_ms = e->now_ms;
    c->blocked = SP_BLOCKED_NO;
    c->python_turn = false;
    sp_engine_free_input(e, c);
    uint64_t how = (uint64_t)foreign | (uint64_t)c->framing << 4 | (uint64_t)c->transport << 8;
    sp_engine_event(e, SP_EVENT_ENDING, sp_client_address(e, c), code, how, reason, length);
    sp_engine_arm(e, c);
}

static inline void sp_engine_end(struct sp_engine *e, struct sp_connection *c, uint32_t code, const char *reason,
                                 uint32_t length, enum sp_foreign foreign)
{
    sp_engine_end_as(e, c, code, reason, length, foreign, sp_engine_keeps(c, code));
}

static inline void sp_engine_end_text(struct sp_engine *e, struct sp_connection *c, uint32_t code, const char *reason)
{
    sp_engine_end(e, c, code, reason, (uint32_t)strlen(reason), SP_FOREIGN_NO);
}

/* Closes the socket and frees the place (A3), unless its session waits there for its client. */
static inline void sp_engine_drop(struct sp_engine *e, struct sp_connection *c, uint32_t code)
{
    bool keep = sp_engine_keeps(c, code);
    if (!keep)
        sp_engine_detach(e, c, code);
    if (c->transport != SP_TRANSPORT_TCP)
        sp_engine_event(e, SP_EVENT_CLOSED, sp_client_address(e, c), code, 0, NULL, 0);
    close(c->fd);
    if (c->address_key != 0)
        sp_addresses_remove(&e->addresses, c->address_key, e->node->geometry.hash_key[0]);
    sp_engine_free_input(e, c);
    sp_unsent_free(&c->out, &e->spare);
    if (c->cipher != NULL) {
        sp_unsent_free(c->cipher, &e->spare);
        free(c->cipher);
    }
    if (keep) {
        if (c->xoff)
            sp_engine_tell_shards(e, c, SP_KIND_XON);
        sp_connection_unplug(c);
        c->kept->paused = 0;
        c->kept->detached_ns = e->now_ns;
        e->connections.live--;
        e->detached++;
    } else {
        sp_connection_give(&e->connections, c);
    }
    sp_count(e->node, SP_COUNT_CLOSED, 1);
    sp_gauge(e->node, SP_COUNT_CONNECTIONS, e->connections.live);
    if (e->rearm_ns != 0)
        e->rearm_ns = e->now_ns; /* a descriptor is free again */
}

#endif
