#include "cmd/bench_adam.h"

#include "cmd/bench_device.h"
#include "cmd/bench_options.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/json.h"
#include "data/simd.h"
#include "offload/cpu_cores.h"
#include "offload/host_adam.h"
#include "offload/host_memory.h"
#include "offload/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define COLS 4096 /* of the matrix that is updated */

struct options {
    double parameters;
    int threads; /* 0: 1, 2, 4, ... and all physical cores */
    int repeats;
    const char *json, *path_name; /* or NULL */
    enum host_adam_path path;
    bool help;
};

static const struct bench_option option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--parameters", BENCH_REAL, FIELD(parameters), 1, 1e15,
     "how many to update at a time; 16 bytes of memory each (100000000)"},
    {"--threads", BENCH_WHOLE, FIELD(threads), 1, 4096,
     "only so many (1, 2, 4, ... and all physical cores)"},
    {"--repeats", BENCH_WHOLE, FIELD(repeats), 1, 10000, "rounds; medians are printed (9)"},
    {"--path", BENCH_TEXT, FIELD(path_name), 0, 0,
     "portable, avx2 or avx512 (the best that this machine has)"},
    {"--json", BENCH_TEXT, FIELD(json), 0, 0, "write every round's seconds there"},
#undef FIELD
};
static const struct bench_options options_of_adam = {
    "adam", "Host AdamW's bandwidth beside a triad's.", option_table,
    sizeof option_table / sizeof *option_table};

/* What is measured, in the order in which it takes turns. */
enum measure { TRIAD_PLAIN, TRIAD_STREAM, ADAM_BF16, ADAM_F32, N_MEASURES };

static const struct {
    const char *key;
    int bytes; /* counted per element */
} measures[N_MEASURES] = {
    {"triad_plain", 12}, {"triad_stream", 12}, {"adam_bf16", 28}, {"adam_f32", 32}};

static bool find_path(const char *text, enum host_adam_path *path, struct zf_error *err)
{
    for (int i = 0; i < HOST_ADAM_N_PATHS; i++)
        if (strcmp(text, host_adam_path_name(i)) == 0) {
            *path = i;
            return host_adam_path_runs(i) ||
                   zf_fail(err, "adam: this machine has no %s, which --path asks for", text);
        }
    return zf_fail(err, "adam: --path is \"%s\", but it is portable, avx2 or avx512", text);
}

ZF_SIMD
static void triad_plain(float *restrict a, const float *restrict b, const float *restrict c,
                        size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] + 3 * c[i];
}

/* n is a multiple of 16, a is aligned to 16 bytes. */
static void triad_stream(float *a, const float *b, const float *c, size_t n)
{
#ifdef __x86_64__
    const __m128 s = _mm_set1_ps(3);
    for (size_t i = 0; i < n; i += 16)
        for (size_t j = i; j < i + 16; j += 4)
            _mm_stream_ps(a + j, _mm_add_ps(_mm_load_ps(b + j), _mm_mul_ps(s, _mm_load_ps(c + j))));
    _mm_sfence();
#else
    triad_plain(a, b, c, n);
#endif
}

/* A chunk is the rows that AdamW's chunk would have: the same worker, the same memory. */
static void triad_chunk(const struct host_adam_job *job, int chunk, bool stream)
{
    const struct host_adam_matrix *x = &job->matrix;
    size_t row0 = x->rows * (size_t)chunk / (size_t)job->n_chunks;
    size_t row1 = x->rows * (size_t)(chunk + 1) / (size_t)job->n_chunks;
    size_t first = row0 * COLS, n = (row1 - row0) * COLS;
    (stream ? triad_stream : triad_plain)(x->master + first, x->m + first, x->v + first, n);
}

static void triad_plain_chunk(void *job, int chunk)
{
    triad_chunk(job, chunk, false);
}

static void triad_stream_chunk(void *job, int chunk)
{
    triad_chunk(job, chunk, true);
}

/* Small gradients and moments, so that repeated updates meet neither denormals nor infinities. */
static void fill_chunk(void *argument, int chunk)
{
    const struct host_adam_job *job = argument;
    const struct host_adam_matrix *x = &job->matrix;
    host_adam_zero_chunk(argument, chunk);
    size_t row0 = x->rows * (size_t)chunk / (size_t)job->n_chunks;
    size_t row1 = x->rows * (size_t)(chunk + 1) / (size_t)job->n_chunks;
    for (size_t i = row0 * COLS; i < row1 * COLS; i++) {
        x->master[i] = 1e-2f * (float)(i % 1999);
        x->m[i] = 1e-3f * (float)(i % 997);
        x->v[i] = 1e-4f * (float)(i % 991);
        ((float *)x->exchange)[i] = 1e-2f;
    }
}

static double run_job(struct worker_pool *pool, void (*run)(void *, int), struct host_adam_job *job)
{
    double begin = clock_seconds();
    worker_pool_wait(pool,
                     worker_pool_submit(pool, &(struct worker_job){run, job, job->n_chunks, NULL}));
    return clock_seconds() - begin;
}

static double run_measure(struct worker_pool *pool, enum measure measure, struct host_adam_job *job)
{
    job->matrix.exchange_dtype = measure == ADAM_BF16 ? DTYPE_BF16 : DTYPE_F32;
    return run_job(pool,
                   measure == TRIAD_PLAIN    ? triad_plain_chunk
                   : measure == TRIAD_STREAM ? triad_stream_chunk
                                             : host_adam_run_chunk,
                   job);
}

