/* The inner loops of host AdamW, one for each instruction set and dtype of parameters; private to
 * offload/host/adam*.c. */
#ifndef ZF_OFFLOAD_HOST_ADAM_KERNELS_H
#define ZF_OFFLOAD_HOST_ADAM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* An update's constants. In this order, for each element, with p the master and x the exchanged
 * gradient:
 *   g = l2 p + (gradient_scale x);   m = beta1 m + (rest1 g);   v = beta2 v + (rest2 g g)
 *   p = decay p - step (m / (sqrt(v) inverse_root2 + eps)) */
struct adam_constants {
    float gradient_scale;
    float beta1, rest1; /* rest = 1 - beta */
    float beta2, rest2;
    float decay;         /* 1 - lr weight_decay, or 1 with L2 */
    float l2;            /* weight_decay with L2, or 0 */
    float step;          /* lr / correction1 */
    float inverse_root2; /* 1 / sqrt(correction2) */
    float eps;
};

/* Updates n elements: consecutive rows with the same constants. parameters and exchange are bf16
 * or fp32; with fp32 the parameters are the masters, and remainders is not used. The vector kernels
 * take multiples of ADAM_VECTOR; the portable one any n. */
typedef void adam_kernel(const void *parameters, int16_t *remainders, float *m, float *v,
                         void *exchange, size_t n, const struct adam_constants *c);

#define ADAM_VECTOR 32 /* of bf16, a cache line */
/* How many elements ahead of its use a cache line is asked for. */
#define ADAM_AHEAD 512

adam_kernel adam_portable_bf16, adam_portable_f32;
#ifdef __x86_64__
adam_kernel adam_avx2_bf16, adam_avx2_f32, adam_avx512_bf16, adam_avx512_f32;
#endif

#endif
