/* One turn of an acceptor: what epoll reported, the inbox, the writes, the clock's due; and the sleep in between.
 *
 * The sleep: declare parked, look again (node.h, D1), and only then block. Nothing polls: an acceptor without
 * connections and without work sleeps until somebody rings.
 */
#ifndef SP_LOOP_H
#define SP_LOOP_H

#include "accepting.h"
#include "inbox.h"

#define SP_EPOLL_EVENTS 256

/* What a connection's stage and silence ask for. May drop it. */
static inline void sp_sweep_one(struct sp_engine *e, struct sp_connection *c)
{
    const struct sp_acceptor_settings *s = &e->settings;
    if (c->stage == SP_STAGE_DETACHED) {
        if (e->now_ns - c->kept->detached_ns > (uint64_t)s->resume_window_ms * 1000000)
            sp_engine_forget(e, c, SP_CLOSE_LOST);
        return;
    }
    uint32_t in_stage = sp_elapsed_ms(e, c->since_ms);
    uint32_t silent = sp_elapsed_ms(e, c->received_ms);
    switch (c->stage) {
    case SP_STAGE_HANDSHAKE:
        /* an HTTP connection is kept while it gets answers */
        if (in_stage > s->handshake_timeout_ms && sp_elapsed_ms(e, c->sent_ms) > s->handshake_timeout_ms)
            sp_engine_end_text(e, c, SP_CLOSE_HELLO_TIMEOUT, "the handshake took longer than handshake_timeout");
        return;
    case SP_STAGE_HELLO:
    case SP_STAGE_ATTACHING:
        if (in_stage > s->hello_timeout_ms && s->envelope)
            sp_engine_end_text(e, c, SP_CLOSE_HELLO_TIMEOUT, "no complete hello within hello_timeout");
        else if (in_stage > s->hello_timeout_ms)
            sp_engine_end_text(e, c, SP_CLOSE_UNAVAILABLE, "the session was not bound within hello_timeout");
        return;
    case SP_STAGE_ENDING:
    case SP_STAGE_FLUSHED:
        if (in_stage > SP_LINGER_MS)
            sp_engine_drop(e, c, SP_CLOSE_LOST);
        return;
    case SP_STAGE_BOUND:
        break;
    default:
        return;
    }
    uint32_t stuck = sp_unsent_size(&c->out) == 0 ? 0 : sp_elapsed_ms(e, c->sent_ms);
    if ((sp_unsent_size(&c->out) >= s->outbound_bytes && s->slow_client == SP_SLOW_WAIT && stuck > s->send_timeout_ms)
        || stuck > s->idle_timeout_ms) {
        sp_engine_end_text(e, c, SP_CLOSE_SLOW, "the client does not read");
        return;
    }
    /* while this side does not read, silence says nothing */
    if (c->blocked != SP_BLOCKED_NO || c->xoff || !e->reading)
        return;
    if (silent > s->idle_timeout_ms)
        sp_engine_end_text(e, c, SP_CLOSE_IDLE, "nothing was received for idle_timeout");
    else if (silent > s->heartbeat_ms && !c->pinged && c->stage == SP_STAGE_BOUND) {
        c->pinged = true;
        sp_output_ping(e, c);
    }
}

static inline void sp_sweep(struct sp_engine *e)
{
    if (e->now_ns < e->sweep_due_ns)
        return;
    e->sweep_due_ns = e->now_ns + e->sweep_period_ns;
    for (uint32_t i = 0; i < e->connections.used; i++) {
        struct sp_connection *c = sp_connection_at(&e->connections, i);
        if (c->stage != SP_STAGE_FREE)
            sp_sweep_one(e, c);
    }
}

static inline void sp_loop_connection(struct sp_engine *e, uint64_t tag, uint32_t events)
{
    uint64_t client = tag | (uint64_t)e->acceptor << 56;
    struct sp_connection *c = sp_engine_find(e, client);
    if (c == NULL || c->stage == SP_STAGE_DETACHED)
        return; /* closed earlier in this turn */
    if ((events & EPOLLOUT) != 0)
        sp_engine_dirty(e, c);
    if ((events & EPOLLIN) != 0)
        sp_input_read(e, c);
    else if ((events & (EPOLLERR | EPOLLHUP)) != 0)
        sp_engine_drop(e, c, SP_CLOSE_LOST);
}

/* Takes up what epoll reported; true if the doorbell rang. */
static inline bool sp_loop_events(struct sp_engine *e, const struct epoll_event *events, int count)
{
    bool rang = false;
    for (int i = 0; i < count; i++) {
        uint64_t tag = events[i].data.u64;
        uint32_t index = (uint32_t)tag;
        switch (tag >> 56) {
        case SP_TAG_CONNECTION:
            sp_loop_connection(e, tag, events[i].events);
            break;
        case SP_TAG_LISTENER:
            sp_accept(e, index);
            break;
        case SP_TAG_DOORBELL:
            rang = true;
            break;
        default:
            sp_engine_event(e, SP_EVENT_READY, (uint64_t)e->watched[index], 0, 0, NULL, 0);
        }
    }
    return rang;
}

/* Everything that may have become possible: kept records, blocked connections, the inbox, the writes. */
static inline void sp_loop_settle(struct sp_engine *e, bool rang)
{
    if (rang) {
        e->retry_left = sp_list_size(&e->blocked);
        e->pending_due = e->pending_count > 0;
    }
    if (e->permit_due_ns != 0 && e->now_ns >= e->permit_due_ns) {
        e->permit_due_ns = 0;
        e->retry_left = sp_list_size(&e->blocked);
    }
    if (e->pending_due)
        sp_pending_retry(e);
    if (e->retry_left > 0)
        sp_input_retry(e);
    sp_node_ring_due(e->node);
    sp_inbox_drain_all(e);
    sp_sweep(e);
    sp_accept_resume(e);
    sp_output_flush_all(e);
    /* what the inbox, the sweep and the writes led to: XOFF, DETACH */
    sp_node_ring_due(e->node);
    sp_count(e->node, SP_COUNT_TURNS, 1);
}

/* How long nothing can be due, in nanoseconds; UINT64_MAX: for ever. */
static inline uint64_t sp_loop_sleep(const struct sp_engine *e)
{
    if (e->more || e->event_count > 0 || e->retry_left > 0 || e->pending_due || e->dirty.count > e->dirty.head)
        return 0;
    uint64_t due = UINT64_MAX;
    if (e->connections.live > 0 || e->detached > 0)
        due = e->sweep_due_ns;
    if (e->permit_due_ns != 0 && e->permit_due_ns < due)
        due = e->permit_due_ns;
    if (e->rearm_ns != 0 && e->rearm_ns < due)
        due = e->rearm_ns;
    if (due == UINT64_MAX)
        return due;
    return due > e->now_ns ? due - e->now_ns : 0;
}

static inline int sp_loop_timeout_ms(uint64_t sleep_ns, int limit_ms)
{
    if (sleep_ns == UINT64_MAX)
        return limit_ms;
    uint64_t ms = (sleep_ns + 999999) / 1000000;
    if (limit_ms >= 0 && (uint64_t)limit_ms < ms)
        return limit_ms;
    return ms > 1000000 ? 1000000 : (int)ms;
}

#endif
