/* Engines that go on from checkpoints, whole and hostile ones. */
#include "tests/property/zenflow/hostile.h"
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/shared.h"
#include "tests/seed.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "offload/engine/internal.h"

/* With bf16 and update_interval "auto" among them. */
static struct engine_config config_to_resume(unsigned seed)
{
    struct engine_config c = problem_random_config(seed);
    c.bf16 = seed % 3 == 2;
    if (seed % 4 == 3 && c.topk_ratio > 0) {
        c.update_interval = 0;
        c.apply_lag = 1;
        c.auto_ratio = 0.5;
    }
    return c;
}

/* N steps, save, load, N steps equals 2 N steps, at every N; saved and loaded once more where it
 * only has to finish, it ends alike. */
void I6(void **state)
{
    (void)state;
    char *folder = shared_folder();
    const int stride = in_long_ring() ? 1 : 4; /* four problems of a kind share the Ns */
    for (unsigned seed = 0; seed < 16; seed++) {
        struct engine_config c = config_to_resume(200 + seed);
        for (int n = (int)seed / 4 % stride; n <= 14; n += stride) {
            struct problem p, resumed, at_the_end;
            problem_create(&p, seed, world, &c);
            run(&p, 0, n);
            problem_create(&resumed, seed, world, &c);
            resume_at(&p, &resumed, folder);
            for (int step = n; step < 2 * n + 6; step++) {
                struct step_report a = problem_step(&p, step), b = problem_step(&resumed, step);
                assert_same_bits(&p, &resumed, problem_describe(&c));
                assert_int_equal(a.staleness, b.staleness);
                assert_int_equal(a.bytes_down, b.bytes_down);
            }
            problem_create(&at_the_end, seed, world, &c);
            resume_at(&p, &at_the_end, folder);
            problem_finish(&p);
            problem_finish(&resumed);
            problem_finish(&at_the_end);
            assert_same_bits(&p, &resumed, problem_describe(&c));
            assert_same_bits(&p, &at_the_end, problem_describe(&c));
            problem_destroy(&p);
            problem_destroy(&resumed);
            problem_destroy(&at_the_end);
        }
    }
    remove_shared(folder);
}

static struct engine_config chooses(enum engine_interval_rule rule, double host_seconds)
{
    struct engine_config c = problem_config();
    c.topk_ratio = 0.25;
    c.update_interval = 0;
    c.interval_rule = rule;
    c.apply_lag = 1;
    c.auto_ratio = 0.1;
    c.auto_keeps_up = true;
    c.step_seconds = 1;
    c.host_seconds = host_seconds;
    return c;
}

/* What has been measured is measured no more: on a host of another speed a run goes on as it would
 * have. Another rule measures anew. */
void keep_up_is_kept(void **state)
{
    (void)state;
    char *folder = shared_folder();
    for (int rule = 0; rule < 2; rule++) {
        const struct engine_config c = chooses(rule, 4.5), slower = chooses(rule, 8.5);
        const struct engine_config other = chooses(!rule, 8.5);
        struct problem p, resumed, changed;
        problem_create(&p, 1, world, &c);
        run(&p, 0, 30);
        assert_int_equal(p.engine->observed.least_interval, 5);
        assert_in_range(engine_update_interval(p.engine), 5, ENGINE_MAX_INTERVAL);
        problem_create(&resumed, 1, world, &slower);
        problem_create(&changed, 1, world, &other);
        resume_at(&p, &resumed, folder);
        resume_at(&p, &changed, folder);
        for (int step = 30; step < 60; step++) {
            assert_int_equal(problem_step(&p, step).update_interval,
                             problem_step(&resumed, step).update_interval);
            assert_same_bits(&p, &resumed, problem_describe(&c));
            problem_step(&changed, step);
        }
        assert_int_equal(resumed.engine->observed.least_interval, 5);
        assert_int_equal(changed.engine->observed.least_interval, 10);
        problem_destroy(&p);
        problem_destroy(&resumed);
        problem_destroy(&changed);
    }
    remove_shared(folder);
}

/* Loading into an engine that has run, finished or not, its workers behind, is loading into a new
 * one. */
