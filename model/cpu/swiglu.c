/* SwiGLU's activation (Shazeer, "GLU variants improve transformer", 2020). Limit: memory. Forward
 * reads 2 I numbers of a row and writes I, backward reads 3 I and writes 2 I or 3 I. */
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/vector_math.h"

ZF_SIMD
static void forward_rows(float *y, const float *gate_up, int I, int begin, int end)
{
    for (int t = begin; t < end; t++) {
        const float *restrict gate = gate_up + (size_t)t * 2 * I, *restrict up = gate + I;
        float *restrict out = y + (size_t)t * I;
        for (int j = 0; j < I; j++)
            out[j] = gate[j] * logistic(gate[j]) * up[j];
    }
}

void cpu_swiglu_forward(struct stream *s, void *y, const void *gate_up, int n, int I)
{
    (void)s;
    const int step = piece_rows(I), n_pieces = divide_up(n, step);
#pragma omp parallel for schedule(static) if ((size_t)n * I > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_pieces; i++)
        forward_rows(y, gate_up, I, i * step, min_int(n, (i + 1) * step));
}

struct swiglu_gradient {
    float *dgate_up, *y; /* y NULL: not needed */
    const float *dy, *gate_up;
    int I;
};

/* With s = logistic(gate): dgate = dy up s (1 + gate (1 - s)), dup = dy gate s. Element j is read
 * before it is written: outputs may lie where inputs do. */
ZF_SIMD
static void backward_rows(const struct swiglu_gradient *g, int begin, int end)
{
    const int I = g->I;
    for (int t = begin; t < end; t++) {
        const size_t at = (size_t)t * I;
        const float *gate = g->gate_up + 2 * at, *up = gate + I, *dy = g->dy + at;
        float *dgate = g->dgate_up + 2 * at, *dup = dgate + I, *y = g->y ? g->y + at : NULL;
#pragma omp simd
        for (int j = 0; j < I; j++) {
            const float z = gate[j], u = up[j], d = dy[j], s = logistic(z);
            dgate[j] = d * u * s * (1.0f + z * (1.0f - s));
            dup[j] = d * z * s;
            if (y)
                y[j] = z * s * u;
        }
    }
}

void cpu_swiglu_backward(struct stream *s, void *dgate_up, void *y, const void *dy,
                         const void *gate_up, int n, int I)
{
    (void)s;
    const struct swiglu_gradient g = {dgate_up, y, dy, gate_up, I};
    const int step = piece_rows(I), n_pieces = divide_up(n, step);
#pragma omp parallel for schedule(static) if ((size_t)n * I > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_pieces; i++)
        backward_rows(&g, i * step, min_int(n, (i + 1) * step));
}
