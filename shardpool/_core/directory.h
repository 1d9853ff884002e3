/* The directory of ids (P-26): which shard, slot and generation an (app, type, id) lives at.
 *
 * Layout: geometry.directory_entries x struct sp_entry at the end of the supervisor's segment.
 */
#ifndef SP_DIRECTORY_H
#define SP_DIRECTORY_H

#include "layout.h"

#define SP_DIRECTORY_KEY 128
#define SP_DIRECTORY_PROPERTIES 96

struct sp_entry {
    uint64_t state;
    uint64_t route; /* object address, 0: being created */
    uint64_t owner; /* process that creates it */
    uint16_t key_length;
    uint16_t properties_length;
    uint32_t version;
    uint8_t key[SP_DIRECTORY_KEY];
    uint8_t properties[SP_DIRECTORY_PROPERTIES];
};

_Static_assert(sizeof(struct sp_entry) == 256, "two line pairs");

static inline uint64_t sp_directory_size(const struct sp_geometry *g)
{
    return (uint64_t)g->directory_entries * sizeof(struct sp_entry);
}

#endif
