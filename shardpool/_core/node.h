/* One process's view of the node: every segment attached, its place among them, and its doorbells.
 *
 * Everything in these structs is private to the process. Doorbell:
 *   a consumer declares itself parked (its epoch, seq_cst), looks at every ring again (seq_cst), and only then
 *   sleeps on its eventfd; a producer publishes (seq_cst), looks at `parked` (seq_cst), and if it is set writes
 *   the eventfd and then clears the very epoch it saw.
 * Invariants
 *   D1  of "published" and "parked" at least one side sees the other's: nothing waits for the next message
 *   D2  first ring, then clear: a ringer that stops in between costs at most a second ring, never the wake
 *   D3  after a death the supervisor rings without looking at `parked`: the dead may have cleared it
 */
#ifndef SP_NODE_H
#define SP_NODE_H

#include <unistd.h>

#include "ring.h"

struct sp_peer {
    uint8_t *base;
    uint64_t size;
    struct sp_header *header;
    struct sp_slot *slots; /* of a shard, else NULL */
    int doorbell;
    bool bell_due;         /* published since the last ring */
    struct sp_writer writers[2]; /* from this process to the peer */
};

struct sp_node {
    uint32_t self;
    struct sp_geometry geometry;
    struct sp_intent *intent;
    uint64_t epoch; /* of the last park */
    struct sp_peer peers[SP_MAX_PROCESSES];
    struct sp_reader readers[SP_MAX_PROCESSES][2]; /* the own inbox, by producer */
};

static inline struct sp_header *sp_node_header(struct sp_node *node) { return node->peers[node->self].header; }

static inline void sp_count(struct sp_node *node, enum sp_counter counter, uint64_t add)
{
    uint64_t *word = &sp_node_header(node)->counters[counter];
    __atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + add, __ATOMIC_RELAXED);
}

