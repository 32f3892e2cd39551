/* The invariants of the ZenFlow engine (offload/README.md), each a test of its own name:
 * `zenflow_invariants I5` runs one. Under mpirun the rank-dependent ones run on all ranks. */
#include "tests/cuda_emulator/emulator.h"
#include "tests/property/zenflow/interval.h"
#include "tests/property/zenflow/link.h"
#include "tests/property/zenflow/oracle.h"
#include "tests/property/zenflow/places.h"
#include "tests/property/zenflow/resuming.h"
#include "tests/property/zenflow/shared.h"
#include "tests/seed.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "offload/engine/internal.h"

#include <math.h>
#include <mpi.h>
#include <sys/wait.h>

/* Where this is linked with the emulator. */
extern struct emulator_counts emulator_counts(void) __attribute__((weak));
extern void emulator_drain(void) __attribute__((weak));

/* The windows' length and the important channels are the oracle's. */
static void assert_same_schedule(const struct problem *p, const struct oracle *o, unsigned seed,
                                 const struct engine_config *config, int step)
{
    const struct engine *e = p->engine;
    if (e->windows.interval != oracle_interval(o))
        fail_msg("seed %u (%s), step %d: windows of %d steps, not %d", seed,
                 problem_describe(config), step, e->windows.interval, oracle_interval(o));
    for (size_t c = 0; c < e->n_channels; c++)
        if (channel_has_slot(e->selection.place[c]) != oracle_is_important(o, (int)c))
            fail_msg("seed %u (%s), step %d: channel %zu is in place %d", seed,
                     problem_describe(config), step, c, e->selection.place[c]);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-4 * fabs(b);
}

static bool same_part(const struct choice_part *a, const struct choice_part *b)
{
    return a->chosen == b->chosen && a->kept == b->kept &&
           is_near(a->norm_chosen, b->norm_chosen) && is_near(a->norm, b->norm);
}

/* What a step tells of its choice, of each layer and of all, is the oracle's. */
static void assert_same_locality(const struct step_report *r, const struct oracle *o, unsigned seed,
                                 int step)
{
    struct choice_part part;
    if ((r->choice != NULL) != oracle_choice(o, -1, &part) || r->selected != (r->choice != NULL))
        fail_msg("seed %u, step %d: chosen %d", seed, step, r->selected);
    if (!r->choice)
        return;
    if (!same_part(&r->choice->all, &part) || (r->choice->first && part.kept > 0))
        fail_msg("seed %u, step %d: of %d chosen %d were before, not of %d %d; or norms", seed,
                 step, r->choice->all.chosen, r->choice->all.kept, part.chosen, part.kept);
    for (int i = 0; i < r->choice->n_layers; i++) {
        oracle_choice(o, i, &part);
        if (!same_part(&r->choice->layers[i], &part))
            fail_msg("seed %u, step %d, layer %d: of %d chosen %d were before, not of %d %d; or "
                     "norms",
                     seed, step, i, r->choice->layers[i].chosen, r->choice->layers[i].kept,
                     part.chosen, part.kept);
    }
}

/* The engine beside the oracle, step by step; both end with all windows closed. */
static void follow_oracle(const struct engine_config *config, unsigned seed, int steps,
                          double tolerance)
{
    struct problem p;
    problem_create(&p, seed, alone, config);
    struct oracle *o = oracle_create(&p, config);
    float *grads = zf_malloc(sizeof(float) * p.table.n_elements);
    for (int step = 0; step <= steps; step++) {
        double off = distance(p.params, oracle_params(o), p.table.n_elements);
        if (off > tolerance)
            fail_msg("seed %u (%s): %g away from the oracle at step %d", seed,
                     problem_describe(config), off, step);
        if (step == steps)
            break;
        memset(grads, 0, sizeof(float) * p.table.n_elements);
        for (int s = 0; s < PROBLEM_SAMPLES; s++)
            problem_add_gradient(&p, step, s, p.params, grads);
        oracle_step(o, grads, problem_lr(step));
        const struct step_report report = problem_step(&p, step);
        assert_same_locality(&report, o, seed, step);
        assert_same_schedule(&p, o, seed, config, step);
    }
    problem_finish(&p);
    oracle_finish(o, problem_lr(steps - 1));
    assert_true(distance(p.params, oracle_params(o), p.table.n_elements) < tolerance);
    oracle_destroy(o);
    free(grads);
    problem_destroy(&p);
}

/* AdamW without an engine: the device's operator over whole parameters. */
struct plain {
    struct device *device;
    float *master, *m, *v, *gradient, *one; /* (n_elements) each; one float */
    struct matrix_batch batch;
    struct channel_update *updates; /* (n_updates) all rows */
    int n_updates;
    char *params;
};

static struct matrix_rows plain_matrix(const struct plain *a, const struct param *p)
{
    return (struct matrix_rows){.values = a->params + p->offset * dtype_size(a->device->dtype),
                                .waiting = a->gradient + p->offset,
                                .master = on_cuda() ? a->master + p->offset : NULL,
                                .m = a->m + p->offset,
                                .v = a->v + p->offset,
                                .n_rows = p->rows,
                                .cols = p->cols,
                                .decays = p->decay};
}

/* The table of all parameters, and all their rows as channels to update. */
static void plain_describe(struct plain *a, const struct param_table *table)
{
    struct device *d = a->device;
    struct matrix_rows *rows = zf_calloc((size_t)table->n_params, sizeof *rows);
    struct channel_update *updates = zf_malloc(sizeof *updates * table->n_elements);
    for (int k = 0; k < table->n_params; k++) {
        rows[k] = plain_matrix(a, &table->params[k]);
        for (int row = 0; row < rows[k].n_rows; row++)
            updates[a->n_updates++] = (struct channel_update){k, row, row, 0, 0};
    }
    a->batch = matrix_batch_upload(d, rows, table->n_params);
    a->updates = d->allocate(sizeof *updates * (size_t)a->n_updates);
    d->copy(d->compute, a->updates, updates, sizeof *updates * (size_t)a->n_updates);
    free(rows);
    free(updates);
}

