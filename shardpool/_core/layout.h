/* The byte layout of a node's shared memory: one segment per process, made by the supervisor.
 *
 * A segment belongs to the process that *consumes* from it (it holds that process's inbox); the supervisor owns
 * the memory, so a segment outlives its process. Process indexes: 0 is the supervisor, then the acceptors, then
 * the shards.
 *
 *   offset 0      struct sp_header            one page
 *   links         for each producing process: data ring, then infrastructure ring
 *   slots         shards only: geometry.slots x struct sp_slot
 *   arena         shards only: page classes, then pages (arena.h)
 *   kept          acceptors only: sessions, then an arena with their frames (retained.h)
 *   directory     supervisor only (directory.h)
 *
 * Who writes what:
 *   header.parked       the owner declares, whoever rings clears (doorbell.h)
 *   header.permits      every process, compare-and-swap (schedule.h)
 *   header.intent       the owner, as a producer; the supervisor after its death
 *   header.operation    the owner, as an executor; the supervisor after its death
 *   header.counters     the owner
 *   header.books        the shard alone; its successor mends the one entry that a kill cut in two (adopt.h)
 *   ring.producer       the producing process; ring.consumer, ring.linked: the owner of the segment
 *   slot.word           every process, compare-and-swap (schedule.h)
 *   slot line 2         the shard alone
 *
 * Invariants:
 *   L1  every offset that is read from shared memory is checked against the geometry before it is used
 *   L2  nothing here moves while the node runs: addresses are valid for the segment's life
 */
#ifndef SP_LAYOUT_H
#define SP_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "atomics.h"

#define SP_MAGIC UINT32_C(0x73687064)
#define SP_VERSION UINT32_C(1)
#define SP_PAGE ((uint64_t)4096)
#define SP_KEPT_SESSION_BYTES ((uint64_t)256)

/* One bit per process in the schedule word and in the permit word: the reason for the limit. */
#define SP_MAX_PROCESSES 40U

enum sp_role { SP_ROLE_SUPERVISOR = 0, SP_ROLE_ACCEPTOR = 1, SP_ROLE_SHARD = 2 };

enum sp_lane { SP_LANE_APPLICATION = 0, SP_LANE_LIFECYCLE = 1 };

enum sp_stream { SP_STREAM_DATA = 0, SP_STREAM_INFRA = 1 };

enum sp_kind {
    SP_KIND_PAD = 0,   /* fills a ring up to its end; nothing to deliver */
    SP_KIND_FRAME = 1, /* a client's frame; a: client address, b: request id; flags: SP_FLAG_* */
    SP_KIND_CALL = 2,  /* a send or ask of an object; a: call id (0: send), b: asking process */
    SP_KIND_TIMER = 3, /* a: timer id, b: due time in ns */
    SP_KIND_ATTACH = 4,
    SP_KIND_DETACH = 5,
    SP_KIND_CUSTOM = 6, /* from here to 31: records that only Python reads */
    SP_KIND_RESUMED = 16, /* to a session, then to its actor: the client came back */
    SP_KIND_RECOVER = 17, /* an adopted object's first turn; placed by its shard, charged to no lane */
    SP_KIND_TOKEN = 31, /* target: the object that became runnable */
    SP_KIND_BOUND = 32,
    SP_KIND_REFUSED = 33,
    SP_KIND_ROUTE = 34,
    SP_KIND_PUSH = 40,
    SP_KIND_REPLY = 41,
    SP_KIND_ERROR = 42,
    SP_KIND_PUBLISH = 43, /* payload: u32 count, count x u64 client address, body */
    SP_KIND_CLOSE = 44,
    SP_KIND_XOFF = 48,
    SP_KIND_XON = 49,
    SP_KIND_CALL_REPLY = 50, /* a: call id, b: status */
};

