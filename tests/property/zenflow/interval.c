/* The windows' length that an engine chooses itself. */
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/problem.h"
#include "tests/testing.h"

#include "data/median.h"
#include "offload/engine/internal.h"

#include <unistd.h>

static struct engine_config auto_config(void)
{
    struct engine_config c = problem_config();
    c.topk_ratio = 0.25;
    c.update_interval = 0;
    c.apply_lag = 1;
    c.auto_ratio = 0.99;
    return c;
}

static struct engine_config keep_up_config(void)
{
    struct engine_config c = auto_config();
    c.interval_rule = ENGINE_INTERVAL_KEEP_UP;
    return c;
}

/* A step in which each matrix's first three channels of twelve have a gradient of norm 1, the
 * others one of its own, but for so many that have none. Returns the windows' length. */
static int step_with_norms(struct problem *p, const float *deferred, int silent)
{
    struct step_report report;
    struct zf_error err;
    for (int k = 0, matrix = 0; k < p->table.n_params; k++) {
        const struct param *q = &p->table.params[k];
        if (q->kind != PARAM_MATRIX)
            continue;
        for (int row = 0; row < q->rows - silent; row++)
            p->grads[q->offset + (size_t)row * (size_t)q->cols] = row < 3 ? 1 : deferred[matrix];
        matrix++;
    }
    engine_begin_step(p->engine, problem_lr(0));
    problem_give_gradient(p);
    assert_works(engine_end_step(p->engine, &report, &err), err);
    return report.update_interval;
}

/* update_interval "auto", worked out by hand: the first choice is made when deferred channels have
 * gathered a norm of 1, in auto_ratio of four matrices; the first windows have four steps. */
void auto_by_hand(void **state)
{
    (void)state;
    static const struct {
        float deferred[4];
        double ratio, host_seconds; /* a step takes one second */
        int lag, seen, chosen, silent;
    } cases[] = {
        {{0.11f, 0.11f, 0.11f, 0.11f}, 0.99, 0, 1, 10, 10, 0},
        {{0.18f, 0.18f, 0.18f, 0.18f}, 0.99, 0, 1, 6, 6, 0},
        {{0.6f, 0.6f, 0.6f, 0.6f}, 0.99, 0, 1, 2, 2, 0},
        {{0.9f, 0.8f, 0.7f, 0.6f}, 0.99, 0, 0, 2, 2, 0},
        {{1, 1, 1, 1}, 0.99, 0, 1, 1, 1, 0},
        {{0, 0, 0, 0}, 0.99, 0, 1, 64, 64, 0}, /* never longer than 64 */
        {{0.01f, 0.01f, 0.01f, 0.01f}, 0.99, 0, 1, 64, 64, 0},
        {{0.21f, 0.21f, 0.21f, 0.21f}, 0.99, 0, 1, 5, 4, 0}, /* a fourth is too little to change */
        {{0.34f, 0.34f, 0.34f, 0.34f}, 0.99, 0, 1, 3, 4, 0},
        {{0.6f, 0.6f, 0.6f, 0.11f}, 0.99, 0, 1, 10, 10, 0}, /* all matrices, or a part of them */
        {{0.6f, 0.6f, 0.6f, 0.11f}, 0.75, 0, 1, 2, 2, 0},
        {{0.6f, 0.6f, 0.11f, 0.11f}, 0.75, 0, 1, 10, 10, 0},
        {{1, 1, 1, 1}, 0.99, 0, 3, 3, 4, 0}, /* not before the lag has passed */
        {{1, 1, 1, 1}, 0.99, 0, 6, 6, 6, 0},
        {{0.6f, 0.6f, 0.6f, 0.6f}, 0.99, 8.5, 1, 2, 10, 0}, /* the host keeps up with ten */
        {{0.6f, 0.6f, 0.6f, 0.6f}, 0.99, 8.5, 2, 2, 10, 0},
        {{0.6f, 0.6f, 0.6f, 0.6f}, 0.99, 1000, 1, 2, 64, 0},
        {{0.6f, 0.6f, 0.6f, 0.6f}, 0.99, 4.5, 1, 2, 5, 0}, /* here a fourth counts */
        {{0.11f, 0.11f, 0.11f, 0.11f}, 0.99, 8.5, 1, 10, 10, 0},
        {{0.13f, 0.13f, 0.13f, 0.13f}, 0.99, 0, 6, 8, 8, 0},
        {{0.11f, 0.11f, 0.11f, 0.11f}, 0.99, 0, 1, 10, 10, 5}, /* these do not count */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct problem p;
        struct engine_config c = auto_config();
        const int first = cases[i].lag > 4 ? cases[i].lag : 4;
        c.auto_ratio = cases[i].ratio;
        c.apply_lag = cases[i].lag;
        c.auto_keeps_up = true;
        c.step_seconds = 1;
        c.host_seconds = cases[i].host_seconds;
        problem_create_layers(&p, 2, 4, alone, &c);
        for (int step = 1; step <= cases[i].seen; step++) {
            const int interval = step_with_norms(&p, cases[i].deferred, cases[i].silent);
            if (interval != (step < cases[i].seen ? first : cases[i].chosen))
                fail_msg("case %zu: windows of %d steps after step %d", i, interval, step);
        }
        problem_destroy(&p);
    }
}

