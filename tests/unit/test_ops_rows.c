/* model/cpu: the operators that the ZenFlow engine works with, each against a plain version of it
 * in double precision: norms and what they say, selection, AdamW on rows, and rows that gather,
 * leave and arrive, with every byte outside the set of rows untouched. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "data/rng.h"
#include "model/ops.h"

#include <math.h>

static struct device *device;
#define OPS     (device->ops)
#define COMPUTE (device->compute)

static int set_up(void **state)
{
    (void)state;
    device = device_cpu(2);
    return 0;
}

static uint32_t random_bits(size_t i, uint32_t key)
{
    return philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 2).v[0];
}

static float *random_array(size_t n, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * philox_uniform(random_bits(i, key)) - 1;
    return x;
}

static void *copy_of(const void *x, size_t bytes)
{
    return memcpy(zf_malloc_aligned(bytes), x, bytes);
}

static void assert_near(const char *what, float x, double expected, double tolerance)
{
    if (!(fabs(x - expected) <= tolerance * (1 + fabs(expected))))
        fail_msg("%s is %.9g, expected %.9g", what, x, expected);
}

/* AdamW on rows. */

enum { SLOTS = 41, ROWS = 60 };

/* Slots' rows: some have none, the others differ. */
static void make_slots(int *row, uint32_t *updates)
{
    for (int i = 0; i < SLOTS; i++) {
        row[i] = i % 7 == 3 ? -1 : (i * 17 + 5) % ROWS;
        updates[i] = i < 10 ? (uint32_t)i % 2 : 1000 * (uint32_t)i;
    }
}

struct slots {
    float *param, *master, *m, *v, *gradient;
    int row[SLOTS], cols;
    uint32_t updates[SLOTS];
};

static struct slots slots_create(int cols, bool own_master)
{
    struct slots s = {.cols = cols};
    const size_t state = (size_t)SLOTS * cols, all = (size_t)ROWS * cols;
    s.param = random_array(all, 1);
    s.gradient = random_array(all, 2);
    s.m = random_array(state, 3);
    s.v = random_array(state, 4);
    s.master = own_master ? random_array(state, 5) : NULL;
    for (size_t i = 0; i < state; i++)
        s.v[i] = fabsf(s.v[i]);
    make_slots(s.row, s.updates);
    return s;
}