/* What a sealed slot is about; with it a successor ends what was cut short. Stored before the seal. */
enum sp_life {
    SP_LIFE_OPEN = 0,
    SP_LIFE_LEAVING = 1,  /* its move is not decided: the directory says whether it took place */
    SP_LIFE_ARRIVING = 2, /* its records are copies until the directory names it */
    SP_LIFE_ENDING = 3,
};

/* So many deaths in an object's turns, and it runs nothing until it is pardoned (P-23). */
#define SP_QUARANTINE_DEATHS 2U

#define SP_FLAG_ASK 1U  /* the client waits for a reply */
#define SP_FLAG_BARE 2U /* bare mode: the return value goes back as a frame */
#define SP_FLAG_TEXT 4U /* a WebSocket text message, or its answer */

enum sp_outcome {
    SP_ACCEPTED = 0,
    SP_LANE_FULL = 1,
    SP_SATURATED = 2, /* no permit left in that shard */
    SP_SEALED = 3,    /* the object moves: read the route again, or hold */
    SP_STALE = 4,     /* no object of that generation in that slot */
    SP_SHUTTING_DOWN = 5,
    SP_LINK_FULL = 6, /* nothing was begun; wait for room in the link */
    SP_TOO_BIG = 7,
};

struct sp_geometry {
    uint32_t magic;
    uint32_t version;
    uint32_t processes;
    uint32_t acceptors;
    uint32_t shards;
    uint32_t slots;
    uint32_t permits;
    uint32_t lane_records;
    uint32_t lifecycle_records;
    uint32_t directory_entries;
    uint64_t lane_bytes;
    uint64_t lifecycle_bytes;
    uint64_t link_bytes;  /* data ring, a power of two */
    uint64_t infra_bytes; /* infrastructure ring, a power of two */
    uint64_t arena_bytes; /* a multiple of SP_ARENA_PAGE */
    uint64_t hash_key[2]; /* of the directory; random per node, so that clients cannot choose collisions */
    uint64_t resume_bytes;   /* for frames of an acceptor's sessions, a multiple of SP_ARENA_PAGE; 0: nothing is kept */
    uint64_t resume_entries; /* sessions of an acceptor that can be kept; 0 with resume_bytes 0 */
};

enum sp_counter {
    SP_COUNT_MESSAGES_IN,
    SP_COUNT_MESSAGES_OUT,
    SP_COUNT_BYTES_IN,
    SP_COUNT_BYTES_OUT,
    SP_COUNT_BATCHES,
    SP_COUNT_TURNS,
    SP_COUNT_FAILED,
    SP_COUNT_REFUSED_LANE,
    SP_COUNT_REFUSED_PERMIT,
    SP_COUNT_REFUSED_STALE,
    SP_COUNT_DROPPED,
    SP_COUNT_PARKS,
    SP_COUNT_WAKES,
    SP_COUNT_RUNG,
    SP_COUNT_SESSIONS,
    SP_COUNT_OBJECTS,
    SP_COUNT_READY,
    SP_COUNT_CONNECTIONS,
    SP_COUNT_OPENED,
    SP_COUNT_CLOSED,
    SP_COUNT_RUNNING_SLOT,
    SP_COUNT_RUNNING_SINCE_NS,
    SP_COUNT_LATE_REPLIES,
    SP_COUNT_QUARANTINED,
    SP_COUNTERS,
};

/* The books of a shard's records, since the pool's start and over all its processes:
 *     LINKED + PLACED == HANDLED + FAILED + LETTERS + UNRUN + MOVED + records in the lanes
 * between any two records. */
enum sp_book {
    SP_BOOK_LINKED,  /* taken over from a link: accepted */
    SP_BOOK_PLACED,  /* came with an object that moved here */
    SP_BOOK_HANDLED,
    SP_BOOK_FAILED,  /* its handler raised, or it could not be read, or its reply not be written */
    SP_BOOK_LETTERS, /* begun when its shard died, and not run again: a dead letter */
    SP_BOOK_UNRUN,   /* its object ended first */
    SP_BOOK_MOVED,   /* left with its object */
    SP_BOOKS,
};

