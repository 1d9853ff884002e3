/* How much of a link each object has in flight: at most a quarter of it (M-3), so that one flooded object leaves the
 * others their share.
 *
 * A direct-mapped table per link: the last object that hashed to a place, the end of its last batch, and its bytes
 * since the consumer was last seen beyond that end. A collision forgets the older object, which errs on the side of
 * accepting; the link itself stays bounded whatever is forgotten.
 */
#ifndef SP_FLIGHT_H
#define SP_FLIGHT_H

#include "ring.h"

#define SP_FLIGHT_PLACES 1024U

struct sp_flight {
    uint64_t address;
    uint64_t end;
    uint64_t bytes;
};

static inline struct sp_flight *sp_flight_of(struct sp_flight *table, uint64_t address)
{
    return &table[(uint32_t)address & (SP_FLIGHT_PLACES - 1)];
}

static inline bool sp_flight_allows(struct sp_flight *table, struct sp_writer *writer, uint64_t address, uint64_t bytes)
{
    struct sp_flight *flight = sp_flight_of(table, address);
    if (flight->address != address || flight->bytes + bytes <= writer->capacity / 4)
        return true;
    writer->consumer = sp_load_acquire(&writer->ring->consumer);
    if (writer->consumer >= flight->end)
        flight->bytes = 0;
    return flight->bytes == 0 || flight->bytes + bytes <= writer->capacity / 4;
}

static inline void sp_flight_note(struct sp_flight *table, const struct sp_writer *writer, uint64_t address, uint64_t bytes)
{
    struct sp_flight *flight = sp_flight_of(table, address);
    if (flight->address != address || writer->consumer >= flight->end) {
        flight->address = address;
        flight->bytes = 0;
    }
    flight->bytes += bytes;
    flight->end = writer->position;
}

#endif
