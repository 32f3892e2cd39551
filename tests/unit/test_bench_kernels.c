/* zf-bench kernels: costs worked out by hand, arrays that fit their shape, and the options that all
 * benchmarks of a device share. */
#include "tests/testing.h"

#include "cmd/bench/device.h"
#include "cmd/bench/kernels_cases.h"
#include "cmd/bench/options.h"
#include "data/clock.h"
#include "data/median.h"

#include <math.h>

/* Costs: 4 sequences of 10 tokens, width 6, bf16. */
static const struct kernel_shape shape = {.n = 40,
                                          .n_seqs = 4,
                                          .length = 10,
                                          .C = 6,
                                          .inner = 24,
                                          .heads = {3, 3, 2},
                                          .vocab = 100,
                                          .positions = 16,
                                          .logit_rows = 8,
                                          .distinct = 30,
                                          .important = 20,
                                          .closing = 20,
                                          .element = 2};

/* A Llama's: 4 heads of 2 columns to 2 of k and v, gate and up of 10 columns each. */
static struct kernel_shape llama_shape(void)
{
    struct kernel_shape s = shape;
    s.heads = (struct heads){4, 2, 2};
    s.inner = 10;
    s.swiglu = true;
    return s;
}

static struct op_cost cost_of(const struct kernel_shape *s, const char *name)
{
    for (int i = 0; i < n_kernel_cases; i++)
        if (strcmp(kernel_cases[i].name, name) == 0)
            return kernel_cases[i].cost(s);
    fail_msg("there is no kernel \"%s\"", name);
    return (struct op_cost){0};
}

static void costs_are_those_of_every_array_once(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double bytes, link, flops;
    } expected[] = {
        {"embedding", 2 * (40 + 30 + 10) * 6, 0, 0},
        {"embedding backward", 2 * 40 * 6 + 8 * 40 * 6, 0, 0},
        {"layer norm, residual", 4 * 480 + 40 * 8, 0, 0},
        {"layer norm backward", 5 * 480 + 40 * 8, 0, 0},
        {"RMSNorm, residual", 4 * 480 + 40 * 4, 0, 0},
        {"RMSNorm backward", 5 * 480 + 40 * 4, 0, 0},
        {"rotary", 4 * 40 * 12, 0, 0}, /* q and k */
        {"rotary backward", 4 * 40 * 12, 0, 0},
        {"rotary, norms", 6 * 40 * 12, 0, 0},
        {"rotary backward, norms", 6 * 40 * 12, 0, 0},
        /* each sequence has 55 pairs; two products of 2 FLOPs for each and the width of 6 */
        {"attention", 4 * 480 + 40 * 3 * 4, 0, 4 * 55 * 6 * 4},
        {"attention backward", 8 * 480 + 40 * 3 * 4, 0, 4 * 55 * 6 * 10},
        {"SwiGLU", 3 * 2 * 40 * 12, 0, 0},
        {"SwiGLU backward", 6 * 2 * 40 * 12, 0, 0},
        {"bias backward", 2 * 40 * 24, 0, 0},
        {"gather last tokens", 2 * 48, 0, 0},
        {"scatter last tokens", 480 + 48, 0, 0},
        {"cross-entropy", 8 * 100 * 6, 0, 0},
        {"squared error", 4 * 14, 0, 0},
        {"sum of losses", 160, 0, 0},
        {"from fp32", 600 * 6, 0, 0},
        {"take rows", 600 * 6 + 400, 0, 0},
        {"norm summary", 500, 0, 0},
        {"select rows", 500, 0, 0},
        {"AdamW, all rows", 600 * 30, 0, 0},
        {"AdamW, important rows", 120 * 30, 0, 0},
        {"accumulate rows", 480 * 9, 0, 0},
        {"send rows", 120 * 4, 120 * 2, 0},
        {"receive rows", 120 * 2, 120 * 2, 0},
        {"copy rows", 120 * 8, 0, 0},
    };
    assert_int_equal(n_kernel_cases, sizeof expected / sizeof *expected);
    for (int i = 0; i < n_kernel_cases; i++) {
        struct op_cost cost = cost_of(&shape, expected[i].name);
        if (cost.bytes != expected[i].bytes || cost.link != expected[i].link ||
            cost.flops != expected[i].flops)
            fail_msg("%s: %g bytes, %g over the link, %g FLOPs; expected %g, %g, %g",
                     expected[i].name, cost.bytes, cost.link, cost.flops, expected[i].bytes,
                     expected[i].link, expected[i].flops);
    }
}

