/* The directory of ids (P-26): which object an (app, type, id) is, found and listed from any process.
 *
 * Layout      geometry.directory_entries x struct sp_entry at the end of the supervisor's segment. An id can stand in
 *             any of the SP_DIRECTORY_WINDOW cells from its hash on; the first window is full when about three quarters
 *             of all cells are in use. state:
 *                 bits 0-3 enum sp_entry_state   4-11 owner (process)   12-23 use (one more at each freeing)   24-63 hash
 * Writer      claim     compare-and-swap a FREE cell of the window to CLAIMED, write the key, look at the whole window
 *                       again: another cell with this id READY or OWNED wins; another claim with this hash is
 *                       taken back (CLAIMED -> WITHDRAWN) by whoever sees it; then the own cell CLAIMED -> OWNED.
 *                       Who gets there creates the object; WITHDRAWN: free the cell and begin again.
 *             publish   properties, route, then OWNED -> READY; later again to change the properties.
 *             move      compare-and-swap of the route. remove: route -> 0 by compare-and-swap, then READY -> FREE.
 * Reader      state, key and route, state again: unchanged means that all were one entry's. The properties have a word
 *             of their own; a writer that stops while it says WRITING leaves an entry that is listed without them.
 * Crash       The cells of a dead process that are not READY are freed by the supervisor, and READY ones with route 0,
 *             whose removal was cut short. Nobody waits for anybody: a stopped claimer's claim is taken back.
 * Invariants
 *   F1  of all claims of one id at most one is OWNED or READY: two claims both stand before either looks again, and
 *       CLAIMED -> OWNED and CLAIMED -> WITHDRAWN exclude each other
 *   F2  key and length change only while the state is CLAIMED or WITHDRAWN, and only by its owner
 *   F3  a READY entry's route is its object's address, or 0 while it is removed
 *   F4  a state word never comes back: `use` counts the freeings (modulo 4096)
 */
#ifndef SP_DIRECTORY_H
#define SP_DIRECTORY_H

#include "node.h"
#include "siphash.h"

#define SP_DIRECTORY_KEY 128
#define SP_DIRECTORY_PROPERTIES 96
#define SP_DIRECTORY_WINDOW 32U
#define SP_DIRECTORY_TRIES 64 /* of a claim that others take back again and again; then it has to be asked for later */

/* In place of an address: no object has generation 0. */
#define SP_DIRECTORY_ABSENT UINT64_C(0)
#define SP_DIRECTORY_CREATING UINT64_C(1) /* somebody creates it now: ask again later */
#define SP_DIRECTORY_FULL UINT64_C(2)     /* no cell for this id */

enum sp_entry_state {
    SP_ENTRY_FREE = 0,
    SP_ENTRY_CLAIMED = 1,
    SP_ENTRY_WITHDRAWN = 2,
    SP_ENTRY_OWNED = 3,
    SP_ENTRY_READY = 4,
};

struct sp_entry {
    uint64_t state;
    uint64_t route;      /* object address */
    uint64_t key_length; /* in bytes */
    uint64_t properties_word; /* bits 0-7 length in bytes, bit 8 being written, from 9 on a count of changes */
    uint64_t key[SP_DIRECTORY_KEY / 8];
    uint64_t properties[SP_DIRECTORY_PROPERTIES / 8];
};

_Static_assert(sizeof(struct sp_entry) == 256, "two line pairs");

#define SP_ENTRY_STATE_MASK UINT64_C(0xF)
#define SP_ENTRY_USE_SHIFT 12
#define SP_ENTRY_USE_MASK (UINT64_C(0xFFF) << SP_ENTRY_USE_SHIFT)
#define SP_ENTRY_HASH_MASK (~UINT64_C(0) << 24)
#define SP_PROPERTIES_WRITING UINT64_C(0x100)
#define SP_PROPERTIES_CHANGE UINT64_C(0x200)

static inline uint64_t sp_directory_size(const struct sp_geometry *g)
{
    return (uint64_t)g->directory_entries * sizeof(struct sp_entry);
}

/* An id, hashed. */
struct sp_directory_key {
    const uint8_t *bytes;
    size_t length;
    uint64_t hash; /* as in the state word */
    uint32_t place;
};

static inline struct sp_directory_key sp_directory_key(const struct sp_node *node, const uint8_t *bytes, size_t length)
{
    uint64_t hash = sp_siphash(node->geometry.hash_key, bytes, length);
    return (struct sp_directory_key){
        .bytes = bytes, .length = length, .hash = hash & SP_ENTRY_HASH_MASK,
        .place = (uint32_t)hash & (node->geometry.directory_entries - 1),
    };
}

