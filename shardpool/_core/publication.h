/* A batch of one client's messages into the lane of its session's object: one admission, and what each refusal means.
 *
 * Outcomes    LANE_FULL, SEALED, LINK_FULL, and a full quarter of the link: the frames stay, the socket is not read, the
 *             doorbell brings them back. SATURATED and STALE are answered with E, frame by frame. A bare connection, which
 *             has no E, waits when the shard is saturated and is closed when its object is gone.
 */
#ifndef SP_PUBLICATION_H
#define SP_PUBLICATION_H

#include "output.h"

static inline void sp_publication_block(struct sp_engine *e, struct sp_connection *c, enum sp_blocked why)
{
    c->blocked = (uint8_t)why;
    if (!c->listed)
        c->listed = sp_list_push(&e->blocked, sp_client_address(e, c));
    if (why == SP_BLOCKED_PERMIT && e->permit_due_ns == 0)
        e->permit_due_ns = e->now_ns + SP_PERMIT_RETRY_NS;
}

/* Reads the route again; true if the session's messages go elsewhere by now. */
static inline bool sp_publication_reroute(struct sp_engine *e, struct sp_connection *c)
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
static inline enum sp_outcome sp_publication_admit(struct sp_engine *e, struct sp_connection *c, const struct sp_message *messages,
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
    if (c->kept != NULL)
        sp_retained_take(c->kept, count);
    sp_admission_commit(e->node, a);
    sp_flight_note(flights, a->writer, c->actor, a->bytes);
    sp_count(e->node, SP_COUNT_MESSAGES_IN, count);
    sp_count(e->node, SP_COUNT_BYTES_IN, payload);
    sp_count(e->node, SP_COUNT_BATCHES, 1);
    return SP_ACCEPTED;
}

/* Answers messages that will not be delivered. */
static inline void sp_publication_refuse(struct sp_engine *e, struct sp_connection *c, const struct sp_message *messages,
                                   uint32_t count, enum sp_outcome outcome)
{
    if (c->kept != NULL)
        sp_retained_take(c->kept, count);
    sp_count(e->node, outcome == SP_SATURATED ? SP_COUNT_REFUSED_PERMIT : SP_COUNT_REFUSED_STALE, count);
    for (uint32_t i = 0; i < count && c->stage == SP_STAGE_BOUND; i++)
        sp_output_numbered(e, c, 'E', messages[i].request, e->errors[outcome], e->error_lengths[outcome]);
}

/* What one refusal means for the connection. */
enum sp_publication_next { SP_PUBLICATION_RETRY, SP_PUBLICATION_REFUSED, SP_PUBLICATION_STOP };

static inline enum sp_publication_next sp_publication_refused(struct sp_engine *e, struct sp_connection *c,
                                                              enum sp_outcome outcome,
                                                  struct sp_admission *a, bool *asked)
{
    switch (outcome) {
    case SP_SEALED:
        if (sp_publication_reroute(e, c))
            return SP_PUBLICATION_RETRY;
        __attribute__((fallthrough));
    case SP_LANE_FULL:
        if (!*asked) {
            sp_waiters_join(e->node, a->slot);
            *asked = true;
            return SP_PUBLICATION_RETRY;
        }
        sp_count(e->node, SP_COUNT_REFUSED_LANE, 1);
        sp_publication_block(e, c, SP_BLOCKED_BELL);
        return SP_PUBLICATION_STOP;
    case SP_LINK_FULL:
        if (!*asked) {
            *asked = true;
            sp_writer_want(a->writer, a->bytes + a->largest + 2 * SP_RECORD_HEAD);
            return SP_PUBLICATION_RETRY;
        }
        sp_publication_block(e, c, SP_BLOCKED_BELL);
        return SP_PUBLICATION_STOP;
    case SP_STALE:
        if (sp_publication_reroute(e, c))
            return SP_PUBLICATION_RETRY;
        if (c->envelope)
            return SP_PUBLICATION_REFUSED;
        sp_engine_end_text(e, c, SP_CLOSE_UNAVAILABLE, "the object behind this connection is gone");
        return SP_PUBLICATION_STOP;
    case SP_SATURATED:
        if (c->envelope)
            return SP_PUBLICATION_REFUSED;
        sp_publication_block(e, c, SP_BLOCKED_PERMIT);
        return SP_PUBLICATION_STOP;
    case SP_TOO_BIG:
        sp_engine_end_text(e, c, c->framing == SP_FRAMING_WEBSOCKET ? SP_CLOSE_MESSAGE_TOO_BIG : SP_CLOSE_FRAME_TOO_BIG,
                           "the message is larger than a quarter of the link to its shard (link_bytes)");
        return SP_PUBLICATION_STOP;
    default:
        sp_engine_end_text(e, c, SP_CLOSE_GOING_AWAY, "the server is stopping");
        return SP_PUBLICATION_STOP;
    }
}

/* Publishes messages in order; returns how many are done with (delivered or answered). */
static inline uint32_t sp_publication_run(struct sp_engine *e, struct sp_connection *c, const struct sp_message *messages,
                                        uint32_t count)
{
    uint32_t done = 0;
    uint32_t tries = 0;
    bool asked = false;
    while (done < count && c->stage == SP_STAGE_BOUND) {
        struct sp_admission a;
        uint32_t part = count - done;
        enum sp_outcome outcome = sp_publication_admit(e, c, messages + done, part, &a);
        /* a lane or link with little room takes a part, so that a batch larger than either never waits for ever */
        while ((outcome == SP_LANE_FULL || outcome == SP_LINK_FULL) && part > 1) {
            part /= 2;
            outcome = sp_publication_admit(e, c, messages + done, part, &a);
        }
        if (outcome == SP_ACCEPTED) {
            done += part;
            continue;
        }
        /* bounded: routes that keep changing are taken up again with the next doorbell */
        enum sp_publication_next next =
            ++tries > 8 ? SP_PUBLICATION_STOP : sp_publication_refused(e, c, outcome, &a, &asked);
        if (next == SP_PUBLICATION_REFUSED) {
            sp_publication_refuse(e, c, messages + done, part, outcome);
            done += part;
        } else if (next == SP_PUBLICATION_STOP) {
            if (c->stage == SP_STAGE_BOUND && c->blocked == SP_BLOCKED_NO)
                sp_publication_block(e, c, SP_BLOCKED_PERMIT);
            break;
        }
    }
    return done;
}

#endif
