/* SipHash-2-4: a keyed hash for names that clients choose; without the node's key nobody can construct collisions. */
#ifndef SP_SIPHASH_H
#define SP_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t sp_siphash_rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static inline void sp_siphash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = sp_siphash_rotate(v[1], 13) ^ v[0];
    v[0] = sp_siphash_rotate(v[0], 32);
    v[2] += v[3];
    v[3] = sp_siphash_rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = sp_siphash_rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = sp_siphash_rotate(v[1], 17) ^ v[2];
    v[2] = sp_siphash_rotate(v[2], 32);
}

static inline uint64_t sp_siphash(const uint64_t key[2], const uint8_t *bytes, size_t length)
{
    uint64_t v[4] = {
        key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
        key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573),
    };
    for (size_t done = 0; done <= length; done += 8) {
        size_t left = length - done < 8 ? length - done : 8;
        uint64_t word = left < 8 ? (uint64_t)length << 56 : 0;
        for (size_t i = 0; i < left; i++)
            word |= (uint64_t)bytes[done + i] << (8 * i);
        v[3] ^= word;
        sp_siphash_round(v);
        sp_siphash_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xFF;
    for (int i = 0; i < 4; i++)
        sp_siphash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
