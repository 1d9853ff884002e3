/* What waits to be written to one connection: one growing buffer, absent while nothing waits.
 *
 * Layout     bytes[start..end) are unsent. `boundary` is the start of some frame, at most `end`; what lies before it
 *            and is unsent has no frames (an HTTP answer) or is a frame that has begun to go out.
 * Invariants
 *   O1  start <= end <= capacity, boundary <= end
 *   O2  a frame is dropped only if none of its bytes was sent
 */
#ifndef SP_UNSENT_H
#define SP_UNSENT_H

#include <stdlib.h>

#include "framing.h"

#define SP_UNSENT_FIRST 2048U

struct sp_unsent {
    uint8_t *bytes;
    uint32_t start;
    uint32_t end;
    uint32_t capacity;
    uint32_t boundary;
};

/* Buffers of the first size that nobody uses: most connections need one for the length of one turn. As many as a publish
 * to a large room fills at once: those that malloc took back cost a page fault each next time (40 % of what a publish costs). */
struct sp_spare {
    uint8_t *buffers[1024];
    uint32_t count;
};

static inline uint32_t sp_unsent_size(const struct sp_unsent *out) { return out->end - out->start; }

static inline void sp_unsent_free(struct sp_unsent *out, struct sp_spare *spare)
{
    if (out->capacity == SP_UNSENT_FIRST && spare->count < sizeof spare->buffers / sizeof spare->buffers[0])
        spare->buffers[spare->count++] = out->bytes;
    else
        free(out->bytes);
    *out = (struct sp_unsent){0};
}

static inline uint64_t sp_unsent_frame_size(const uint8_t *frame, enum sp_framing framing)
{
    return framing == SP_FRAMING_WEBSOCKET ? sp_ws_own_size(frame) : 4 + (uint64_t)sp_big_endian_32(frame);
}

/* Moves `boundary` to the first frame of which nothing was sent. */
static inline void sp_unsent_settle(struct sp_unsent *out, enum sp_framing framing)
{
    while (out->boundary < out->start)
        out->boundary += (uint32_t)sp_unsent_frame_size(out->bytes + out->boundary, framing);
}

/* Room for `more` bytes at `end`, or NULL for want of memory. */
static inline uint8_t *sp_unsent_room(struct sp_unsent *out, struct sp_spare *spare, enum sp_framing framing,
                                        uint32_t more)
{
    if (out->capacity - out->end >= more)
        return out->bytes + out->end;
    if (out->bytes == NULL && more <= SP_UNSENT_FIRST && spare->count > 0) {
        out->bytes = spare->buffers[--spare->count];
        out->capacity = SP_UNSENT_FIRST;
        return out->bytes;
    }
    uint32_t size = sp_unsent_size(out);
    if (out->start > 0) {
        sp_unsent_settle(out, framing);
        memmove(out->bytes, out->bytes + out->start, size);
        out->boundary -= out->start;
        out->start = 0;
        out->end = size;
    }
    uint64_t capacity = out->capacity == 0 ? SP_UNSENT_FIRST : out->capacity;
    while (capacity < (uint64_t)size + more)
        capacity *= 2;
    if (capacity > out->capacity) {
        if (capacity > UINT32_MAX)
            return NULL;
        uint8_t *bytes = realloc(out->bytes, capacity);
        if (bytes == NULL)
            return NULL;
        out->bytes = bytes;
        out->capacity = (uint32_t)capacity;
    }
    return out->bytes + out->end;
}

/* Bytes without frames; nothing up to their end will be dropped. */
static inline bool sp_unsent_append(struct sp_unsent *out, struct sp_spare *spare, enum sp_framing framing,
                                      const uint8_t *bytes, uint32_t length)
{
    if (length == 0)
        return true;
    uint8_t *room = sp_unsent_room(out, spare, framing, length);
    if (room == NULL)
        return false;
    memcpy(room, bytes, length);
    out->end += length;
    out->boundary = out->end;
    return true;
}

/* Moves everything from `boundary` on back by `length` bytes and returns where they are free, or NULL. */
static inline uint8_t *sp_unsent_insert(struct sp_unsent *out, struct sp_spare *spare, enum sp_framing framing,
                                          uint32_t length)
{
    if (sp_unsent_room(out, spare, framing, length) == NULL)
        return NULL;
    if (out->boundary < out->start)
        out->boundary = out->start;
    uint8_t *place = out->bytes + out->boundary;
    memmove(place + length, place, out->end - out->boundary);
    out->end += length;
    return place;
}

static inline unsigned sp_unsent_head_size(const uint8_t *frame, enum sp_framing framing)
{
    if (framing != SP_FRAMING_WEBSOCKET)
        return 4;
    unsigned size = frame[1] & 0x7FU;
    return size == 127 ? 10 : size == 126 ? 4 : 2;
}

/* What a drop dropped; numbers are those the frames had. */
struct sp_dropped {
    uint32_t count;
    uint32_t bytes;
    uint32_t first;
    uint32_t last;
};

/* Drops the oldest droppable frames until at least `wanted` bytes are free again, and numbers the numbered ones
 * that stay anew: the client never saw the dropped numbers, so for it there is no gap. Replies and errors stay:
 * each ask gets its answer. */
static inline struct sp_dropped sp_unsent_drop(struct sp_unsent *out, enum sp_framing framing, bool envelope, uint32_t wanted)
{
    sp_unsent_settle(out, framing);
    uint32_t from = out->boundary;
    uint32_t to = from;
    struct sp_dropped dropped = {0};
    while (from < out->end) {
        uint8_t *frame = out->bytes + from;
        uint32_t size = (uint32_t)sp_unsent_frame_size(frame, framing);
        unsigned head = sp_unsent_head_size(frame, framing);
        uint8_t kind = size > head ? frame[head] : 0;
        bool control = framing == SP_FRAMING_WEBSOCKET && (frame[0] & 0x08) != 0;
        bool numbered = envelope && !control && (kind == 'M' || kind == 'R' || kind == 'E');
        uint8_t *number = frame + head + 1;
        bool droppable = !control && (!envelope || kind == 'M');
        if (droppable && dropped.bytes < wanted) {
            dropped.last = numbered ? sp_big_endian_32(number) : 0;
            dropped.first = dropped.count == 0 ? dropped.last : dropped.first;
            dropped.count++;
            dropped.bytes += size;
        } else {
            if (dropped.count > 0 && numbered)
                sp_put_big_endian_32(number, sp_big_endian_32(number) - dropped.count);
            memmove(out->bytes + to, frame, size);
            to += size;
        }
        from += size;
    }
    out->end = to;
    return dropped;
}

#endif
