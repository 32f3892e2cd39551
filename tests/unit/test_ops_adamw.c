/* model/cpu: the engine's AdamW on rows, norms and selection, each against a plain version of it in
 * double precision. */
#include "tests/unit/rows_testing.h"

#include "data/bf16.h"

/* AdamW on rows of matrices of several widths, one of which has no rows. */

enum { SLOTS = 41, ROWS = 60, WIDTHS = 5 };

static const struct {
    int cols, n_rows, decays;
} widths[WIDTHS] = {{1, ROWS, 1}, {37, ROWS, 0}, {8, 0, 1}, {700, ROWS, 1}, {4, ROWS, 1}};

struct slots {
    float *param[WIDTHS], *master[WIDTHS], *m[WIDTHS], *v[WIDTHS];
    float *waiting[WIDTHS], *window[WIDTHS]; /* gradients, by slot and by row */
    struct matrix_rows rows[WIDTHS];
    struct matrix_batch batch;
    struct channel_update updates[WIDTHS * SLOTS];
    int n;
};

/* Slots' rows: some have none, the others differ. A matrix's last has had as many updates as the
 * next one's first. */
static void make_updates(struct slots *s)
{
    s->n = 0;
    for (int k = 0; k < WIDTHS; k++)
        if (widths[k].n_rows > 0)
            for (int i = 0; i < SLOTS; i++) {
                const uint32_t count = i < 10 || i > 35 ? (uint32_t)i % 2 : 1000 * (uint32_t)i;
                if (i % 7 != 3)
                    s->updates[s->n++] = (struct channel_update){
                        .matrix = k, .slot = i, .row = (i * 17 + 5) % ROWS, .updates = count};
            }
}

static void slots_create(struct slots *s, bool own_master)
{
    for (int k = 0; k < WIDTHS; k++) {
        const uint32_t key = 10 * (uint32_t)k;
        const size_t state = (size_t)SLOTS * widths[k].cols, all = (size_t)ROWS * widths[k].cols;
        s->param[k] = random_array(all, key + 1);
        s->window[k] = random_array(all, key + 2);
        s->waiting[k] = random_array(state, key + 6);
        s->m[k] = random_array(state, key + 3);
        s->v[k] = random_array(state, key + 4);
        s->master[k] = own_master ? random_array(state, key + 5) : NULL;
        for (size_t i = 0; i < state; i++)
            s->v[k][i] = fabsf(s->v[k][i]);
        s->rows[k] = (struct matrix_rows){.values = s->param[k],
                                          .waiting = s->waiting[k],
                                          .window = s->window[k],
                                          .master = s->master[k],
                                          .m = s->m[k],
                                          .v = s->v[k],
                                          .n_rows = widths[k].n_rows,
                                          .cols = widths[k].cols,
                                          .decays = widths[k].decays};
    }
    make_updates(s);
    matrix_batch_number(s->rows, WIDTHS);
    s->batch = matrix_batch_part(s->rows, s->rows, 0, WIDTHS);
}

static void slots_destroy(struct slots *s)
{
    for (int k = 0; k < WIDTHS; k++) {
        free(s->param[k]);
        free(s->waiting[k]);
        free(s->window[k]);
        free(s->m[k]);
        free(s->v[k]);
        free(s->master[k]);
    }
}

static double adamw_element(const struct adamw *rule, double p, double m, double v, double g,
                            double updates)
{
    if (rule->l2)
        g += rule->weight_decay * p;
    else
        p -= rule->lr * rule->weight_decay * p;
    m = rule->beta1 * m + (1 - rule->beta1) * g;
    v = rule->beta2 * v + (1 - rule->beta2) * g * g;
    m /= 1 - pow(rule->beta1, updates);
    v /= 1 - pow(rule->beta2, updates);
    return p - rule->lr * m / (sqrt(v) + rule->eps);
}