/* What a producer is about to do (protocol steps); with its own bit in the word that the step changes it tells
 * the supervisor, after the producer's death, whether the step took place. */
enum sp_step {
    SP_STEP_NONE = 0,
    SP_STEP_TAKE = 1,  /* permits: +1, own flip */
    SP_STEP_OPEN = 2,  /* word: Idle -> Finalizing, own bit, reservation */
    SP_STEP_GIVE = 3,  /* permits: -1, own flip */
    SP_STEP_JOIN = 4,  /* word: own bit, reservation */
    SP_STEP_WRITE = 5, /* ring: producer position beyond intent.position */
    SP_STEP_COMMIT_RUN = 6,   /* word: Finalizing -> Runnable, own bit cleared; a token is owed */
    SP_STEP_COMMIT_PLAIN = 7, /* word: own bit cleared */
    SP_STEP_TOKEN = 8,        /* only after a death: all is settled but a token, which found no room yet */
};

struct sp_intent {
    uint64_t step;
    uint64_t address;  /* object */
    uint64_t stream;   /* enum sp_stream */
    uint64_t position; /* of the ring when the batch began */
    uint64_t reserved; /* what is added to the reservation word, packed as there */
    uint64_t flip;     /* value that the own flip bit in permits has once TAKE or GIVE took place */
    uint64_t end;      /* of the batch: a producer position beyond it means that the token is there too */
    uint64_t spare;
};

/* The executor's announced permit operation. One word, so that it is announced and withdrawn by one store: a kind
 * that stood beside another operation's slot or flip would say something false to whoever repairs. */
enum sp_operation_kind {
    SP_OPERATION_NONE = 0,
    SP_OPERATION_IDLE = 1,   /* Running -> Idle, then permits -1 */
    SP_OPERATION_WAIT = 2,   /* Running -> Waiting, then permits -1 */
    SP_OPERATION_RESUME = 3, /* permits +1, then Waiting -> Running */
};

struct sp_operation {
    uint64_t word; /* bits 0-7 kind, 8-39 slot, 40 value of the own flip bit once the permit has changed */
    uint64_t spare[7];
};

struct sp_header {
    struct sp_geometry geometry;
    uint64_t process;
    uint64_t role;
    uint64_t closing; /* set by the supervisor: admissions answer SHUTTING_DOWN */
    uint64_t incarnation; /* of the owner; set by the supervisor at each start */
    uint64_t handed_over; /* 1 + incarnation of the owner that last left between two turns; set by it */
    uint8_t pad0[512 - sizeof(struct sp_geometry) - 5 * sizeof(uint64_t)];
    uint64_t parked; /* 0, or the number of this park */
    uint8_t pad1[120];
    uint64_t permits; /* in use (24 bits), then one flip bit per process */
    uint8_t pad2[120];
    struct sp_intent intent;
    uint8_t pad3[64];
    struct sp_operation operation;
    uint8_t pad4[64];
    uint64_t counters[64];
    uint64_t books[16];
    uint8_t pad5[SP_PAGE - 512 - 4 * 128 - 80 * sizeof(uint64_t)];
};

/* Positions count bytes for ever; the place in the ring is position modulo capacity. Line pairs are kept apart
 * because the adjacent line is prefetched with the one that is touched. */
struct sp_ring {
    uint64_t producer; /* end of what is published; written by the producer */
    uint8_t pad0[120];
    uint64_t consumer; /* everything before it may be overwritten; written by the consumer */
    uint8_t pad1[120];
    uint64_t linked;   /* everything before it lies in lanes; the consumer's own notebook for its successor */
    uint8_t pad2[120];
    uint64_t wanted;   /* 1: the producer waits for room; set by it, taken by the consumer, which rings */
    uint8_t pad3[120];
};

/* 8-aligned; a pad record needs only the first eight bytes. */
struct sp_record {
    uint32_t length; /* of the payload, in bytes */
    uint16_t kind;
    uint16_t flags;
    uint64_t target;
    uint64_t a;
    uint64_t b;
};

