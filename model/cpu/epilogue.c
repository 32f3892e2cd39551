/* What follows a matrix product: bias, activation, the activation's slope. Called on a part of the
 * product that is still in cache. */
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/vector_math.h"

#include <string.h>

#define APPLY(expression)                                                                          \
    for (int j = 0; j < n; j++) {                                                                  \
        const float x = c[j];                                                                      \
        c[j] = (expression);                                                                       \
    }

/* c = act(c) for n values */
ZF_INLINE void activate(float *restrict c, int n, enum activation act)
{
    switch (act) {
    case ACT_NONE:
        break;
    case ACT_GELU_TANH:
        APPLY(gelu_tanh(x));
        break;
    case ACT_GELU_ERF:
        APPLY(gelu_erf(x));
        break;
    case ACT_RELU:
        APPLY(x > 0 ? x : 0);
        break;
    }
}

/* c *= act'(pre) for n values */
ZF_INLINE void multiply_slope(float *restrict c, const float *restrict pre, int n,
                              enum activation act)
{
    switch (act) {
    case ACT_NONE:
        break;
    case ACT_GELU_TANH:
        APPLY(gelu_tanh_slope(pre[j]) * x);
        break;
    case ACT_GELU_ERF:
        APPLY(gelu_erf_slope(pre[j]) * x);
        break;
    case ACT_RELU:
        APPLY(pre[j] > 0 ? x : 0);
        break;
    }
}

ZF_SIMD
void cpu_finish_product(float *c, const struct matmul *product, int row, int row_end, int col,
                        int col_end)
{
    const int n = col_end - col;
    for (int i = row; i < row_end; i++) {
        const size_t at = (size_t)i * product->n + col;
        float *restrict part = c + at;
        if (product->bias) {
            const float *restrict bias = (const float *)product->bias + col;
            for (int j = 0; j < n; j++)
                part[j] += bias[j];
        }
        if (product->pre)
            memcpy((float *)product->pre + at, part, sizeof(float) * n);
        if (product->gradient_of)
            multiply_slope(part, (const float *)product->gradient_of + at, n, product->act);
        else
            activate(part, n, product->act);
    }
}
