/* Bytes of one frame, out and in: a 4-byte big-endian length or a WebSocket header, and what is inside. */
#ifndef SHARDPOOL_LOAD_WIRE_H
#define SHARDPOOL_LOAD_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME_BYTES_MAX = 128 * 1024, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10 };

/* The key is a constant: what the answer to it must be is one too, and a load generator has nobody to protect. */
#define WS_KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define WS_ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

struct bytes {
    uint8_t *data;
    size_t length;
    size_t capacity;
};

/* Room for `more` bytes behind what is there; NULL when memory is out. */
static inline uint8_t *bytes_room(struct bytes *bytes, size_t more)
{
    if (bytes->length + more > bytes->capacity) {
        size_t capacity = bytes->capacity ? bytes->capacity : 512;
        while (capacity < bytes->length + more)
            capacity *= 2;
        uint8_t *data = realloc(bytes->data, capacity);
        if (data == NULL)
            return NULL;
        bytes->data = data;
        bytes->capacity = capacity;
    }
    return bytes->data + bytes->length;
}

static inline bool bytes_append(struct bytes *bytes, const void *data, size_t length)
{
    uint8_t *at = bytes_room(bytes, length);
    if (at == NULL)
        return false;
    memcpy(at, data, length);
    bytes->length += length;
    return true;
}

static inline void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}

static inline void put_u16(uint8_t *at, uint16_t value) { value = htobe16(value); memcpy(at, &value, sizeof value); }
static inline void put_u32(uint8_t *at, uint32_t value) { value = htobe32(value); memcpy(at, &value, sizeof value); }
static inline uint32_t get_u32(const uint8_t *at) { uint32_t value; memcpy(&value, at, sizeof value); return be32toh(value); }
static inline void put_u64_le(uint8_t *at, uint64_t value) { value = htole64(value); memcpy(at, &value, sizeof value); }
static inline uint64_t get_u64_le(const uint8_t *at) { uint64_t value; memcpy(&value, at, sizeof value); return le64toh(value); }

static inline void ws_mask(uint8_t *data, size_t length, uint32_t key)
{
    uint64_t wide = (uint64_t)key << 32 | key;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= wide;
        memcpy(data, &word, 8);
        data += 8;
        length -= 8;
    }
    const uint8_t *bytes = (const uint8_t *)&key;
    for (size_t i = 0; i < length; i++)
        data[i] ^= bytes[i & 3];
}

/* One outgoing frame being written: `body` is where its bytes go, then frame_end() masks them where the transport asks. */
struct frame_out {
    uint8_t *body;
    size_t length;
    uint32_t key;
    bool masked;
};

static inline bool frame_begin(struct bytes *out, bool websocket, unsigned opcode, uint32_t key, size_t length, struct frame_out *frame)
{
    uint8_t *at = bytes_room(out, length + 14);
    if (at == NULL)
        return false;
    size_t header;
    if (!websocket) {
        put_u32(at, (uint32_t)length);
        header = 4;
    } else {
        at[0] = (uint8_t)(0x80u | opcode);
        if (length < 126) {
            at[1] = (uint8_t)(0x80u | length);
            header = 2;
        } else if (length <= 0xffff) {
            at[1] = 0x80u | 126u;
            put_u16(at + 2, (uint16_t)length);
            header = 4;
        } else {
            at[1] = 0x80u | 127u;
            put_u32(at + 2, 0);
            put_u32(at + 6, (uint32_t)length);
            header = 10;
        }
        memcpy(at + header, &key, 4);
        header += 4;
    }
    *frame = (struct frame_out){.body = at + header, .length = length, .key = key, .masked = websocket};
    out->length += header + length;
    return true;
}

static inline void frame_end(const struct frame_out *frame)
{
    if (frame->masked)
        ws_mask(frame->body, frame->length, frame->key);
}

struct frame_in {
    unsigned opcode; /* WS_BINARY on TCP */
    const uint8_t *body;
    size_t length;
};

/* Splits one frame off. Bytes consumed, 0 when more are needed, -1 when no server of ours or theirs sends that. */
static inline ptrdiff_t frame_split(const uint8_t *data, size_t available, bool websocket, struct frame_in *frame)
{
    size_t header, length;
    frame->opcode = WS_BINARY;
    if (!websocket) {
        if (available < 4)
            return 0;
        length = get_u32(data);
        header = 4;
    } else {
        if (available < 2)
            return 0;
        /* FIN set, no extension bits, not masked: replies come in one piece here. */
        if ((data[0] & 0xf0) != 0x80 || (data[1] & 0x80) != 0)
            return -1;
        frame->opcode = data[0] & 0x0f;
        length = data[1] & 0x7f;
        header = length < 126 ? 2 : length == 126 ? 4 : 10;
        if (available < header)
            return 0;
        if (length == 126)
            length = (size_t)data[2] << 8 | data[3];
        else if (length == 127)
            length = get_u32(data + 2) != 0 ? SIZE_MAX : get_u32(data + 6);
    }
    if (length > FRAME_BYTES_MAX)
        return -1;
    if (available < header + length)
        return 0;
    frame->body = data + header;
    frame->length = length;
    return (ptrdiff_t)(header + length);
}

#endif
