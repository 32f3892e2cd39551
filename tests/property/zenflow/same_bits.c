/* What changes no bit of the result: delays of the host's workers, a host that runs ahead of the
 * device, and where parameters, windows and state live. */
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/shared.h"
#include "tests/seed.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "offload/engine/internal.h"

/* Delays of host workers change nothing but the stall. */
void I5(void **state)
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
    struct step_report report;
    struct zf_error err;
    d->zero(d->compute, log, bytes);
    p->seen = log;
    for (int step = 0; step < PASSES / 2; step++) {
        problem_begin_step(p, step);
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
void I5_unwatched(void **state)
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
void I5_slow_windows(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(12); seed++) {
        struct engine_config c = problem_config();
        struct problem p, q;
        c.topk_ratio = 0.1;
        c.update_interval = c.apply_lag = 4;
        c.stagger = seed % 2;
        c.select_every = 5;
        c.accumulate = ENGINE_ACCUMULATE_HOST;
        c.device_windows = (int)seed / 2 % 3;
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
void M1(void **state)
{
    (void)state;
    char *folder = shared_folder();
    for (unsigned seed = 0; seed < cases(12); seed++)
        assert_places_agree(seed, config_of_places(1100 + seed), folder);
    remove_shared(folder);
}

/* ZeRO-Offload on the host has no windows there, nor on the device: its updates take the staged
 * gradients, with the bits that windows of one step give. */
void zero_offload(void **state)
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
void M5(void **state)
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