static void a_llama_costs_its_own(void **state)
{
    (void)state;
    const struct kernel_shape s = llama_shape();
    assert_true(cost_of(&s, "rotary").bytes == 4 * 40 * 12); /* q of 8 columns, k of 4 */
    assert_true(cost_of(&s, "attention").bytes == 2 * 40 * (2 * 8 + 2 * 4) + 40 * 4 * 4);
    assert_true(cost_of(&s, "attention").flops == 4 * 55 * 8 * 4);
    assert_true(cost_of(&s, "SwiGLU").bytes == 3 * 2 * 40 * 10);
    static const int sides[KERNEL_PRODUCTS][3] = {
        {40, 16, 6}, {40, 6, 8},  {40, 20, 6}, {40, 6, 10}, {40, 10, 6},
        {40, 6, 20}, {6, 16, 40}, {6, 20, 40}, {10, 6, 40}, {8, 100, 6}};
    struct kernel_product products[KERNEL_PRODUCTS];
    kernel_products(&(struct kernel_bench){.shape = s}, products);
    for (int i = 0; i < KERNEL_PRODUCTS; i++) {
        const struct matmul *p = &products[i].product;
        if (p->m != sides[i][0] || p->n != sides[i][1] || p->k != sides[i][2])
            fail_msg("%s: %d x %d x %d", products[i].name, p->m, p->n, p->k);
    }
}

static void a_product_costs_its_operands_and_its_epilogue(void **state)
{
    (void)state;
    struct matmul p = {.m = 3, .n = 5, .k = 7};
    struct op_cost cost = cost_matmul(2, &p);
    assert_true(cost.flops == 2 * 3 * 5 * 7);
    assert_true(cost.bytes == 2 * (3 * 7 + 7 * 5 + 3 * 5));
    p.accumulate = p.c_is_f32 = true; /* dW: fp32, read and written */
    assert_true(cost_matmul(2, &p).bytes == 2 * (3 * 7 + 7 * 5) + 8 * 3 * 5);
    p = (struct matmul){.m = 3, .n = 5, .k = 7, .pre = &p};
    assert_true(cost_matmul(2, &p).bytes == 2 * (3 * 7 + 7 * 5 + 2 * 3 * 5));
}

/* 4 heads of 8 columns, 2 to one of k and v; q of 32 columns, k and v of 16 each. */
static void shared_keys_and_windows_cost_less(void **state)
{
    (void)state;
    const struct heads heads = {4, 2, 8};
    assert_true(attention_pairs(10, 0) == 55 && attention_pairs(10, 10) == 55);
    assert_true(attention_pairs(10, 1) == 10 && attention_pairs(10, 3) == 1 + 2 + 3 * 8);
    assert_true(cost_attention_forward(2, 5, 15, &heads).bytes == 2 * 5 * (64 + 32) + 5 * 4 * 4);
    assert_true(cost_attention_forward(2, 5, 15, &heads).flops == 15 * 32 * 4);
    assert_true(cost_attention_backward(2, 5, 15, &heads).bytes ==
                2 * 5 * (2 * 64 + 2 * 32) + 5 * 4 * 4);
    const struct rotary rotary = {.heads = heads};
    assert_true(cost_rotary(2, 5, &rotary).bytes == 2 * 5 * 48 * 2);
}