void I6_used_engine(void **state)
{
    (void)state;
    char *folder = shared_folder();
    for (unsigned seed = 0; seed < cases(48); seed++) {
        struct engine_config c = config_to_resume(700 + seed), slow = c;
        struct problem p, fresh, used;
        int n = (int)(seed % 13), other = 50 + (int)(seed * 7 % 17);
        problem_create(&p, seed, world, &c);
        run(&p, 0, n);
        slow.worker_delay_seconds = 0.0005;
        problem_create(&used, seed, world, &slow);
        run(&used, 50, other); /* with other gradients, so with other choices */
        if (seed % 2)
            problem_finish(&used);
        problem_create(&fresh, seed, world, &c);
        resume_at(&p, &used, folder);
        resume_at(&p, &fresh, folder);
        for (int step = n; step < n + 12; step++) {
            struct step_report a = problem_step(&fresh, step), b = problem_step(&used, step);
            assert_same_bits(&fresh, &used, problem_describe(&c));
            assert_int_equal(a.staleness, b.staleness);
            assert_int_equal(a.bytes_down, b.bytes_down);
            assert_int_equal(a.bytes_up, b.bytes_up);
            assert_int_equal(a.update_interval, b.update_interval);
        }
        problem_finish(&fresh);
        problem_finish(&used);
        assert_same_bits(&fresh, &used, problem_describe(&c));
        problem_destroy(&p);
        problem_destroy(&fresh);
        problem_destroy(&used);
    }
    remove_shared(folder);
}

/* A problem that has done some steps, and its optimizer file in memory with room to grow. */
static size_t save_problem(struct problem *p, unsigned seed, int n, const char *path,
                           const char *folder, unsigned char **bytes, size_t *capacity)
{
    struct engine_config c = config_to_resume(900 + seed);
    struct zf_error err;
    char *text;
    size_t size;
    problem_create(p, seed, alone, &c);
    run(p, 0, n);
    assert_works(engine_save(p->engine, folder, &err), err);
    assert_works(file_read(path, &text, &size, &err), err);
    *capacity = size + 4096;
    *bytes = zf_realloc(text, *capacity);
    return size;
}

/* Whatever an optimizer file says, it is refused with a sentence that names it, or runs. */
void hostile_checkpoints(void **state)
{
    (void)state;
    const int problems = 20, changes = in_long_ring() ? 500 : (int)test_repeats(60);
    char *folder = shared_folder();
    char *path = zf_format("%s/optimizer-00001-of-00001.safetensors", folder);
    int refused = 0;
    struct zf_error err;
    for (unsigned seed = 0; seed < (unsigned)problems; seed++) {
        struct problem p;
        unsigned char *good;
        size_t capacity;
        const size_t n =
            save_problem(&p, seed, 1 + (int)(seed * 7 % 17), path, folder, &good, &capacity);
        unsigned char *bad = zf_malloc(capacity);
        for (int i = 0; i < changes; i++) {
            memcpy(bad, good, n);
            const uint32_t what = 1000 * (1 + test_seed()) * (seed + 1) + (uint32_t)i;
            const size_t m = hostile_change(bad, n, capacity, what);
            assert_works(file_write(path, bad, m, &err), err);
            if (hostile_load(&p, folder, &err))
                continue;
            refused++;
            if (!strstr(err.text, folder))
                fail_msg("problem %u, change %u: %s", seed, what, err.text);
        }
        assert_works(file_write(path, good, n, &err), err);
        assert_true(hostile_load(&p, folder, &err)); /* the engine is none the worse */
        problem_destroy(&p);
        free(bad);
        free(good);
    }
    print_message("%d of %d changed optimizer files refused, all others run\n", refused,
                  problems * changes);
    assert_true(refused > problems * changes / 2 && refused < problems * changes);
    free(path);
    remove_shared(folder);
}

/* Another number of ranks reads the checkpoint: all ranks' is read by one, and goes on alike. */
void I6_other_ranks(void **state)
{
    (void)state;
    char *folder = shared_folder();
    for (unsigned seed = 0; seed < 10; seed++) {
        struct engine_config c = problem_random_config(300 + seed);
        struct problem p, one;
        c.params_divided = c.values_follow = seed % 2;
        problem_value_slots = (int)seed % 3;
        problem_create(&p, seed, world, &c);
        run(&p, 0, 7);
        problem_create(&one, seed, alone, &c);
        resume_at(&p, &one, folder);
        run(&p, 7, 20);
        run(&one, 7, 20);
        assert_true(distance(p.params, one.params, p.table.n_elements) < near(1e-5));
        problem_destroy(&p);
        problem_destroy(&one);
        comm_barrier(world);
    }
    remove_shared(folder);
}
