#include "cmd/bench/adam.h"

#include "cmd/bench/device.h"
#include "cmd/bench/options.h"
#include "data/alloc.h"
#include "data/bf16.h"
#include "data/clock.h"
#include "data/json.h"
#include "data/median.h"
#include "data/simd.h"
#include "offload/engine/engine.h"
#include "offload/host/adam.h"
#include "offload/host/cores.h"
#include "offload/host/memory.h"
#include "offload/host/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* Columns of the matrices that are updated, one after the other. */
static const int widths[] = {96, 128, 256, 768, 1024, 3072, 4096, 8192};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

struct options {
    double parameters;
    int width;    /* 0: all of widths */
    int interval; /* groups that are updated one after the other */
    int threads;  /* 0: 1, 2, 4, ... and all physical cores */
    int repeats;
    const char *json, *path_name; /* or NULL */
    enum host_adam_path first_path, last_path;
    bool help;
};

static const struct bench_option option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--parameters", "X", BENCH_REAL, FIELD(parameters), 1, 1e15,
     "how many to update at a time; 20 bytes of memory each (100000000)"},
    {"--width", "N", BENCH_WHOLE, FIELD(width), 1, 1 << 24,
     "a matrix of N columns (96, 128, 256, 768, 1024, 3072, 4096, 8192)"},
    {"--interval", "N", BENCH_WHOLE, FIELD(interval), 1, ENGINE_MAX_INTERVAL,
     "groups, updated one after the other (4)"},
    {"--threads", "N", BENCH_WHOLE, FIELD(threads), 1, 4096,
     "only so many (1, 2, 4, ... and all physical cores)"},
    {"--repeats", "N", BENCH_WHOLE, FIELD(repeats), 1, 10000, "rounds; medians are printed (9)"},
    {"--path", "NAME", BENCH_TEXT, FIELD(path_name), 0, 0,
     "portable, avx2 or avx512 (those with vectors that this machine has)"},
    {"--json", "FILE", BENCH_TEXT, FIELD(json), 0, 0, "write every round's seconds there"},
#undef FIELD
};
const struct bench_options bench_adam_options = {
    "adam",
    "The engine's host updates beside a triad.",
    NULL,
    option_table,
    sizeof option_table / sizeof *option_table,
    "  threads    of the host\n"
    "  width      columns of the matrix that is updated\n"
    "  path       the instructions that update it\n"
    "  triad      a[i] = b[i] + 3 c[i], in GB/s, 12 bytes per element\n"
    "  stores     of the triad: the kind that was faster\n"
    "  bf16       updates with gradients and parameters in bf16, in GB/s, 28 bytes each\n"
    "  fp32       the same in fp32, 32 bytes each\n"
    "  ratio      these beside the triad\n"
    "  Gp/s       1e9 parameters a second\n"};

/* What is measured, in the order in which it takes turns. */
enum measure { TRIAD_PLAIN, TRIAD_STREAM, ADAM_BF16, ADAM_F32, N_MEASURES };

static const struct {
    const char *key;
    int bytes; /* counted per element */
} measures[N_MEASURES] = {
    {"triad_plain", 12}, {"triad_stream", 12}, {"adam_bf16", 28}, {"adam_f32", 32}};

/* One line of the table. */
struct line {
    int threads, width;
    enum host_adam_path path;
};

/* Memory of one thread count, which all its lines share. */
struct bench {
    const struct options *options;
    struct worker_pool *pool;
    struct host_adam_matrix matrix; /* as bf16 or fp32: see set_dtype */
    void *exchange;                 /* of as many elements as it has */
    float *masters;                 /* its parameters, in fp32 */
    uint16_t *halves;               /* and in bf16, with remainders */
    int16_t *remainders;
    struct host_adam_chunk *tasks;
    int n_tasks;
};

