/* The arena: memory for the accepted records of one shard, in that shard's own segment.
 *
 * Layout      geometry.arena_bytes in pages of 64 KiB. A page holds cells of one size class, or is part of a run of
 *             pages for one large record. A cell is struct sp_cell and its payload; offsets are in units of 16
 *             bytes, 0 is none (the first unit is never handed out).
 * Writer      the shard alone. Which pages and cells are free is kept in private memory only.
 * Reader      the shard; its successor; status.
 * Crash       What lies in no lane is free: the successor walks all lanes, marks the cells it finds (a record's
 *             length gives its class) and takes the rest as free. Nothing else has to survive.
 * Invariants
 *   A1  a cell is in at most one lane
 *   A2  the class of a cell follows from its record's length alone
 *   A3  a refused allocation changes nothing
 */
#ifndef SP_ARENA_H
#define SP_ARENA_H

#include <stdlib.h>
#include <string.h>

#include "layout.h"

#define SP_CELL_UNIT UINT64_C(16)
#define SP_ARENA_PAGE UINT64_C(65536)
#define SP_ARENA_CLASSES 17
#define SP_ARENA_LARGE 255U /* class of pages in a run */
#define SP_ARENA_FREE 254U

struct sp_cell {
    uint32_t next; /* in the lane; in units */
    uint32_t length;
    uint16_t kind;
    uint16_t flags;
    uint16_t producer; /* with stream and position: where it came from, for the successor */
    uint16_t stream;
    uint64_t position;
    uint64_t a;
    uint64_t b;
};

_Static_assert(sizeof(struct sp_cell) == 40, "a 64-byte message fits a 128-byte cell");

static const uint32_t sp_arena_class_bytes[SP_ARENA_CLASSES] = {
    64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768,
};

struct sp_arena_page {
    uint8_t class;
    uint32_t used;
    uint32_t fresh; /* bytes of the page handed out so far by bump allocation */
    uint32_t free;  /* first freed cell, in units */
    uint32_t next;  /* in the class's list of pages with room, page number + 1 */
    uint32_t run;   /* pages of the run that starts here */
    uint8_t listed;
};

struct sp_arena {
    uint8_t *base;
    uint32_t pages;
    uint32_t free_pages;
    uint32_t search;                       /* where the last free page was found */
    uint32_t with_room[SP_ARENA_CLASSES];  /* page number + 1, 0 = none */
    struct sp_arena_page *page;
};

static inline struct sp_cell *sp_arena_cell(const struct sp_arena *arena, uint32_t unit)
{
    return (struct sp_cell *)(void *)(arena->base + (uint64_t)unit * SP_CELL_UNIT);
}

static inline uint8_t *sp_cell_payload(struct sp_cell *cell) { return (uint8_t *)(cell + 1); }

static inline unsigned sp_arena_class(uint64_t bytes)
{
    unsigned class = 0;
    while (class < SP_ARENA_CLASSES && sp_arena_class_bytes[class] < bytes)
        class++;
    return class;
}

static inline bool sp_arena_open(struct sp_arena *arena, uint8_t *base, uint64_t bytes)
{
    memset(arena, 0, sizeof *arena);
    arena->base = base;
    arena->pages = (uint32_t)(bytes / SP_ARENA_PAGE);
    arena->free_pages = arena->pages;
    arena->page = calloc(arena->pages, sizeof *arena->page);
    if (arena->page == NULL)
        return false;
    for (uint32_t i = 0; i < arena->pages; i++)
        arena->page[i].class = SP_ARENA_FREE;
    return true;
}

static inline void sp_arena_close(struct sp_arena *arena)
{
    free(arena->page);
    arena->page = NULL;
}