static inline enum sp_entry_state sp_entry_state(uint64_t state) { return (enum sp_entry_state)(state & SP_ENTRY_STATE_MASK); }
static inline uint32_t sp_entry_owner(uint64_t state) { return (uint32_t)(state >> 4) & 0xFF; }
static inline uint64_t sp_entry_with(uint64_t state, enum sp_entry_state to)
{
    return (state & ~SP_ENTRY_STATE_MASK) | (uint64_t)to;
}
static inline uint64_t sp_entry_freed(uint64_t state)
{
    return (state + (UINT64_C(1) << SP_ENTRY_USE_SHIFT)) & SP_ENTRY_USE_MASK; /* F4 */
}

static inline uint32_t sp_directory_window(const struct sp_node *node)
{
    uint32_t entries = node->geometry.directory_entries;
    return entries < SP_DIRECTORY_WINDOW ? entries : SP_DIRECTORY_WINDOW;
}

static inline struct sp_entry *sp_directory_entry(const struct sp_node *node, uint32_t place)
{
    struct sp_entry *first = (struct sp_entry *)(void *)(node->peers[0].base + sp_slots_offset(&node->geometry));
    return first + (place & (node->geometry.directory_entries - 1));
}

/* Words another process may be changing: release and acquire, so that who reads a changed one also finds the changed
 * state behind it. */
static inline void sp_entry_store(uint64_t *to, const uint8_t *bytes, size_t length)
{
    for (size_t done = 0; done < length; done += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + done, length - done < 8 ? length - done : 8);
        sp_store_release(&to[done / 8], word);
    }
}

static inline void sp_entry_load(const uint64_t *from, uint8_t *bytes, size_t length)
{
    for (size_t done = 0; done < length; done += 8) {
        uint64_t word = sp_load_acquire(&from[done / 8]);
        memcpy(bytes + done, &word, length - done < 8 ? length - done : 8);
    }
}

/* Whether an entry in `state` is the id's; a wrong answer only if the state has changed since. */
static inline bool sp_entry_is(const struct sp_entry *entry, uint64_t state, const struct sp_directory_key *key)
{
    uint8_t bytes[SP_DIRECTORY_KEY];
    if ((state & SP_ENTRY_HASH_MASK) != key->hash || sp_load_acquire(&entry->key_length) != key->length)
        return false;
    sp_entry_load(entry->key, bytes, key->length);
    return memcmp(bytes, key->bytes, key->length) == 0;
}

static inline void sp_entry_free(struct sp_entry *entry, uint64_t state)
{
    sp_compare_exchange(&entry->state, &state, sp_entry_freed(state)); /* fails only if another did it */
}

/* The entry of an id in a state (and of an owner, unless it is READY), or NULL. *seen is its state word. */
static inline struct sp_entry *sp_directory_look(const struct sp_node *node, const struct sp_directory_key *key,
                                                 enum sp_entry_state wanted, uint64_t *seen)
{
    for (uint32_t i = 0; i < sp_directory_window(node); i++) {
        struct sp_entry *entry = sp_directory_entry(node, key->place + i);
        uint64_t state = sp_load_acquire(&entry->state);
        if (sp_entry_state(state) != wanted || (wanted != SP_ENTRY_READY && sp_entry_owner(state) != node->self)
            || !sp_entry_is(entry, state, key) || sp_load_acquire(&entry->state) != state)
            continue;
        *seen = state;
        return entry;
    }
    return NULL;
}

/* What another cell of the window says about an id: an address, CREATING, or ABSENT if it says nothing. */
static inline uint64_t sp_entry_says(struct sp_entry *entry, const struct sp_directory_key *key)
{
    for (;;) {
        uint64_t state = sp_load_acquire(&entry->state);
        enum sp_entry_state what = sp_entry_state(state);
        if ((what != SP_ENTRY_OWNED && what != SP_ENTRY_READY) || (state & SP_ENTRY_HASH_MASK) != key->hash)
            return SP_DIRECTORY_ABSENT;
        bool same = sp_entry_is(entry, state, key);
        uint64_t route = sp_load_acquire(&entry->route);
        if (sp_load_acquire(&entry->state) != state)
            continue;
        if (!same)
            return SP_DIRECTORY_ABSENT;
        if (what == SP_ENTRY_OWNED)
            return SP_DIRECTORY_CREATING;
        if (route != 0)
            return route;
        sp_entry_free(entry, state); /* its removal had begun */
    }
}