/* One line of the table, and the same for the JSON file. */
static json_t *report(int threads, bool pinned, size_t n, double *const *seconds, int repeats)
{
    double rate[N_MEASURES]; /* GB/s */
    json_t *line = json_pack("{s:i, s:b}", "threads", threads, "pinned", (int)pinned);
    for (int m = 0; m < N_MEASURES; m++) {
        json_t *list = json_array();
        for (int r = 0; r < repeats; r++)
            json_array_append_new(list, json_real(seconds[m][r]));
        rate[m] = 1e-9 * measures[m].bytes * (double)n / bench_median(seconds[m], repeats);
        json_object_set_new(
            line, measures[m].key,
            json_pack("{s:f, s:o}", "gigabytes_per_second", rate[m], "seconds", list));
    }
    bool stream = rate[TRIAD_STREAM] > rate[TRIAD_PLAIN];
    double triad = rate[stream ? TRIAD_STREAM : TRIAD_PLAIN];
    printf("%7d %8.1f %-12s %8.1f %6.2f %9.2f %10.1f %6.2f %9.2f\n", threads, triad,
           stream ? "non-temporal" : "plain", rate[ADAM_BF16], rate[ADAM_BF16] / triad,
           rate[ADAM_BF16] / measures[ADAM_BF16].bytes, rate[ADAM_F32], rate[ADAM_F32] / triad,
           rate[ADAM_F32] / measures[ADAM_F32].bytes);
    fflush(stdout);
    return line;
}

static json_t *measure_threads(const struct options *o, int threads, struct host_adam_job *job)
{
    struct worker_config config = {.local_size = 1, .threads = threads};
    struct worker_pool *pool = worker_pool_create(&config);
    double *seconds[N_MEASURES];
    for (int m = 0; m < N_MEASURES; m++)
        seconds[m] = zf_malloc((size_t)o->repeats * sizeof **seconds);
    job->matrix.exchange_dtype = DTYPE_F32;
    run_job(pool, fill_chunk, job);
    for (int r = 0; r < o->repeats; r++)
        for (int m = 0; m < N_MEASURES; m++)
            seconds[m][r] = run_measure(pool, m, job);
    json_t *line = report(threads, worker_pool_cpu(pool, 0) >= 0, job->matrix.rows * COLS, seconds,
                          o->repeats);
    for (int m = 0; m < N_MEASURES; m++)
        free(seconds[m]);
    worker_pool_destroy(pool);
    return line;
}

/* Memory is mapped anew for each thread count: the workers that use it are to touch it first. */
static bool measure_in_new_memory(const struct options *o, int threads, json_t *lines,
                                  struct zf_error *err)
{
    struct host_adam_job job = {
        .matrix = {.rows = ((size_t)o->parameters + COLS - 1) / COLS, .cols = COLS},
        .rule = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.01f},
        .gradient_scale = 1,
        .path = o->path};
    struct host_adam_matrix *x = &job.matrix;
    size_t bytes = x->rows * COLS * sizeof(float);
    job.n_chunks = host_adam_chunks(x->rows, COLS);
    bool ok = (x->master = host_memory_allocate(bytes, err)) &&
              (x->m = host_memory_allocate(bytes, err)) &&
              (x->v = host_memory_allocate(bytes, err)) &&
              (x->exchange = host_memory_allocate(bytes, err));
    x->updates = zf_calloc(x->rows, sizeof *x->updates);
    if (ok)
        json_array_append_new(lines, measure_threads(o, threads, &job));
    host_memory_free(x->master, bytes);
    host_memory_free(x->m, bytes);
    host_memory_free(x->v, bytes);
    host_memory_free(x->exchange, bytes);
    free(x->updates);
    return ok;
}

static bool measure_all(const struct options *o, json_t *lines, struct zf_error *err)
{
    int *cpus, n_cores = cpu_cores_list(&cpus);
    free(cpus);
    if (o->threads)
        return measure_in_new_memory(o, o->threads, lines, err);
    for (int threads = 1;; threads = 2 * threads < n_cores ? 2 * threads : n_cores) {
        if (!measure_in_new_memory(o, threads, lines, err))
            return false;
        if (threads >= n_cores)
            return true;
    }
}

bool bench_adam(int argc, char **argv, struct zf_error *err)
{
    struct options o = {.parameters = 100000000, .repeats = 9, .path = host_adam_best_path()};
    if (!bench_options_read(&options_of_adam, argc, argv, &o, &o.help, err) ||
        (o.path_name && !find_path(o.path_name, &o.path, err)))
        return false;
    if (o.help)
        return true;
    printf("host AdamW, %s, %.0f parameters, medians of %d rounds; GB/s: 12 bytes per element of "
           "the triad,\n28 per parameter with bf16 exchange, 32 with fp32; Gp/s: 1e9 parameters a "
           "second\n\n%7s %-21s %8s %6s %9s %10s %6s %9s\n",
           host_adam_path_name(o.path), o.parameters, o.repeats, "threads", "   triad, stores",
           "bf16", "ratio", "Gp/s", "fp32", "ratio", "Gp/s");
    json_t *lines = json_array();
    bool ok = measure_all(&o, lines, err);
    json_t *root =
        json_pack("{s:s, s:I, s:i, s:o}", "path", host_adam_path_name(o.path), "parameters",
                  (json_int_t)o.parameters, "repeats", o.repeats, "by_threads", lines);
    ok = ok && (!o.json || json_write(o.json, root, 9, err));
    json_decref(root);
    return ok;
}
