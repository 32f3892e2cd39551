/* A start takes seconds, and not minutes, for a large model: memory is touched beside the weights'
 * coming, and what it does with each weight is all threads' work. */
#include "tests/folder.h"
#include "tests/testing.h"

#include "cmd/step.h"
#include "data/clock.h"
#include "model/gpt.h"
#include "offload/comm/comm.h"
#include "offload/engine/engine.h"
#include "offload/host/memory.h"

#include <omp.h>
#include <time.h>

/* Other programs take time from what is measured, so the best of some rounds counts; and of more of
 * them, while they do not show what they are to. */
#define ROUNDS  14
#define MOST    140
#define THREADS 4 /* be there as many cores or not: what is compared is one thread's own time */

struct start {
    struct engine *engine;
    size_t bytes;          /* of memory that it filled */
    double seconds;        /* in all, until the first step may begin; */
    double made;           /* of them for the engine, before weights can come */
    double weights, taken; /* the main thread's own, for weights, and that of the engine's part */
};

static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void take(void *context, size_t offset, const float *values, size_t n)
{
    struct start *s = context;
    const double begin = own_seconds();
    engine_take_values(s->engine, offset, values, n);
    s->taken += own_seconds() - begin;
}

/* 20 M parameters, whose matrices lie the other way round in files. */
static struct gpt_config shape(void)
{
    struct gpt_config c;
    struct zf_error err;
    assert_works(gpt_config_preset(&c, "llama", &err), err);
    c.vocab_size = 4000;
    c.n_positions = 32;
    c.n_layer = 6;
    c.n_embd = 512;
    c.n_inner = 1408;
    c.n_head = c.n_kv_heads = 8;
    c.head = GPT_HEAD_LM;
    return c;
}

static void get_weights(struct gpt *model, const char *from)
{
    struct zf_error err;
    bool head_is_new;
    if (from)
        assert_works(gpt_load_weights(model, from, 1, &head_is_new, &err), err);
    else
        gpt_init_weights(model, 1);
}

/* from: a folder with weights; NULL: they are drawn. to: a folder that they are written to, or
 * NULL. */
static struct start start(struct comm *comm, int threads, const char *from, const char *to)
{
    struct device *device = device_cpu(threads);
    const struct gpt_config c = shape();
    const struct engine_config e = {.bf16 = true,
                                    .values_follow = true,
                                    .topk_ratio = 0.05f,
                                    .update_interval = 4,
                                    .apply_lag = 1,
                                    .stagger = true};
    struct gpt_size size = {.max_tokens = 32, .max_seqs = 1, .mode = GPT_TRAIN_RECOMPUTE};
    struct start s = {0};
    struct zf_error err;
    gpt_size_for_step(device, &c, &size, 1);
    const double begin = clock_seconds();
    struct gpt *model = gpt_create(device, &c, &size);
    const double made = clock_seconds();
    s.engine = engine_create(&e, device, comm, gpt_params(model), gpt_param_data(model),
                             gpt_grad_data(model), &err);
    assert_non_null(s.engine);
    s.made = clock_seconds() - made;
    step_connect(model, s.engine);
    gpt_offer_values(model, take, &s);
    s.weights = -own_seconds();
    get_weights(model, from);
    s.weights += own_seconds();
    engine_begin_step(s.engine, 0);
    s.seconds = clock_seconds() - begin;
    s.bytes = engine_memory(s.engine).host + gpt_params(model)->n_values * sizeof(float);
    if (to)
        assert_works(gpt_save(model, to, NULL, &err), err);
    engine_destroy(s.engine);
    gpt_destroy(model);
    return s;
}

static void keep_least(double *least, double value)
{
    *least = value < *least ? value : *least;
}

/* What all threads do takes one of four a quarter of what it takes one alone, and a little for the
 * others' starting. */
static void is_all_threads_work(void **state)
{
    (void)state;
    const char *const from[] = {NULL, folder};
    struct comm *comm = comm_create_alone();
    start(comm, 1, NULL, folder);
    for (int k = 0; k < 2; k++) {
        double taken[2] = {1e9, 1e9}, rest[2] = {1e9, 1e9};
        bool holds = false;
        for (int i = 0; i < MOST && (i < ROUNDS || !holds); i++) {
            const struct start s = start(comm, i % 2 ? THREADS : 1, from[k], NULL);
            keep_least(&taken[i % 2], s.taken);
            keep_least(&rest[i % 2], s.weights - s.taken);
            holds = rest[1] < 0.6 * rest[0] && taken[1] < 0.75 * taken[0];
        }
        print_message("weights %s: a thread's own ms, alone and as one of %d: %.1f and %.1f to get "
                      "them, %.1f and %.1f to take them\n",
                      k ? "read" : "drawn", THREADS, rest[0] * 1e3, rest[1] * 1e3, taken[0] * 1e3,
                      taken[1] * 1e3);
        assert_true(holds);
    }
    comm_destroy(comm);
}

/* Seconds to touch as much memory by as many threads, and nothing else. */
static double touch(size_t bytes)
{
    struct zf_error err;
    const double begin = clock_seconds();
    char *memory = host_memory_allocate(bytes, &err);
    assert_non_null(memory);
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += 4096)
        ((volatile char *)memory)[at] = 0;
    const double seconds = clock_seconds() - begin;
    host_memory_free(memory, bytes);
    return seconds;
}

/* Pages are touched while weights come: none is waited for before. What a start takes in all, in
 * times of its memory's, is told: two to three, and more where other programs have the cores. */
static void waits_for_no_page_before_weights(void **state)
{
    (void)state;
    double seconds[2] = {1e9, 1e9}, made = 1e9, touched = 1e9;
    struct comm *comm = comm_create_alone();
    const int threads = comm_core_threads(comm);
    const size_t bytes = start(comm, threads, NULL, folder).bytes;
    bool holds = false;
    for (int i = 0; i < MOST && (i < ROUNDS || !holds); i++) {
        const struct start s = start(comm, threads, i % 2 ? folder : NULL, NULL);
        keep_least(&touched, touch(bytes));
        keep_least(&seconds[i % 2], s.seconds);
        keep_least(&made, s.made);
        holds = made < 0.4 * touched + 5e-3; /* in which threads begin */
    }
    print_message("%.0f MB on %d threads: touched in %.1f ms; a start with weights drawn %.2f "
                  "times as long, read %.2f; an engine made %.2f\n",
                  (double)bytes * 1e-6, threads, touched * 1e3, seconds[0] / touched,
                  seconds[1] / touched, made / touched);
    assert_true(holds);
    comm_destroy(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_all_threads_work),
        cmocka_unit_test(waits_for_no_page_before_weights),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