/* The paths that --path says. */
static bool find_paths(struct options *o, struct zf_error *err)
{
    const char *text = o->path_name;
    o->last_path = host_adam_best_path();
    o->first_path = o->last_path > HOST_ADAM_PORTABLE ? HOST_ADAM_AVX2 : HOST_ADAM_PORTABLE;
    if (!text)
        return true;
    for (int i = 0; i < HOST_ADAM_N_PATHS; i++)
        if (strcmp(text, host_adam_path_name(i)) == 0) {
            o->first_path = o->last_path = i;
            return host_adam_path_runs(i) ||
                   zf_fail(err, "adam: this machine has no %s, which --path asks for", text);
        }
    return zf_fail_usage(err, "adam: --path is \"%s\", but it is portable, avx2 or avx512", text);
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

static size_t first_element(const struct host_adam_chunk *task)
{
    return (size_t)task->first * task->matrix->cols;
}

static size_t n_elements(const struct host_adam_chunk *task)
{
    return (size_t)(task->last - task->first) * task->matrix->cols;
}

static void triad_plain_task(void *tasks, int i)
{
    const struct host_adam_chunk *t = (const struct host_adam_chunk *)tasks + i;
    const struct host_adam_matrix *x = t->matrix;
    size_t at = first_element(t);
    triad_plain((float *)x->parameters + at, x->m + at, x->v + at, n_elements(t));
}

static void triad_stream_task(void *tasks, int i)
{
    const struct host_adam_chunk *t = (const struct host_adam_chunk *)tasks + i;
    const struct host_adam_matrix *x = t->matrix;
    size_t at = first_element(t);
    triad_stream((float *)x->parameters + at, x->m + at, x->v + at, n_elements(t));
}

/* The state, before anything is measured: the workers that use the memory touch it first. */
static void fill_state(void *tasks, int i)
{
    const struct host_adam_chunk *t = (const struct host_adam_chunk *)tasks + i;
    const struct host_adam_matrix *x = t->matrix;
    for (size_t at = first_element(t), end = at + n_elements(t); at < end; at++) {
        const float master = 1e-2f * (float)(at % 1999);
        host_adam_write_masters(x, at, 1, NULL, &master);
        x->m[at] = 1e-3f * (float)(at % 997);
        x->v[at] = 1e-4f * (float)(at % 991 + 1);
    }
}

/* A gradient, before each update: what the one before has left there is a parameter, perhaps of the
 * other type, whose halves would be numbers that no gradient has, and denormals are slow. */
static void fill_gradient(void *bench, int i)
{
    const struct bench *b = bench;
    const struct host_adam_chunk *t = &b->tasks[i];
    for (size_t at = first_element(t), end = at + n_elements(t); at < end; at++) {
        const float gradient = 1e-2f * (float)(at % 13 + 1);
        if (b->matrix.dtype == DTYPE_BF16)
            ((uint16_t *)b->exchange)[at] = bf16_from_f32(gradient);
        else
            ((float *)b->exchange)[at] = gradient;
    }
}

static void run_tasks(const struct bench *b, void (*run)(void *, int), void *argument)
{
    const struct worker_job job = {.run = run, .argument = argument, .n_chunks = b->n_tasks};
    worker_pool_wait(b->pool, worker_pool_submit(b->pool, &job));
}

/* What the engine's host does in a window's length, one group's closing after the other. */
static void run_groups(const struct bench *b, enum host_adam_path path)
{
    struct host_adam_job job = {
        .chunks = b->tasks,
        .n_groups = b->options->interval,
        .rule = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.01f},
        .path = path,
    };
    size_t at = 0; /* groups lie packed, one behind the other, as they would lie in turns */
    for (job.group = 0; job.group < job.n_groups; job.group++) {
        const struct row_groups groups = row_groups_of(&b->matrix.part, job.n_groups);
        const int rows = row_groups_count(&groups, job.group, (int)b->matrix.rows);
        job.exchange = (char *)b->exchange + at * dtype_size(b->matrix.dtype);
        at += (size_t)rows * b->matrix.cols;
        run_tasks(b, host_adam_run, &job);
    }
}

/* The matrix as an engine has it whose parameters are of this dtype. */
static void set_dtype(struct bench *b, enum dtype dtype)
{
    const bool bf16 = dtype == DTYPE_BF16;
    b->matrix.dtype = dtype;
    b->matrix.parameters = bf16 ? (void *)b->halves : b->masters;
    b->matrix.remainders = bf16 ? b->remainders : NULL;
}

/* Seconds of one round. */
static double run_measure(struct bench *b, enum measure measure, enum host_adam_path path)
{
    const bool adam = measure == ADAM_BF16 || measure == ADAM_F32;
    set_dtype(b, measure == ADAM_BF16 ? DTYPE_BF16 : DTYPE_F32);
    if (adam)
        run_tasks(b, fill_gradient, b);
    const double begin = clock_seconds();
    if (adam)
        run_groups(b, path);
    else
        run_tasks(b, measure == TRIAD_PLAIN ? triad_plain_task : triad_stream_task, b->tasks);
    return clock_seconds() - begin;
}

/* One line of the table, and the same for the JSON file. */
static json_t *report(const struct bench *b, const struct line *l, double *const *seconds)
{
    const int repeats = b->options->repeats;
    const double n = (double)(b->matrix.rows * b->matrix.cols);
    double rate[N_MEASURES]; /* GB/s */
    json_t *line =
        json_pack("{s:i, s:i, s:s, s:b}", "threads", l->threads, "width", l->width, "path",
                  host_adam_path_name(l->path), "pinned", (int)(worker_pool_cpu(b->pool, 0) >= 0));
    for (int m = 0; m < N_MEASURES; m++) {
        json_t *list = json_array();
        for (int r = 0; r < repeats; r++)
            json_array_append_new(list, json_real(seconds[m][r]));
        rate[m] = 1e-9 * measures[m].bytes * n / median_of(seconds[m], repeats);
        json_object_set_new(
            line, measures[m].key,
            json_pack("{s:f, s:o}", "gigabytes_per_second", rate[m], "seconds", list));
    }
    bool stream = rate[TRIAD_STREAM] > rate[TRIAD_PLAIN];
    double triad = rate[stream ? TRIAD_STREAM : TRIAD_PLAIN];
    printf("%7d %6d %-8s %6.1f %-12s %6.1f %6.2f %6.2f %8.1f %6.2f %6.2f\n", l->threads, l->width,
           host_adam_path_name(l->path), triad, stream ? "non-temporal" : "plain", rate[ADAM_BF16],
           rate[ADAM_BF16] / triad, rate[ADAM_BF16] / measures[ADAM_BF16].bytes, rate[ADAM_F32],
           rate[ADAM_F32] / triad, rate[ADAM_F32] / measures[ADAM_F32].bytes);
    fflush(stdout);
    return line;
}