static inline void sp_book(struct sp_node *node, enum sp_book book)
{
    uint64_t *entry = &sp_node_header(node)->books[book];
    __atomic_store_n(entry, __atomic_load_n(entry, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

/* How many records the books say are neither run nor gone. */
static inline uint64_t sp_books_open(const uint64_t *books)
{
    uint64_t open = books[SP_BOOK_LINKED] + books[SP_BOOK_PLACED];
    for (int book = SP_BOOK_HANDLED; book < SP_BOOKS; book++)
        open -= books[book];
    return open;
}

static inline void sp_gauge(struct sp_node *node, enum sp_counter counter, uint64_t value)
{
    __atomic_store_n(&sp_node_header(node)->counters[counter], value, __ATOMIC_RELAXED);
}

/* The peer that holds an object address, or NULL if there is no such shard. */
static inline struct sp_peer *sp_node_shard(struct sp_node *node, uint64_t address)
{
    uint32_t shard = sp_address_number(address);
    if (shard >= node->geometry.shards)
        return NULL;
    return &node->peers[1 + node->geometry.acceptors + shard];
}

/* The peer that holds a client address, or NULL. */
static inline struct sp_peer *sp_node_acceptor(struct sp_node *node, uint64_t client)
{
    uint32_t acceptor = sp_address_number(client);
    if (acceptor >= node->geometry.acceptors)
        return NULL;
    return &node->peers[1 + acceptor];
}

static inline struct sp_ring *sp_link_ring(struct sp_peer *consumer, const struct sp_geometry *g, uint32_t producer,
                                           enum sp_stream stream)
{
    uint8_t *link = consumer->base + SP_PAGE + producer * sp_link_size(g);
    if (stream == SP_STREAM_INFRA)
        link += sizeof(struct sp_ring) + g->link_bytes;
    return (struct sp_ring *)(void *)link;
}

static inline void sp_node_attach_peer(struct sp_node *node, uint32_t process, uint8_t *base, uint64_t size, int doorbell)
{
    struct sp_peer *peer = &node->peers[process];
    const struct sp_geometry *g = &node->geometry;
    peer->base = base;
    peer->size = size;
    peer->header = (struct sp_header *)(void *)base;
    peer->doorbell = doorbell;
    peer->bell_due = false;
    peer->slots = process > g->acceptors ? (struct sp_slot *)(void *)(base + sp_slots_offset(g)) : NULL;
    sp_writer_attach(&peer->writers[SP_STREAM_DATA], sp_link_ring(peer, g, node->self, SP_STREAM_DATA), g->link_bytes);
    sp_writer_attach(&peer->writers[SP_STREAM_INFRA], sp_link_ring(peer, g, node->self, SP_STREAM_INFRA), g->infra_bytes);
    if (process != node->self)
        return;
    node->intent = &peer->header->intent;
    /* another range for each incarnation: a ringer that was stopped since the last must not clear this one's park */
    node->epoch = sp_load_relaxed(&peer->header->incarnation) << 32;
    for (uint32_t producer = 0; producer < g->processes; producer++) {
        sp_reader_attach(&node->readers[producer][0], sp_link_ring(peer, g, producer, SP_STREAM_DATA), g->link_bytes);
        sp_reader_attach(&node->readers[producer][1], sp_link_ring(peer, g, producer, SP_STREAM_INFRA), g->infra_bytes);
    }
}

static inline void sp_doorbell_write(int doorbell)
{
    static const uint64_t one = 1;
    ssize_t written = write(doorbell, &one, sizeof one);
    (void)written; /* EAGAIN: the counter is full, so the bell is ringing already */
}

/* Rings one peer if it is parked. The positions published before are stored again, seq_cst: this store and the
 * load of `parked` must not change places (D1). */
static inline bool sp_node_ring(struct sp_node *node, struct sp_peer *peer)
{
    (void)node;
    peer->bell_due = false;
    for (int stream = 0; stream < 2; stream++)
        sp_store_seq_cst(&peer->writers[stream].ring->producer, sp_load_relaxed(&peer->writers[stream].ring->producer));
    uint64_t epoch = sp_load_seq_cst(&peer->header->parked);
    if (epoch == 0)
        return false;
    sp_doorbell_write(peer->doorbell); /* D2 */
    sp_compare_exchange(&peer->header->parked, &epoch, 0);
    return true;
}

/* Rings every peer that was published to since the last call; once per batch, not per message. */
static inline void sp_node_ring_due(struct sp_node *node)
{
    for (uint32_t process = 0; process < node->geometry.processes; process++)
        if (node->peers[process].bell_due && sp_node_ring(node, &node->peers[process]))
            sp_count(node, SP_COUNT_RUNG, 1);
}

/* Gives what was read from a producer's stream back; rings it if it waits for room. */
static inline void sp_node_release(struct sp_node *node, uint32_t producer, enum sp_stream stream)
{
    if (sp_reader_release(&node->readers[producer][stream]))
        sp_doorbell_write(node->peers[producer].doorbell);
}

/* Declares the process parked and looks again. True: it may sleep on its doorbell; false: there is work. */
static inline bool sp_node_park(struct sp_node *node)
{
    struct sp_header *header = sp_node_header(node);
    sp_store_seq_cst(&header->parked, ++node->epoch);
    for (uint32_t producer = 0; producer < node->geometry.processes; producer++) {
        for (int stream = 0; stream < 2; stream++) {
            struct sp_reader *reader = &node->readers[producer][stream];
            if (sp_load_seq_cst(&reader->ring->producer) != reader->position && !reader->stalled) {
                sp_store_seq_cst(&header->parked, 0);
                return false;
            }
        }
    }
    sp_count(node, SP_COUNT_PARKS, 1);
    return true;
}

/* After a sleep: takes the ring and the declaration back. */
static inline void sp_node_wake(struct sp_node *node)
{
    uint64_t rings;
    ssize_t got = read(node->peers[node->self].doorbell, &rings, sizeof rings);
    (void)got; /* EAGAIN: woken by something else of the event loop */
    sp_store_seq_cst(&sp_node_header(node)->parked, 0);
    sp_count(node, SP_COUNT_WAKES, 1);
}

/* Writes one record that needs no admission (to an acceptor, or infrastructure). False: no room, nothing written;
 * the caller keeps it and asks to be rung (sp_writer_want). */
static inline struct sp_record *sp_node_claim(struct sp_peer *peer, enum sp_stream stream, uint32_t length, uint16_t kind)
{
    struct sp_writer *writer = &peer->writers[stream];
    uint64_t size = sp_record_size(length);
    if (size > writer->capacity / 2 || !sp_writer_fits(writer, size, size, 0))
        return NULL;
    struct sp_record *record = sp_writer_claim(writer, length);
    record->kind = kind;
    record->flags = 0;
    return record;
}

static inline void sp_node_publish(struct sp_peer *peer, enum sp_stream stream)
{
    sp_writer_publish(&peer->writers[stream]);
    peer->bell_due = true;
}

#endif
