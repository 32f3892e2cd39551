#include "offload/host/adam.h"

#include "data/bf16.h"
#include "data/simd.h"
#include "offload/host/adam_kernels.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <string.h>

/* Elements of a chunk: of 28 bytes, about a core's L2. */
#define CHUNK_ELEMENTS ((size_t)64 << 10)
/* Elements of a run that are updated, and then committed, at a time: what a commit reads and writes
 * is still in L1. A multiple of ADAM_VECTOR. */
#define PIECE_ELEMENTS ((size_t)1024)
/* Partial sums of a row's squares. */
#define SUMS 32

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

/* The rule with correction1 and correction2 of a channel's update number `update`, from 1:
 * 1 - beta^update, in double precision, as on the device. */
static struct adamw rule_at(const struct adamw *rule, uint32_t update)
{
    struct adamw at = *rule;
    at.correction1 = (float)(1.0 - pow(rule->beta1, update));
    at.correction2 = (float)(1.0 - pow(rule->beta2, update));
    return at;
}

/* Of an update that stands for `steps`, the last of which is number `update`. */
static struct adam_constants adam_constants_of(const struct adamw *rule, float gradient_scale,
                                               uint32_t update, int steps)
{
    struct adamw at = rule_at(rule, update);
    const float beta1 = (float)pow(at.beta1, steps), beta2 = (float)pow(at.beta2, steps);
    return (struct adam_constants){
        .gradient_scale = gradient_scale,
        .beta1 = beta1,
        .rest1 = 1 - beta1,
        .beta2 = beta2,
        .rest2 = 1 - beta2,
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

/* The engine may make an entering row an important one meanwhile, and neither is deferred. */
static bool is_deferred(const struct host_adam_matrix *matrix, size_t row)
{
    return !matrix->place ||
           __atomic_load_n(&matrix->place[row], __ATOMIC_RELAXED) == CHANNEL_DEFERRED;
}

/* The end of the run of rows from row0 that share one set of constants: as many updates behind
 * them, and all deferred: the counts of other rows are the engine's to change meanwhile. */
static size_t run_end(const struct host_adam_matrix *matrix, size_t row0, size_t row1)
{
    size_t row = row0 + 1;
    while (row < row1 && is_deferred(matrix, row) && matrix->updates[row] == matrix->updates[row0])
        row++;
    return row;
}

/* An array of the matrix's dtype, from an element on. */
static char *element(const struct host_adam_matrix *matrix, const void *array, size_t at)
{
    return (char *)array + at * dtype_size(matrix->dtype);
}

/* An update and, or not, its commit, piece by piece of each run; what is left of a vector at a
 * run's end is the portable kernel's. */
static void update_elements(enum host_adam_path path, const struct host_adam_matrix *matrix,
                            size_t first, size_t n, void *exchange,
                            const struct adam_constants *constants, bool commit)
{
    for (size_t at = 0, size; at < n; at += size) {
        const size_t most = n - at < PIECE_ELEMENTS ? n - at : PIECE_ELEMENTS;
        const struct host_adam_state s = host_adam_state(matrix, first + at, most);
        const bool vectors = s.n >= ADAM_VECTOR;
        void *exchanged = element(matrix, exchange, at);
        size = vectors ? s.n / ADAM_VECTOR * ADAM_VECTOR : s.n;
        kernel_of(vectors ? path : HOST_ADAM_PORTABLE,
                  matrix->dtype)(s.parameters, s.remainders, s.m, s.v, exchanged, size, constants);
        if (commit)
            memcpy(s.parameters, exchanged, size * dtype_size(matrix->dtype));
    }
}

/* Sums of squares, SUMS side by side, of a whole number of times as many elements, in f32 or, if
 * there are such, bf16. */
ZF_SIMD
static void add_squares(float sums[SUMS], const float *restrict f32, const uint16_t *restrict bf16,
                        size_t n)
{
    float s[SUMS];
    memcpy(s, sums, sizeof s);
    if (bf16)
        for (size_t at = 0; at < n; at += SUMS)
            for (size_t i = 0; i < SUMS; i++)
                s[i] = fmaf(bf16_to_f32(bf16[at + i]), bf16_to_f32(bf16[at + i]), s[i]);
    else
        for (size_t at = 0; at < n; at += SUMS)
            for (size_t i = 0; i < SUMS; i++)
                s[i] = fmaf(f32[at + i], f32[at + i], s[i]);
    memcpy(sums, s, sizeof s);
}

/* In an order that n alone decides, whatever vectors there are. */
static float sum_of_squares(const void *values, enum dtype dtype, size_t n)
{
    const size_t whole = n / SUMS * SUMS, size = dtype_size(dtype);
    const void *last = (const char *)values + whole * size;
    float sums[SUMS] = {0}, rest[SUMS] = {0}; /* zeros of either dtype */
    memcpy(rest, last, (n - whole) * size);
    if (dtype == DTYPE_F32) {
        add_squares(sums, values, NULL, whole);
        add_squares(sums, rest, NULL, SUMS);
    } else {
        add_squares(sums, NULL, values, whole);
        add_squares(sums, NULL, (const uint16_t *)rest, SUMS);
    }
    for (size_t half = SUMS / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            sums[i] += sums[i + half];
    return sums[0];
}

/* How many times as large a row's squared gradients were, in the mean, as the square of their mean:
 * 1 where all were the same, the window's steps where they had nothing in common. */
static float spread(const struct host_adam_matrix *matrix, size_t row, const void *exchange,
                    float gradient_scale)
{
    const float of_mean = sum_of_squares(exchange, matrix->dtype, matrix->cols);
    const float spread = matrix->norms[row] / (gradient_scale * gradient_scale * of_mean);
    return spread > 1 && isfinite(spread) ? spread : 1;
}

void host_adam_update(enum host_adam_path path, const struct host_adam_matrix *matrix, size_t row0,
                      size_t row1, void *exchange, const struct adamw *rule, float gradient_scale,
                      int steps, bool commit)
{
    assert(matrix->dtype == (matrix->remainders ? DTYPE_BF16 : DTYPE_F32));
    assert(row1 <= matrix->rows && host_adam_path_runs(path));
    struct adam_constants constants = {0};
    uint32_t update = 0; /* that the constants are for */
    float rest2 = 0;
    for (size_t row = row0; row < row1;) {
        if (!is_deferred(matrix, row)) {
            row++;
            continue;
        }
        if (matrix->updates[row] + (uint32_t)steps != update) {
            update = matrix->updates[row] + (uint32_t)steps;
            constants = adam_constants_of(rule, gradient_scale, update, steps);
            rest2 = constants.rest2;
        }
        void *exchanged = element(matrix, exchange, (row - row0) * matrix->cols);
        const size_t end = steps > 1 ? row + 1 : run_end(matrix, row, row1);
        if (steps > 1)
            constants.rest2 = rest2 * spread(matrix, row, exchanged, gradient_scale);
        update_elements(path, matrix, row * matrix->cols, (end - row) * matrix->cols, exchanged,
                        &constants, commit);
        for (; row < end; row++)
            matrix->updates[row] = update;
    }
}

/* The next run of deferred rows, from `row` on: its first row, and in *end the one behind it. */
static size_t next_deferred(const struct host_adam_matrix *matrix, size_t row, size_t row1,
                            size_t *end)
{
    while (row < row1 && !is_deferred(matrix, row))
        row++;
    for (*end = row; *end < row1 && is_deferred(matrix, *end);)
        ++*end;
    return row;
}

/* parameters = exchange for the deferred ones of rows [row0, row1). */
static void commit_rows(const struct host_adam_matrix *matrix, size_t row0, size_t row1,
                        const void *exchange)
{
    const size_t cols = matrix->cols;
    for (size_t end, row = next_deferred(matrix, row0, row1, &end); row < row1;
         row = next_deferred(matrix, end, row1, &end))
        host_adam_write_parameters(matrix, row * cols, (end - row) * cols,
                                   element(matrix, exchange, (row - row0) * cols));
}

ZF_SIMD
static void put_elements(void *restrict exchange, enum dtype dtype, const float *restrict source,
                         float divisor, size_t n)
{
    float *f32 = exchange;
    uint16_t *bf16 = exchange;
    if (dtype == DTYPE_F32)
        for (size_t i = 0; i < n; i++)
            f32[i] = source[i] / divisor;
    else
        for (size_t i = 0; i < n; i++)
            bf16[i] = bf16_from_f32(source[i] / divisor);
}

/* exchange = window / divisor for the deferred ones of rows [row0, row1). */
static void put_window(const struct host_adam_matrix *matrix, size_t row0, size_t row1,
                       void *exchange, float divisor)
{
    const size_t cols = matrix->cols;
    for (size_t end, row = next_deferred(matrix, row0, row1, &end); row < row1;
         row = next_deferred(matrix, end, row1, &end))
        put_elements(element(matrix, exchange, (row - row0) * cols), matrix->dtype,
                     matrix->window + row * cols, divisor, (end - row) * cols);
}

/* As a window of one gradient gives its mean. */
ZF_SIMD
static void scale_elements(void *restrict exchange, enum dtype dtype, const void *restrict source,
                           float factor, size_t n)
{
    const float *f32 = source;
    const uint16_t *bf16 = source;
    if (dtype == DTYPE_F32)
        for (size_t i = 0; i < n; i++)
            ((float *)exchange)[i] = factor * f32[i];
    else
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)exchange)[i] = bf16_from_f32(factor * bf16_to_f32(bf16[i]));
}

/* exchange = factor * staged for the deferred ones of rows [row0, row1). */
static void put_staged(const struct host_adam_matrix *matrix, size_t row0, size_t row1,
                       void *exchange, float factor)
{
    const size_t cols = matrix->cols, size = dtype_size(matrix->dtype);
    for (size_t end, row = next_deferred(matrix, row0, row1, &end); row < row1;
         row = next_deferred(matrix, end, row1, &end))
        scale_elements(element(matrix, exchange, (row - row0) * cols), matrix->dtype,
                       (const char *)matrix->staged + row * cols * size, factor,
                       (end - row) * cols);
}

ZF_SIMD
static void join(float *restrict masters, const uint16_t *restrict parameters,
                 const int16_t *restrict remainders, size_t n)
{
    for (size_t i = 0; i < n; i++)
        masters[i] = bf16_master(parameters[i], remainders[i]);
}

ZF_SIMD
static void split(uint16_t *restrict parameters, int16_t *restrict remainders,
                  const float *restrict masters, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        parameters[i] = bf16_parameter(masters[i]);
        remainders[i] = bf16_remainder(masters[i]);
    }
}

