/* Sessions and sockets come apart and together again.
 *
 * Resume      the socket that said hello moves to the place of the session, whose client address stays its name; what was
 *             there (a half-open connection) moves to the newcomer's place and is told 4409. Then the welcome, the frames
 *             that the client has not received with the numbers they have, and whatever comes.
 * Take over   a successor of a dead acceptor finds the sessions in its segment: all of them are DETACHED, their window
 *             begins anew, and records that wait in the inbox go to their chains.
 */
#ifndef SP_RESUME_H
#define SP_RESUME_H

#include "accepting.h"

enum sp_resumed { SP_RESUMED = 0, SP_RESUME_GONE = 1, SP_RESUME_REFUSED = 2, SP_RESUME_TOO_OLD = 3 };

struct sp_resume {
    uint64_t session;
    uint32_t received;
    const uint8_t *digest; /* of the token shown */
    const uint8_t *fresh;  /* of the token in the welcome */
    const uint8_t *welcome;
    uint32_t length;
};

/* A frame behind whatever waits, past any policy: it was let in once. */
static inline bool sp_resume_write(struct sp_engine *e, struct sp_connection *c, const uint8_t *prefix, uint32_t prefix_length,
                                   const uint8_t *body, uint32_t length)
{
    uint8_t head[10];
    unsigned size = sp_output_header(head, (enum sp_framing)c->framing, false, prefix_length + length);
    uint8_t *place = sp_unsent_room(&c->out, &e->spare, (enum sp_framing)c->framing, size + prefix_length + length);
    if (place == NULL)
        return false;
    memcpy(place, head, size);
    if (prefix_length > 0)
        memcpy(place + size, prefix, prefix_length);
    if (length > 0)
        memcpy(place + size + prefix_length, body, length);
    c->out.end += size + prefix_length + length;
    return true;
}

/* Everything that is kept, again. */
static inline bool sp_resume_replay(struct sp_engine *e, struct sp_connection *c)
{
    for (uint32_t unit = c->kept->frames.first; unit != 0;) {
        struct sp_cell *cell = sp_arena_cell(&e->retained.arena, unit);
        uint8_t prefix[9] = {(uint8_t)cell->kind};
        sp_put_big_endian_32(prefix + 1, (uint32_t)cell->b);
        sp_put_big_endian_32(prefix + 5, (uint32_t)cell->a);
        if (!sp_resume_write(e, c, prefix, cell->kind == 'M' ? 5 : 9, sp_cell_payload(cell), cell->length))
            return false;
        unit = cell->next;
    }
    return true;
}

/* The number of the socket in epoll's reports is that of its place. */
static inline void sp_resume_rearm(struct sp_engine *e, struct sp_connection *c)
{
    c->armed = UINT32_MAX;
    sp_engine_arm(e, c);
}

/* Moves a socket that said hello to a session's place; frees, or ends with 4409, what was there. */
static inline void sp_resume_move(struct sp_engine *e, struct sp_connection *c, struct sp_connection *place)
{
    uint64_t from = sp_client_address(e, c);
    uint64_t to = sp_client_address(e, place);
    bool alone = place->stage == SP_STAGE_DETACHED;
    /* what was noted of the two sockets since the last poll goes with them */
    for (uint32_t i = 0; i < e->event_count; i++) {
        uint64_t client = e->events[i].client;
        e->events[i].client = client == from ? to : client == to ? from : client;
    }
    sp_connection_swap(place, c);
    if (place->xoff)
        sp_engine_tell_shards(e, place, SP_KIND_XON);
    place->xoff = false;
    place->kept->paused = 0;
    place->kept->detached_ns = 0;
    if (alone) {
        e->detached--; /* two places were held for one socket; one is free now, and `live` counts sockets */
        e->connections.live++;
        sp_connection_give(&e->connections, c);
        return;
    }
    if (c->stage < SP_STAGE_ENDING)
        sp_engine_end_text(e, c, SP_CLOSE_REPLACED, "the session goes on over another connection");
    sp_resume_rearm(e, c);
    sp_engine_dirty(e, c);
}

/* `c` has said hello. Unless the outcome is SP_RESUMED, nothing has changed but, with SP_RESUME_TOO_OLD, that the session
 * has ended: its client came, and cannot go on with it. */
