#include "data/batch.h"

#include "data/rng.h"

/* Sets the shuffle's random numbers apart from others of the same seed. */
#define SHUFFLE_STREAM 0x53485546u

/* A number from 0 to range - 1, all equally likely: the high word of a 32-bit random number times
 * range, drawn again where the low word falls into the part that does not divide evenly (Lemire,
 * "Fast random integer generation in an interval", TOMACS 2019). */
static uint32_t draw_below(uint32_t range, uint32_t number, uint32_t epoch, uint64_t seed)
{
    uint32_t threshold = -range % range; /* 2^32 mod range */
    for (uint32_t attempt = 0;; attempt++) {
        struct philox random = philox4x32((struct philox){{number, epoch, attempt, SHUFFLE_STREAM}},
                                          (uint32_t)seed, (uint32_t)(seed >> 32));
        for (int i = 0; i < 4; i++) {
            uint64_t product = (uint64_t)random.v[i] * range;
            if ((uint32_t)product >= threshold)
                return (uint32_t)(product >> 32);
        }
    }
}

/* Fisher-Yates. */
void sampler_shuffle(int *order, int n, uint64_t seed, int epoch)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int other = (int)draw_below((uint32_t)i + 1, (uint32_t)i, (uint32_t)epoch, seed);
        int taken = order[i];
        order[i] = order[other];
        order[other] = taken;
    }
}

struct slice sampler_slice(int step_examples, int micro_batch, int ranks, int rank, int m)
{
    int64_t first = ((int64_t)m * ranks + rank) * micro_batch;
    int64_t left = step_examples - first;
    if (left <= 0)
        return (struct slice){step_examples, 0};
    return (struct slice){(int)first, left < micro_batch ? (int)left : micro_batch};
}