void host_adam_read_masters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                            const void *newer, float *masters)
{
    for (size_t at = 0; at < n;) {
        const struct host_adam_state s = host_adam_state(matrix, first + at, n - at);
        const void *parameters = newer ? element(matrix, newer, at) : s.parameters;
        if (s.remainders)
            join(masters + at, parameters, s.remainders, s.n);
        else
            memcpy(masters + at, parameters, sizeof(float) * s.n);
        at += s.n;
    }
}

void host_adam_write_masters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                             void *newer, const float *masters)
{
    for (size_t at = 0; at < n;) {
        const struct host_adam_state s = host_adam_state(matrix, first + at, n - at);
        void *parameters = newer ? element(matrix, newer, at) : s.parameters;
        if (s.remainders)
            split(parameters, s.remainders, masters + at, s.n);
        else
            memcpy(parameters, masters + at, sizeof(float) * s.n);
        at += s.n;
    }
}

void host_adam_read_parameters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                               void *parameters)
{
    for (size_t at = 0; at < n;) {
        const struct host_adam_state s = host_adam_state(matrix, first + at, n - at);
        memcpy(element(matrix, parameters, at), s.parameters, s.n * dtype_size(matrix->dtype));
        at += s.n;
    }
}

void host_adam_write_parameters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                                const void *parameters)
{
    for (size_t at = 0; at < n;) {
        const struct host_adam_state s = host_adam_state(matrix, first + at, n - at);
        memcpy(s.parameters, element(matrix, parameters, at), s.n * dtype_size(matrix->dtype));
        at += s.n;
    }
}

