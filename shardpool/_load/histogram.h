/* Latencies in logarithmic buckets: bounded memory, relative error below 1/128, no sorting and no samples kept.
 *
 * A value below 256 has a bucket of its own. Above, each power of two is divided into 128 equal buckets, so the index is
 * the exponent and the seven bits behind the leading one. */
#ifndef SHARDPOOL_LOAD_HISTOGRAM_H
#define SHARDPOOL_LOAD_HISTOGRAM_H

#include <stdint.h>
#include <string.h>

enum { HISTOGRAM_SUB_BITS = 7, HISTOGRAM_SUB = 1 << HISTOGRAM_SUB_BITS, HISTOGRAM_BUCKETS = (64 - HISTOGRAM_SUB_BITS + 1) * HISTOGRAM_SUB };

struct histogram {
    uint64_t count;
    uint64_t sum;
    uint64_t max;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

static inline unsigned histogram_index(uint64_t value)
{
    if (value < 2 * HISTOGRAM_SUB)
        return (unsigned)value;
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - HISTOGRAM_SUB_BITS;
    return (shift << HISTOGRAM_SUB_BITS) + (unsigned)(value >> shift);
}

/* The smallest value that falls into the bucket. */
static inline uint64_t histogram_floor(unsigned index)
{
    if (index < 2 * HISTOGRAM_SUB)
        return index;
    unsigned shift = (index >> HISTOGRAM_SUB_BITS) - 1;
    return ((uint64_t)(index & (HISTOGRAM_SUB - 1)) + HISTOGRAM_SUB) << shift;
}

static inline void histogram_add(struct histogram *histogram, uint64_t value)
{
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max)
        histogram->max = value;
    histogram->buckets[histogram_index(value)]++;
}

/* The middle of the bucket in which the quantile lies, never above the largest value seen; 0 without values. */
static inline uint64_t histogram_quantile(const struct histogram *histogram, double quantile)
{
    if (histogram->count == 0)
        return 0;
    uint64_t rank = (uint64_t)(quantile * (double)histogram->count);
    if (rank >= histogram->count)
        rank = histogram->count - 1;
    uint64_t seen = 0;
    for (unsigned index = 0; index < HISTOGRAM_BUCKETS; index++) {
        seen += histogram->buckets[index];
        if (seen > rank) {
            uint64_t middle = histogram_floor(index) + (histogram_floor(index + 1) - histogram_floor(index)) / 2;
            return middle < histogram->max ? middle : histogram->max;
        }
    }
    return histogram->max;
}

#endif
