/* Several ranks beside one. */
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/shared.h"
#include "tests/testing.h"

#include "offload/engine/internal.h"

#include <math.h>

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
void I4(void **state)
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

/* As problem_step, where the channels of the first rank have by far the largest gradients. */
static void step_with_large_first_rank(struct problem *p, int step)
{
    struct zf_error err;
    struct step_report report;
    const struct param *q = &p->table.params[1];
    problem_begin_step(p, step);
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
void scarce_slots(void **state)
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
