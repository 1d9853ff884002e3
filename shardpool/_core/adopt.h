/* A successor takes over the segment of a shard that died.
 *
 * Before it is started the supervisor has settled the segment (settle.h): no slot is Running or Waiting, rings begin
 * behind what was linked, permits are right. What is left to do is private: which slots and cells are free, which
 * objects are ready. A record that had begun and not ended still carries its mark: it is the first of its lane.
 *
 * Invariants
 *   K1  every cell that hangs in a lane is kept, every other cell is free
 *   K2  every Runnable object is queued once it is restored or released, and nothing else is
 *   K3  the books balance (layout.h): a kill between a record's last step and its entry leaves them one apart, never more
 */
#ifndef SP_ADOPT_H
#define SP_ADOPT_H

#include "executor.h"

/* Tells the arena that a cell is in use; `used` has a bit per unit. False: the cell cannot be one (L1). */
static inline bool sp_arena_keep(struct sp_arena *arena, uint64_t *used, uint32_t unit)
{
    uint64_t offset = (uint64_t)unit * SP_CELL_UNIT;
    if (offset == 0 || offset + sizeof(struct sp_cell) > arena->pages * SP_ARENA_PAGE || (used[unit / 64] >> (unit % 64) & 1))
        return false;
    uint64_t bytes = sizeof(struct sp_cell) + sp_arena_cell(arena, unit)->length;
    if (offset + bytes > arena->pages * SP_ARENA_PAGE)
        return false;
    used[unit / 64] |= UINT64_C(1) << (unit % 64);
    uint32_t number = (uint32_t)(offset / SP_ARENA_PAGE);
    unsigned class = sp_arena_class(bytes);
    struct sp_arena_page *page = &arena->page[number];
    if (class < SP_ARENA_CLASSES) {
        if (page->class != SP_ARENA_FREE && page->class != class)
            return false;
        if (page->class == SP_ARENA_FREE)
            arena->free_pages--;
        page->class = (uint8_t)class;
        page->used++;
        return true;
    }
    uint32_t count = (uint32_t)((bytes + SP_CELL_UNIT + SP_ARENA_PAGE - 1) / SP_ARENA_PAGE);
    for (uint32_t i = number; i < number + count; i++) {
        if (i >= arena->pages || arena->page[i].class != SP_ARENA_FREE)
            return false;
        arena->page[i].class = SP_ARENA_LARGE;
    }
    page->run = count;
    arena->free_pages -= count;
    return true;
}

/* Makes every cell of a page in use that is not kept a free one. */
static inline void sp_arena_free_rest(struct sp_arena *arena, const uint64_t *used)
{
    for (uint32_t number = 0; number < arena->pages; number++) {
        struct sp_arena_page *page = &arena->page[number];
        if (page->class >= SP_ARENA_CLASSES)
            continue;
        uint32_t size = sp_arena_class_bytes[page->class];
        uint32_t offset = (uint32_t)SP_CELL_UNIT;
        for (; offset + size <= SP_ARENA_PAGE; offset += size) {
            uint32_t unit = (uint32_t)((number * SP_ARENA_PAGE + offset) / SP_CELL_UNIT);
            if ((used[unit / 64] >> (unit % 64) & 1) != 0)
                continue;
            sp_arena_cell(arena, unit)->next = page->free;
            page->free = unit;
        }
        page->fresh = offset;
        if (page->free == 0)
            continue;
        page->listed = 1;
        page->next = arena->with_room[page->class];
        arena->with_room[page->class] = number + 1;
    }
}

/* Walks one lane: keeps its cells and finds its last; cuts it at what cannot be a cell. How many there are. */
static inline uint64_t sp_chain_adopt(struct sp_executor *ex, struct sp_chain *chain, uint64_t *used)
{
    uint32_t *link = &chain->first;
    uint32_t last = 0;
    uint64_t count = 0;
    while (*link != 0 && sp_arena_keep(&ex->arena, used, *link)) {
        last = *link;
        link = &sp_arena_cell(&ex->arena, last)->next;
        count += sp_arena_cell(&ex->arena, last)->kind != SP_KIND_RECOVER;
    }
    *link = 0;
    chain->last = last;
    return count;
}

