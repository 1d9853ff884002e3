/* What an acceptor keeps of its sessions so that they outlive their connection and the acceptor itself.
 *
 * Layout      in the acceptor's own segment, behind its links (layout.h): geometry.resume_entries x struct
 *             sp_kept_session, one per connection index; then an arena (arena.h) of geometry.resume_bytes with the
 *             frames that no client has acknowledged. A frame is a cell: kind is its letter, a its ask, b its number,
 *             and producer, stream, position say which record of the inbox it was made of.
 * Writer      the acceptor alone. The memory is the supervisor's.
 * Reader      the acceptor; its successor in the same place.
 * Crash       A frame is whole before it is linked, and one store links or unlinks it: whatever the instruction, the
 *             chain from `first` on is right, and the successor finds the rest of the arena to be free. A record of the
 *             inbox is done when the ring's `linked` passes it; of the one record in doubt, a frame in the chain tells
 *             for each client whether it was made already. Two words that must change together (the tokens, numbers
 *             that are given anew) are guarded by one: `selector`, or `state`, which says OPENING meanwhile: an entry
 *             found so is given up, and its session ended.
 *             Frames that the acceptor made itself (a refusal's E) are of no record: their position is SP_NO_RECORD.
 * Invariants
 *   R1  frames in a chain have ascending numbers; what is above `floor` and was made is there
 *   R2  a token is compared as a whole and before anything changes
 *   R3  a session has at most session_bytes here; beyond it its oldest frames go, and `floor` says so
 */
#ifndef SP_RETAINED_H
#define SP_RETAINED_H

#include "adopt.h"

#define SP_DIGEST_BYTES 32U
#define SP_TOKENS 3U
#define SP_NO_RECORD UINT64_MAX

enum sp_kept_state { SP_KEPT_FREE = 0, SP_KEPT_OPENING = 1, SP_KEPT_HELD = 2 };

struct sp_kept_session {
    uint64_t state;
    uint64_t session;
    uint64_t client;
    uint64_t session_slot;
    uint64_t actor;
    uint64_t detached_ns; /* CLOCK_MONOTONIC; 0: a socket is attached */
    uint32_t sequence;    /* last number given */
    uint32_t floor;       /* frames up to it are no longer here */
    uint32_t bytes;       /* of arena cells */
    uint32_t paused;      /* shards were told XOFF */
    struct sp_chain frames;
    uint64_t selector; /* bits 0-7: the current token's place, 8-15: the previous one's; SP_TOKENS: none */
    uint8_t tokens[SP_TOKENS][SP_DIGEST_BYTES];
    uint64_t taken; /* messages of the client that were published or refused: what it need not send again */
    uint64_t spare[9];
};

_Static_assert(sizeof(struct sp_kept_session) == SP_KEPT_SESSION_BYTES, "a kept session costs 256 bytes and its frames");

/* Private to the acceptor. */
struct sp_retained {
    struct sp_kept_session *entries; /* NULL: nothing is kept */
    uint64_t *sessions;              /* ids once more, close together: what a resume searches */
    uint32_t count;
    uint32_t session_bytes;
    struct sp_arena arena;
    /* the record of the inbox that is being dealt with */
    uint16_t producer;
    uint16_t stream;
    bool doubt; /* the predecessor may have dealt with it */
    uint64_t position; /* SP_NO_RECORD between two */
};

static inline uint32_t sp_retained_cost(uint32_t length)
{
    uint64_t bytes = sizeof(struct sp_cell) + (uint64_t)length;
    unsigned class = sp_arena_class(bytes);
    return class < SP_ARENA_CLASSES ? sp_arena_class_bytes[class] : (uint32_t)sp_align(bytes + SP_CELL_UNIT, SP_ARENA_PAGE);
}

static inline bool sp_retained_open(struct sp_retained *r, uint8_t *segment, const struct sp_geometry *g, uint32_t session_bytes)
{
    r->sessions = calloc(g->resume_entries, sizeof *r->sessions);
    if (r->sessions == NULL || !sp_arena_open(&r->arena, segment + sp_retained_arena_offset(g), g->resume_bytes))
        return false;
    r->entries = (struct sp_kept_session *)(void *)(segment + sp_retained_offset(g));
    r->count = (uint32_t)g->resume_entries;
    r->session_bytes = session_bytes;
    r->position = SP_NO_RECORD;
    return true;
}

static inline void sp_retained_free(struct sp_retained *r)
{
    free(r->sessions);
    sp_arena_close(&r->arena);
    *r = (struct sp_retained){0};
}

