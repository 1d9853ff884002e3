/* The acceptor's own inbox: what shards wrote, record by record.
 *
 * A record is done once its frames are kept and its effect is noted; the ring's `linked` says so at once, `consumer` once
 * per batch. A successor begins behind `linked`, and what is to be made of the one record in doubt, retained.h knows.
 */
#ifndef SP_INBOX_H
#define SP_INBOX_H

#include "output.h"

#define SP_INBOX_RECORDS 2048U /* taken from one ring in one turn */

/* A record from a shard about one connection's life. */
static inline bool sp_output_lifecycle(struct sp_engine *e, struct sp_record *record)
{
    struct sp_connection *c = sp_engine_find(e, record->a);
    switch (record->kind) {
    case SP_KIND_BOUND: {
        uint64_t session_slot;
        if (record->length < sizeof session_slot)
            return false;
        memcpy(&session_slot, sp_record_payload(record), sizeof session_slot);
        if (c != NULL && c->session_slot == session_slot) {
            /* the predecessor took it; or the shard's successor says it again, and does not know that it must wait */
            if (c->xoff)
                sp_post(e, (struct sp_pending){.process = e->retained.producer, .kind = SP_KIND_XOFF, .a = record->a});
            return true;
        }
        if (c == NULL || c->stage != SP_STAGE_ATTACHING || c->actor != 0) {
            /* the client did not wait for this: its session ends at once (A2) */
            sp_post(e, (struct sp_pending){.target = session_slot, .kind = SP_KIND_DETACH, .a = SP_CLOSE_LOST, .b = record->a});
            return true;
        }
        c->actor = record->b;
        c->session_slot = session_slot;
        if (c->kept != NULL) {
            c->kept->actor = c->actor;
            c->kept->session_slot = session_slot;
        }
        sp_engine_event(e, SP_EVENT_BOUND, record->a, c->session, c->kept != NULL, NULL, 0);
        return true;
    }
    case SP_KIND_REFUSED:
        if (c != NULL)
            sp_engine_end(e, c, (uint32_t)record->b, (const char *)sp_record_payload(record), record->length, SP_FOREIGN_NO);
        return true;
    case SP_KIND_CLOSE:
        if (c != NULL)
            sp_engine_end(e, c, (uint32_t)record->b, (const char *)sp_record_payload(record), record->length, SP_FOREIGN_NO);
        return true;
    case SP_KIND_ROUTE:
        if (c != NULL)
            c->actor = record->b;
        if (c != NULL && c->kept != NULL)
            c->kept->actor = record->b;
        e->retry_left = sp_list_size(&e->blocked);
        return true;
    default:
        return false;
    }
}

static inline bool sp_output_record(struct sp_engine *e, struct sp_record *record)
{
    switch (record->kind) {
    case SP_KIND_PUSH:
    case SP_KIND_REPLY:
    case SP_KIND_ERROR:
        sp_output_message(e, record->a, record, sp_record_payload(record), record->length);
        return true;
    case SP_KIND_PUBLISH:
        return sp_output_publish(e, record);
    case SP_KIND_BOUND:
    case SP_KIND_REFUSED:
    case SP_KIND_CLOSE:
    case SP_KIND_ROUTE:
        return sp_output_lifecycle(e, record);
    default:
        sp_engine_event(e, SP_EVENT_RECORD, record->kind, record->a, record->b, sp_record_payload(record), record->length);
        return true;
    }
}

static inline void sp_inbox_abandon(struct sp_engine *e, uint32_t process, enum sp_stream stream)
{
    e->node->readers[process][stream].stalled = true;
    sp_engine_event(e, SP_EVENT_CORRUPT, 0, process, stream, NULL, 0);
}

/* Takes records from one ring of the inbox; true if there may be more. */
static inline bool sp_inbox_drain(struct sp_engine *e, uint32_t process, enum sp_stream stream)
{
    struct sp_reader *reader = &e->node->readers[process][stream];
    if (reader->stalled)
        return false; /* A4: abandoned */
    e->retained.producer = (uint16_t)process;
    e->retained.stream = (uint16_t)stream;
    e->retained.doubt = reader->position == e->doubtful[process][stream];
    enum sp_read read = SP_READ_RECORD;
    uint32_t taken = 0;
    for (; taken < SP_INBOX_RECORDS; taken++) {
        struct sp_record *record;
        read = sp_reader_next(reader, &record);
        if (read != SP_READ_RECORD)
            break;
        e->retained.position = reader->position;
        if (!sp_output_record(e, record)) {
            read = SP_READ_CORRUPT;
            break;
        }
        sp_reader_advance(reader, record);
        /* release: what the record led to is kept by now, and is not made again after our death */
        sp_store_release(&reader->ring->linked, reader->position);
        e->retained.doubt = false;
    }
    e->retained.position = SP_NO_RECORD;
    if (read == SP_READ_CORRUPT)
        sp_inbox_abandon(e, process, stream);
    if (taken > 0)
        sp_node_release(e->node, process, stream);
    return taken == SP_INBOX_RECORDS;
}

static inline void sp_inbox_drain_all(struct sp_engine *e)
{
    e->more = false;
    for (uint32_t process = 0; process < e->node->geometry.processes; process++) {
        e->more |= sp_inbox_drain(e, process, SP_STREAM_INFRA);
        e->more |= sp_inbox_drain(e, process, SP_STREAM_DATA);
    }
}

#endif