int host_adam_cut(const struct host_adam_matrix *matrix, struct host_adam_chunk *chunks)
{
    const size_t rows = matrix->cols < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / matrix->cols : 1;
    int n = 0;
    for (size_t row = 0; row < matrix->rows; row += rows, n++) {
        const size_t last = row + rows < matrix->rows ? row + rows : matrix->rows;
        if (chunks)
            chunks[n] = (struct host_adam_chunk){matrix, (int)row, (int)last};
    }
    return n;
}

/* The next run of a chunk's rows in the job's group, from `row` on, or INT_MAX; *end is the one
 * behind it. */
static int next_run(const struct host_adam_job *job, const struct host_adam_chunk *chunk, int row,
                    int *end)
{
    const struct row_groups groups = row_groups_of(&chunk->matrix->part, job->n_groups);
    row = row_groups_next(&groups, job->group, row);
    if (row >= chunk->last)
        return INT_MAX;
    *end = row_groups_end(&groups, row);
    *end = *end < chunk->last ? *end : chunk->last;
    return row;
}

/* What is exchanged of a run of rows of the job's group. */
static void *exchanged(const struct host_adam_job *job, const struct host_adam_matrix *matrix,
                       int row)
{
    const struct row_groups groups = row_groups_of(&matrix->part, job->n_groups);
    const size_t position = (size_t)row_groups_count(&groups, job->group, row);
    return element(matrix, job->exchange, matrix->packed + position * matrix->cols);
}

