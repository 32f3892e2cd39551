/* Host AdamW in plain C: what the vector kernels must equal bit for bit, and what runs where there
 * is none. Fast where the compiler has fused multiply-add instructions for fmaf (ARM), slow on an
 * x86 without them, which is older than 2013. */
#include "data/bf16.h"
#include "offload/host/adam_kernels.h"

#include <math.h>

/* The new master. */
static inline float adam_element(float p, float *m, float *v, float x,
                                 const struct adam_constants *c)
{
    float g = fmaf(c->l2, p, c->gradient_scale * x);
    *m = fmaf(c->beta1, *m, c->rest1 * g);
    *v = fmaf(c->beta2, *v, c->rest2 * g * g);
    float denominator = fmaf(sqrtf(*v), c->inverse_root2, c->eps);
    return fmaf(-c->step, *m / denominator, p * c->decay);
}

void adam_portable_bf16(const void *parameters, int16_t *remainders, float *m, float *v,
                        void *exchange, size_t n, const struct adam_constants *c)
{
    const uint16_t *old = parameters;
    uint16_t *x = exchange;
    for (size_t i = 0; i < n; i++) {
        float p = bf16_master(old[i], remainders[i]);
        p = adam_element(p, m + i, v + i, bf16_to_f32(x[i]), c);
        x[i] = bf16_parameter(p);
        remainders[i] = bf16_remainder(p);
    }
}

void adam_portable_f32(const void *parameters, int16_t *remainders, float *m, float *v,
                       void *exchange, size_t n, const struct adam_constants *c)
{
    (void)remainders;
    const float *old = parameters;
    float *x = exchange;
    for (size_t i = 0; i < n; i++)
        x[i] = adam_element(old[i], m + i, v + i, x[i], c);
}
