/* offload/host/adam.h and memory.h: the rule, against double precision and PyTorch's optimizers;
 * bit equality of all instruction sets and all ways of cutting; what must not be touched; that the
 * engine's groups cost no speed. */
#include "tests/seed.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "data/clock.h"
#include "data/rng.h"
#include "data/safetensors.h"
#include "offload/host/adam.h"
#include "offload/host/memory.h"
#include "offload/host/workers.h"

#include <math.h>

static const struct adamw adamw_rule = {
    .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f};

static uint32_t random_bits(uint32_t seed, size_t i)
{
    return philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, seed, 1).v[0];
}

static float random_float(uint32_t seed, size_t i)
{
    return 2 * philox_uniform(random_bits(seed, i)) - 1;
}

/* What is exchanged of a matrix, (rows, cols), lies behind its counts. */
static void *exchange_of(const struct host_adam_matrix *a)
{
    return a->updates + a->rows;
}

static struct host_adam_matrix matrix_create(size_t rows, size_t cols, enum dtype dtype,
                                             uint32_t seed)
{
    size_t n = rows * cols;
    struct host_adam_matrix a = {.rows = rows,
                                 .cols = cols,
                                 .dtype = dtype,
                                 .parameters = zf_calloc(n, dtype_size(dtype)),
                                 .remainders = dtype == DTYPE_BF16 ? zf_calloc(n, 2) : NULL,
                                 .m = zf_calloc(n, 4),
                                 .v = zf_calloc(n, 4),
                                 .updates = zf_calloc(rows + n, 4)};
    uint16_t *bf16 = exchange_of(&a);
    float *f32 = exchange_of(&a);
    for (size_t i = 0; i < n; i++) {
        float gradient = random_float(seed, 4 * i) * powf(10, 4 * random_float(seed + 1, i));
        const float master = random_float(seed, 4 * i + 1);
        host_adam_write_masters(&a, i, 1, NULL, &master);
        a.m[i] = 0.1f * random_float(seed, 4 * i + 2);
        a.v[i] = 0.01f * fabsf(random_float(seed, 4 * i + 3));
        if (dtype == DTYPE_BF16)
            bf16[i] = (uint16_t)(f32_bits(gradient) >> 16);
        else
            f32[i] = gradient;
    }
    return a;
}

/* (rows, cols), the caller's */
static float *masters_of(const struct host_adam_matrix *a)
{
    const size_t n = a->rows * a->cols;
    float *masters = zf_malloc(sizeof *masters * n);
    host_adam_read_masters(a, 0, n, NULL, masters);
    return masters;
}

static void update(enum host_adam_path path, const struct host_adam_matrix *a, size_t row0,
                   size_t row1, const struct adamw *rule, float gradient_scale)
{
    char *exchange = (char *)exchange_of(a) + row0 * a->cols * dtype_size(a->dtype);
    host_adam_update(path, a, row0, row1, exchange, rule, gradient_scale, 1, true);
}

/* The same, for updates that stand for several steps. */
static void update_steps(enum host_adam_path path, const struct host_adam_matrix *a,
                         const struct adamw *rule, float gradient_scale, int steps)
{
    host_adam_update(path, a, 0, a->rows, exchange_of(a), rule, gradient_scale, steps, true);
}

static void matrix_free(struct host_adam_matrix *a)
{
    free(a->parameters);
    free(a->remainders);
    free(a->m);
    free(a->v);
    free(a->updates);
}