static inline enum sp_resumed sp_engine_resume(struct sp_engine *e, struct sp_connection *c, const struct sp_resume *resume,
                                               uint64_t *address)
{
    struct sp_kept_session *entry = sp_retained_find(&e->retained, resume->session);
    if (entry == NULL)
        return SP_RESUME_GONE;
    uint32_t token = sp_retained_token(entry, resume->digest);
    struct sp_connection *place = sp_engine_find(e, entry->client);
    if (token == SP_TOKENS || place == NULL || place->kept != entry)
        return SP_RESUME_REFUSED;
    if ((int32_t)(resume->received - entry->sequence) > 0)
        return SP_RESUME_REFUSED;
    if ((int32_t)(resume->received - entry->floor) < 0) {
        static const char reason[] = "its client missed more than is kept (resume_bytes_per_session, resume_bytes)";
        sp_engine_end_as(e, place, SP_CLOSE_SLOW, reason, sizeof reason - 1, SP_FOREIGN_NO, false);
        return SP_RESUME_TOO_OLD;
    }
    sp_retained_rotate(entry, token, resume->fresh);
    sp_retained_acknowledge(&e->retained, entry, resume->received);
    place->acknowledged = resume->received;
    *address = entry->client;
    sp_resume_move(e, c, place);
    place->stage = SP_STAGE_BOUND;
    place->since_ms = place->received_ms = place->sent_ms = e->now_ms;
    if (!sp_resume_write(e, place, NULL, 0, resume->welcome, resume->length) || !sp_resume_replay(e, place)) {
        sp_engine_end_as(e, place, SP_CLOSE_INTERNAL, "", 0, SP_FOREIGN_NO, true);
        return SP_RESUMED;
    }
    sp_post(e, (struct sp_pending){.target = place->session_slot, .kind = SP_KIND_RESUMED, .a = entry->session, .b = entry->client});
    sp_engine_dirty(e, place);
    sp_output_pause(e, place);
    sp_resume_rearm(e, place);
    sp_input_resume(e, place);
    return SP_RESUMED;
}

/* A socket from another acceptor, behind its hello. The address it has here, 0: there is no room. */
static inline uint64_t sp_engine_take_socket(struct sp_engine *e, int fd, enum sp_transport transport, enum sp_framing framing)
{
    struct sp_connection *c = NULL;
    if (e->connections.live < e->settings.connections)
        c = sp_connection_take(&e->connections);
    if (c == NULL)
        return 0;
    c->fd = fd;
    c->transport = (uint8_t)transport;
    c->framing = (uint8_t)framing;
    c->envelope = true;
    c->stage = SP_STAGE_ATTACHING;
    c->since_ms = c->received_ms = c->sent_ms = e->now_ms;
    c->armed = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = sp_client_address(e, c) & ~(UINT64_C(255) << 56)};
    if (epoll_ctl(e->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        sp_connection_give(&e->connections, c);
        return 0;
    }
    sp_count(e->node, SP_COUNT_OPENED, 1);
    sp_gauge(e->node, SP_COUNT_CONNECTIONS, e->connections.live);
    return sp_client_address(e, c);
}

/* Where reading the inbox goes on: behind what the predecessor did, whether or not it gave the room back. */
static inline void sp_adopt_inbox(struct sp_engine *e)
{
    for (uint32_t process = 0; process < e->node->geometry.processes; process++)
        for (int stream = 0; stream < 2; stream++) {
            struct sp_reader *reader = &e->node->readers[process][stream];
            sp_reader_skip_linked(reader);
            /* the record itself begins behind a pad, if there is one */
            struct sp_record *record;
            if (sp_reader_next(reader, &record) == SP_READ_RECORD)
                e->doubtful[process][stream] = reader->position;
        }
}

static inline void sp_adopt_session(struct sp_engine *e, struct sp_connection *c)
{
    struct sp_kept_session *entry = &e->retained.entries[c->index];
    c->generation = sp_address_generation(entry->client);
    c->kept = entry;
    c->actor = entry->actor;
    c->session_slot = entry->session_slot;
    c->session = entry->session;
    c->sequence = entry->sequence;
    c->acknowledged = entry->floor;
    sp_connection_unplug(c);
    entry->detached_ns = e->now_ns;
    e->connections.live--;
    e->detached++;
    if (entry->paused)
        sp_engine_tell_shards(e, c, SP_KIND_XON);
    entry->paused = 0;
}

/* Before the first connection. False: no memory. */
static inline bool sp_engine_adopt(struct sp_engine *e, uint32_t *adopted)
{
    struct sp_retained *r = &e->retained;
    uint64_t *used = calloc(r->arena.pages * SP_ARENA_PAGE / SP_CELL_UNIT / 64, sizeof *used);
    if (used == NULL)
        return false;
    uint32_t end = 0;
    for (uint32_t i = 0; i < r->count; i++)
        if (sp_retained_adopt(r, i, e->acceptor, used))
            end = i + 1;
    sp_arena_free_rest(&r->arena, used);
    free(used);
    *adopted = 0;
    for (uint32_t i = 0; i < end; i++)
        if (sp_connection_take(&e->connections) == NULL)
            return false;
    for (uint32_t i = end; i-- > 0;) {
        struct sp_connection *c = sp_connection_at(&e->connections, i);
        if (r->sessions[i] == 0) {
            sp_connection_give(&e->connections, c);
            continue;
        }
        sp_adopt_session(e, c);
        ++*adopted;
    }
    sp_adopt_inbox(e);
    return true;
}

#endif