static void slots_destroy(struct slots *s)
{
    free(s->param);
    free(s->gradient);
    free(s->m);
    free(s->v);
    free(s->master);
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

static void check_slot(const struct slots *before, const struct slots *after, int slot,
                       const struct adamw *rule, double scale, bool bf16)
{
    const int cols = before->cols;
    for (int j = 0; j < cols; j++) {
        const int at = before->row[slot] * cols + j, state = slot * cols + j;
        const double g = scale * before->gradient[at];
        const double p = before->master ? before->master[state] : before->param[at];
        const float got = after->master ? after->master[state] : after->param[at];
        assert_near("master", got,
                    adamw_element(rule, p, before->m[state], before->v[state], g,
                                  before->updates[slot] + 1.0),
                    1e-6);
        const float seen = bf16 ? bf16_to_f32(bf16_from_f32(got)) : got;
        assert_memory_equal(after->param + at, &seen, sizeof seen);
        const double g_m = rule->l2 ? g + rule->weight_decay * p : g;
        assert_near("m", after->m[state], rule->beta1 * before->m[state] + (1 - rule->beta1) * g_m,
                    1e-6);
        assert_near("v", after->v[state],
                    rule->beta2 * before->v[state] + (1 - rule->beta2) * g_m * g_m, 1e-6);
    }
}

static void adamw_with(int cols, bool own_master, bool bf16, bool l2, float scale)
{
    const struct adamw rule = {.lr = 0.01f,
                               .beta1 = 0.9f,
                               .beta2 = 0.99f,
                               .eps = 1e-8f,
                               .weight_decay = 0.1f,
                               .correction1 = NAN,
                               .correction2 = NAN,
                               .l2 = l2};
    struct slots before = slots_create(cols, own_master), after = slots_create(cols, own_master);
    const size_t row_bytes = sizeof(float) * (size_t)cols;
    bool written[ROWS] = {false};
    OPS->adamw_rows(COMPUTE, after.param, after.master, after.m, after.v, after.gradient, after.row,
                    after.updates, SLOTS, cols, &rule, &scale, bf16);
    for (int i = 0; i < SLOTS; i++) {
        const bool updated = after.row[i] >= 0 && scale != 0;
        assert_int_equal(after.updates[i], before.updates[i] + updated);
        if (updated) {
            written[after.row[i]] = true;
            check_slot(&before, &after, i, &rule, scale, bf16);
            continue;
        }
        const size_t at = (size_t)i * cols;
        assert_memory_equal(after.m + at, before.m + at, row_bytes);
        assert_memory_equal(after.v + at, before.v + at, row_bytes);
        if (own_master)
            assert_memory_equal(after.master + at, before.master + at, row_bytes);
    }
    for (int i = 0; i < ROWS; i++)
        if (!written[i])
            assert_memory_equal(after.param + i * cols, before.param + i * cols, row_bytes);
    slots_destroy(&before);
    slots_destroy(&after);
}

static void adamw_on_rows(void **state)
{
    (void)state;
    static const int widths[] = {1, 37, 700};
    for (int i = 0; i < 3; i++)
        for (int form = 0; form < 8; form++)
            adamw_with(widths[i], form & 1, (form & 3) == 3, form & 4, 0.5f);
}

static void adamw_skips_a_step(void **state)
{
    (void)state;
    adamw_with(37, false, false, false, 0);
    adamw_with(37, true, true, false, 0);
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
        place[i] = (unsigned char)(random_bits(i, 2) % 4);
        all += sums[i];
        important += place[i] == CHANNEL_IMPORTANT ? sums[i] : 0;
        selectable += place[i] == CHANNEL_RESIDENT ? 0 : sums[i];
    }
    struct norm_summary got;
    for (int i = 0; i < 3; i++) {
        OPS->summarise_norms(COMPUTE, &got, sums, place, N, limits[i]);
        assert_near("the norm", got.norm, sqrt(all), 1e-6);
        assert_near("the factor", got.factor, i == 1 ? limits[1] / (sqrt(all) + 1e-6) : 1, 1e-7);
        assert_true(fabs(got.important - important) < 1e-9 * important);
        assert_true(fabs(got.selectable - selectable) < 1e-9 * selectable);
    }
    const float bad[] = {INFINITY, NAN};
    for (int i = 0; i < 2; i++) {
        sums[N - 1] = bad[i];
        OPS->summarise_norms(COMPUTE, &got, sums, place, N, limits[i]);
        assert_true(!isfinite(got.norm) && got.factor == 0);
    }
    OPS->summarise_norms(COMPUTE, &got, sums, place, 0, 1);
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
            OPS->select_rows(COMPUTE, chosen, sums, N, counts[c]);
            for (int i = 0; i < N; i++)
                assert_int_equal(chosen[i], among_greatest(sums, N, counts[c], i));
        }
    }
}

/* Rows that gather, leave and arrive. */

struct rows_case {
    int cols, shift, n_groups;
    uint64_t groups, fresh;
    bool with_leaving;
};

static const struct rows_case rows_cases[] = {
    {33, 2, 4, 0x5, 0x4, false}, {64, 63, 64, 0x8000000000000003, 0x2, true},
    {1, 0, 1, 1, 1, true},       {333, 5, 3, 7, 0, true},
    {7, 1, 3, 0, 7, false},
};

enum { SET_ROWS = 203 };

static struct channel_set set_of(const struct rows_case *c, unsigned char *place)
{
    for (int i = 0; i < SET_ROWS; i++)
        place[i] = (unsigned char)(random_bits(i, 7) % 4);
    return (struct channel_set){place, SET_ROWS, c->shift, c->n_groups, c->groups, c->with_leaving};
}