/* Everything runs on arrays of the shape's own sizes: AddressSanitizer sees what passes an end. */
static void run_all(const struct kernel_shape *at)
{
    struct kernel_bench b = {.device = device_cpu(1), .shape = *at, .p = 0.1f};
    struct kernel_product products[KERNEL_PRODUCTS];
    b.shape.n_seqs = 3;
    b.shape.length = 11;
    b.shape.n = 33;
    b.shape.element = 4;
    kernel_bench_create(&b);
    assert_in_range(b.shape.distinct, 2, 33);
    assert_int_equal(b.shape.important, 5); /* of 100: 0, 20, 40, 60 and 80 */
    assert_int_equal(b.shape.closing, 23);  /* of 0 to 6, 28 to 33, 52 to 57 and 76 to 81 */
    kernel_products(&b, products);
    for (int i = 0; i < KERNEL_PRODUCTS; i++) {
        b.product = products[i].product;
        kernel_run_product(&b);
    }
    for (int i = 0; i < b.shape.n; i++)
        b.losses[i] = NAN;
    for (int i = 0; i < n_kernel_cases; i++)
        kernel_cases[i].run(&b);
    /* Cross-entropy has written 8, of logits that are small, squared error the first 3. */
    for (int i = 0; i < b.shape.n; i++) {
        const float loss = b.losses[i];
        if (!(i < 3 ? loss >= 0 && loss < 1 : i < 8 ? fabs(loss - log(100)) < 0.1 : isnan(loss)))
            fail_msg("loss %d is %g", i, (double)loss);
    }
    kernel_bench_destroy(&b);
}

static void all_run_at_odd_shapes(void **state)
{
    (void)state;
    const struct kernel_shape llama = llama_shape();
    run_all(&shape);
    run_all(&llama);
}

/* Work that takes no less than a known time, and is counted. */
#define WORK_SECONDS 2e-4
static int calls;
static double copied, multiplied; /* bytes and FLOPs of one */

static void work(void *argument)
{
    (void)argument;
    double begin = clock_seconds();
    while (clock_seconds() - begin < WORK_SECONDS)
        ;
    calls++;
}

static void work_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    (void)stream, (void)dst, (void)src;
    copied = fmax(copied, (double)bytes); /* others bring random values */
    work(NULL);
}

static void work_matmul(struct stream *stream, void *c, const void *a, const void *b,
                        const struct matmul *p)
{
    (void)stream, (void)c, (void)a, (void)b;
    multiplied = 2.0 * p->m * p->n * p->k;
    work(NULL);
}

/* However busy the machine is: a run takes as long as its work, and the upper half of three rounds
 * is no longer than all that was measured. */
static void seconds_are_those_of_a_run(void **state)
{
    (void)state;
    calls = 0;
    double begin = clock_seconds();
    double seconds = bench_seconds(device_cpu(1), 3, work, NULL), whole = clock_seconds() - begin;
    int runs = (calls - 2) / 3; /* of a round, behind two to begin with */
    assert_int_equal(calls, 2 + 3 * runs);
    assert_in_range(runs, 1, (int)(BENCH_ROUND_SECONDS / WORK_SECONDS) + 1);
    assert_true(seconds >= WORK_SECONDS && 2 * runs * seconds <= whole);
}

static void rates_are_those_of_their_work(void **state)
{
    (void)state;
    struct device device = *device_cpu(1);
    struct ops ops = *device.ops;
    device.copy = work_copy;
    ops.matmul = work_matmul;
    device.ops = &ops;
    double begin = clock_seconds();
    struct bench_rates rates = bench_measure_rates(&device, 32, 3);
    double whole = clock_seconds() - begin;
    assert_int_equal(rates.side, 32);
    assert_true(copied == 4 * 32 * 32 * 32);
    assert_true(multiplied == 2 * 32 * 32 * 32);
    assert_true(rates.copy <= 2 * copied / WORK_SECONDS && rates.copy >= 2 * copied / whole);
    assert_true(rates.product <= multiplied / WORK_SECONDS && rates.product >= multiplied / whole);
}

static void medians(void **state)
{
    (void)state;
    assert_true(median_of((const double[]){3, 1, 2}, 3) == 2);
    assert_true(median_of((const double[]){4, 1, 2, 8}, 4) == 3);
    assert_true(median_of((const double[]){5}, 1) == 5);
}