static struct plain plain_create(const struct problem *p)
{
    struct device *d = p->device;
    size_t n = p->table.n_elements;
    const float one = 1;
    struct plain a = {.device = d};
    float **arrays[] = {&a.master, &a.m, &a.v, &a.gradient, &a.one};
    for (size_t i = 0; i < 5; i++) {
        *arrays[i] = d->allocate(sizeof(float) * n);
        d->zero(d->compute, *arrays[i], sizeof(float) * n);
    }
    a.params = d->allocate(dtype_size(d->dtype) * n);
    plain_describe(&a, &p->table);
    d->copy(d->compute, a.one, &one, sizeof one);
    d->copy(d->compute, a.params, p->device_params, dtype_size(d->dtype) * n);
    d->ops->to_f32(d->compute, a.master, p->device_params, n);
    d->stream_wait(d->compute);
    return a;
}

static void plain_destroy(struct plain *a)
{
    void *arrays[] = {a->master,  a->m,     a->v, a->gradient, a->one, (void *)a->batch.matrices,
                      a->updates, a->params};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        a->device->release(arrays[i]);
}

static void plain_step(struct plain *a, const struct problem *p, const struct engine_config *c,
                       int step, const float *gradient)
{
    struct device *d = a->device;
    const struct adamw rule = {.lr = problem_lr(step),
                               .beta1 = c->beta1,
                               .beta2 = c->beta2,
                               .eps = c->eps,
                               .weight_decay = c->weight_decay};
    d->copy(d->compute, a->gradient, gradient, sizeof(float) * p->table.n_elements);
    d->row_ops->adamw_rows(d->compute, &a->batch, a->updates, a->n_updates, ROWS_GRADIENT, &rule,
                           a->one, on_cuda());
}

static void assert_plain_equals(const struct plain *a, const struct problem *p)
{
    struct device *d = a->device;
    size_t bytes = dtype_size(d->dtype) * p->table.n_elements;
    char *mine = zf_malloc(bytes), *theirs = zf_malloc(bytes);
    d->copy(d->compute, mine, a->params, bytes);
    d->copy(d->compute, theirs, p->device_params, bytes);
    d->stream_wait(d->compute);
    assert_memory_equal(mine, theirs, bytes);
    free(mine);
    free(theirs);
}

/* topk_ratio = 1 is AdamW on the device, bit for bit. */
static void I1(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(8); seed++) {
        struct problem p;
        struct engine_config c = problem_config();
        c.gradient_clipping = 0;
        c.update_interval = 1 + (int)seed % 4;
        problem_create(&p, seed, alone, &c);
        struct plain a = plain_create(&p);
        float *gradient = zf_malloc(sizeof(float) * p.table.n_elements);
        for (int step = 0; step < steps(60); step++) {
            memset(gradient, 0, sizeof(float) * p.table.n_elements);
            for (int s = 0; s < PROBLEM_SAMPLES; s++)
                problem_add_gradient(&p, step, s, p.params, gradient);
            plain_step(&a, &p, &c, step, gradient);
            problem_step(&p, step);
            assert_plain_equals(&a, &p);
        }
        free(gradient);
        plain_destroy(&a);
        problem_destroy(&p);
    }
}

/* Any topk_ratio with windows of one step and no overlap is AdamW, over hundreds of steps and
 * across selections. The oracle is then plain AdamW in double:
 * nothing is ever deferred in effect. */
static void I2(void **state)
{
    (void)state;
    static const double ratios[] = {0.05, 0.3, 0.6, 0.95};
    for (unsigned seed = 0; seed < cases(12); seed++) {
        struct engine_config c = problem_config(), plain = problem_config();
        struct problem p, q;
        c.topk_ratio = ratios[seed % 4];
        c.select_every = 1 + (int)seed % 5;
        c.accumulate = seed % 2 ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
        c.offload_important = seed % 3 == 0;
        problem_create(&p, seed, alone, &c);
        problem_create(&q, seed, alone, &plain);
        run(&p, 0, steps(300));
        run(&q, 0, steps(300));
        double off = distance(p.params, q.params, p.table.n_elements);
        if (off > (on_cuda() ? 1e-2 : 2e-5)) /* bf16 gradients on their way to the host */
            fail_msg("seed %u: %g away from AdamW after %d steps", seed, off, steps(300));
        problem_destroy(&p);
        problem_destroy(&q);
        follow_oracle(&c, seed, steps(100), near(1e-5));
    }
}

/* topk_ratio = 0, windows of one step, no overlap: ZeRO-Offload, and equal to AdamW. */
static void I3(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(8); seed++) {
        struct engine_config c = problem_config(), plain = problem_config();
        struct problem p, q;
        c.topk_ratio = 0;
        problem_create(&p, seed, alone, &c);
        problem_create(&q, seed, alone, &plain);
        struct engine_memory memory = engine_memory(p.engine);
        assert_true(memory.host_elements > 0);
        for (int step = 0; step < steps(200); step++) {
            struct step_report r = problem_step(&p, step);
            assert_int_equal(r.bytes_down, dtype_size(p.device->dtype) * memory.host_elements);
            assert_int_equal(r.bytes_up, dtype_size(p.device->dtype) * memory.host_elements);
            problem_step(&q, step);
        }
        assert_true(distance(p.params, q.params, p.table.n_elements) < (on_cuda() ? 1e-2 : 2e-5));
        problem_destroy(&p);
        problem_destroy(&q);
    }
}

/* The same channels are important, and are to be, as in an engine of one rank. */
static void assert_same_choice(const struct problem *p, const struct problem *q, unsigned seed,
                               const struct engine_config *config, int step)
{
    const struct engine *a = p->engine, *b = q->engine;
    assert_int_equal(a->n_channels, b->n_channels);
    for (size_t c = 0; c < a->n_channels; c++)
        if (a->selection.place[c] != b->selection.place[c] ||
            a->selection.target[c] != b->selection.target[c])
            fail_msg("seed %u (%s), step %d: rank %d of %d has channel %zu in place %d, chosen %d; "
                     "one rank has it in place %d, chosen %d",
                     seed, problem_describe(config), step, a->rank, a->ranks, c,
                     a->selection.place[c], a->selection.target[c], b->selection.place[c],
                     b->selection.target[c]);
}