/* Adjacent rows of the job's group. */
static void update_rows(const struct host_adam_job *job, const struct host_adam_matrix *matrix,
                        int row, int end)
{
    void *exchange = exchanged(job, matrix, row);
    struct adamw rule = job->rule;
    rule.weight_decay = matrix->decays ? rule.weight_decay : 0;
    if (matrix->window)
        put_window(matrix, (size_t)row, (size_t)end, exchange, job->window_steps);
    else if (matrix->staged)
        put_staged(matrix, (size_t)row, (size_t)end, exchange, job->factor);
    host_adam_update(job->path, matrix, (size_t)row, (size_t)end, exchange, &rule, 1,
                     job->all_steps ? (int)job->window_steps : 1, !job->commits_later);
}

void host_adam_run(void *argument, int chunk)
{
    const struct host_adam_job *job = argument;
    const struct host_adam_chunk *t = &job->chunks[chunk];
    for (int row, end = t->first; (row = next_run(job, t, end, &end)) < t->last;)
        update_rows(job, t->matrix, row, end);
}

void host_adam_run_row(const struct host_adam_job *job, const struct host_adam_matrix *matrix,
                       int row)
{
    struct host_adam_matrix one = *matrix;
    one.place = NULL;
    update_rows(job, &one, row, row + 1);
}

void host_adam_run_commit(void *argument, int chunk)
{
    const struct host_adam_job *job = argument;
    const struct host_adam_chunk *t = &job->chunks[chunk];
    for (int row, end = t->first; (row = next_run(job, t, end, &end)) < t->last;)
        commit_rows(t->matrix, (size_t)row, (size_t)end, exchanged(job, t->matrix, row));
}

/* Bytes of one element that an update reads and writes. */
static size_t element_bytes(const struct host_adam_matrix *matrix)
{
    const size_t exchange = dtype_size(matrix->dtype), state = 3 * sizeof(float);
    return 2 * (state + exchange) + (matrix->window   ? sizeof(float) + exchange
                                     : matrix->staged ? exchange
                                                      : 0);
}

/* Of a chunk's rows that a job updates. */
static size_t count_elements(const struct host_adam_job *job, int chunk)
{
    const struct host_adam_chunk *t = &job->chunks[chunk];
    const struct row_groups groups = row_groups_of(&t->matrix->part, job->n_groups);
    size_t rows = 0;
    for (int row = row_groups_next(&groups, job->group, t->first); row < t->last;
         row = row_groups_next(&groups, job->group, row + 1))
        rows += is_deferred(t->matrix, (size_t)row);
    return rows * t->matrix->cols;
}

size_t host_adam_bytes(void *argument, int chunk)
{
    const struct host_adam_job *job = argument;
    return count_elements(job, chunk) * element_bytes(job->chunks[chunk].matrix);
}

size_t host_adam_commit_bytes(void *argument, int chunk)
{
    const struct host_adam_job *job = argument;
    return count_elements(job, chunk) * 2 * dtype_size(job->chunks[chunk].matrix->dtype);
}