/* The address of an id, CREATING or ABSENT. */
static inline uint64_t sp_directory_find(const struct sp_node *node, const struct sp_directory_key *key)
{
    for (uint32_t i = 0; i < sp_directory_window(node); i++) {
        uint64_t says = sp_entry_says(sp_directory_entry(node, key->place + i), key);
        if (says != SP_DIRECTORY_ABSENT)
            return says;
    }
    return SP_DIRECTORY_ABSENT;
}

/* The look after the own claim stands: who has the id, after taking back every other claim; ABSENT: nobody. */
static inline uint64_t sp_directory_contest(const struct sp_node *node, const struct sp_directory_key *key,
                                            const struct sp_entry *own)
{
    for (uint32_t i = 0; i < sp_directory_window(node); i++) {
        struct sp_entry *entry = sp_directory_entry(node, key->place + i);
        if (entry == own)
            continue;
        uint64_t state = sp_load_seq_cst(&entry->state);
        while (sp_entry_state(state) == SP_ENTRY_CLAIMED && (state & SP_ENTRY_HASH_MASK) == key->hash)
            if (sp_compare_exchange(&entry->state, &state, sp_entry_with(state, SP_ENTRY_WITHDRAWN)))
                break;
        uint64_t says = sp_entry_says(entry, key);
        if (says != SP_DIRECTORY_ABSENT)
            return says;
    }
    return SP_DIRECTORY_ABSENT;
}

/* Makes a FREE cell of the window an own claim; NULL: none is free. *seen is its state word. */
static inline struct sp_entry *sp_directory_take(const struct sp_node *node, const struct sp_directory_key *key,
                                                 uint64_t *seen)
{
    for (uint32_t i = 0; i < sp_directory_window(node); i++) {
        struct sp_entry *entry = sp_directory_entry(node, key->place + i);
        uint64_t state = sp_load_acquire(&entry->state);
        uint64_t claimed = key->hash | (state & SP_ENTRY_USE_MASK) | (uint64_t)node->self << 4 | SP_ENTRY_CLAIMED;
        if (sp_entry_state(state) != SP_ENTRY_FREE || !sp_compare_exchange(&entry->state, &state, claimed))
            continue;
        *seen = claimed;
        return entry;
    }
    return NULL;
}

/* ABSENT: the caller has the id now; it makes the object and calls publish, or withdraw. Else the address of the
 * object that has it, CREATING or FULL. */
static inline uint64_t sp_directory_claim(const struct sp_node *node, const struct sp_directory_key *key)
{
    for (int tries = 0; tries < SP_DIRECTORY_TRIES; tries++) {
        uint64_t says = sp_directory_find(node, key);
        if (says != SP_DIRECTORY_ABSENT)
            return says;
        uint64_t state;
        struct sp_entry *own = sp_directory_take(node, key, &state);
        if (own == NULL)
            return SP_DIRECTORY_FULL;
        sp_store_release(&own->route, 0);
        sp_store_release(&own->properties_word, sp_load_acquire(&own->properties_word) & ~UINT64_C(0xFF));
        sp_entry_store(own->key, key->bytes, key->length);
        sp_store_release(&own->key_length, key->length);
        says = sp_directory_contest(node, key, own);
        uint64_t expected = state;
        if (says == SP_DIRECTORY_ABSENT
            && sp_compare_exchange(&own->state, &expected, sp_entry_with(state, SP_ENTRY_OWNED)))
            return SP_DIRECTORY_ABSENT;
        if (!sp_compare_exchange(&own->state, &state, sp_entry_freed(state)))
            sp_entry_free(own, state); /* it was withdrawn */
        if (says != SP_DIRECTORY_ABSENT)
            return says;
    }
    return SP_DIRECTORY_CREATING;
}

static inline void sp_entry_set_properties(struct sp_entry *entry, const uint8_t *bytes, size_t length)
{
    /* a writer that died in between left WRITING set: adding to it keeps every value new */
    uint64_t changes = (sp_load_acquire(&entry->properties_word) & ~(SP_PROPERTIES_CHANGE - 1)) + SP_PROPERTIES_CHANGE;
    sp_store_seq_cst(&entry->properties_word, changes | SP_PROPERTIES_WRITING);
    sp_entry_store(entry->properties, bytes, length);
    sp_store_release(&entry->properties_word, changes | length);
}