/* Any number of ranks gives what one gives, to the rounding of sums,
 * and chooses the same channels. */
static void I4(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(30); seed++) {
        struct engine_config c = problem_random_config(seed);
        struct problem p, q;
        c.bf16 = on_cuda() || seed % 5 == 4;
        problem_create(&p, seed, world, &c);
        problem_create(&q, seed, alone, &c);
        for (int step = 0; step < 40; step++) {
            struct step_report a = problem_step(&p, step), b = problem_step(&q, step);
            double off = distance(p.params, q.params, p.table.n_elements);
            assert_same_choice(&p, &q, seed, &c, step);
            if (off > (c.bf16 ? 2e-2 : 1e-5) || a.selected != b.selected ||
                fabs(a.important_share - b.important_share) > (c.bf16 ? 5e-2 : 1e-5))
                fail_msg("seed %u (%s), step %d: %g away from one rank's", seed,
                         problem_describe(&c), step, off);
        }
        problem_finish(&p);
        problem_finish(&q);
        assert_true(distance(p.params, q.params, p.table.n_elements) < (c.bf16 ? 2e-2 : 1e-5));
        problem_destroy(&p);
        problem_destroy(&q);
    }
}

/* Delays of host workers change nothing but the stall. */
static void I5(void **state)
{
    (void)state;
    double stall = 0, stall_delayed = 0;
    for (unsigned seed = 0; seed < cases(12); seed++) {
        struct engine_config c = problem_random_config(100 + seed);
        struct problem p, again, delayed;
        c.bf16 = seed % 2;
        problem_create(&p, seed, world, &c);
        problem_create(&again, seed, world, &c);
        c.worker_delay_seconds = 0.002;
        c.worker_delay_seed = seed;
        problem_create(&delayed, seed, world, &c);
        for (int step = 0; step < 30; step++) {
            stall += problem_step(&p, step).stall_seconds;
            problem_step(&again, step);
            stall_delayed += problem_step(&delayed, step).stall_seconds;
            assert_same_bits(&p, &again, problem_describe(&c));
            assert_same_bits(&p, &delayed, problem_describe(&c));
        }
        problem_destroy(&p);
        problem_destroy(&again);
        problem_destroy(&delayed);
    }
    assert_true(stall_delayed > stall);
}

/* Of what PASSES passes have seen, forward and backward of 30 steps. */
#define PASSES 60

static size_t log_bytes(const struct problem *p)
{
    return PASSES * p->table.n_elements * dtype_size(p->device->dtype);
}

/* Steps whose gradients do not depend on the parameters, so that nobody need look at these in
 * between. Returns what each pass saw, in host memory. */
static char *run_unwatched(struct problem *p, bool waits)
{
    struct device *d = p->device;
    const size_t bytes = log_bytes(p);
    char *log = d->allocate(bytes), *seen = zf_malloc(bytes);
    int ranks = comm_size(p->comm), rank = comm_rank(p->comm);
    struct step_report report;
    struct zf_error err;
    d->zero(d->compute, log, bytes);
    p->seen = log;
    for (int step = 0; step < PASSES / 2; step++) {
        engine_begin_step(p->engine, problem_lr(step));
        for (int s = rank; s < PROBLEM_SAMPLES; s += ranks)
            problem_add_gradient(p, step, s, p->params, p->grads);
        problem_give_gradient(p);
        assert_works(engine_end_step(p->engine, &report, &err), err);
        if (waits) {
            engine_settle(p->engine);
            d->stream_wait(d->compute);
        }
    }
    engine_finish(p->engine);
    d->copy(d->compute, seen, log, bytes);
    d->stream_wait(d->compute);
    d->release(log);
    return seen;
}

/* The host may run ahead of the device over many steps: each forward pass sees the same parameters
 * as where it waits for everything after each step. */
static void I5_unwatched(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(12); seed++) {
        struct engine_config c = problem_random_config(600 + seed);
        struct problem p, q;
        problem_create(&p, seed, world, &c);
        problem_create(&q, seed, world, &c);
        char *ahead = run_unwatched(&p, false), *watched = run_unwatched(&q, true);
        if (memcmp(ahead, watched, log_bytes(&p)) != 0)
            fail_msg("seed %u (%s): a pass saw other parameters", seed, problem_describe(&c));
        free(ahead);
        free(watched);
        problem_destroy(&p);
        problem_destroy(&q);
    }
}

/* Workers who add gradients to the host's windows may be slower than steps, most of which have
 * nothing else to wait for: what they still read stays as it is. */
static void I5_slow_windows(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(12); seed++) {
        struct engine_config c = problem_config();
        struct problem p, q;
        c.topk_ratio = 0.1;
        c.update_interval = c.apply_lag = 4;
        c.stagger = false;
        c.accumulate = ENGINE_ACCUMULATE_HOST;
        c.bf16 = true;
        problem_create(&p, seed, world, &c);
        c.worker_delay_seconds = 0.002;
        problem_create(&q, seed, world, &c);
        char *quick = run_unwatched(&p, true), *slow = run_unwatched(&q, false);
        if (memcmp(quick, slow, log_bytes(&p)) != 0)
            fail_msg("seed %u: slow workers have made another result", seed);
        free(quick);
        free(slow);
        problem_destroy(&p);
        problem_destroy(&q);
    }
}

/* Where parameters live, beside whole on each rank's device. */
enum params_place { PARAMS_DEVICE, PARAMS_HOST, PARAMS_DIVIDED };

/* Where things may live, beside everything on the device. */
struct places {
    enum engine_accumulate windows;
    enum params_place params;
    bool offload_important;
    int value_slots;
    bool zero_copy;
};

/* The last ones want several ranks. */
static const struct {
    enum params_place params;
    int value_slots;
} params_places[] = {{PARAMS_DEVICE, 0},  {PARAMS_HOST, 1},    {PARAMS_HOST, 2},
                     {PARAMS_HOST, 3},    {PARAMS_HOST, 0},    {PARAMS_DIVIDED, 1},
                     {PARAMS_DIVIDED, 2}, {PARAMS_DIVIDED, 3}, {PARAMS_DIVIDED, 0}};