/* Equal bits, or both NaN: which NaN an operation gives is the processor's affair. */
static void assert_same_floats(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (f32_bits(a[i]) != f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("element %zu is %a (%08x), not %a (%08x)", i, (double)a[i], f32_bits(a[i]),
                     (double)b[i], f32_bits(b[i]));
}

static void assert_same_matrix(const struct host_adam_matrix *a, const struct host_adam_matrix *b)
{
    size_t n = a->rows * a->cols;
    float *x = masters_of(a), *y = masters_of(b);
    assert_same_floats(x, y, n);
    assert_same_floats(a->m, b->m, n);
    assert_same_floats(a->v, b->v, n);
    assert_memory_equal(a->updates, b->updates, a->rows * sizeof *a->updates);
    if (a->dtype == DTYPE_F32) {
        assert_same_floats(exchange_of(a), exchange_of(b), n);
    } else {
        assert_memory_equal(exchange_of(a), exchange_of(b), 2 * n);
        assert_memory_equal(a->parameters, b->parameters, 2 * n);
    }
    free(x);
    free(y);
}

/* Zeros, denormals, the largest numbers, infinities, NaNs, and anything else. */
static float special_float(uint32_t seed, size_t i)
{
    static const uint32_t special[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff,
                                       0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                       0x7fc00000, 0x7f800001, 0x3f808000, 0x3f818000, 0x7f7f8000};
    uint32_t bits = random_bits(seed, i);
    size_t n = sizeof special / sizeof *special;
    return bits % 4 ? f32_of_bits(random_bits(seed + 1, i)) : f32_of_bits(special[bits / 4 % n]);
}

static void make_special(struct host_adam_matrix *a, uint32_t seed)
{
    for (size_t i = 0; i < a->rows * a->cols; i++) {
        const uint32_t gradient = f32_bits(special_float(seed, 4 * i));
        const float master = special_float(seed, 4 * i + 1);
        host_adam_write_masters(a, i, 1, NULL, &master);
        a->m[i] = special_float(seed, 4 * i + 2);
        a->v[i] = fabsf(special_float(seed, 4 * i + 3));
        if (a->dtype == DTYPE_BF16)
            ((uint16_t *)exchange_of(a))[i] = (uint16_t)(gradient >> 16);
        else
            ((float *)exchange_of(a))[i] = f32_of_bits(gradient);
    }
}

static void assert_masters_come_back(const struct host_adam_matrix *a, const float *masters)
{
    const size_t n = a->rows * a->cols;
    host_adam_write_masters(a, 0, n, NULL, masters);
    float *back = masters_of(a);
    assert_same_floats(back, masters, n);
    free(back);
}

/* Lower halves: in the long ring all, round by round; else the edges, then random ones. */
static uint32_t lower_half(uint32_t round, size_t i)
{
    static const uint32_t edges[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    if (in_long_ring())
        return round;
    return round < sizeof edges / sizeof *edges ? edges[round] : random_bits(round, i) >> 16;
}

/* Every fp32 value is a parameter and a remainder, and these are it again, to the bit; a NaN is a
 * NaN's parameter and comes back as a NaN. */
static void masters_come_back(void **state)
{
    (void)state;
    struct host_adam_matrix a = matrix_create(256, 256, DTYPE_BF16, 0);
    const size_t n = a.rows * a.cols; /* one for each upper half */
    float *masters = zf_malloc(sizeof *masters * n);
    const uint32_t rounds = in_long_ring() ? 0x10000 : 60;
    for (uint32_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < n; i++)
            masters[i] = f32_of_bits((uint32_t)i << 16 | lower_half(round, i));
        assert_masters_come_back(&a, masters);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(((uint16_t *)a.parameters)[i] == 0x7fc0, isnan(masters[i]) != 0);
    }
    free(masters);
    matrix_free(&a);
}

static void compare_path(enum host_adam_path path, enum dtype dtype, size_t rows, size_t cols,
                         bool special, uint32_t seed)
{
    struct host_adam_matrix expected = matrix_create(rows, cols, dtype, seed);
    struct host_adam_matrix got = matrix_create(rows, cols, dtype, seed);
    struct adamw rule = adamw_rule;
    rule.l2 = seed % 2;
    const int steps = seed % 3 ? 1 : 1 + (int)(seed / 3) % 6;
    float *norms = zf_malloc(sizeof *norms * rows);
    for (size_t i = 0; i < rows; i++)
        norms[i] = fabsf(special ? special_float(seed + 1, i) : 1e4f * random_float(seed, i));
    expected.norms = got.norms = norms;
    if (special) {
        make_special(&expected, seed);
        make_special(&got, seed);
    }
    for (size_t i = 0; i < rows; i++)
        expected.updates[i] = got.updates[i] = random_bits(seed, i) % 3;
    for (int step = 0; step < 3; step++) {
        update_steps(HOST_ADAM_PORTABLE, &expected, &rule, 0.37f, steps);
        update_steps(path, &got, &rule, 0.37f, steps);
        assert_same_matrix(&got, &expected);
    }
    free(norms);
    matrix_free(&expected);
    matrix_free(&got);
}

static void paths_agree_to_the_bit(void **state)
{
    (void)state;
    assert_true(host_adam_path_runs(HOST_ADAM_PORTABLE));
    assert_true(host_adam_path_runs(host_adam_best_path()));
    for (int path = 0; path < HOST_ADAM_N_PATHS; path++) {
        if (!host_adam_path_runs(path)) {
            print_message("skipped: no %s here\n", host_adam_path_name(path));
            continue;
        }
        for (uint32_t seed = 0; seed < 70; seed++)
            for (int special = 0; special < 2; special++) {
                compare_path(path, DTYPE_BF16, 1 + seed % 5, 1 + seed, special, seed);
                compare_path(path, DTYPE_F32, 1 + seed % 5, 1 + seed, special, seed);
            }
        compare_path(path, DTYPE_BF16, 100, 1000, true, 100);
        compare_path(path, DTYPE_F32, 100, 1000, true, 100);
    }
}

/* With the same gradients the masters of bf16 parameters are those of fp32 ones, to the bit, after
 * many steps. */
static void remainders_lose_nothing(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 37, STEPS = 200 };
    for (int path = 0; path < HOST_ADAM_N_PATHS; path++) {
        if (!host_adam_path_runs(path))
            continue;
        struct host_adam_matrix half = matrix_create(ROWS, COLS, DTYPE_BF16, 11);
        struct host_adam_matrix whole = matrix_create(ROWS, COLS, DTYPE_F32, 11);
        for (uint32_t step = 0; step < STEPS; step++) {
            for (size_t i = 0; i < ROWS * COLS; i++) {
                const uint16_t gradient = bf16_from_f32(random_float(step, i));
                ((uint16_t *)exchange_of(&half))[i] = gradient;
                ((float *)exchange_of(&whole))[i] = bf16_to_f32(gradient);
            }
            update(path, &half, 0, ROWS, &adamw_rule, 1);
            update(path, &whole, 0, ROWS, &adamw_rule, 1);
        }
        float *masters = masters_of(&half);
        assert_memory_equal(masters, whole.parameters, sizeof(float) * ROWS * COLS);
        free(masters);
        matrix_free(&half);
        matrix_free(&whole);
    }
}