/* The entry for the session of a connection index, or NULL: it will not be kept. */
static inline struct sp_kept_session *sp_retained_begin(struct sp_retained *r, uint32_t index, uint64_t session, uint64_t client)
{
    if (r->entries == NULL || index >= r->count)
        return NULL;
    struct sp_kept_session *entry = &r->entries[index];
    *entry = (struct sp_kept_session){.session = session, .client = client};
    sp_store_release(&entry->state, SP_KEPT_OPENING);
    r->sessions[index] = session;
    return entry;
}

/* From here on the session can be resumed with the token of that digest. */
static inline void sp_retained_hold(struct sp_kept_session *entry, const uint8_t *digest)
{
    memcpy(entry->tokens[0], digest, SP_DIGEST_BYTES);
    sp_store_release(&entry->selector, (uint64_t)SP_TOKENS << 8);
    sp_store_release(&entry->state, SP_KEPT_HELD);
}

/* Before messages are published: killed in between, they are lost, and not doubled. */
static inline void sp_retained_take(struct sp_kept_session *entry, uint32_t count)
{
    sp_store_release(&entry->taken, entry->taken + count);
}

/* Unlinks the oldest frame, then frees it. */
static inline void sp_retained_shift(struct sp_retained *r, struct sp_kept_session *entry)
{
    uint32_t unit = entry->frames.first;
    struct sp_cell *cell = sp_arena_cell(&r->arena, unit);
    entry->floor = (uint32_t)cell->b;
    entry->bytes -= sp_retained_cost(cell->length);
    __atomic_store_n(&entry->frames.first, cell->next, __ATOMIC_RELEASE);
    if (entry->frames.first == 0)
        entry->frames.last = 0;
    sp_arena_free(&r->arena, unit);
}

static inline void sp_retained_acknowledge(struct sp_retained *r, struct sp_kept_session *entry, uint32_t number)
{
    while (entry->frames.first != 0
           && (int32_t)((uint32_t)sp_arena_cell(&r->arena, entry->frames.first)->b - number) <= 0)
        sp_retained_shift(r, entry);
}

static inline void sp_retained_close(struct sp_retained *r, struct sp_kept_session *entry)
{
    sp_store_release(&entry->state, SP_KEPT_FREE);
    while (entry->frames.first != 0)
        sp_retained_shift(r, entry);
    r->sessions[entry - r->entries] = 0;
}

/* Whether a frame of the record in doubt is there already: it would be the last. */
static inline bool sp_retained_has(const struct sp_retained *r, const struct sp_kept_session *entry)
{
    if (!r->doubt || entry->frames.last == 0)
        return false;
    const struct sp_cell *cell = sp_arena_cell(&r->arena, entry->frames.last);
    return cell->producer == r->producer && cell->stream == r->stream && cell->position == r->position;
}

/* Keeps one numbered frame. False: it found no room, or older ones had to go for it (R3). */
static inline bool sp_retained_append(struct sp_retained *r, struct sp_kept_session *entry, uint8_t kind, uint32_t number,
                                      uint32_t request, const uint8_t *body, uint32_t length)
{
    uint32_t cost = sp_retained_cost(length);
    bool whole = true;
    while (entry->frames.first != 0 && entry->bytes + cost > r->session_bytes) {
        sp_retained_shift(r, entry);
        whole = false;
    }
    uint32_t unit = cost > r->session_bytes ? 0 : sp_arena_allocate(&r->arena, length, 0);
    while (unit == 0 && entry->frames.first != 0) {
        sp_retained_shift(r, entry);
        whole = false;
        unit = cost > r->session_bytes ? 0 : sp_arena_allocate(&r->arena, length, 0);
    }
    if (unit == 0) {
        entry->floor = entry->sequence = number;
        return false;
    }
    struct sp_cell *cell = sp_arena_cell(&r->arena, unit);
    *cell = (struct sp_cell){.length = length, .kind = kind, .producer = r->producer, .stream = r->stream,
                             .position = r->position, .a = request, .b = number};
    if (length > 0)
        memcpy(sp_cell_payload(cell), body, length);
    /* release: whoever finds the link after our death finds the frame whole */
    uint32_t *link = entry->frames.last == 0 ? &entry->frames.first : &sp_arena_cell(&r->arena, entry->frames.last)->next;
    __atomic_store_n(link, unit, __ATOMIC_RELEASE);
    entry->frames.last = unit;
    entry->bytes += cost;
    entry->sequence = number;
    return whole;
}

static inline bool sp_retained_is_dropped(const struct sp_cell *cell, uint32_t first, uint32_t last)
{
    return cell->kind == 'M' && (int32_t)((uint32_t)cell->b - first) >= 0 && (int32_t)((uint32_t)cell->b - last) <= 0;
}