/* All combinations; the first has everything on the device. */
static int n_places(void)
{
    const int all = (int)(sizeof params_places / sizeof *params_places);
    return 4 * (comm_size(world) > 1 ? all : all - 4);
}

static struct places places_of(int i)
{
    return (struct places){.windows = i % 2 ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE,
                           .offload_important = i / 2 % 2,
                           .params = params_places[i / 4].params,
                           .value_slots = params_places[i / 4].value_slots,
                           .zero_copy = i % 3 == 1};
}

/* Where people wait for it, a problem tries every third place, and the next problem others; every
 * ninth with several ranks or under the emulator, which take longer. */
static bool tries_place(unsigned seed, int i)
{
    const bool is_slow = comm_size(world) > 1 || on_cuda();
    return in_long_ring() || ((unsigned)i + seed) % (is_slow ? 9 : 3) == 0;
}

/* The workers of every second problem are late. */
static void create_in(struct problem *p, unsigned seed, struct engine_config c,
                      struct places places)
{
    c.worker_delay_seconds = seed % 2 ? 0.0005 : 0;
    c.worker_delay_seed = seed;
    c.accumulate = places.windows;
    c.offload_important = places.offload_important;
    c.params_come_late = seed % 3 == 0;
    c.params_on_host = places.params == PARAMS_HOST;
    c.params_divided = places.params != PARAMS_DEVICE;
    c.zero_copy = places.zero_copy;
    problem_value_slots = places.value_slots;
    problem_create(p, seed, world, &c);
}

/* With update_interval "auto" among them. */
static struct engine_config config_of_places(unsigned seed)
{
    struct engine_config c = problem_random_config(seed);
    if (seed % 4 == 3) {
        c.update_interval = 0;
        c.apply_lag = 1;
        c.auto_ratio = 0.5;
        c.topk_ratio = c.topk_ratio > 0 ? c.topk_ratio : 0.1;
    }
    c.bf16 = seed % 2;
    c.values_follow = true;
    c.accumulate = ENGINE_ACCUMULATE_DEVICE;
    c.offload_important = false;
    return c;
}

/* Wherever parameters, windows and state live, and however few slots there are, 30 steps give the
 * same bits, across a resume too that puts everything elsewhere. */
static void assert_places_agree(unsigned seed, struct engine_config c, const char *folder)
{
    struct problem base;
    problem_create(&base, seed, world, &c);
    run(&base, 0, 30);
    problem_finish(&base);
    for (int i = 1; i < n_places(); i++) {
        if (!tries_place(seed, i))
            continue;
        struct problem p, resumed;
        const int n = 7 + (int)seed % 9;
        create_in(&p, seed, c, places_of(i));
        run(&p, 0, n - 1);
        problem_step_unseen(&p, n - 1);
        create_in(&resumed, seed, c, places_of((i + 5) % n_places()));
        resume_at(&p, &resumed, folder);
        run(&p, n, 30);
        run(&resumed, n, 30);
        problem_finish(&p);
        problem_finish(&resumed);
        char *what = zf_format("seed %u, places %d (%s)", seed, i, problem_describe(&c));
        assert_same_bits(&base, &p, what);
        assert_same_bits(&base, &resumed, what);
        free(what);
        problem_destroy(&p);
        problem_destroy(&resumed);
    }
    problem_destroy(&base);
}

/* Across selections. */
static void M1(void **state)
{
    (void)state;
    char *folder = shared_folder();
    for (unsigned seed = 0; seed < cases(12); seed++)
        assert_places_agree(seed, config_of_places(1100 + seed), folder);
    remove_shared(folder);
}

/* ZeRO-Offload on the host has no windows there, nor on the device: its updates take the staged
 * gradients, with the bits that windows of one step give. */
static void zero_offload(void **state)
{
    (void)state;
    char *folder = shared_folder();
    for (unsigned seed = 0; seed < cases(3); seed++) {
        struct engine_config c = config_of_places(1300 + seed);
        struct problem p;
        c.topk_ratio = 0;
        c.update_interval = 1;
        c.apply_lag = 0;
        c.gradient_clipping = seed % 3 ? 0.1f : 0;
        assert_places_agree(seed, c, folder);
        create_in(&p, seed, c, places_of(3)); /* windows and important state on the host */
        assert_int_equal(p.engine->host.state_bytes, 12 * p.engine->host.elements);
        assert_int_equal(p.engine->arena.use.windows, 0);
        problem_destroy(&p);
    }
    remove_shared(folder);
}

/* Each pass, forward and backward, sees of every layer what it sees where all of them stay on the
 * device and everybody waits, be the host's workers late or not: no layer is read before it has
 * arrived, nor overwritten before it was left. */
static void M5(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(8); seed++) {
        const struct engine_config c = config_of_places(1200 + seed);
        struct problem base;
        problem_create(&base, seed, world, &c);
        char *expected = run_unwatched(&base, true);
        for (int i = 1; i < n_places(); i++) {
            if (!tries_place(seed, i))
                continue;
            struct problem p;
            create_in(&p, seed, c, places_of(i));
            char *seen = run_unwatched(&p, false);
            if (memcmp(seen, expected, log_bytes(&p)) != 0)
                fail_msg("seed %u (%s), places %d: a pass saw other parameters", seed,
                         problem_describe(&c), i);
            free(seen);
            problem_destroy(&p);
        }
        free(expected);
        problem_destroy(&base);
    }
}

/* As problem_step, where the channels of the first rank have by far the largest gradients. */
static void step_with_large_first_rank(struct problem *p, int step)
{
    struct zf_error err;
    struct step_report report;
    const struct param *q = &p->table.params[1];
    const int ranks = comm_size(p->comm), rank = comm_rank(p->comm);
    const int first = rank * PROBLEM_SAMPLES / ranks, last = (rank + 1) * PROBLEM_SAMPLES / ranks;
    engine_begin_step(p->engine, problem_lr(step));
    for (int s = first; s < last; s++)
        problem_add_gradient(p, step, s, p->params, p->grads);
    for (size_t i = q->n_elements / (size_t)comm_size(world); i < q->n_elements; i++)
        p->grads[q->offset + i] *= 1e-3f;
    problem_give_gradient(p);
    assert_works(engine_end_step(p->engine, &report, &err), err);
    problem_read_params(p);
}