/* To the nearer of the two neighbours, by their distance in double precision; from the middle to
 * the greater in magnitude. */
static uint16_t nearest_bf16(float value)
{
    uint32_t bits = f32_bits(value), down = bits >> 16, up = down + 1;
    if (isnan(value))
        return 0x7fc0;
    if (isinf(value))
        return (uint16_t)down;
    double low = fabs((double)f32_of_bits(down << 16)), x = fabs((double)value);
    double high = (up & 0x7fff) == 0x7f80 ? 0x1p128 : fabs((double)f32_of_bits(up << 16));
    if (x - low == high - x)
        return (uint16_t)up;
    return (uint16_t)(x - low < high - x ? down : up);
}

/* With a learning rate of zero the master values are written as they are. */
static void rounds_to_nearest(void **state)
{
    (void)state;
    struct adamw rule = adamw_rule;
    rule.lr = 0;
    for (int path = 0; path < HOST_ADAM_N_PATHS; path++) {
        if (!host_adam_path_runs(path))
            continue;
        struct host_adam_matrix a = matrix_create(64, 1024, DTYPE_BF16, 5);
        size_t n = a.rows * a.cols;
        memset(exchange_of(&a), 0, 2 * n);
        /* Every high half meets a random low half, a tie, and both neighbours of a tie. */
        for (int low = 0; low < 4; low++) {
            static const uint32_t lows[] = {0x7fff, 0x8000, 0x8001};
            memset(a.m, 0, 4 * n);
            memset(a.v, 0, 4 * n);
            float *before = zf_malloc(4 * n);
            for (size_t i = 0; i < n; i++)
                before[i] = f32_of_bits((uint32_t)i << 16 |
                                        (low < 3 ? lows[low] : random_bits(9, i) & 0xffff));
            host_adam_write_masters(&a, 0, n, NULL, before);
            memset(exchange_of(&a), 0, 2 * n);
            update(path, &a, 0, a.rows, &rule, 1);
            float *after = masters_of(&a);
            assert_same_floats(after, before, n);
            free(after);
            for (size_t i = 0; i < n; i++) {
                uint16_t got = ((uint16_t *)exchange_of(&a))[i];
                if (got != nearest_bf16(before[i]))
                    fail_msg("%s: %08x becomes %04x, not %04x", host_adam_path_name(path),
                             f32_bits(before[i]), got, nearest_bf16(before[i]));
            }
            free(before);
        }
        matrix_free(&a);
    }
}

static void assert_close(double got, double expected, double tolerance, const char *what, size_t i)
{
    if (!(fabs(got - expected) <= tolerance * fmax(fabs(expected), 1e-12)))
        fail_msg("%s %zu is %.9g, not %.9g", what, i, got, expected);
}

/* model/device/ops.h's formula in double precision, each row with a count of its own. */
static void follows_the_formula(void **state)
{
    (void)state;
    for (int l2 = 0; l2 < 2; l2++) {
        struct adamw rule = adamw_rule;
        rule.l2 = l2;
        struct host_adam_matrix a = matrix_create(40, 33, DTYPE_F32, 3);
        struct host_adam_matrix old = matrix_create(40, 33, DTYPE_F32, 3);
        for (size_t i = 0; i < a.rows; i++)
            a.updates[i] = (uint32_t)(i < 30 ? i / 3 : 1000 * i * i);
        update(host_adam_best_path(), &a, 0, a.rows, &rule, 0.5f);
        const float *master = a.parameters, *old_master = old.parameters;
        for (size_t i = 0; i < a.rows * a.cols; i++) {
            double t = a.updates[i / a.cols], b1 = rule.beta1, b2 = rule.beta2;
            double p = old_master[i], g = 0.5 * ((float *)exchange_of(&old))[i];
            g += l2 ? rule.weight_decay * p : 0;
            double m = b1 * old.m[i] + (1 - b1) * g, v = b2 * old.v[i] + (1 - b2) * g * g;
            p -= l2 ? 0 : rule.lr * rule.weight_decay * p;
            double move =
                rule.lr * (m / (1 - pow(b1, t))) / (sqrt(v / (1 - pow(b2, t))) + rule.eps);
            assert_close(a.v[i], v, 1e-6, "v", i);
            assert_true(fabs(a.m[i] - m) <= 1e-6 * (fabs(b1 * old.m[i]) + fabs(g)));
            assert_true(fabs(master[i] - (p - move)) <= 1e-6 * (fabs(p) + fabs(move)));
            assert_int_equal(f32_bits(((float *)exchange_of(&a))[i]), f32_bits(master[i]));
        }
        for (size_t i = 0; i < a.rows; i++)
            assert_int_equal(a.updates[i], (i < 30 ? i / 3 : 1000 * i * i) + 1);
        matrix_free(&a);
        matrix_free(&old);
    }
}

