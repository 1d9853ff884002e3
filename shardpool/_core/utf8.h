/* Whether bytes are UTF-8 as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF. */
#ifndef SP_UTF8_H
#define SP_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Length of the sequence at `s` (of `left` bytes), or 0 when it is not one. */
static inline size_t sp_utf8_sequence(const uint8_t *s, size_t left)
{
    uint8_t first = s[0];
    size_t length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if (length >= 3) {
        /* the second byte's range excludes overlong forms, surrogates and what lies beyond Unicode */
        if ((first == 0xE0 && s[1] < 0xA0) || (first == 0xED && s[1] > 0x9F) || (first == 0xF0 && s[1] < 0x90)
            || (first == 0xF4 && s[1] > 0x8F))
            return 0;
    }
    return length;
}

static inline bool sp_utf8_valid(const uint8_t *bytes, size_t length)
{
    size_t i = 0;
    while (i < length) {
        uint64_t eight;
        if (i + sizeof eight <= length) {
            memcpy(&eight, bytes + i, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        size_t step = sp_utf8_sequence(bytes + i, length - i);
        if (step == 0)
            return false;
        i += step;
    }
    return true;
}

#endif