static void check_update(const struct slots *before, const struct slots *after,
                         const struct channel_update *u, enum row_source source, struct adamw rule,
                         double scale, bool bf16)
{
    const int k = u->matrix, cols = widths[k].cols;
    rule.weight_decay = widths[k].decays ? rule.weight_decay : 0;
    for (int j = 0; j < cols; j++) {
        const int at = u->row * cols + j, state = u->slot * cols + j;
        const double g =
            scale * (source == ROWS_GRADIENT ? before->waiting[k][state] : before->window[k][at]);
        const double p = before->master[k] ? before->master[k][state] : before->param[k][at];
        const float got = after->master[k] ? after->master[k][state] : after->param[k][at];
        assert_near(
            "master", got,
            adamw_element(&rule, p, before->m[k][state], before->v[k][state], g, u->updates + 1.0),
            1e-6);
        const float seen = bf16 ? bf16_to_f32(bf16_parameter(got)) : got;
        assert_memory_equal(after->param[k] + at, &seen, sizeof seen);
        const double g_m = rule.l2 ? g + rule.weight_decay * p : g;
        assert_near("m", after->m[k][state],
                    rule.beta1 * before->m[k][state] + (1 - rule.beta1) * g_m, 1e-6);
        assert_near("v", after->v[k][state],
                    rule.beta2 * before->v[k][state] + (1 - rule.beta2) * g_m * g_m, 1e-6);
    }
}

/* Slots of state, or rows of parameters, that no update is for. */
static void check_untouched(const struct slots *before, const struct slots *after, bool skipped)
{
    for (int k = 0; k < WIDTHS; k++) {
        const size_t cols = (size_t)widths[k].cols, bytes = sizeof(float) * cols;
        bool slot[SLOTS] = {false}, row[ROWS] = {false};
        if (!skipped)
            for (int i = 0; i < before->n; i++)
                if (before->updates[i].matrix == k)
                    slot[before->updates[i].slot] = row[before->updates[i].row] = true;
        for (size_t i = 0; i < SLOTS; i++) {
            if (slot[i])
                continue;
            assert_memory_equal(after->m[k] + i * cols, before->m[k] + i * cols, bytes);
            assert_memory_equal(after->v[k] + i * cols, before->v[k] + i * cols, bytes);
            if (after->master[k])
                assert_memory_equal(after->master[k] + i * cols, before->master[k] + i * cols,
                                    bytes);
        }
        for (size_t i = 0; i < ROWS; i++)
            if (!row[i])
                assert_memory_equal(after->param[k] + i * cols, before->param[k] + i * cols, bytes);
    }
}

static void adamw_with(bool own_master, bool bf16, bool l2, enum row_source source, float scale)
{
    const struct adamw rule = {.lr = 0.01f,
                               .beta1 = 0.9f,
                               .beta2 = 0.99f,
                               .eps = 1e-8f,
                               .weight_decay = 0.1f,
                               .correction1 = NAN,
                               .correction2 = NAN,
                               .l2 = l2};
    struct slots before, after;
    slots_create(&before, own_master);
    slots_create(&after, own_master);
    for (int k = 0; k < WIDTHS; k++) /* of the other source there is nothing to be had */
        *(source == ROWS_GRADIENT ? &after.rows[k].window : &after.rows[k].waiting) = NULL;
    ROW_OPS->adamw_rows(COMPUTE, &after.batch, after.updates, after.n, source, &rule, &scale, bf16);
    for (int i = 0; i < after.n; i++) {
        const struct channel_update *u = &before.updates[i];
        assert_int_equal(after.updates[i].updates, u->updates + (scale != 0));
        if (scale != 0)
            check_update(&before, &after, u, source, rule, scale, bf16);
    }
    check_untouched(&before, &after, scale == 0);
    slots_destroy(&before);
    slots_destroy(&after);
}

static void adamw_on_rows(void **state)
{
    (void)state;
    for (int form = 0; form < 8; form++)
        adamw_with(form & 1, (form & 3) == 3, form & 4, form & 2 ? ROWS_WINDOW : ROWS_GRADIENT,
                   0.5f);
}

static void adamw_skips_a_step(void **state)
{
    (void)state;
    adamw_with(false, false, false, ROWS_GRADIENT, 0);
    adamw_with(true, true, false, ROWS_WINDOW, 0);
}

/* Norms and what they say. */