static int count_waiting(const struct engine *e)
{
    int n = 0;
    for (size_t c = 0; c < e->n_channels; c++)
        n += e->selection.target[c] && e->selection.place[c] == CHANNEL_DEFERRED;
    return n;
}

/* A rank that owns nearly all chosen channels has slots for some of them; the others wait, and lose
 * nothing. As each gradient is an update at once, it does not matter who is important: the result
 * is that of one rank. So it is with a checkpoint of one rank, which has more slots. */
static void scarce_slots(void **state)
{
    (void)state;
    struct engine_config c = problem_config();
    struct problem p, one, resumed;
    struct zf_error err;
    char *folder = shared_folder();
    c.topk_ratio = 0.5;
    c.update_interval = 1;
    c.select_every = 4;
    problem_create_tall(&p, 400, world, &c);
    problem_create_tall(&one, 400, alone, &c);
    for (int step = 0; step < 10; step++) {
        step_with_large_first_rank(&p, step);
        step_with_large_first_rank(&one, step);
    }
    assert_int_equal(count_waiting(one.engine), 0);
    assert_int_equal(count_waiting(p.engine) > 0, comm_size(world) > 1);
    assert_true(distance(p.params, one.params, p.table.n_elements) < near(1e-5));
    problem_create_tall(&resumed, 400, world, &c);
    if (comm_rank(world) == 0)
        assert_works(engine_save(one.engine, folder, &err), err);
    comm_barrier(world);
    problem_copy_params(&resumed, &one);
    assert_works(engine_load(resumed.engine, folder, &err), err);
    assert_int_equal(count_waiting(resumed.engine) > 0, comm_size(world) > 1);
    for (int step = 10; step < 20; step++) {
        step_with_large_first_rank(&resumed, step);
        step_with_large_first_rank(&one, step);
    }
    assert_true(distance(resumed.params, one.params, one.table.n_elements) < near(1e-5));
    problem_destroy(&p);
    problem_destroy(&one);
    problem_destroy(&resumed);
    remove_shared(folder);
}

/* Every (step, channel) gradient enters exactly one AdamW update by the staleness bound: the engine
 * equals the oracle, which counts. */
static void I7(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(150); seed++) {
        struct engine_config c = problem_random_config(1000 + seed);
        follow_oracle(&c, seed, 45, near(1e-5));
    }
}

/* Bytes of the exchange with this many groups, one of which is in flight, by counting rows: each
 * matrix has room for its largest group, and begins at a multiple of 8 elements. */
static size_t ring_bytes(const struct problem *p, int interval, size_t element)
{
    size_t bytes = 0;
    for (int k = 0; k < p->table.n_params; k++) {
        const struct param *q = &p->table.params[k];
        const struct matrix_part part = {k, 0, q->rows, q->cols};
        const struct row_groups groups = row_groups_of(&part, interval);
        int rows[ENGINE_MAX_INTERVAL] = {0}, most = 0;
        for (int row = 0; row < q->rows && q->kind == PARAM_MATRIX; row++) {
            int *mine = &rows[row_groups_group(&groups, row)];
            most = ++*mine > most ? *mine : most;
        }
        bytes += element * (size_t)((most * q->cols + 7) / 8 * 8);
    }
    return bytes;
}

/* Staged gradients, each matrix's at a multiple of 8 elements. */
static size_t staged_bytes(const struct problem *p, size_t element)
{
    size_t bytes = 0;
    for (int k = 0; k < p->table.n_params; k++)
        if (p->table.params[k].kind == PARAM_MATRIX)
            bytes += element * ((p->table.params[k].n_elements + 7) / 8 * 8);
    return bytes;
}

/* Link bytes are what the formula says: with windows on the device 1 / S of the model each way and
 * step, or (1 - k) / S without copies, in the staggered schedule nearly the same in each; at S = 4
 * at most 0.6 model sizes. */
static void I8(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(10); seed++) {
        struct engine_config c = problem_config();
        struct problem p;
        bool on_host = seed % 2;
        c.bf16 = true;
        c.topk_ratio = 0.1;
        c.update_interval = 4;
        c.apply_lag = 1;
        c.accumulate = on_host ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
        c.zero_copy = seed / 2 % 2;
        problem_create(&p, seed, alone, &c);
        size_t important = 0, model = 2 * p.table.n_parameters, traffic = 0;
        struct engine_memory memory = engine_memory(p.engine);
        size_t all = 2 * memory.host_elements, channels = 0;
        for (int k = 0; k < p.table.n_params; k++)
            channels += (size_t)p.table.params[k].rows;
        /* parameter, remainder, m, v and the bf16 exchange; with host windows, those and staged
         * gradients */
        assert_int_equal(memory.host,
                         (on_host ? 16 : 12) * memory.host_elements + ring_bytes(&p, 4, 2) +
                             (on_host ? staged_bytes(&p, 2) : 0) + sizeof(uint32_t) * channels);
        const struct engine_host_use *use = &memory.host_use;
        assert_int_equal(use->optimizer, 12 * memory.host_elements + sizeof(uint32_t) * channels);
        assert_int_equal(use->parameters, 0);
        assert_int_equal(use->windows, on_host ? 4 * memory.host_elements : 0);
        assert_int_equal(use->staged, on_host ? staged_bytes(&p, 2) : 0);
        assert_int_equal(use->exchange, ring_bytes(&p, 4, 2));
        for (int k = 0; k < p.table.n_params; k++) {
            const struct param *q = &p.table.params[k];
            int rows = q->kind == PARAM_MATRIX ? (int)(0.1 * q->rows + 1e-9) : 0;
            if (q->kind == PARAM_MATRIX)
                important += 2 * (size_t)(rows < 1 ? 1 : rows) * (size_t)q->cols;
        }
        if (!c.zero_copy && !p.device->unified)
            important = 0; /* their places are copied with the others' */
        run(&p, 0, 8);
        for (int step = 8; step < 8 + 40; step++) {
            struct step_report r = problem_step(&p, step);
            traffic += r.bytes_down + r.bytes_up;
        }
        /* Each deferred channel goes down and up once in four steps; on the host,
         * down every step. */
        size_t expected =
            on_host ? 40 * (all - important) + 10 * (all - important) : 20 * (all - important);
        assert_int_equal(traffic, expected);
        if (!on_host)
            assert_true((double)traffic / 40 <= 0.6 * (double)model);
        problem_destroy(&p);
    }
}