struct fields {
    int whole;
    double real;
    const char *text;
    bool flag, help;
};
static const struct bench_option table[] = {
    {"--whole", "N", BENCH_WHOLE, offsetof(struct fields, whole), 1, 9, ""},
    {"--real", "X", BENCH_REAL, offsetof(struct fields, real), 0, 1, ""},
    {"--text", "TEXT", BENCH_TEXT, offsetof(struct fields, text), 0, 0, ""},
    {"--flag", NULL, BENCH_FLAG, offsetof(struct fields, flag), 0, 0, ""},
};
static const struct bench_options options = {"test", "Tests.", NULL, table, 4, ""};

static bool read_words(struct fields *f, struct zf_error *err, const char *a, const char *b,
                       const char *c, const char *d)
{
    const char *words[] = {"test", a, b, c, d};
    int n = 1 + !!a + !!b + !!c + !!d;
    return bench_options_read(&options, n, (char **)words, f, &f->help, err);
}

static void options_set_their_fields(void **state)
{
    (void)state;
    struct fields f = {.whole = 2};
    struct zf_error err;
    assert_works(read_words(&f, &err, "--flag", "--real", "0.5", NULL), err);
    assert_true(f.flag && f.real == 0.5 && f.whole == 2 && !f.help);
    assert_works(read_words(&f, &err, "--whole", "9", "--text", "--flag"), err);
    assert_int_equal(f.whole, 9);
    assert_string_equal(f.text, "--flag");
    assert_works(read_words(&f, &err, "--help", "--nonsense", NULL, NULL), err);
    assert_true(f.help);
}

static void other_words_come_first(void **state)
{
    (void)state;
    const struct bench_options with_words = {"test", "Tests.", "FILE...", table, 4, ""};
    struct fields f = {0};
    struct zf_error err;
    char *words[] = {"test", "a", "--whole", "3", "b", "--flag", "-", NULL};
    assert_works(bench_options_read(&with_words, 7, words, &f, &f.help, &err), err);
    assert_true(f.whole == 3 && f.flag);
    assert_string_equal(words[1], "a");
    assert_string_equal(words[2], "b");
    assert_string_equal(words[3], "-");
    assert_null(words[4]);
    char *none[] = {"test", NULL}, *all[] = {"test", "a", NULL};
    assert_works(bench_options_read(&with_words, 1, none, &f, &f.help, &err), err);
    assert_null(none[1]);
    assert_works(bench_options_read(&with_words, 2, all, &f, &f.help, &err), err);
    assert_true(strcmp(all[1], "a") == 0 && !all[2]);
    assert_false(read_words(&f, &err, "a", NULL, NULL, NULL));
    assert_says(err, "there is no option a");
}

static void options_refuse_what_they_cannot_take(void **state)
{
    (void)state;
    static const struct {
        const char *words[2], *says;
    } bad[] = {
        {{"--whole", "10"}, "--whole is \"10\", but it is a whole number from 1 to 9"},
        {{"--whole", "1.5"}, "whole number"},
        {{"--whole", "1x"}, "\"1x\""},
        {{"--whole", ""}, "\"\""},
        {{"--real", "nan"}, "but it is a number from 0 to 1"},
        {{"--real", NULL}, "--real is the last word"},
        {{"--other", "1"}, "there is no option --other (see zf-bench test --help)"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fields f = {0};
        struct zf_error err = {0};
        assert_false(read_words(&f, &err, bad[i].words[0], bad[i].words[1], NULL, NULL));
        assert_says(err, bad[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_those_of_every_array_once),
        cmocka_unit_test(a_llama_costs_its_own),
        cmocka_unit_test(a_product_costs_its_operands_and_its_epilogue),
        cmocka_unit_test(shared_keys_and_windows_cost_less),
        cmocka_unit_test(all_run_at_odd_shapes),
        cmocka_unit_test(seconds_are_those_of_a_run),
        cmocka_unit_test(rates_are_those_of_their_work),
        cmocka_unit_test(medians),
        cmocka_unit_test(options_set_their_fields),
        cmocka_unit_test(other_words_come_first),
        cmocka_unit_test(options_refuse_what_they_cannot_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