#define SP_RECORD_HEAD ((uint64_t)sizeof(struct sp_record))

/* A lane's first and last cell as arena offsets in units of SP_CELL_UNIT; 0 is none. */
struct sp_chain {
    uint32_t first;
    uint32_t last;
};

struct sp_slot {
    /* line 1: shared */
    sp_pair word;       /* low: schedule word; high: reservations (schedule.h) */
    uint64_t waiters;   /* bit per process that holds messages for want of lane room */
    uint64_t route;     /* a session's bound object; an actor's session slot */
    uint64_t session;   /* session id, 0 if the object has none */
    uint64_t client;    /* client address of the session */
    uint64_t kind;      /* what the shard says it is, for status and the successor */
    uint64_t spot;      /* an actor's: address of the Spot it is in, 0: its shard's entry Spot */
    /* line 2: the shard alone; the successor and status read it; the supervisor counts deaths while it is dead */
    uint64_t done;      /* released reservations, packed like the reservation word */
    uint64_t mark;      /* arena unit of the record begun and not ended, 0 = none */
    struct sp_chain lanes[2];
    uint64_t turn;      /* number of the last turn; never reused */
    uint64_t running_since_ns;
    uint32_t lifecycle_run; /* lifecycle turns in a row, for the debt of T-20 */
    uint16_t deaths;        /* of the shard in this object's turns, since the last turn that ended well */
    uint8_t attempts;       /* how often the first application record has begun and was cut off by a death */
    uint8_t life;           /* enum sp_life */
    uint64_t mark_done; /* `done` when the mark was set: if it differs by now, the marked record had finished */
};

_Static_assert(sizeof(struct sp_header) == 4096, "the header is one page");
_Static_assert(offsetof(struct sp_header, parked) == 512, "hot words start on their own line pair");
_Static_assert(sizeof(struct sp_ring) == 512, "four line pairs");
_Static_assert(sizeof(struct sp_record) == 32, "records keep payloads 8-aligned");
_Static_assert(sizeof(struct sp_slot) == 128, "an idle object costs 128 bytes");

/* Object address: shard number (8 bits), generation (24), slot (32). Client address: acceptor number,
 * generation of the connection, index of the connection. 0 is no address: generations start at 1. */
static inline uint64_t sp_address(uint64_t number, uint64_t generation, uint64_t index)
{
    return number << 56 | generation << 32 | index;
}

static inline uint32_t sp_address_number(uint64_t address) { return (uint32_t)(address >> 56); }
static inline uint32_t sp_address_generation(uint64_t address) { return (uint32_t)(address >> 32) & 0xFFFFFFU; }
static inline uint32_t sp_address_index(uint64_t address) { return (uint32_t)address; }

static inline uint64_t sp_align(uint64_t value, uint64_t to) { return (value + to - 1) & ~(to - 1); }

static inline uint64_t sp_link_size(const struct sp_geometry *g)
{
    return 2 * sizeof(struct sp_ring) + g->link_bytes + g->infra_bytes;
}

static inline uint64_t sp_slots_offset(const struct sp_geometry *g)
{
    return sp_align(SP_PAGE + g->processes * sp_link_size(g), SP_PAGE);
}

/* Acceptors have no slots: what they keep of sessions lies where a shard's slots would. */
static inline uint64_t sp_retained_offset(const struct sp_geometry *g) { return sp_slots_offset(g); }

static inline uint64_t sp_retained_arena_offset(const struct sp_geometry *g)
{
    return sp_align(sp_retained_offset(g) + g->resume_entries * SP_KEPT_SESSION_BYTES, SP_PAGE);
}

static inline uint64_t sp_arena_offset(const struct sp_geometry *g)
{
    return sp_align(sp_slots_offset(g) + (uint64_t)g->slots * sizeof(struct sp_slot), SP_PAGE);
}

#endif