/* Notes that an array lies in the host's state, where no other does. */
static size_t mark(const struct engine *e, unsigned char *taken, const void *array, size_t bytes)
{
    const size_t at = (size_t)((const char *)array - e->host.state);
    assert_true(at + bytes <= e->host.state_bytes);
    for (size_t i = at; i < at + bytes; i++)
        assert_false(taken[i]++);
    return bytes;
}

/* The host's state takes 12 bytes an element of the memory that was allocated for it, the
 * parameter's copy among them, and all of the memory is used: bf16 and 16 bits more, or fp32. */
static void host_state(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 8; seed++) {
        struct engine_config c = problem_config();
        struct problem p;
        c.topk_ratio = 0.1;
        c.update_interval = 4;
        c.apply_lag = 1;
        c.bf16 = seed % 2;
        c.accumulate = seed & 2 ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
        problem_create(&p, seed, alone, &c);
        const struct engine *e = p.engine;
        const size_t each = e->config.bf16 ? 2 : 4, window = seed & 2 ? 4 : 0;
        unsigned char *taken = zf_calloc(e->host.state_bytes, 1);
        size_t used = 0;
        for (int k = 0; k < e->n_matrices; k++) {
            const struct matrix *m = &e->matrices[k];
            const size_t n = m->selectable ? owned_elements(m) : 0;
            used += n ? mark(e, taken, m->host.parameters, each * n) : 0;
            used += n && each == 2 ? mark(e, taken, m->host.remainders, 2 * n) : 0;
            used += n ? mark(e, taken, m->host.m, 4 * n) + mark(e, taken, m->host.v, 4 * n) : 0;
            used += n && window ? mark(e, taken, m->host.window, 4 * n) : 0;
            if (k > 0 && n && m[-1].selectable)
                assert_ptr_equal(m->host.parameters,
                                 (char *)m[-1].host.parameters + each * owned_elements(m - 1));
        }
        assert_int_equal(used, (12 + window) * e->host.elements);
        assert_int_equal(used, e->host.state_bytes);
        free(taken);
        problem_destroy(&p);
    }
}

#define COMPUTE_SECONDS 0.03 /* what a step of the device takes in I9 */

static double stall_beside_slow_host(const struct engine_config *config, int steps)
{
    struct problem p;
    struct engine_config c = *config;
    double stall = 0;
    c.worker_delay_seconds = 0.005; /* before each of a handful of chunks */
    problem_create(&p, 3, alone, &c);
    for (int step = 0; step < steps; step++) {
        usleep((useconds_t)(1e6 * COMPUTE_SECONDS));
        stall += problem_step(&p, step).stall_seconds;
    }
    problem_destroy(&p);
    return stall / steps;
}

/* Where ZeRO-Offload stalls, ZenFlow's stall is at most a tenth of it: the host has a whole step of
 * the device for its work. */
static void I9(void **state)
{
    (void)state;
    struct engine_config zero = problem_config(), zenflow = problem_config();
    zero.topk_ratio = 0;
    zenflow.topk_ratio = 0.1;
    zenflow.update_interval = 4;
    zenflow.apply_lag = 1;
    double waited = stall_beside_slow_host(&zero, 20);
    double waits = stall_beside_slow_host(&zenflow, 20);
    print_message("stall per step of %g ms: ZeRO-Offload %.3f ms, ZenFlow %.3f ms\n",
                  1e3 * COMPUTE_SECONDS, 1e3 * waited, 1e3 * waits);
    assert_true(waited > 0.1 * COMPUTE_SECONDS);
    assert_true(waits <= 0.1 * waited);
}

/* bf16 parameters are always bf16 values, and their masters keep what rounding drops. */
static void bf16_parameters(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 10; seed++) {
        struct engine_config c = problem_random_config(400 + seed);
        struct problem p, exact;
        problem_create(&exact, seed, alone, &c);
        c.bf16 = true;
        problem_create(&p, seed, alone, &c);
        run(&p, 0, 40);
        run(&exact, 0, 40);
        for (size_t i = 0; i < p.table.n_elements; i++)
            assert_true(p.params[i] == bf16_to_f32(bf16_parameter(p.params[i])));
        assert_true(distance(p.params, exact.params, p.table.n_elements) < 3e-2);
        problem_destroy(&p);
        problem_destroy(&exact);
    }
}

/* Masters are what the engine is given in fp32, to the bit, wherever they are, though the device
 * has parameters in bf16. */
static void fp32_masters(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(16); seed++) {
        struct engine_config c = problem_random_config(800 + seed);
        struct problem p;
        c.bf16 = true;
        c.values_follow = seed % 2;
        c.params_divided = seed % 4 == 1;
        c.topk_ratio = seed % 5 ? c.topk_ratio : 1;
        problem_create(&p, seed, world, &c);
        const size_t n = p.table.n_elements;
        float *values = zf_malloc(sizeof(float) * n), *got = zf_malloc(sizeof(float) * n);
        for (size_t i = 0; i < n; i++)
            values[i] = sinf((float)(i + seed));
        for (int k = 0; k < p.table.n_params && !on_cuda(); k++) {
            const struct param *q = &p.table.params[k];
            memcpy((float *)p.device_params + q->value_offset, values + q->offset,
                   sizeof(float) * q->n_elements);
        }
        for (size_t at = 0, count; at < n; at += count) {
            count = n - at < 100 + seed ? n - at : 100 + seed; /* across parameters */
            engine_take_values(p.engine, at, values + at, count);
        }
        p.device->stream_wait(p.device->compute);
        for (int k = 0; k < p.engine->n_matrices; k++) {
            struct matrix *m = &p.engine->matrices[k];
            state_read(p.engine, m, 0, got);
            assert_memory_equal(got, values + m->param->offset + (size_t)(m->owned.first * m->cols),
                                sizeof(float) * owned_elements(m));
        }
        problem_read_params(&p);
        for (int k = 0; k < p.table.n_params && !on_cuda(); k++)
            for (size_t i = 0; i < p.table.params[k].n_elements; i++) {
                const size_t at = p.table.params[k].offset + i;
                assert_true(p.params[at] == bf16_to_f32(bf16_parameter(values[at])));
            }
        problem_destroy(&p);
        free(values);
        free(got);
    }
}

