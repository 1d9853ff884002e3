/* WebSocket frames as a server meets them (RFC 6455, section 5.2): the plain case here, the rest to the library.
 *
 * DATA is a complete, masked, unfragmented text or binary frame without reserved bits. OTHER is a complete frame
 * with a legal header that needs the protocol's state (control, fragment, compressed). ILLEGAL is a header that no
 * state makes legal. OTHER and ILLEGAL go to the library with their raw bytes: it alone decides what they mean.
 *
 * Invariants
 *   W1  nothing is read beyond `length`, and a declared length allocates nothing
 *   W2  unmasking in place leaves a zero key behind, so that a frame that has to wait may be parsed again
 */
#ifndef SP_WEBSOCKET_H
#define SP_WEBSOCKET_H

#include "utf8.h"

#define SP_WS_TEXT 1U
#define SP_WS_BINARY 2U
#define SP_WS_PING 9U

enum sp_ws_found { SP_WS_INCOMPLETE, SP_WS_DATA, SP_WS_OTHER, SP_WS_ILLEGAL, SP_WS_TOO_BIG };

struct sp_ws_frame {
    uint8_t *payload;
    uint64_t length; /* of the payload */
    uint64_t size;   /* header and payload */
    bool text;
};

static inline void sp_ws_unmask(uint8_t *payload, uint64_t length, uint8_t *key)
{
    uint32_t narrow;
    memcpy(&narrow, key, sizeof narrow);
    if (narrow == 0)
        return;
    uint64_t wide = (uint64_t)narrow << 32 | narrow;
    uint64_t i = 0;
    for (; i + sizeof wide <= length; i += sizeof wide) {
        uint64_t eight;
        memcpy(&eight, payload + i, sizeof eight);
        eight ^= wide;
        memcpy(payload + i, &eight, sizeof eight);
    }
    for (; i < length; i++)
        payload[i] ^= key[i & 3];
    memset(key, 0, 4); /* W2 */
}

static inline bool sp_ws_legal(uint8_t first, uint8_t second, bool compressed)
{
    uint8_t opcode = first & 0x0F;
    bool final = (first & 0x80) != 0;
    bool control = (opcode & 0x08) != 0;
    if ((second & 0x80) == 0 || (first & 0x30) != 0 || ((first & 0x40) != 0 && (!compressed || control)))
        return false;
    if (opcode > 10 || (opcode > 2 && opcode < 8))
        return false;
    return !control || (final && (second & 0x7F) <= 125);
}

static inline enum sp_ws_found sp_ws_parse(uint8_t *bytes, uint64_t length, uint64_t limit, bool compressed,
                                           struct sp_ws_frame *frame)
{
    if (length < 2)
        return SP_WS_INCOMPLETE;
    if (!sp_ws_legal(bytes[0], bytes[1], compressed))
        return SP_WS_ILLEGAL;
    uint64_t size = bytes[1] & 0x7F;
    uint64_t head = 2;
    if (size >= 126) {
        unsigned wide = size == 126 ? 2 : 8;
        if (length < 2 + wide)
            return SP_WS_INCOMPLETE;
        size = 0;
        for (unsigned i = 0; i < wide; i++)
            size = size << 8 | bytes[2 + i];
        if (size >> 63 != 0 || size < (wide == 2 ? UINT64_C(126) : UINT64_C(65536)))
            return SP_WS_ILLEGAL; /* not the shortest form */
        head += wide;
    }
    if (size > limit)
        return SP_WS_TOO_BIG;
    if (length < head + 4 + size)
        return SP_WS_INCOMPLETE; /* W1 */
    frame->payload = bytes + head + 4;
    frame->length = size;
    frame->size = head + 4 + size;
    frame->text = (bytes[0] & 0x0F) == SP_WS_TEXT;
    if (bytes[0] != (0x80 | SP_WS_TEXT) && bytes[0] != (0x80 | SP_WS_BINARY))
        return SP_WS_OTHER;
    sp_ws_unmask(frame->payload, size, bytes + head);
    if (frame->text && !sp_utf8_valid(frame->payload, size))
        return SP_WS_OTHER;
    return SP_WS_DATA;
}

/* Header of an unmasked, unfragmented frame; `head` has room for ten bytes. Returns how many it took. */
static inline unsigned sp_ws_header(uint8_t *head, unsigned opcode, uint64_t length)
{
    head[0] = (uint8_t)(0x80U | opcode);
    if (length < 126) {
        head[1] = (uint8_t)length;
        return 2;
    }
    unsigned wide = length < 65536 ? 2 : 8;
    head[1] = wide == 2 ? 126 : 127;
    for (unsigned i = 0; i < wide; i++)
        head[2 + i] = (uint8_t)(length >> (8 * (wide - 1 - i)));
    return 2 + wide;
}

/* Size of the server's own frame at `bytes`, which lies there whole. */
static inline uint64_t sp_ws_own_size(const uint8_t *bytes)
{
    uint64_t size = bytes[1] & 0x7F;
    unsigned wide = size == 126 ? 2 : size == 127 ? 8 : 0;
    if (wide == 0)
        return 2 + size;
    size = 0;
    for (unsigned i = 0; i < wide; i++)
        size = size << 8 | bytes[2 + i];
    return 2 + wide + size;
}

#endif