/* An update that stands for several steps, in double precision: moments fade as over all of them,
 * and the second one gets the mean of the squared gradients, over the row. A row of which nothing
 * or nonsense is known is taken to have had the same gradient in every step. */
static void an_update_stands_for_steps(void **state)
{
    (void)state;
    enum { ROWS = 12, COLS = 33, STEPS = 4 };
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct host_adam_matrix a = matrix_create(ROWS, COLS, dtype, 3);
        struct host_adam_matrix old = matrix_create(ROWS, COLS, dtype, 3);
        float norms[ROWS], gradients[ROWS * COLS], spreads[ROWS];
        for (size_t i = 0; i < ROWS * COLS; i++)
            gradients[i] = bf16 ? bf16_to_f32(((uint16_t *)exchange_of(&a))[i])
                                : ((float *)exchange_of(&a))[i];
        for (size_t row = 0; row < ROWS; row++) {
            double of_mean = 0;
            for (size_t i = row * COLS; i < (row + 1) * COLS; i++)
                of_mean += 0.25 * gradients[i] * gradients[i];
            spreads[row] = row < 8 ? 1 + 0.7f * (float)row : 1;
            norms[row] = (float)(spreads[row] * of_mean);
            a.updates[row] = (uint32_t)(3 * row);
        }
        norms[8] = 0;
        norms[9] = INFINITY;
        norms[10] = 1e-30f;
        memset((char *)exchange_of(&a) + 11 * COLS * dtype_size(dtype), 0,
               COLS * dtype_size(dtype));
        memset(gradients + 11 * COLS, 0, sizeof(float) * COLS);
        a.norms = norms;
        update_steps(host_adam_best_path(), &a, &adamw_rule, 0.5f, STEPS);
        float *after = masters_of(&a), *before = masters_of(&old);
        for (size_t i = 0; i < ROWS * COLS; i++) {
            const double t = a.updates[i / COLS], lr = adamw_rule.lr, g = 0.5 * gradients[i];
            const double b1 = pow(adamw_rule.beta1, STEPS), b2 = pow(adamw_rule.beta2, STEPS);
            const double m = b1 * old.m[i] + (1 - b1) * g;
            const double v = b2 * old.v[i] + (1 - b2) * spreads[i / COLS] * g * g;
            const double move = lr * (m / (1 - pow(adamw_rule.beta1, t))) /
                                (sqrt(v / (1 - pow(adamw_rule.beta2, t))) + adamw_rule.eps);
            const double p = before[i] * (1 - lr * adamw_rule.weight_decay) - move;
            assert_int_equal(a.updates[i / COLS], 3 * (i / COLS) + STEPS);
            assert_close(a.v[i], v, 1e-5, "v", i);
            assert_true(fabs(a.m[i] - m) <= 1e-6 * (fabs(b1 * old.m[i]) + fabs(g)));
            assert_true(fabs(after[i] - p) <= 1e-5 * (fabs(before[i]) + fabs(move)));
        }
        free(after);
        free(before);
        matrix_free(&a);
        matrix_free(&old);
    }
}

/* Where a row has come to after so many gradients mu + sigma * noise, with updates that stand for
 * `steps` each and have their learning rates, or for one with its own. */
struct journey {
    double drift;  /* mean over the row, in learning rates a step */
    double spread; /* deviation from it, in learning rates a root of steps */
};

