/* How many connections each client address has: open addressing, one entry per address that has any.
 *
 * An IPv4 address is its own key; of an IPv6 address its first 64 bits, which is what one customer gets.
 */
#ifndef SP_ADDRESSES_H
#define SP_ADDRESSES_H

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "layout.h"

struct sp_address_count {
    uint64_t key; /* 0: empty place */
    uint64_t count;
};

struct sp_addresses {
    struct sp_address_count *places;
    uint32_t capacity; /* a power of two, at most half full */
    uint32_t used;
};

static inline uint64_t sp_addresses_key(const struct sockaddr_storage *address)
{
    uint64_t key = 0;
    if (address->ss_family == AF_INET) {
        key = UINT64_C(1) << 32 | ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr;
    } else if (address->ss_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(six)) {
            uint32_t four;
            memcpy(&four, six->s6_addr + 12, sizeof four);
            key = UINT64_C(1) << 32 | four;
        } else {
            memcpy(&key, six->s6_addr, sizeof key);
            key |= UINT64_C(1) << 63;
        }
    }
    return key;
}

/* Multiplicative with the node's random key: clients cannot choose addresses that collide. */
static inline uint32_t sp_addresses_place(const struct sp_addresses *table, uint64_t key, uint64_t secret)
{
    uint64_t mixed = (key ^ secret) * UINT64_C(0x9E3779B97F4A7C15);
    mixed ^= mixed >> 32;
    mixed *= UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(mixed >> 32) & (table->capacity - 1);
}

static inline struct sp_address_count *sp_addresses_find(struct sp_addresses *table, uint64_t key, uint64_t secret)
{
    uint32_t place = sp_addresses_place(table, key, secret);
    while (table->places[place].key != 0 && table->places[place].key != key)
        place = (place + 1) & (table->capacity - 1);
    return &table->places[place];
}

static inline bool sp_addresses_grow(struct sp_addresses *table, uint64_t secret)
{
    struct sp_addresses larger = {.capacity = table->capacity == 0 ? 64 : table->capacity * 2};
    larger.places = calloc(larger.capacity, sizeof *larger.places);
    if (larger.places == NULL)
        return false;
    for (uint32_t i = 0; i < table->capacity; i++) {
        if (table->places[i].key == 0)
            continue;
        *sp_addresses_find(&larger, table->places[i].key, secret) = table->places[i];
        larger.used++;
    }
    free(table->places);
    *table = larger;
    return true;
}

/* Counts one more connection; false if there are `limit` already or no memory is left. */
static inline bool sp_addresses_add(struct sp_addresses *table, uint64_t key, uint64_t secret, uint64_t limit)
{
    if ((table->used + 1) * 2 > table->capacity && !sp_addresses_grow(table, secret))
        return false;
    struct sp_address_count *entry = sp_addresses_find(table, key, secret);
    if (entry->key == 0) {
        entry->key = key;
        entry->count = 0;
        table->used++;
    }
    if (entry->count >= limit)
        return false;
    entry->count++;
    return true;
}

static inline void sp_addresses_remove(struct sp_addresses *table, uint64_t key, uint64_t secret)
{
    struct sp_address_count *entry = sp_addresses_find(table, key, secret);
    if (entry->key == 0 || --entry->count > 0)
        return;
    /* Close the gap: whatever follows in the same run moves up if its own place allows. */
    uint32_t mask = table->capacity - 1;
    uint32_t gap = (uint32_t)(entry - table->places);
    uint32_t next = gap;
    table->used--;
    table->places[gap].key = 0;
    for (;;) {
        next = (next + 1) & mask;
        if (table->places[next].key == 0)
            return;
        uint32_t home = sp_addresses_place(table, table->places[next].key, secret);
        if (((next - home) & mask) < ((next - gap) & mask))
            continue;
        table->places[gap] = table->places[next];
        table->places[next].key = 0;
        gap = next;
    }
}

#endif