/* All ranks choose the same windows: those that suit the slowest of them. */
void auto_on_ranks(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 6; seed++) {
        struct engine_config c = auto_config();
        struct problem p, q;
        int changes = 0, before = 4;
        c.auto_ratio = 0.3 + 0.1 * seed;
        c.select_every = 20;
        c.auto_keeps_up = true;
        c.step_seconds = 1;
        c.host_seconds = comm_size(world) - 0.5;
        problem_create(&q, seed, alone, &c);
        c.host_seconds = comm_rank(world) + 0.5;
        problem_create(&p, seed, world, &c);
        for (int step = 0; step < 80; step++) {
            const int interval = problem_step(&p, step).update_interval;
            assert_int_equal(interval, problem_step(&q, step).update_interval);
            changes += interval != before;
            before = interval;
        }
        assert_true(changes > 0 || before == comm_size(world));
        problem_destroy(&p);
        problem_destroy(&q);
    }
}

/* How a run's steps take their time: the second and third may take other than the rest. */
struct pace {
    double host_pause, seconds, early_seconds;
};

/* The windows that are chosen beside a host that pauses before each of its chunks and a device
 * of this pace, where deferred channels have gradients of this norm; and how many steps were timed
 * for it. */
static int auto_at(enum engine_interval_rule rule, const struct pace *pace, float norm, int steps,
                   int *timed)
{
    const float deferred[] = {norm, norm, norm, norm};
    struct problem p;
    struct engine_config c = auto_config();
    int interval = 0;
    c.interval_rule = rule;
    c.auto_keeps_up = true;
    c.worker_delay_seconds = pace->host_pause;
    problem_create_layers(&p, 2, 4, alone, &c);
    for (int step = 0; step < steps; step++) {
        usleep((useconds_t)(1e6 * (step == 1 || step == 2 ? pace->early_seconds : pace->seconds)));
        interval = step_with_norms(&p, deferred, 0);
    }
    *timed = p.engine->observed.timing.steps;
    problem_destroy(&p);
    return interval;
}

static int auto_beside(enum engine_interval_rule rule, double host_pause, double step_seconds,
                       float norm, int steps, int *timed)
{
    const struct pace pace = {host_pause, step_seconds, step_seconds};
    return auto_at(rule, &pace, norm, steps, timed);
}

/* Steps are of no time but on a busy machine. */
static void assert_long(int interval)
{
    assert_in_range(interval, ENGINE_MAX_INTERVAL / 4, ENGINE_MAX_INTERVAL);
}

/* What is measured: a host far slower than the device gets long windows, one that is far faster
 * changes nothing. What the rule asks for before that has been measured, behind nine steps, is left
 * out, and it begins anew. */
void auto_keeps_up(void **state)
{
    (void)state;
    const enum engine_interval_rule rule = ENGINE_INTERVAL_DEEPSPEED;
    int timed;
    assert_long(auto_beside(rule, 0.05, 0, 0.6f, 10, &timed));
    assert_int_equal(auto_beside(rule, 0, 0.05, 0.6f, 9, &timed), 4);
    assert_int_equal(auto_beside(rule, 0, 0.05, 0.6f, 10, &timed), 2);
    assert_int_equal(auto_beside(rule, 0, 0.05, 1, 9, &timed), 1);
    const struct pace slow_start = {0.03, 0, 0.4};
    assert_long(auto_at(rule, &slow_start, 1, 9, &timed));
}