/* A gradient that is not finite changes nothing anywhere; ten in a row end the run. */
static void non_finite(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(10); seed++) {
        struct engine_config c = problem_random_config(500 + seed);
        struct problem p, clean;
        c.params_divided = c.values_follow = seed % 3 == 0;
        problem_value_slots = 1;
        struct step_report r;
        struct zf_error err;
        problem_create(&p, seed, world, &c);
        problem_create(&clean, seed, world, &c);
        for (int step = 0; step < 20; step++) {
            if (comm_rank(world) == comm_size(world) - 1)
                p.grads[p.table.params[1].offset] = step % 2 ? NAN : INFINITY;
            engine_begin_step(p.engine, 1);
            problem_give_gradient(&p);
            assert_works(engine_end_step(p.engine, &r, &err), err);
            assert_true(r.skipped);
            assert_false(problem_step(&p, step).skipped);
            problem_step(&clean, step);
            assert_same_bits(&p, &clean, problem_describe(&c));
        }
        for (int i = 0; i < 10; i++) {
            p.grads[p.table.params[1].offset] = NAN;
            problem_give_gradient(&p);
            assert_int_equal(engine_end_step(p.engine, &r, &err), i < 9);
        }
        assert_says(err, "10 steps in a row");
        problem_destroy(&p);
        problem_destroy(&clean);
    }
}

/* A host update must be visible before the next of its group begins. */
static void refusals(void **state)
{
    (void)state;
    static const int cases[][2] = {{3, 4}, {1, 2}, {65, 1}, {0, 65}};
    struct zf_error err;
    struct problem p;
    struct engine_config c = problem_config();
    problem_create(&p, 1, alone, &c);
    c.topk_ratio = 0.1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.update_interval = cases[i][0];
        c.apply_lag = cases[i][1];
        assert_null(engine_create(&c, p.device, alone, &p.table, p.params, p.grads, &err));
        assert_says(err, "update_interval is");
    }
    problem_destroy(&p);
}

/* The rule over random problems and settings is the oracle's, step by step, and loses no gradient
 * where windows change their length. */
static void auto_interval(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(60); seed++) {
        static const double ratios[] = {0.05, 0.1, 0.3, 0.5};
        struct engine_config c = problem_random_config(700 + seed);
        c.topk_ratio = ratios[seed % 4];
        c.update_interval = 0;
        c.interval_rule = seed % 6 == 5 ? ENGINE_INTERVAL_KEEP_UP : ENGINE_INTERVAL_DEEPSPEED;
        c.auto_ratio = 0.3 + 0.1 * (seed % 8);
        c.auto_keeps_up = seed % 2;
        c.step_seconds = 0.25;
        c.host_seconds = seed % 5;
        follow_oracle(&c, seed, steps(90), near(1e-5));
    }
}

/* What all ranks tell of their choices is the oracle's, in an engine that goes on from a
 * checkpoint, too: it knows of the choice before. */
static void locality(void **state)
{
    (void)state;
    char *folder = shared_folder();
    int choices = 0, kept = 0, changed = 0;
    for (unsigned seed = 0; seed < cases(12); seed++) {
        struct engine_config c = problem_random_config(seed);
        struct problem p[2];
        c.topk_ratio = 0.1 + 0.1 * (seed % 5);
        c.select_every = 1 + (int)seed % 7;
        c.reselect_when_stale = false;
        problem_create(&p[0], seed, world, &c);
        problem_create(&p[1], seed, world, &c);
        struct oracle *o = oracle_create(&p[0], &c);
        float *grads = zf_malloc(sizeof(float) * p[0].table.n_elements);
        for (int step = 0; step < 30; step++) {
            struct problem *now = &p[step >= 15];
            if (step == 15)
                resume_at(&p[0], &p[1], folder);
            memset(grads, 0, sizeof(float) * p[0].table.n_elements);
            for (int s = 0; s < PROBLEM_SAMPLES; s++)
                problem_add_gradient(now, step, s, now->params, grads);
            oracle_step(o, grads, problem_lr(step));
            const struct step_report report = problem_step(now, step);
            assert_same_locality(&report, o, seed, step);
            choices += report.selected;
            kept += report.selected ? report.choice->all.kept : 0;
            changed += report.selected && step >= 15
                           ? report.choice->all.chosen - report.choice->all.kept
                           : 0;
        }
        oracle_destroy(o);
        free(grads);
        problem_destroy(&p[0]);
        problem_destroy(&p[1]);
    }
    assert_true(choices > 20 && kept > 0 && changed > 0);
    remove_shared(folder);
}

/* What MPI is given to sum: floats for all ranks to have, and for one. The emulator has such a
 * function of its own, and this test none there. */
static size_t given_to_all, given_to_one;

__attribute__((weak)) int MPI_Allreduce(const void *from, void *to, int n, MPI_Datatype type,
                                        MPI_Op op, MPI_Comm ranks)
{
    given_to_all += type == MPI_FLOAT ? sizeof(float) * (size_t)n : 0;
    return PMPI_Allreduce(from, to, n, type, op, ranks);
}

int MPI_Ireduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, int root,
                MPI_Comm ranks, MPI_Request *request)
{
    given_to_one += type == MPI_FLOAT ? sizeof(float) * (size_t)n : 0;
    return PMPI_Ireduce(from, to, n, type, op, root, ranks, request);
}

/* Ranks choose by a norm for each channel: what they sum is what MPI is given, a float for each of
 * the model's channels beside one for each parameter; and one rank sums nothing. */
