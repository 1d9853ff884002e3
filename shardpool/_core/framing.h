/* What a byte stream of a client divides into: TCP frames (u32 length, big-endian) or WebSocket messages.
 *
 * Invariants
 *   F1  a length is compared with the limit before anything else is done with it
 *   F2  a piece lies wholly within the bytes given
 */
#ifndef SP_FRAMING_H
#define SP_FRAMING_H

#include "websocket.h"

enum sp_framing {
    SP_FRAMING_TCP = 0,
    SP_FRAMING_WEBSOCKET = 1,
    SP_FRAMING_RAW = 2, /* no frames: bytes go to Python as they come (HTTP before the upgrade) */
};

enum sp_found {
    SP_FOUND_MESSAGE,
    SP_FOUND_INCOMPLETE,
    SP_FOUND_OTHER,   /* a complete WebSocket frame for the library */
    SP_FOUND_ILLEGAL, /* a WebSocket header for the library */
    SP_FOUND_TOO_BIG,
    SP_FOUND_EMPTY, /* TCP length 0 */
};

struct sp_piece {
    uint8_t *bytes;
    uint32_t length;
    uint64_t size; /* in the stream */
    bool text;
};

static inline uint32_t sp_big_endian_32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static inline void sp_put_big_endian_32(uint8_t *bytes, uint32_t value)
{
    bytes[0] = (uint8_t)(value >> 24);
    bytes[1] = (uint8_t)(value >> 16);
    bytes[2] = (uint8_t)(value >> 8);
    bytes[3] = (uint8_t)value;
}

static inline enum sp_found sp_frame_next(uint8_t *bytes, uint64_t length, uint32_t limit, struct sp_piece *piece)
{
    if (length < 4)
        return SP_FOUND_INCOMPLETE;
    uint32_t size = sp_big_endian_32(bytes);
    if (size > limit)
        return SP_FOUND_TOO_BIG; /* F1 */
    if (size == 0)
        return SP_FOUND_EMPTY;
    if (length - 4 < size)
        return SP_FOUND_INCOMPLETE; /* F2 */
    piece->bytes = bytes + 4;
    piece->length = size;
    piece->size = 4 + (uint64_t)size;
    piece->text = false;
    return SP_FOUND_MESSAGE;
}

static inline enum sp_found sp_ws_next(uint8_t *bytes, uint64_t length, uint32_t limit, bool compressed, bool fragmented,
                                       struct sp_piece *piece)
{
    struct sp_ws_frame frame = {0};
    enum sp_ws_found found = sp_ws_parse(bytes, length, limit, compressed, &frame);
    piece->bytes = frame.payload;
    piece->length = (uint32_t)frame.length;
    piece->size = frame.size;
    piece->text = frame.text;
    switch (found) {
    case SP_WS_INCOMPLETE:
        return SP_FOUND_INCOMPLETE;
    case SP_WS_DATA:
        /* between fragments a data frame is an error that the library reports */
        return fragmented ? SP_FOUND_OTHER : SP_FOUND_MESSAGE;
    case SP_WS_OTHER:
        return SP_FOUND_OTHER;
    case SP_WS_TOO_BIG:
        return SP_FOUND_TOO_BIG;
    default:
        return SP_FOUND_ILLEGAL;
    }
}

enum sp_foreign { SP_FOREIGN_NO, SP_FOREIGN_HTTP, SP_FOREIGN_TLS };

/* Which other protocol the first bytes on a TCP address belong to. Their lengths would be far above any limit, so
 * this is asked only then. */
static inline enum sp_foreign sp_foreign_protocol(const uint8_t *bytes, uint64_t length)
{
    static const char methods[][5] = {"GET ", "HEAD", "POST", "PUT ", "OPTI", "DELE", "PATC", "CONN", "TRAC", "PRI "};
    if (length < 4)
        return SP_FOREIGN_NO;
    if (bytes[0] == 0x16 && bytes[1] == 0x03)
        return SP_FOREIGN_TLS;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (memcmp(bytes, methods[i], 4) == 0)
            return SP_FOREIGN_HTTP;
    return SP_FOREIGN_NO;
}

#endif