/* "keep_up" looks at nine steps, whatever norms there are, and never again. */
void keep_up(void **state)
{
    (void)state;
    const enum engine_interval_rule rule = ENGINE_INTERVAL_KEEP_UP;
    int timed;
    assert_int_equal(auto_beside(rule, 0, 0.05, 0, 8, &timed), 4);
    assert_int_equal(auto_beside(rule, 0, 0.05, 0, 9, &timed), 1);
    assert_long(auto_beside(rule, 0.03, 0, 1, 9, &timed));
    assert_int_equal(auto_beside(rule, 0, 0.05, 0, 40, &timed), 1);
    assert_int_equal(timed, 9);
    /* Two steps of a run's start that take long say nothing of the others. */
    const struct pace slow_start = {0.03, 0, 0.4};
    assert_long(auto_at(rule, &slow_start, 1, 9, &timed));
}

/* A host that is four times too slow for the first windows, of eight steps as the lag is: none of
 * its updates is waited for in the first eight steps. */
void keep_up_sees_behind_the_lag(void **state)
{
    (void)state;
    struct engine_config c = keep_up_config();
    struct problem p;
    int interval = 0, step = 0;
    c.apply_lag = 8;
    c.worker_delay_seconds = 0.04;
    problem_create_layers(&p, 2, 4, alone, &c);
    for (; p.engine->observed.least_interval == 0; step++) {
        assert_in_range(step, 0, 13);
        usleep(2000);
        interval = step_with_norms(&p, (const float[]){1, 1, 1, 1}, 0);
    }
    assert_in_range(step, 12, 13);
    assert_in_range(interval, 32, ENGINE_MAX_INTERVAL);
    problem_destroy(&p);
}

/* What lies between steps, behind which all that is due has been waited for, is no step's. */
void keep_up_is_interrupted(void **state)
{
    (void)state;
    struct engine_config c = keep_up_config();
    struct problem p;
    problem_create(&p, 0, alone, &c);
    for (int step = 0; step < 9; step++) {
        problem_step(&p, step);
        engine_settle(p.engine);
        usleep(100000);
    }
    const struct timing *t = &p.engine->observed.timing;
    assert_int_equal(t->steps, 9);
    assert_true(median_of(t->seconds, 9) < 0.1);
    problem_destroy(&p);
}

/* What the host needs by its own clock, in windows of four steps, where its threads pause before
 * each chunk; with one block's parameters in device memory, or all. */
static struct engine_pace pace_with(bool streams, bool visits)
{
    struct engine_config c = keep_up_config();
    struct problem p;
    struct engine_pace pace = {0};
    c.params_on_host = c.values_follow = streams;
    c.offload_important = visits;
    c.worker_delay_seconds = 0.015;
    problem_value_slots = 1;
    problem_create_layers(&p, 3, 4, alone, &c);
    for (int step = 0; pace.step == 0; step++) {
        assert_in_range(step, 0, 20);
        pace = problem_step(&p, step).pace;
    }
    problem_destroy(&p);
    return pace;
}

/* Blocks' parameters on the host are written there behind the update, which is work as well; and so
 * are copies of state that visits the device. */
void keep_up_counts_all_work(void **state)
{
    (void)state;
    const struct engine_pace all_there = pace_with(false, false), stream = pace_with(true, false);
    const struct engine_pace visit = pace_with(false, true);
    assert_true(stream.host > 1.2 * all_there.host);
    assert_true(all_there.host_each == 0 && visit.host_each > 0);
}

/* Where no channel is important there are windows all the same. */
void keep_up_without_important(void **state)
{
    (void)state;
    struct engine_config c = keep_up_config();
    struct problem p;
    c.topk_ratio = 0;
    c.full_warm_up_rounds = 2;
    c.step_seconds = 1;
    c.host_seconds = 2.5;
    problem_create(&p, 0, alone, &c);
    for (int step = 0; step < 12; step++)
        assert_int_equal(problem_step(&p, step).update_interval, step < 2 ? 1 : 3);
    problem_destroy(&p);
}