static struct journey travel(double mu, double sigma, int steps, bool stands)
{
    enum { COLS = 512, LENGTH = 800 };
    struct host_adam_matrix a = matrix_create(1, COLS, DTYPE_F32, 1);
    float norm = 0, *mean = exchange_of(&a), *at = a.parameters;
    float start[COLS] = {0}, sum[COLS] = {0};
    struct adamw rule = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-12f};
    rule.lr = (float)(1e-3 * (stands ? steps : 1));
    memset(at, 0, sizeof start);
    memset(a.m, 0, sizeof start);
    memset(a.v, 0, sizeof start);
    a.norms = &norm;
    for (int t = 0; t < LENGTH; t++) {
        double squares = 0;
        for (size_t i = 0; i < COLS; i++) {
            const double u = philox_uniform(random_bits(2 * (uint32_t)t + 1, i)) + 1e-9;
            const double w = philox_uniform(random_bits(2 * (uint32_t)t + 2, i));
            const float g = (float)(mu + sigma * sqrt(-2 * log(u)) * cos(6.283185307 * w));
            sum[i] += g;
            squares += (double)g * g;
        }
        norm += (float)(squares / steps);
        if (t == LENGTH / 2 - 1) /* what gathers is in; from here on the state is steady */
            memcpy(start, at, sizeof start);
        if ((t + 1) % steps != 0)
            continue;
        for (size_t i = 0; i < COLS; i++)
            mean[i] = sum[i] / (float)steps;
        update_steps(host_adam_best_path(), &a, &rule, 1, stands ? steps : 1);
        memset(sum, 0, sizeof sum);
        norm = 0;
    }
    double all = 0, squared = 0;
    for (size_t i = 0; i < COLS; i++) {
        const double moved = ((double)start[i] - at[i]) / 1e-3;
        all += moved / COLS;
        squared += moved * moved / COLS;
    }
    matrix_free(&a);
    return (struct journey){all / (LENGTH / 2), sqrt(fabs(squared - all * all) / (LENGTH / 2))};
}

/* Whether gradients are all signal, all noise or both: an update that stands for its steps goes as
 * far and spreads as wide as AdamW does with each of them. One step with their mean does not: it
 * goes 1 / S as far where they agree, and 1 / sqrt(S) where they do not. */
static void updates_go_as_far_as_their_steps(void **state)
{
    (void)state;
    static const double cases[][2] = {{1, 0}, {1, 0.5}, {1, 1}, {0.3, 1}, {0.1, 1}};
    static const int lengths[] = {4, 16};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (size_t l = 0; l < 2; l++) {
            const double mu = cases[k][0], sigma = cases[k][1], S = lengths[l];
            const struct journey adam = travel(mu, sigma, 1, true);
            const struct journey all = travel(mu, sigma, lengths[l], true);
            const struct journey one = travel(mu, sigma, lengths[l], false);
            if (fabs(all.drift / adam.drift - 1) > 0.04 ||
                fabs(all.spread - adam.spread) > 0.1 * adam.spread + 1e-3)
                fail_msg("%g + %g noise, S = %g: drift %g and spread %g, but AdamW's are %g and %g",
                         mu, sigma, S, all.drift, all.spread, adam.drift, adam.spread);
            assert_in_range((int)(100 * one.drift / adam.drift), (int)(95 / S),
                            (int)(110 / sqrt(S)));
        }
}

/* Rows that are not deferred, and rows outside the range, keep every bit; the others are as without
 * them. */
static void leaves_rows_alone(void **state)
{
    (void)state;
    enum { ROWS = 50, COLS = 21, FROM = 3, TO = 47 };
    unsigned char place[ROWS];
    for (int i = 0; i < ROWS; i++)
        place[i] = (unsigned char)(random_bits(2, (size_t)i) % CHANNEL_PLACES);
    for (int path = 0; path < HOST_ADAM_N_PATHS; path++)
        if (host_adam_path_runs(path))
            for (int bf16 = 0; bf16 < 2; bf16++) {
                enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
                struct host_adam_matrix a = matrix_create(ROWS, COLS, dtype, 4);
                struct host_adam_matrix all = matrix_create(ROWS, COLS, dtype, 4);
                struct host_adam_matrix old = matrix_create(ROWS, COLS, dtype, 4);
                a.place = place;
                update(path, &a, FROM, TO, &adamw_rule, 1);
                update(path, &all, 0, ROWS, &adamw_rule, 1);
                size_t row_bytes = COLS * dtype_size(dtype);
                for (size_t i = 0; i < ROWS; i++) {
                    bool kept = i < FROM || i >= TO || place[i] != CHANNEL_DEFERRED;
                    const struct host_adam_matrix *as = kept ? &old : &all;
                    assert_memory_equal((char *)a.parameters + i * row_bytes,
                                        (char *)as->parameters + i * row_bytes, row_bytes);
                    if (bf16)
                        assert_memory_equal(a.remainders + i * COLS, as->remainders + i * COLS,
                                            2 * COLS);
                    assert_memory_equal(a.m + i * COLS, as->m + i * COLS, 4 * COLS);
                    assert_memory_equal(a.v + i * COLS, as->v + i * COLS, 4 * COLS);
                    assert_memory_equal((char *)exchange_of(&a) + i * row_bytes,
                                        (char *)exchange_of(as) + i * row_bytes, row_bytes);
                    assert_int_equal(a.updates[i], !kept);
                }
                matrix_free(&a);
                matrix_free(&all);
                matrix_free(&old);
            }
}

