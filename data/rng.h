/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011). A number is a pure function of (key, counter), so it does not depend on the
 * order in which threads, ranks or devices ask for it. */
#ifndef ZF_DATA_RNG_H
#define ZF_DATA_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define ZF_HOST_DEVICE __host__ __device__
#else
#define ZF_HOST_DEVICE
#endif

struct philox {
    uint32_t v[4];
};

ZF_HOST_DEVICE static inline struct philox philox4x32(struct philox counter, uint32_t key0,
                                                      uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * counter.v[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * counter.v[2];
        struct philox next = {{(uint32_t)(b >> 32) ^ counter.v[1] ^ key0, (uint32_t)b,
                               (uint32_t)(a >> 32) ^ counter.v[3] ^ key1, (uint32_t)a}};
        counter = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

/* [0, 1), with 24 random bits, exact in float. */
ZF_HOST_DEVICE static inline float philox_uniform(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

#endif