static void norms_are_summed_up(void **state)
{
    (void)state;
    static const float limits[] = {0, 1e-3f, 1e6f};
    enum { N = 5000 };
    float *sums = random_array(N, 1);
    unsigned char place[N];
    double all = 0, important = 0, selectable = 0;
    for (int i = 0; i < N; i++) {
        sums[i] *= sums[i];
        place[i] = (unsigned char)(random_bits(i, 2) % CHANNEL_PLACES);
        all += sums[i];
        important += place[i] == CHANNEL_IMPORTANT || place[i] == CHANNEL_ENTERING ? sums[i] : 0;
        selectable += place[i] == CHANNEL_RESIDENT ? 0 : sums[i];
    }
    struct norm_summary got;
    for (int i = 0; i < 3; i++) {
        ROW_OPS->summarise_norms(COMPUTE, &got, sums, place, N, limits[i]);
        assert_near("the norm", got.norm, sqrt(all), 1e-6);
        assert_near("the factor", got.factor, i == 1 ? limits[1] / (sqrt(all) + 1e-6) : 1, 1e-7);
        assert_true(fabs(got.important - important) < 1e-9 * important);
        assert_true(fabs(got.selectable - selectable) < 1e-9 * selectable);
    }
    const float bad[] = {INFINITY, NAN};
    for (int i = 0; i < 2; i++) {
        sums[N - 1] = bad[i];
        ROW_OPS->summarise_norms(COMPUTE, &got, sums, place, N, limits[i]);
        assert_true(!isfinite(got.norm) && got.factor == 0);
    }
    ROW_OPS->summarise_norms(COMPUTE, &got, sums, place, 0, 1);
    assert_true(got.norm == 0 && got.factor == 1 && got.important == 0 && got.selectable == 0);
    free(sums);
}

/* Is i among the k greatest: fewer than k are greater, or as great and before it. */
static bool among_greatest(const float *sums, int n, int k, int i)
{
    int before = 0;
    for (int j = 0; j < n; j++)
        before += sums[j] > sums[i] || (sums[j] == sums[i] && j < i);
    return before < k;
}

static void greatest_rows_are_chosen(void **state)
{
    (void)state;
    enum { N = 501 };
    unsigned char chosen[N];
    float sums[N];
    for (int distinct = 0; distinct < 2; distinct++) {
        for (int i = 0; i < N; i++) /* first in five values only, zero among them */
            sums[i] =
                distinct ? philox_uniform(random_bits(i, 4)) : (float)(random_bits(i, 3) % 5) / 3;
        static const int counts[] = {0, 1, 7, 250, N - 1, N};
        for (int c = 0; c < 6; c++) {
            memset(chosen, 9, sizeof chosen);
            ROW_OPS->select_rows(COMPUTE, chosen, sums, N, counts[c]);
            for (int i = 0; i < N; i++)
                assert_int_equal(chosen[i], among_greatest(sums, N, counts[c], i));
        }
    }
}

/* The same bits on any number of threads. */
static void same_bits_on_any_threads(void **state)
{
    (void)state;
    const struct adamw rule = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    const float scale = 0.3f;
    struct slots one, more, *both[] = {&one, &more};
    for (int i = 0; i < 2; i++) {
        struct slots *s = both[i];
        slots_create(s, true);
        device = device_cpu(i ? 3 : 1);
        ROW_OPS->adamw_rows(COMPUTE, &s->batch, s->updates, s->n, ROWS_GRADIENT, &rule, &scale,
                            true);
    }
    device = device_cpu(2);
    for (int k = 0; k < WIDTHS; k++) {
        const size_t cols = (size_t)widths[k].cols;
        assert_memory_equal(one.param[k], more.param[k], sizeof(float) * ROWS * cols);
        assert_memory_equal(one.master[k], more.master[k], sizeof(float) * SLOTS * cols);
    }
    assert_memory_equal(one.updates, more.updates, sizeof *one.updates * (size_t)one.n);
    slots_destroy(&one);
    slots_destroy(&more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_on_rows),
        cmocka_unit_test(adamw_skips_a_step),
        cmocka_unit_test(norms_are_summed_up),
        cmocka_unit_test(greatest_rows_are_chosen),
        cmocka_unit_test(same_bits_on_any_threads),
    };
    return cmocka_run_group_tests_name("ops_adamw", tests, set_up, NULL);
}