static void summed_bytes(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(8); seed++) {
        struct engine_config c = problem_random_config(seed);
        struct problem p;
        const bool several = comm_size(world) > 1;
        size_t channels = 0;
        problem_create(&p, seed, world, &c);
        for (int k = 0; k < p.table.n_params; k++)
            channels += (size_t)p.table.params[k].rows;
        for (int step = 0; step < 6; step++) {
            given_to_all = given_to_one = 0;
            const struct step_report r = problem_step_unseen(&p, step);
            assert_int_equal(r.bytes_norms, several ? sizeof(float) * channels : 0);
            assert_int_equal(r.bytes_norms, given_to_all);
            assert_int_equal(r.bytes_gradients, several ? sizeof(float) * p.table.n_parameters : 0);
            assert_int_equal(r.bytes_gradients, given_to_one);
            problem_read_params(&p);
        }
        problem_destroy(&p);
    }
}

/* Kernels of one step in the middle of windows, beside the gradient's own. */
static unsigned long launches_of_step(int layers, int matrices)
{
    struct engine_config c = problem_config();
    struct problem p;
    c.topk_ratio = 0.1;
    c.update_interval = 4;
    c.apply_lag = 1;
    problem_create_layers(&p, layers, matrices, alone, &c);
    run(&p, 0, 10);
    emulator_drain();
    unsigned long before = emulator_counts().launches;
    run(&p, 10, 11);
    emulator_drain();
    unsigned long after = emulator_counts().launches;
    problem_destroy(&p);
    return after - before;
}

/* A step launches three kernels for each layer, which take its gradients, send means down and bring
 * parameters, and four beside: the norms' summary (two), AdamW, and the windows' sums. How many
 * matrices a layer has is all one. */
static void launches(void **state)
{
    (void)state;
    enum { LAYERS = 14 };
    if (!emulator_counts) {
        print_message("skipped: only the emulator counts launches\n");
        skip();
    }
    const unsigned long few = launches_of_step(LAYERS, 2), many = launches_of_step(LAYERS, 12);
    print_message("launches per step, %d layers: %lu with 2 matrices each, %lu with 12\n", LAYERS,
                  few, many);
    assert_int_equal(few, many);
    assert_true(many <= 3 * LAYERS + 4);
}

/* What problems are made of with a seed of the run, of which a process has one:
 * so a child tells. */
static void describe_with(uint32_t seed, char *text, size_t bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        test_set_seed(seed);
        for (unsigned i = 0; i < 4; i++) {
            struct engine_config c = problem_random_config(i);
            dprintf(ends[1], "%s\n", problem_describe(&c));
        }
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], text + n, bytes - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    waitpid(child, NULL, 0);
}

/* ZF_SEED makes other problems, and the same again. */
static void seeds(void **state)
{
    (void)state;
    char first[2048], again[2048], other[2048];
    describe_with(1, first, sizeof first);
    describe_with(1, again, sizeof again);
    describe_with(2, other, sizeof other);
    assert_non_null(strstr(first, "topk"));
    assert_string_equal(first, again);
    assert_string_not_equal(first, other);
}

/* Rank 0's, which may be a fresh one. */
static void share_seed(void)
{
    uint32_t seed = test_seed();
    comm_broadcast(world, &seed, sizeof seed, 0);
    test_set_seed(seed);
    if (comm_rank(world) == 0)
        test_print_seed();
}

static bool open_device(bool cuda)
{
    struct zf_error err;
    int n = cuda ? device_cuda_count() : 0;
    if (cuda && n == 0)
        printf("skipped: there is no CUDA device\n");
    problem_device = !cuda   ? device_cpu(1)
                     : n > 0 ? device_cuda(comm_local_rank(world) % n, &err)
                             : NULL;
    return problem_device;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(I1),
        cmocka_unit_test(I2),
        cmocka_unit_test(I3),
        cmocka_unit_test(I4),
        cmocka_unit_test(I5),
        cmocka_unit_test(I5_unwatched),
        cmocka_unit_test(I5_slow_windows),
        cmocka_unit_test(I6),
        cmocka_unit_test(I6_other_ranks),
        cmocka_unit_test(I6_used_engine),
        cmocka_unit_test(scarce_slots),
        cmocka_unit_test(hostile_checkpoints),
        cmocka_unit_test(I7),
        cmocka_unit_test(I8),
        cmocka_unit_test(host_state),
        cmocka_unit_test(I9),
        cmocka_unit_test(bf16_parameters),
        cmocka_unit_test(fp32_masters),
        cmocka_unit_test(M1),
        cmocka_unit_test(zero_offload),
        cmocka_unit_test(M2),
        cmocka_unit_test(M3),
        cmocka_unit_test(device_bytes),
        cmocka_unit_test(divided_bytes),
        cmocka_unit_test(host_bytes),
        cmocka_unit_test(M4),
        cmocka_unit_test(M5),
        cmocka_unit_test(ten_times),
        cmocka_unit_test(gaps_stay_zero),
        cmocka_unit_test(evaluation),
        cmocka_unit_test(non_finite),
        cmocka_unit_test(refusals),
        cmocka_unit_test(auto_by_hand),
        cmocka_unit_test(auto_interval),
        cmocka_unit_test(auto_on_ranks),
        cmocka_unit_test(auto_keeps_up),
        cmocka_unit_test(keep_up),
        cmocka_unit_test(locality),
        cmocka_unit_test(summed_bytes),
        cmocka_unit_test(launches),
        cmocka_unit_test(stream_priorities),
        cmocka_unit_test(steps_copy_pinned_memory),
        cmocka_unit_test(seeds),
    };
    if (argc != 2 && !(argc == 3 && strcmp(argv[2], "cuda") == 0)) {
        fprintf(stderr, "usage: zenflow_invariants NAME [cuda]\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strcmp(tests[i].name, argv[1]) != 0)
            continue;
        world = comm_create();
        alone = comm_create_alone();
        share_seed();
        if (!open_device(argc == 3))
            return 77;
        comm_attach(world, problem_device);
        comm_attach(alone, problem_device);
        struct CMUnitTest one[] = {tests[i]};
        int failed = cmocka_run_group_tests(one, NULL, NULL);
        comm_destroy(alone);
        comm_destroy(world);
        return failed;
    }
    fprintf(stderr, "zenflow_invariants: there is no test named %s\n", argv[1]);
    return 1;
}