static int group_of(const struct rows_case *c, int row)
{
    return (row + c->shift) % c->n_groups;
}

static bool is_in(const struct rows_case *c, const unsigned char *place, int row)
{
    return (c->groups >> group_of(c, row) & 1) &&
           (place[row] == CHANNEL_DEFERRED || (place[row] == CHANNEL_LEAVING && c->with_leaving));
}

static void rows_gather(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof rows_cases / sizeof *rows_cases; k++) {
        const struct rows_case *c = &rows_cases[k];
        unsigned char place[SET_ROWS];
        const struct channel_set set = set_of(c, place);
        const size_t n = (size_t)SET_ROWS * c->cols;
        float *window = random_array(n, 1), *gradient = random_array(n, 2);
        float *before = copy_of(window, sizeof(float) * n);
        const float scale = 0.25f, skipped = 0;
        gradient[0] = NAN;
        OPS->accumulate_rows(COMPUTE, window, gradient, &set, c->fresh, c->cols, &skipped);
        assert_memory_equal(window, before, sizeof(float) * n);
        gradient[0] = 1;
        OPS->accumulate_rows(COMPUTE, window, gradient, &set, c->fresh, c->cols, &scale);
        for (size_t i = 0; i < n; i++) {
            const int row = (int)(i / (size_t)c->cols);
            const bool fresh = c->fresh >> group_of(c, row) & 1;
            const double sum = (fresh ? 0 : (double)before[i]) + 0.25 * gradient[i];
            if (is_in(c, place, row))
                assert_near("window", window[i], sum, 1e-7);
            else
                assert_memory_equal(window + i, before + i, sizeof *window);
        }
        free(window);
        free(gradient);
        free(before);
    }
}

static void rows_leave(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof rows_cases / sizeof *rows_cases; k++) {
        const struct rows_case *c = &rows_cases[k];
        unsigned char place[SET_ROWS];
        const struct channel_set set = set_of(c, place);
        const size_t n = (size_t)SET_ROWS * c->cols;
        float *src = random_array(n, 1), *f32 = random_array(n, 2), *half = random_array(n, 3);
        float *f32_before = copy_of(f32, 4 * n);
        uint16_t *half_before = copy_of(half, 2 * n), *bf16 = (uint16_t *)half;
        OPS->send_rows(COMPUTE, f32, DTYPE_F32, src, &set, c->cols, 3);
        OPS->send_rows(COMPUTE, bf16, DTYPE_BF16, src, &set, c->cols, 3);
        for (size_t i = 0; i < n; i++) {
            const bool in = is_in(c, place, (int)(i / (size_t)c->cols));
            assert_true(f32[i] == (in ? src[i] / 3 : f32_before[i]));
            assert_true(bf16[i] == (in ? bf16_from_f32(src[i] / 3) : half_before[i]));
        }
        free(src);
        free(f32);
        free(half);
        free(f32_before);
        free(half_before);
    }
}

static void rows_arrive(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof rows_cases / sizeof *rows_cases; k++) {
        const struct rows_case *c = &rows_cases[k];
        unsigned char place[SET_ROWS];
        const struct channel_set set = set_of(c, place);
        const size_t n = (size_t)SET_ROWS * c->cols;
        float *src = random_array(n, 1), *param = random_array(n, 2);
        float *before = copy_of(param, sizeof(float) * n);
        uint16_t *bf16 = zf_malloc(sizeof *bf16 * n);
        for (size_t i = 0; i < n; i++)
            bf16[i] = bf16_from_f32(-src[i]);
        for (int f32 = 0; f32 < 2; f32++) {
            OPS->receive_rows(COMPUTE, param, f32 ? (void *)src : bf16,
                              f32 ? DTYPE_F32 : DTYPE_BF16, &set, c->cols);
            for (size_t i = 0; i < n; i++) {
                const float arrived = f32 ? src[i] : bf16_to_f32(bf16[i]);
                const bool in = is_in(c, place, (int)(i / (size_t)c->cols));
                assert_true(param[i] == (in ? arrived : before[i]));
            }
        }
        free(src);
        free(param);
        free(before);
        free(bf16);
    }
}