/* Enters the address of the object that the caller's claim was for, or changes its properties later: by the process
 * where the object lives. False: the caller has no claim, and there is no entry with this address. */
static inline bool sp_directory_publish(const struct sp_node *node, const struct sp_directory_key *key, uint64_t address,
                                        const uint8_t *properties, size_t length)
{
    uint64_t state;
    struct sp_entry *entry = sp_directory_look(node, key, SP_ENTRY_OWNED, &state);
    if (entry != NULL) {
        sp_entry_set_properties(entry, properties, length);
        sp_store_release(&entry->route, address);
        /* release: pairs with the acquire of every reader; who sees READY sees the route */
        sp_store_release(&entry->state, sp_entry_with(state, SP_ENTRY_READY));
        return true;
    }
    entry = sp_directory_look(node, key, SP_ENTRY_READY, &state);
    if (entry == NULL || sp_load_acquire(&entry->route) != address)
        return false;
    sp_entry_set_properties(entry, properties, length);
    return true;
}

/* Gives the caller's claim up. */
static inline bool sp_directory_withdraw(const struct sp_node *node, const struct sp_directory_key *key)
{
    uint64_t state;
    struct sp_entry *entry = sp_directory_look(node, key, SP_ENTRY_OWNED, &state);
    if (entry == NULL)
        return false;
    sp_entry_free(entry, state);
    return true;
}

/* Changes an entry's address, if it is still the old one. Addresses are not used twice, so the entry is the id's. */
static inline bool sp_directory_move(const struct sp_node *node, const struct sp_directory_key *key, uint64_t old,
                                     uint64_t new)
{
    uint64_t state;
    struct sp_entry *entry = sp_directory_look(node, key, SP_ENTRY_READY, &state);
    return entry != NULL && old != 0 && sp_compare_exchange(&entry->route, &old, new);
}

/* Takes an entry out, if it still has this address. */
static inline bool sp_directory_remove(const struct sp_node *node, const struct sp_directory_key *key, uint64_t address)
{
    uint64_t state;
    struct sp_entry *entry = sp_directory_look(node, key, SP_ENTRY_READY, &state);
    if (entry == NULL || address == 0 || !sp_compare_exchange(&entry->route, &address, 0))
        return false;
    sp_entry_free(entry, state);
    return true;
}

/* One entry as it stood at some moment during the call. */
struct sp_directory_found {
    uint64_t address;
    size_t key_length;
    size_t properties_length;
    uint8_t key[SP_DIRECTORY_KEY];
    uint8_t properties[SP_DIRECTORY_PROPERTIES];
};

/* Reads the entry at a place if it is READY and its key begins with `prefix`. */
static inline bool sp_directory_read(const struct sp_node *node, uint32_t place, const uint8_t *prefix, size_t length,
                                     struct sp_directory_found *found)
{
    const struct sp_entry *entry = sp_directory_entry(node, place);
    uint64_t state = sp_load_acquire(&entry->state);
    if (sp_entry_state(state) != SP_ENTRY_READY)
        return false;
    found->key_length = sp_load_acquire(&entry->key_length);
    found->address = sp_load_acquire(&entry->route);
    if (found->key_length > SP_DIRECTORY_KEY || found->key_length < length || found->address == 0)
        return false;
    sp_entry_load(entry->key, found->key, found->key_length);
    uint64_t word = sp_load_acquire(&entry->properties_word);
    found->properties_length = word & 0xFF;
    if ((word & SP_PROPERTIES_WRITING) != 0 || found->properties_length > SP_DIRECTORY_PROPERTIES)
        found->properties_length = 0;
    sp_entry_load(entry->properties, found->properties, found->properties_length);
    if (sp_load_acquire(&entry->properties_word) != word)
        found->properties_length = 0;
    return sp_load_acquire(&entry->state) == state && memcmp(found->key, prefix, length) == 0;
}

/* The supervisor, after a death: frees what the dead process had not finished. */
static inline void sp_directory_release_dead(const struct sp_node *node, uint32_t process)
{
    for (uint32_t i = 0; i < node->geometry.directory_entries; i++) {
        struct sp_entry *entry = sp_directory_entry(node, i);
        uint64_t state = sp_load_acquire(&entry->state);
        while (sp_entry_state(state) != SP_ENTRY_FREE
               && (sp_entry_state(state) == SP_ENTRY_READY ? sp_load_acquire(&entry->route) == 0
                                                           : sp_entry_owner(state) == process))
            if (sp_compare_exchange(&entry->state, &state, sp_entry_freed(state)))
                break;
    }
}

#endif