/* A matrix's tasks. The caller frees them. */
static struct host_adam_chunk *cut(const struct host_adam_matrix *a, int *n)
{
    struct host_adam_chunk *tasks = zf_malloc(sizeof *tasks * (size_t)host_adam_cut(a, NULL));
    *n = host_adam_cut(a, tasks);
    return tasks;
}

static void tasks_cover_a_matrix(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {301, 257}, {3, 1000000}, {100000, 1}, {0, 5}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const struct host_adam_matrix a = {.rows = shapes[k][0], .cols = shapes[k][1]};
        int n, row = 0;
        struct host_adam_chunk *tasks = cut(&a, &n);
        for (int i = 0; i < n; i++) {
            assert_ptr_equal(tasks[i].matrix, &a);
            assert_int_equal(tasks[i].first, row);
            assert_true(tasks[i].last > row);
            assert_true((size_t)(tasks[i].last - row) * a.cols <= 65536 ||
                        tasks[i].last == row + 1);
            row = tasks[i].last;
        }
        assert_int_equal(row, a.rows);
        free(tasks);
    }
}

/* A group's rows, one behind the other, to an array from element PACKED on, or back. */
#define PACKED 24

static void pack_group(const struct host_adam_matrix *a, int group, int n_groups, char *packed,
                       bool back)
{
    const struct row_groups groups = row_groups_of(&a->part, n_groups);
    const size_t bytes = a->cols * dtype_size(a->dtype);
    packed += PACKED * dtype_size(a->dtype);
    for (size_t row = 0; row < a->rows; row++) {
        char *mine = (char *)exchange_of(a) + row * bytes;
        if (row_groups_group(&groups, (int)row) != group)
            continue;
        memcpy(back ? mine : packed, back ? packed : mine, bytes);
        packed += bytes;
    }
}

/* Jobs over the groups, on any number of workers, are one update of the whole matrix, with the mean
 * of its windows where it has any. */
static void jobs_on_workers_change_nothing(void **state)
{
    (void)state;
    enum { ROWS = 1301, COLS = 257, FIRST = 200, GROUPS = 5 };
    unsigned char place[ROWS];
    for (int i = 0; i < ROWS; i++)
        place[i] = (unsigned char)(random_bits(8, (size_t)i) % 9 ? CHANNEL_DEFERRED : 1 + i % 4);
    for (int windows = 0; windows < 2; windows++) {
        struct adamw without_decay = adamw_rule;
        struct host_adam_matrix whole = matrix_create(ROWS, COLS, DTYPE_BF16, 6);
        float *window = zf_malloc(sizeof(float) * ROWS * COLS);
        for (size_t i = 0; i < ROWS * COLS; i++)
            window[i] = random_float(7, i);
        whole.place = place;
        without_decay.weight_decay = 0;
        for (int step = 0; step < 3; step++) {
            if (windows)
                for (size_t i = 0; i < ROWS * COLS; i++)
                    if (place[i / COLS] == CHANNEL_DEFERRED)
                        ((uint16_t *)exchange_of(&whole))[i] = bf16_from_f32(window[i] / 3);
            update(host_adam_best_path(), &whole, 0, ROWS, windows ? &without_decay : &adamw_rule,
                   1);
        }
        for (int threads = 1; threads <= 4; threads++) {
            struct worker_config config = {.local_size = 1,
                                           .threads = threads,
                                           .delay_seconds = 1e-3,
                                           .delay_seed = (uint32_t)threads};
            struct worker_pool *pool = worker_pool_create(&config);
            struct host_adam_matrix a = matrix_create(ROWS, COLS, DTYPE_BF16, 6);
            struct host_adam_job jobs[GROUPS];
            char *packed[GROUPS];
            int n;
            a.place = place;
            a.packed = PACKED;
            a.window = windows ? window : NULL;
            a.part = (struct matrix_part){4, FIRST, FIRST + ROWS + 50, COLS};
            a.decays = !windows;
            struct host_adam_chunk *tasks = cut(&a, &n);
            assert_in_range(n, 4, ROWS);
            for (int g = 0; g < GROUPS; g++) {
                packed[g] = zf_malloc(sizeof(uint16_t) * (ROWS * COLS + PACKED));
                pack_group(&a, g, GROUPS, packed[g], false);
            }
            for (int step = 0; step < 3; step++)
                for (int g = 0; g < GROUPS; g++) {
                    jobs[g] = (struct host_adam_job){.chunks = tasks,
                                                     .group = g,
                                                     .n_groups = GROUPS,
                                                     .exchange = packed[g],
                                                     .rule = adamw_rule,
                                                     .window_steps = 3,
                                                     .path = host_adam_best_path()};
                    const struct worker_job job = {
                        .run = host_adam_run, .argument = &jobs[g], .n_chunks = n};
                    worker_pool_submit(pool, &job);
                }
            worker_pool_destroy(pool);
            for (int g = 0; g < GROUPS; g++) {
                pack_group(&a, g, GROUPS, packed[g], true);
                free(packed[g]);
            }
            assert_same_matrix(&a, &whole);
            matrix_free(&a);
            free(tasks);
        }
        matrix_free(&whole);
        free(window);
    }
}

