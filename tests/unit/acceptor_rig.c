/* The acceptor's headers without Python, behind plain functions: compiled by test_acceptor_parts.py, called by ctypes. */
#define _GNU_SOURCE
#include "addresses.h"
#include "connection.h"
#include "flight.h"

int rig_utf8(const uint8_t *bytes, uint64_t length) { return sp_utf8_valid(bytes, length); }

/* found, and payload offset, length, size, text by the pointers */
int rig_ws_parse(uint8_t *bytes, uint64_t length, uint64_t limit, int compressed, uint64_t *out)
{
    struct sp_ws_frame frame = {0};
    enum sp_ws_found found = sp_ws_parse(bytes, length, limit, compressed != 0, &frame);
    out[0] = frame.payload == NULL ? 0 : (uint64_t)(frame.payload - bytes);
    out[1] = frame.length;
    out[2] = frame.size;
    out[3] = frame.text;
    return (int)found;
}

unsigned rig_ws_header(uint8_t *head, unsigned opcode, uint64_t length) { return sp_ws_header(head, opcode, length); }

uint64_t rig_ws_own_size(const uint8_t *frame) { return sp_ws_own_size(frame); }

int rig_frame_next(uint8_t *bytes, uint64_t length, uint32_t limit, uint64_t *out)
{
    struct sp_piece piece = {0};
    enum sp_found found = sp_frame_next(bytes, length, limit, &piece);
    out[0] = piece.bytes == NULL ? 0 : (uint64_t)(piece.bytes - bytes);
    out[1] = piece.length;
    out[2] = piece.size;
    return (int)found;
}

static struct sp_unsent unsent;
static struct sp_spare spare;

void rig_unsent_reset(void) { sp_unsent_free(&unsent, &spare); }

void rig_unsent_frame(const uint8_t *frame, uint32_t length, int framing)
{
    uint8_t *room = sp_unsent_room(&unsent, &spare, (enum sp_framing)framing, length);
    if (length > 0)
        memcpy(room, frame, length);
    unsent.end += length;
}

void rig_unsent_raw(const uint8_t *bytes, uint32_t length, int framing)
{
    sp_unsent_append(&unsent, &spare, (enum sp_framing)framing, bytes, length);
}

/* As the kernel would take them; returns how many were taken. */
uint32_t rig_unsent_take(uint8_t *to, uint32_t at_most)
{
    uint32_t size = sp_unsent_size(&unsent) < at_most ? sp_unsent_size(&unsent) : at_most;
    if (size > 0)
        memcpy(to, unsent.bytes + unsent.start, size);
    unsent.start += size;
    if (unsent.start == unsent.end)
        sp_unsent_free(&unsent, &spare);
    return size;
}

uint32_t rig_unsent_drop(int framing, int envelope, uint32_t wanted, uint32_t *freed)
{
    struct sp_dropped dropped = sp_unsent_drop(&unsent, (enum sp_framing)framing, envelope != 0, wanted);
    *freed = dropped.bytes;
    return dropped.count;
}

static struct sp_addresses addresses;

int rig_addresses_add(uint64_t key, uint64_t limit) { return sp_addresses_add(&addresses, key, 12345, limit); }

void rig_addresses_remove(uint64_t key) { sp_addresses_remove(&addresses, key, 12345); }

uint64_t rig_addresses_used(void) { return addresses.used; }

static struct sp_connections connections;

uint64_t rig_connection_take(void)
{
    struct sp_connection *c = sp_connection_take(&connections);
    c->stage = SP_STAGE_BOUND;
    return sp_address(3, c->generation, c->index);
}

int rig_connection_give(uint64_t client)
{
    struct sp_connection *c = sp_connection_find(&connections, 3, client);
    if (c == NULL)
        return 0;
    sp_connection_give(&connections, c);
    return 1;
}

int rig_connection_known(uint64_t client) { return sp_connection_find(&connections, 3, client) != NULL; }

uint64_t rig_connection_bytes(void) { return sizeof(struct sp_connection); }