/* The slow-client policy dropped the M frames with the numbers `first` to `last`, `count` of them, of which nothing was
 * sent: they go, and what follows is numbered as it is in the output. Some may have gone before, for want of room (R3). */
static inline void sp_retained_renumber(struct sp_retained *r, struct sp_kept_session *entry, uint32_t first, uint32_t last,
                                        uint32_t count)
{
    uint64_t state = entry->state;
    sp_store_release(&entry->state, SP_KEPT_OPENING);
    uint32_t here = 0;
    for (uint32_t unit = entry->frames.first; unit != 0; unit = sp_arena_cell(&r->arena, unit)->next)
        here += sp_retained_is_dropped(sp_arena_cell(&r->arena, unit), first, last);
    uint32_t gone = count - here;
    entry->floor -= gone;
    uint32_t previous = 0;
    for (uint32_t unit = entry->frames.first; unit != 0;) {
        struct sp_cell *cell = sp_arena_cell(&r->arena, unit);
        uint32_t next = cell->next;
        if (sp_retained_is_dropped(cell, first, last)) {
            *(previous == 0 ? &entry->frames.first : &sp_arena_cell(&r->arena, previous)->next) = next;
            entry->bytes -= sp_retained_cost(cell->length);
            sp_arena_free(&r->arena, unit);
            gone++;
        } else {
            if ((int32_t)((uint32_t)cell->b - first) > 0)
                cell->b -= gone;
            previous = unit;
        }
        unit = next;
    }
    entry->frames.last = previous;
    entry->sequence -= count;
    sp_store_release(&entry->state, state);
}

static inline struct sp_kept_session *sp_retained_find(struct sp_retained *r, uint64_t session)
{
    for (uint32_t i = 0; session != 0 && r->entries != NULL && i < r->count; i++)
        if (r->sessions[i] == session && r->entries[i].state == SP_KEPT_HELD)
            return &r->entries[i];
    return NULL;
}

/* Which of the valid tokens that is, SP_TOKENS if none (R2). As long for a wrong one as for a right one. */
static inline uint32_t sp_retained_token(const struct sp_kept_session *entry, const uint8_t *digest)
{
    uint32_t found = SP_TOKENS;
    for (uint32_t which = 0; which < 2; which++) {
        uint32_t place = (uint32_t)(entry->selector >> (8 * which)) & 255;
        unsigned differ = place < SP_TOKENS ? 0 : 1;
        for (uint32_t i = 0; i < SP_DIGEST_BYTES; i++)
            differ |= (unsigned)(entry->tokens[place % SP_TOKENS][i] ^ digest[i]);
        found = differ == 0 ? place : found;
    }
    return found;
}

/* A new token; the one just used stays good until the new one was used (P-6). */
static inline void sp_retained_rotate(struct sp_kept_session *entry, uint32_t used, const uint8_t *digest)
{
    uint32_t current = (uint32_t)entry->selector & 255;
    uint32_t place = 0;
    while (place == used || place == current)
        place++;
    memcpy(entry->tokens[place], digest, SP_DIGEST_BYTES);
    sp_store_release(&entry->selector, (uint64_t)used << 8 | place);
}

/* The predecessor's entry as it lies there: whether its session goes on. */
static inline bool sp_retained_adopt(struct sp_retained *r, uint32_t index, uint32_t acceptor, uint64_t *used)
{
    struct sp_kept_session *entry = &r->entries[index];
    bool well = entry->state == SP_KEPT_HELD && sp_address_number(entry->client) == acceptor
        && sp_address_index(entry->client) == index && entry->session != 0 && entry->session_slot != 0;
    if (!well) {
        if (entry->state != SP_KEPT_FREE)
            *entry = (struct sp_kept_session){0};
        return false;
    }
    uint32_t *link = &entry->frames.first;
    uint32_t last = 0;
    entry->bytes = 0;
    while (*link != 0 && sp_arena_keep(&r->arena, used, *link)) {
        last = *link;
        struct sp_cell *cell = sp_arena_cell(&r->arena, last);
        entry->bytes += sp_retained_cost(cell->length);
        if ((int32_t)((uint32_t)cell->b - entry->sequence) > 0)
            entry->sequence = (uint32_t)cell->b;
        link = &cell->next;
    }
    *link = 0;
    entry->frames.last = last;
    if (entry->frames.first != 0) /* a kill between unlinking and saying so */
        entry->floor = (uint32_t)sp_arena_cell(&r->arena, entry->frames.first)->b - 1;
    else
        entry->floor = entry->sequence;
    r->sessions[index] = entry->session;
    return true;
}

#endif