static void rows_are_copied(void **state)
{
    (void)state;
    static const size_t widths[] = {2, 6, 64, 4094};
    enum { N = 23, FROM = 40 };
    int to[N], from[N];
    for (int i = 0; i < N; i++) {
        to[i] = (i * 7 + 3) % ROWS; /* rows of dst that differ */
        from[i] = (int)(random_bits(i, 5) % FROM);
    }
    for (int k = 0; k < 16; k++) {
        const size_t width = widths[k % 4];
        const int *dst_row = k & 4 ? to : NULL, *src_row = k & 8 ? from : NULL;
        char *src = (char *)random_array(width * FROM / 4, 1);
        char *dst = (char *)random_array(width * ROWS / 4, 2);
        char *expected = copy_of(dst, width * ROWS);
        for (int i = 0; i < N; i++)
            memcpy(expected + width * (size_t)(dst_row ? dst_row[i] : i),
                   src + width * (size_t)(src_row ? src_row[i] : i), width);
        OPS->copy_rows(COMPUTE, dst, dst_row, src, src_row, N, width);
        assert_memory_equal(dst, expected, width * ROWS);
        free(src);
        free(dst);
        free(expected);
    }
}

/* No operator touches anything where there are no rows. */
static void nothing_of_nothing(void **state)
{
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    const struct adamw rule = {0};
    const struct channel_set none = {(unsigned char *)x, 0, 0, 1, 1, true};
    memcpy(y, x, sizeof x);
    OPS->adamw_rows(COMPUTE, x, x, x, x, x, (int *)x, (uint32_t *)x, 0, 4, &rule, x, false);
    OPS->accumulate_rows(COMPUTE, x, x, &none, 0, 4, x);
    OPS->send_rows(COMPUTE, x, DTYPE_F32, x, &none, 4, 2);
    OPS->receive_rows(COMPUTE, x, x, DTYPE_F32, &none, 4);
    OPS->copy_rows(COMPUTE, x, NULL, x, NULL, 0, 4);
    OPS->select_rows(COMPUTE, (unsigned char *)x, x, 0, 0);
    assert_memory_equal(x, y, sizeof x);
}

/* The same bits on any number of threads. */
static void same_bits_on_any_threads(void **state)
{
    (void)state;
    enum { C = 700, N = SLOTS * C };
    const struct adamw rule = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    const float scale = 0.3f;
    struct slots one = slots_create(C, true), more = slots_create(C, true);
    struct slots *both[] = {&one, &more};
    for (int i = 0; i < 2; i++) {
        struct slots *s = both[i];
        device = device_cpu(i ? 3 : 1);
        OPS->adamw_rows(COMPUTE, s->param, s->master, s->m, s->v, s->gradient, s->row, s->updates,
                        SLOTS, C, &rule, &scale, true);
    }
    device = device_cpu(2);
    assert_memory_equal(one.param, more.param, sizeof(float) * ROWS * C);
    assert_memory_equal(one.master, more.master, sizeof(float) * N);
    assert_memory_equal(one.updates, more.updates, sizeof one.updates);
    slots_destroy(&one);
    slots_destroy(&more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_on_rows),       cmocka_unit_test(adamw_skips_a_step),
        cmocka_unit_test(norms_are_summed_up), cmocka_unit_test(greatest_rows_are_chosen),
        cmocka_unit_test(rows_gather),         cmocka_unit_test(rows_leave),
        cmocka_unit_test(rows_arrive),         cmocka_unit_test(rows_are_copied),
        cmocka_unit_test(nothing_of_nothing),  cmocka_unit_test(same_bits_on_any_threads),
    };
    return cmocka_run_group_tests_name("ops_rows", tests, set_up, NULL);
}
