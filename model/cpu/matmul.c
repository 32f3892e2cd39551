/* Matrix products, and the sums that are biases' gradients. */
#include "data/alloc.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

/* OpenBLAS chooses its kernels as it is loaded, and knows the processors of its time: version
 * 0.3.21 runs its AVX2 kernels, at half the rate, on AVX-512 processors that came later. It is told
 * before it is loaded; OPENBLAS_CORETYPE from outside counts. */
#if defined(__x86_64__) && !defined(ZF_NO_TARGET_CLONES)
static void choose_blas_kernels(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
}

/* These run before any shared library's own initialisation. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(void) = choose_blas_kernels;
#endif

static bool is_plain(const struct matmul *p)
{
    return !p->bias && !p->pre && p->act == ACT_NONE;
}

static void product(float *c, const float *a, const float *b, const struct matmul *p,
                    bool accumulate)
{
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans,
                p->trans_b ? CblasTrans : CblasNoTrans, p->m, p->n, p->k, 1.0f, a,
                p->trans_a ? p->m : p->k, b, p->trans_b ? p->k : p->n, accumulate ? 1.0f : 0.0f, c,
                p->n);
    if (is_plain(p))
        return;
    const int step = task_rows(p->n), n_tasks = divide_up(p->m, step);
#pragma omp parallel for schedule(static) if ((size_t)p->m * p->n > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_tasks; i++)
        cpu_finish_product(c, p, i * step, min_int(p->m, (i + 1) * step));
}

ZF_SIMD
static void add_range(float *restrict c, const float *restrict addend, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] += addend[i];
}

void cpu_matmul(struct stream *s, void *c, const void *a, const void *b, const struct matmul *p)
{
    (void)s;
    if (p->m == 0 || p->n == 0)
        return;
    if (!p->accumulate || is_plain(p)) {
        product(c, a, b, p, p->accumulate);
        return;
    }
    const size_t n_elements = (size_t)p->m * p->n;
    float *result = zf_malloc_aligned(sizeof(float) * n_elements);
    product(result, a, b, p, false);
    add_range(c, result, n_elements);
    free(result);
}

/* sums[j] = sum over rows of dy[i][j] */
ZF_SIMD
static void sum_rows(float *restrict sums, const float *restrict dy, int n, int C)
{
    memset(sums, 0, sizeof(float) * C);
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        const float *restrict a = dy + (size_t)i * C, *restrict b = a + C;
        const float *restrict c = b + C, *restrict d = c + C;
        for (int j = 0; j < C; j++)
            sums[j] += (a[j] + b[j]) + (c[j] + d[j]);
    }
    for (; i < n; i++)
        for (int j = 0; j < C; j++)
            sums[j] += dy[(size_t)i * C + j];
}

void cpu_bias_backward(struct stream *s, float *db, const void *dy, int n, int C)
{
    const int step = sum_chunk_rows(n), n_chunks = divide_up(n, step);
    float *sums = cpu_scratch(s, (size_t)C * n_chunks);
#pragma omp parallel for schedule(static) if ((size_t)n * C > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_chunks; i++)
        sum_rows(sums + (size_t)C * i, (const float *)dy + (size_t)C * step * i,
                 min_int(step, n - i * step), C);
    for (int i = 0; i < n_chunks; i++)
        add_range(db, sums + (size_t)C * i, (size_t)C);
}