static json_t *measure_line(struct bench *b, const struct line *l)
{
    const int repeats = b->options->repeats;
    double *seconds[N_MEASURES];
    for (int m = 0; m < N_MEASURES; m++)
        seconds[m] = zf_malloc((size_t)repeats * sizeof **seconds);
    for (int r = 0; r < repeats; r++)
        for (int m = 0; m < N_MEASURES; m++)
            seconds[m][r] = run_measure(b, m, l->path);
    json_t *line = report(b, l, seconds);
    for (int m = 0; m < N_MEASURES; m++)
        free(seconds[m]);
    return line;
}

static size_t rows_of(const struct options *o, int width)
{
    return ((size_t)o->parameters + (size_t)width - 1) / (size_t)width;
}

/* The memory as a matrix of another width. */
static void set_width(struct bench *b, int width)
{
    struct host_adam_matrix *x = &b->matrix;
    x->rows = rows_of(b->options, width);
    x->cols = (size_t)width;
    x->part = (struct matrix_part){0, 0, (int)x->rows, width};
    x->decays = true;
    free(x->updates);
    free(b->tasks);
    x->updates = zf_calloc(x->rows, sizeof *x->updates);
    b->tasks = zf_malloc(sizeof *b->tasks * (size_t)host_adam_cut(x, NULL));
    b->n_tasks = host_adam_cut(x, b->tasks);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        set_dtype(b, bf16 ? DTYPE_BF16 : DTYPE_F32);
        run_tasks(b, fill_state, b->tasks);
    }
}

static void measure_threads(struct bench *b, int threads, json_t *lines)
{
    const struct options *o = b->options;
    const struct worker_config config = {.local_size = 1, .threads = threads};
    b->pool = worker_pool_create(&config);
    for (int i = 0; i < (o->width ? 1 : N_WIDTHS); i++) {
        struct line l = {threads, o->width ? o->width : widths[i], o->first_path};
        set_width(b, l.width);
        for (; l.path <= o->last_path; l.path++)
            json_array_append_new(lines, measure_line(b, &l));
    }
    worker_pool_destroy(b->pool);
    free(b->matrix.updates);
    free(b->tasks);
}

/* Memory is mapped anew for each thread count: the workers that use it are to touch it first. */
static bool measure_in_new_memory(const struct options *o, int threads, json_t *lines,
                                  struct zf_error *err)
{
    struct bench b = {.options = o};
    struct host_adam_matrix *x = &b.matrix;
    size_t bytes = 0;
    for (int i = 0; i < (o->width ? 1 : N_WIDTHS); i++) {
        int width = o->width ? o->width : widths[i];
        size_t all = rows_of(o, width) * (size_t)width * sizeof(float);
        bytes = all > bytes ? all : bytes;
    }
    bool ok = (b.masters = host_memory_allocate(bytes, err)) &&
              (b.halves = host_memory_allocate(bytes / 2, err)) &&
              (b.remainders = host_memory_allocate(bytes / 2, err)) &&
              (x->m = host_memory_allocate(bytes, err)) &&
              (x->v = host_memory_allocate(bytes, err)) &&
              (b.exchange = host_memory_allocate(bytes, err));
    if (ok)
        measure_threads(&b, threads, lines);
    host_memory_free(b.masters, bytes);
    host_memory_free(b.halves, bytes / 2);
    host_memory_free(b.remainders, bytes / 2);
    host_memory_free(x->m, bytes);
    host_memory_free(x->v, bytes);
    host_memory_free(b.exchange, bytes);
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
    struct options o = {.parameters = 100000000, .interval = 4, .repeats = 9};
    if (!bench_options_read(&bench_adam_options, argc, argv, &o, &o.help, err) ||
        !find_paths(&o, err))
        return false;
    if (o.help)
        return true;
    printf(
        "the engine's host updates, %.0f parameters in %d groups, medians of %d rounds; GB/s: 12 "
        "bytes per\nelement of the triad, 28 per parameter with bf16 exchange, 32 with fp32; "
        "Gp/s: 1e9 parameters a second\n\n%7s %6s %-8s %-19s %6s %6s %6s %8s %6s %6s\n",
        o.parameters, o.interval, o.repeats, "threads", "width", "path", " triad, stores", "bf16",
        "ratio", "Gp/s", "fp32", "ratio", "Gp/s");
    json_t *lines = json_array();
    bool ok = measure_all(&o, lines, err);
    json_t *root = json_pack("{s:I, s:i, s:i, s:o}", "parameters", (json_int_t)o.parameters,
                             "interval", o.interval, "repeats", o.repeats, "lines", lines);
    ok = ok && (!o.json || json_write(o.json, root, 9, err));
    json_decref(root);
    return ok;
}