/* The commit as a job of its own: until then the parameters are as they were, then all is as with
 * a job that commits. */
static void a_commit_may_come_later(void **state)
{
    (void)state;
    enum { ROWS = 700, COLS = 257, GROUPS = 3, GROUP = 1 };
    unsigned char place[ROWS];
    for (int i = 0; i < ROWS; i++)
        place[i] = (unsigned char)(random_bits(8, (size_t)i) % 9 ? CHANNEL_DEFERRED : 1 + i % 4);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
        const size_t bytes = dtype_size(dtype) * ROWS * COLS;
        struct host_adam_matrix at_once = matrix_create(ROWS, COLS, dtype, 9);
        struct host_adam_matrix later = matrix_create(ROWS, COLS, dtype, 9);
        struct host_adam_matrix *both[] = {&at_once, &later};
        char *before = memcpy(zf_malloc(bytes), later.parameters, bytes);
        for (int i = 0; i < 2; i++) {
            both[i]->place = place;
            both[i]->part = (struct matrix_part){0, 0, ROWS, COLS};
            int n;
            char *packed = zf_malloc(bytes + PACKED * sizeof(float));
            both[i]->packed = PACKED;
            pack_group(both[i], GROUP, GROUPS, packed, false);
            struct host_adam_chunk *tasks = cut(both[i], &n);
            struct host_adam_job job = {.chunks = tasks,
                                        .group = GROUP,
                                        .n_groups = GROUPS,
                                        .exchange = packed,
                                        .rule = adamw_rule,
                                        .commits_later = i == 1,
                                        .path = host_adam_best_path()};
            for (int k = 0; k < n; k++)
                host_adam_run(&job, k);
            assert_int_equal(memcmp(both[i]->parameters, before, bytes) == 0, i == 1);
            for (int k = 0; i == 1 && k < n; k++)
                host_adam_run_commit(&job, k);
            pack_group(both[i], GROUP, GROUPS, packed, true);
            free(packed);
            free(tasks);
        }
        assert_same_matrix(&later, &at_once);
        matrix_free(&at_once);
        matrix_free(&later);
        free(before);
    }
}

/* Seconds of one update of a matrix, group after group. */
static double time_groups(struct host_adam_matrix *a, uint16_t *exchange, int cols, int n_groups)
{
    a->cols = (size_t)cols;
    a->rows = (size_t)(16 << 20) / a->cols;
    a->part = (struct matrix_part){0, 0, (int)a->rows, cols};
    int n;
    struct host_adam_chunk *tasks = cut(a, &n);
    struct host_adam_job job = {
        .chunks = tasks, .n_groups = n_groups, .rule = adamw_rule, .path = host_adam_best_path()};
    for (size_t i = 0; i < a->rows * a->cols; i++)
        exchange[i] = 0x3c24;
    const struct row_groups groups = row_groups_of(&a->part, n_groups);
    const double begin = clock_seconds();
    for (job.group = 0; job.group < n_groups; job.group++) {
        job.exchange = exchange;
        exchange += (size_t)row_groups_count(&groups, job.group, (int)a->rows) * a->cols;
        for (int i = 0; i < n; i++)
            host_adam_run(&job, i);
    }
    const double seconds = clock_seconds() - begin;
    free(tasks);
    return seconds;
}

/* Groups are visited nearly as fast as one whole array: narrow rows do not cost the memory's speed.
 * The best of several rounds, in turns, and of more of them where the machine has other things to
 * do. */
static void groups_are_as_fast_as_one_array(void **state)
{
    (void)state;
#ifdef ZF_NO_TARGET_CLONES /* as with every sanitizer */
    print_message("skipped: sanitizers decide how long it takes\n");
    skip();
#endif
    static const int widths[] = {96, 768};
    struct zf_error err = {0};
    const size_t n = 16 << 20;
    struct host_adam_matrix a = {.dtype = DTYPE_BF16,
                                 .parameters = host_memory_allocate(2 * n, &err),
                                 .remainders = host_memory_allocate(2 * n, &err),
                                 .m = host_memory_allocate(4 * n, &err),
                                 .v = host_memory_allocate(4 * n, &err),
                                 .updates = zf_calloc(n, sizeof *a.updates)};
    uint16_t *exchange = host_memory_allocate(2 * n, &err);
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        double whole = INFINITY, groups = INFINITY;
        for (int round = 0; round < 7 || (round < 30 && whole < 0.6 * groups); round++) {
            whole = fmin(whole, time_groups(&a, exchange, widths[k], 1));
            groups = fmin(groups, time_groups(&a, exchange, widths[k], 4));
        }
        print_message("%d columns: four groups have %.2f of the speed of one array\n", widths[k],
                      whole / groups);
        assert_true(whole / groups >= 0.6);
    }
    void *halves[] = {a.parameters, a.remainders, exchange};
    for (int i = 0; i < 3; i++)
        host_memory_free(halves[i], 2 * n);
    host_memory_free(a.m, 4 * n);
    host_memory_free(a.v, 4 * n);
    free(a.updates);
}

