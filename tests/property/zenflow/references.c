/* The engine beside what is told a second time, otherwise: AdamW without an engine, where ZenFlow
 * is AdamW or ZeRO-Offload, and the oracle (oracle.h), where it is anything. */
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/oracle.h"
#include "tests/property/zenflow/shared.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "offload/engine/internal.h"

#include <math.h>

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
        problem_gradient(&p, step, grads);
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
void I1(void **state)
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
            problem_gradient(&p, step, gradient);
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
void I2(void **state)
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
void I3(void **state)
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

/* Every (step, channel) gradient enters exactly one AdamW update by the staleness bound: the engine
 * equals the oracle, which counts. */
void I7(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < cases(150); seed++) {
        struct engine_config c = problem_random_config(1000 + seed);
        follow_oracle(&c, seed, 45, near(1e-5));
    }
}

/* The rule over random problems and settings is the oracle's, step by step, and loses no gradient
 * where windows change their length. */
void auto_interval(void **state)
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
void locality(void **state)
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
            problem_gradient(now, step, grads);
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
