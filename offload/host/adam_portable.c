/* Host AdamW in plain C: what the vector kernels must equal bit for bit, and what runs where there
 * is none. Fast where the compiler has fused multiply-add instructions for fmaf (ARM), slow on an
 * x86 without them, which is older than 2013. */
#include "offload/host/adam_kernels.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static float bf16_to_f32(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Adding 0x7fff, and 1 more where the last kept bit is odd, carries into the kept half exactly when
 * the value rounds up; a NaN is replaced, since the carry could turn it into an infinity. */
static uint16_t bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float adam_element(float *master, float *m, float *v, float x,
                                 const struct adam_constants *c)
{
    float p = *master;
    float g = fmaf(c->l2, p, c->gradient_scale * x);
    *m = fmaf(c->beta1, *m, c->rest1 * g);
    *v = fmaf(c->beta2, *v, c->rest2 * g * g);
    float denominator = fmaf(sqrtf(*v), c->inverse_root2, c->eps);
    *master = fmaf(-c->step, *m / denominator, p * c->decay);
    return *master;
}

void adam_portable_bf16(float *master, float *m, float *v, void *exchange, size_t n,
                        const struct adam_constants *c)
{
    uint16_t *x = exchange;
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_from_f32(adam_element(master + i, m + i, v + i, bf16_to_f32(x[i]), c));
}

void adam_portable_f32(float *master, float *m, float *v, void *exchange, size_t n,
                       const struct adam_constants *c)
{
    float *x = exchange;
    for (size_t i = 0; i < n; i++)
        x[i] = adam_element(master + i, m + i, v + i, x[i], c);
}
