/* The program of the ZenFlow engine's invariants (offload/README.md), each a test of its own name:
 * `zenflow_invariants I5` runs one; under mpirun those that concern ranks run on all of them. Here
 * are those that stand for themselves; the others are in the files beside, by subject. */
#include "tests/cuda_emulator/emulator.h"
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/shared.h"
#include "tests/seed.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "offload/engine/internal.h"

#include <math.h>
#include <sys/wait.h>

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
void I9(void **state)
{
    (void)state;
    struct engine_config zero = problem_config(), zenflow = problem_zenflow_config();
    zero.topk_ratio = 0;
    double waited = stall_beside_slow_host(&zero, 20);
    double waits = stall_beside_slow_host(&zenflow, 20);
    print_message("stall per step of %g ms: ZeRO-Offload %.3f ms, ZenFlow %.3f ms\n",
                  1e3 * COMPUTE_SECONDS, 1e3 * waited, 1e3 * waits);
    assert_true(waited > 0.1 * COMPUTE_SECONDS);
    assert_true(waits <= 0.1 * waited);
}

/* bf16 parameters are always bf16 values, and their masters keep what rounding drops. */
void bf16_parameters(void **state)
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
void fp32_masters(void **state)
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
void non_finite(void **state)
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
void refusals(void **state)
{
    (void)state;
    static const struct {
        int interval, lag;
        const char *says;
    } cases[] = {{3, 4, "apply_lag is 4, but windows have at most 3"},
                 {1, 2, "apply_lag is 2, but windows have at most 1"},
                 {65, 1, "update_interval is 65, but windows have at most 64"},
                 {0, 65, "apply_lag is 65, but windows have at most 64"}};
    struct zf_error err;
    struct problem p;
    struct engine_config c = problem_config();
    problem_create(&p, 1, alone, &c);
    c.topk_ratio = 0.1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.update_interval = cases[i].interval;
        c.apply_lag = cases[i].lag;
        assert_null(engine_create(&c, p.device, alone, &p.table, p.params, p.grads, &err));
        assert_says(err, cases[i].says);
    }
    problem_destroy(&p);
}

/* Where this is linked with the emulator. */
extern struct emulator_counts emulator_counts(void) __attribute__((weak));
extern void emulator_drain(void) __attribute__((weak));

/* Kernels of one step in the middle of windows, beside the gradient's own. */
static unsigned long launches_of_step(int layers, int matrices)
{
    const struct engine_config c = problem_zenflow_config();
    struct problem p;
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
void launches(void **state)
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
void seeds(void **state)
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

#define AS_TEST(name) cmocka_unit_test(name),

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {INVARIANTS(AS_TEST)};
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