/* First page of a run of free pages, or arena->pages. */
static inline uint32_t sp_arena_find_run(struct sp_arena *arena, uint32_t count)
{
    if (count > arena->free_pages)
        return arena->pages;
    uint32_t length = 0;
    uint32_t start = count == 1 ? arena->search : 0;
    for (uint32_t seen = 0; seen < arena->pages; seen++) {
        uint32_t i = start + seen;
        if (i >= arena->pages) {
            i -= arena->pages;
            if (i == 0)
                length = 0;
        }
        length = arena->page[i].class == SP_ARENA_FREE ? length + 1 : 0;
        if (length == count) {
            arena->search = i;
            return i + 1 - count;
        }
    }
    return arena->pages;
}

/* A cell for a record with `length` bytes of payload: its unit, or 0 if there is no room (A3). `keep` pages stay
 * free for others (the lifecycle share). */
static inline uint32_t sp_arena_allocate(struct sp_arena *arena, uint64_t length, uint32_t keep)
{
    uint64_t bytes = sizeof(struct sp_cell) + length;
    unsigned class = sp_arena_class(bytes);
    if (class == SP_ARENA_CLASSES) {
        uint32_t count = (uint32_t)((bytes + SP_CELL_UNIT + SP_ARENA_PAGE - 1) / SP_ARENA_PAGE);
        uint32_t first = count + keep > arena->free_pages ? arena->pages : sp_arena_find_run(arena, count);
        if (first == arena->pages)
            return 0;
        for (uint32_t i = first; i < first + count; i++)
            arena->page[i] = (struct sp_arena_page){ .class = SP_ARENA_LARGE };
        arena->page[first].run = count;
        arena->free_pages -= count;
        return (uint32_t)((first * SP_ARENA_PAGE) / SP_CELL_UNIT) + 1;
    }
    uint32_t number = arena->with_room[class];
    if (number == 0) {
        uint32_t found = arena->free_pages <= keep ? arena->pages : sp_arena_find_run(arena, 1);
        if (found == arena->pages)
            return 0;
        arena->page[found] = (struct sp_arena_page){
            .class = (uint8_t)class, .fresh = SP_CELL_UNIT, .listed = 1, .next = 0,
        };
        arena->free_pages--;
        number = arena->with_room[class] = found + 1;
    }
    struct sp_arena_page *page = &arena->page[number - 1];
    uint32_t size = sp_arena_class_bytes[class];
    uint32_t unit = page->free;
    if (unit != 0) {
        page->free = sp_arena_cell(arena, unit)->next;
    } else {
        unit = (uint32_t)(((number - 1) * SP_ARENA_PAGE + page->fresh) / SP_CELL_UNIT);
        page->fresh += size;
    }
    page->used++;
    if (page->free == 0 && page->fresh + size > SP_ARENA_PAGE) {
        arena->with_room[class] = page->next;
        page->listed = 0;
    }
    return unit;
}

/* Gives a cell back; its record's length is still in it (A2). */
static inline void sp_arena_free(struct sp_arena *arena, uint32_t unit)
{
    struct sp_cell *cell = sp_arena_cell(arena, unit);
    uint32_t number = (uint32_t)((uint64_t)unit * SP_CELL_UNIT / SP_ARENA_PAGE);
    struct sp_arena_page *page = &arena->page[number];
    if (page->class == SP_ARENA_LARGE) {
        uint32_t count = page->run;
        for (uint32_t i = number; i < number + count; i++)
            arena->page[i].class = SP_ARENA_FREE;
        arena->free_pages += count;
        return;
    }
    cell->next = page->free;
    page->free = unit;
    page->used--;
    if (!page->listed) {
        page->listed = 1;
        page->next = arena->with_room[page->class];
        arena->with_room[page->class] = number + 1;
    } else if (page->used == 0 && arena->with_room[page->class] != number + 1) {
        /* The head of the list stays, so that a class in use does not give and take its page for ever. */
        for (uint32_t at = arena->with_room[page->class]; at != 0; at = arena->page[at - 1].next) {
            if (arena->page[at - 1].next != number + 1)
                continue;
            arena->page[at - 1].next = page->next;
            page->class = SP_ARENA_FREE;
            arena->free_pages++;
            return;
        }
    }
}

#endif