static const float *fixture_tensor(const struct safetensors *file, const char *name)
{
    const struct tensor *tensor = safetensors_find(file, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, DTYPE_F32);
    return memcpy(zf_malloc(4 * tensor->n_elements), tensor->data, 4 * tensor->n_elements);
}

/* PyTorch keeps 1 - beta2 in double precision, we as the exact difference from fp32's beta2: that
 * makes 1.3e-5 in v for 0.999, which bias correction takes out of the parameters again. */
static void follow_pytorch(const char *path, struct adamw rule)
{
    enum { STEPS = 20, ROWS = 5, COLS = 19 };
    struct zf_error err = {0};
    struct safetensors *file = safetensors_open(path, &err);
    if (!file)
        fail_msg("%s", err.text);
    const float *start = fixture_tensor(file, "parameter"), *m = fixture_tensor(file, "m");
    const float *gradients = fixture_tensor(file, "gradients"), *v = fixture_tensor(file, "v");
    const float *parameters = fixture_tensor(file, "parameters");
    struct host_adam_matrix a = matrix_create(ROWS, COLS, DTYPE_F32, 0);
    memset(a.m, 0, 4 * ROWS * COLS);
    memset(a.v, 0, 4 * ROWS * COLS);
    memcpy(a.parameters, start, 4 * ROWS * COLS);
    const float *master = a.parameters;
    for (int step = 0; step < STEPS; step++) {
        rule.lr = 1e-2f * (float)(step + 1) / STEPS;
        memcpy(exchange_of(&a), gradients + step * ROWS * COLS, 4 * ROWS * COLS);
        update(host_adam_best_path(), &a, 0, ROWS, &rule, 1);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < ROWS * COLS; i++) {
            double expected = parameters[(size_t)step * ROWS * COLS + i];
            difference += pow(master[i] - expected, 2);
            norm += expected * expected;
            if (fabs(master[i] - expected) > 1e-6 * (fabs(expected) + rule.lr))
                fail_msg("step %d: parameter %zu is %.9g, not %.9g", step, i, master[i], expected);
        }
        assert_true(sqrt(difference) <= 1e-6 * sqrt(norm));
    }
    for (size_t i = 0; i < ROWS * COLS; i++) {
        assert_true(fabsf(a.m[i] - m[i]) <= 1e-6f * fabsf(m[i]) + 2e-7f * sqrtf(v[i] * 1000));
        assert_true(fabsf(a.v[i] - v[i]) <= 2e-5f * v[i]);
    }
    matrix_free(&a);
    free((void *)start);
    free((void *)gradients);
    free((void *)parameters);
    free((void *)m);
    free((void *)v);
    safetensors_close(file);
}

static void follows_pytorch(void **state)
{
    (void)state;
    struct adamw l2_rule = adamw_rule;
    l2_rule.l2 = true;
    l2_rule.weight_decay = 0.01f;
    follow_pytorch(ZF_TESTS_DIR "/fixtures/adamw/adamw.safetensors", adamw_rule);
    follow_pytorch(ZF_TESTS_DIR "/fixtures/adamw/adam.safetensors", l2_rule);
}

static void allocates_host_memory(void **state)
{
    (void)state;
    struct zf_error err = {0};
    size_t bytes = 5000001;
    unsigned char *memory = host_memory_allocate(bytes, &err);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % (2 << 20), 0);
    for (size_t i = 0; i < bytes; i += 1000)
        assert_int_equal(memory[i], 0);
    memset(memory, 1, bytes);
    host_memory_free(memory, bytes);
    host_memory_free(host_memory_allocate(0, &err), 0);
    host_memory_free(NULL, 0);
    assert_null(host_memory_allocate(SIZE_MAX / 2, &err));
    assert_says(err, "out of memory: 9223372036854775807 bytes of host memory");
    assert_null(host_memory_allocate(SIZE_MAX, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_agree_to_the_bit),
        cmocka_unit_test(masters_come_back),
        cmocka_unit_test(remainders_lose_nothing),
        cmocka_unit_test(rounds_to_nearest),
        cmocka_unit_test(follows_the_formula),
        cmocka_unit_test(an_update_stands_for_steps),
        cmocka_unit_test(updates_go_as_far_as_their_steps),
        cmocka_unit_test(leaves_rows_alone),
        cmocka_unit_test(tasks_cover_a_matrix),
        cmocka_unit_test(jobs_on_workers_change_nothing),
        cmocka_unit_test(a_commit_may_come_later),
        cmocka_unit_test(groups_are_as_fast_as_one_array),
        cmocka_unit_test(follows_pytorch),
        cmocka_unit_test(allocates_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
