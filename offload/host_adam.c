#include "offload/host_adam.h"

#include "offload/host_adam_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Chunks are small enough to share a matrix out evenly, large enough to stream. */
#define CHUNK_ELEMENTS ((size_t)32 << 10)

bool host_adam_path_runs(enum host_adam_path path)
{
#ifdef __x86_64__
    if (path == HOST_ADAM_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (path == HOST_ADAM_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return path == HOST_ADAM_PORTABLE;
}

const char *host_adam_path_name(enum host_adam_path path)
{
    static const char *const names[HOST_ADAM_N_PATHS] = {"portable", "avx2", "avx512"};
    return names[path];
}

enum host_adam_path host_adam_best_path(void)
{
    enum host_adam_path path = HOST_ADAM_N_PATHS - 1;
    while (!host_adam_path_runs(path))
        path--;
    return path;
}

struct adamw host_adam_rule_at(const struct adamw *rule, uint32_t update)
{
    struct adamw at = *rule;
    at.correction1 = (float)(1.0 - pow(rule->beta1, update));
    at.correction2 = (float)(1.0 - pow(rule->beta2, update));
    return at;
}

static struct adam_constants adam_constants_of(const struct adamw *rule, float gradient_scale,
                                               uint32_t update)
{
    struct adamw at = host_adam_rule_at(rule, update);
    return (struct adam_constants){
        .gradient_scale = gradient_scale,
        .beta1 = at.beta1,
        .rest1 = 1 - at.beta1,
        .beta2 = at.beta2,
        .rest2 = 1 - at.beta2,
        .decay = at.l2 ? 1 : 1 - at.lr * at.weight_decay,
        .l2 = at.l2 ? at.weight_decay : 0,
        .step = at.lr / at.correction1,
        .inverse_root2 = 1 / sqrtf(at.correction2),
        .eps = at.eps,
    };
}

static adam_kernel *kernel_of(enum host_adam_path path, enum dtype dtype)
{
    bool bf16 = dtype == DTYPE_BF16;
#ifdef __x86_64__
    if (path == HOST_ADAM_AVX512)
        return bf16 ? adam_avx512_bf16 : adam_avx512_f32;
    if (path == HOST_ADAM_AVX2)
        return bf16 ? adam_avx2_bf16 : adam_avx2_f32;
#endif
    (void)path;
    return bf16 ? adam_portable_bf16 : adam_portable_f32;
}

/* The end of the run of rows from row0 that share one set of constants: as many updates behind
 * them, and none important. */
static size_t run_end(const struct host_adam_matrix *matrix, size_t row0, size_t row1)
{
    size_t row = row0 + 1;
    while (row < row1 && matrix->updates[row] == matrix->updates[row0] &&
           !(matrix->important && matrix->important[row]))
        row++;
    return row;
}

static void update_elements(enum host_adam_path path, const struct host_adam_matrix *matrix,
                            size_t first, size_t n, const struct adam_constants *constants)
{
    char *exchange = (char *)matrix->exchange + first * dtype_size(matrix->exchange_dtype);
    float *master = matrix->master + first, *m = matrix->m + first, *v = matrix->v + first;
    size_t whole = n / ADAM_VECTOR * ADAM_VECTOR;
    kernel_of(path, matrix->exchange_dtype)(master, m, v, exchange, whole, constants);
    exchange += whole * dtype_size(matrix->exchange_dtype);
    kernel_of(HOST_ADAM_PORTABLE, matrix->exchange_dtype)(master + whole, m + whole, v + whole,
                                                          exchange, n - whole, constants);
}

void host_adam_update(enum host_adam_path path, const struct host_adam_matrix *matrix, size_t row0,
                      size_t row1, const struct adamw *rule, float gradient_scale)
{
    assert(matrix->exchange_dtype == DTYPE_BF16 || matrix->exchange_dtype == DTYPE_F32);
    assert(row1 <= matrix->rows && host_adam_path_runs(path));
    struct adam_constants constants = {0};
    uint32_t update = 0; /* that the constants are for */
    for (size_t row = row0; row < row1;) {
        if (matrix->important && matrix->important[row]) {
            row++;
            continue;
        }
        if (matrix->updates[row] + 1 != update) {
            update = matrix->updates[row] + 1;
            constants = adam_constants_of(rule, gradient_scale, update);
        }
        size_t end = run_end(matrix, row, row1);
        update_elements(path, matrix, row * matrix->cols, (end - row) * matrix->cols, &constants);
        for (; row < end; row++)
            matrix->updates[row] = update;
    }
}

int host_adam_chunks(size_t rows, size_t cols)
{
    size_t chunks = (rows * cols + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
    return (int)(chunks < rows ? chunks : rows);
}

static size_t chunk_row(const struct host_adam_job *job, int chunk)
{
    return job->matrix.rows * (size_t)chunk / (size_t)job->n_chunks;
}

void host_adam_run_chunk(void *argument, int chunk)
{
    const struct host_adam_job *job = argument;
    host_adam_update(job->path, &job->matrix, chunk_row(job, chunk), chunk_row(job, chunk + 1),
                     &job->rule, job->gradient_scale);
}

void host_adam_zero_chunk(void *argument, int chunk)
{
    const struct host_adam_job *job = argument;
    const struct host_adam_matrix *matrix = &job->matrix;
    size_t row = chunk_row(job, chunk), rows = chunk_row(job, chunk + 1) - row;
    size_t first = row * matrix->cols, n = rows * matrix->cols;
    size_t exchange_size = dtype_size(matrix->exchange_dtype);
    memset(matrix->master + first, 0, n * sizeof(float));
    memset(matrix->m + first, 0, n * sizeof(float));
    memset(matrix->v + first, 0, n * sizeof(float));
    memset((char *)matrix->exchange + first * exchange_size, 0, n * exchange_size);
    memset(matrix->updates + row, 0, rows * sizeof *matrix->updates);
}