/* Makes the entry that the kill prevented (K3). Books that are further apart stay so: the audit shows them. */
static inline void sp_books_adopt(struct sp_executor *ex, uint64_t waiting)
{
    uint64_t more = sp_books_open(sp_node_header(ex->node)->books) - waiting;
    if (more == 1)
        sp_book(ex->node, SP_BOOK_HANDLED);
    else if (more == UINT64_MAX)
        sp_book(ex->node, SP_BOOK_LINKED);
}

/* Takes the segment over; the number of live objects, or UINT32_MAX without memory. */
static inline uint32_t sp_executor_adopt(struct sp_executor *ex)
{
    uint32_t slots = ex->node->geometry.slots;
    uint64_t *used = calloc(ex->arena.pages * SP_ARENA_PAGE / SP_CELL_UNIT / 64, sizeof *used);
    uint32_t live = 0;
    uint64_t waiting = 0;
    if (used == NULL)
        return UINT32_MAX;
    for (uint32_t i = 0; i < slots; i++) {
        struct sp_slot *slot = &ex->slots[i];
        uint64_t word = sp_load_acquire(&slot->word.low);
        bool tenant = slot->kind != 0;
        if (tenant || sp_word_phase(word) != SP_IDLE || sp_word_generation(word) != 1)
            ex->free_slot = i + 1;
        waiting += sp_chain_adopt(ex, &slot->lanes[SP_LANE_APPLICATION], used);
        waiting += sp_chain_adopt(ex, &slot->lanes[SP_LANE_LIFECYCLE], used);
        /* slot 0 without a tenant was never vacated: hellos came before the first shard, whose system object is next */
        if (!tenant && (i == 0 || sp_word_phase(word) == SP_IDLE))
            continue;
        /* without a tenant: its vacating was cut short, and is finished by its next turn */
        ex->objects[i] = (struct sp_object){ .gate = i, .live = 1, .ending = !tenant };
        if (!tenant && sp_word_phase(word) == SP_RUNNABLE)
            sp_executor_queue(ex, i);
        live++;
    }
    for (uint32_t i = ex->free_slot; i-- > 0;)
        if (!ex->objects[i].live)
            ex->free_list[ex->free_count++] = i;
    sp_books_adopt(ex, waiting);
    sp_arena_free_rest(&ex->arena, used);
    free(used);
    return live;
}

/* What is to become of the record that had begun. */
enum sp_begun { SP_BEGUN_AGAIN, SP_BEGUN_DROP };

/* Ends the interrupted turn of an adopted object. A recovery that was cut off, or had not begun, is not repeated from
 * here: the caller places another one. */
static inline void sp_executor_settle_begun(struct sp_executor *ex, struct sp_slot *slot, enum sp_begun begun)
{
    struct sp_chain *lifecycle = &slot->lanes[SP_LANE_LIFECYCLE];
    struct sp_cell *cell = slot->mark == 0 ? NULL : sp_arena_cell(&ex->arena, (uint32_t)slot->mark);
    if (cell != NULL && cell->kind != SP_KIND_RECOVER) {
        bool letter = cell->kind == SP_KIND_FRAME || cell->kind == SP_KIND_CALL;
        if (begun == SP_BEGUN_DROP)
            sp_executor_remove(ex, slot, cell, letter ? SP_BOOK_LETTERS : SP_BOOK_FAILED);
        else if (sp_cell_lane(cell) == SP_LANE_APPLICATION && slot->attempts < UINT8_MAX)
            slot->attempts++;
    }
    sp_store_release(&slot->mark, 0);
    while (lifecycle->first != 0 && sp_arena_cell(&ex->arena, lifecycle->first)->kind == SP_KIND_RECOVER) {
        uint32_t unit = lifecycle->first;
        sp_chain_drop_first(ex, lifecycle);
        sp_arena_free(&ex->arena, unit);
    }
}

/* The object runs here from now on (K2). */
static inline void sp_executor_take_up(struct sp_executor *ex, uint32_t index)
{
    if (sp_word_phase(sp_load_acquire(&ex->slots[index].word.low)) == SP_RUNNABLE)
        sp_executor_queue(ex, index);
}

#endif
