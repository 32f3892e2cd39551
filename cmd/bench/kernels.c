#include "cmd/bench/kernels.h"

#include "cmd/bench/device.h"
#include "cmd/bench/kernels_cases.h"
#include "cmd/bench/options.h"
#include "cmd/live.h"
#include "data/json.h"
#include "data/terminal.h"

#include <stdio.h>
#include <unistd.h>

#define LOGIT_ROWS 1024

struct options {
    const char *preset, *device, *json;
    int n_seqs, length, threads, rounds, probe;
    double dropout;
    bool help;
};

static const struct bench_option option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--preset", "NAME", BENCH_TEXT, FIELD(preset), 0, 0, "shapes of this model (gpt2)"},
    {"--seqs", "N", BENCH_WHOLE, FIELD(n_seqs), 1, 1 << 16, "sequences (8)"},
    {"--length", "N", BENCH_WHOLE, FIELD(length), 1, 1 << 16, "tokens of each (128)"},
    {"--dropout", "X", BENCH_REAL, FIELD(dropout), 0, 0.9,
     "where it is not 0 (0.1; 0: only without)"},
    {BENCH_DEVICE(FIELD(device))},
    {BENCH_THREADS(FIELD(threads))},
    {"--rounds", "N", BENCH_WHOLE, FIELD(rounds), 1, 1000, "medians of so many (7)"},
    {BENCH_PROBE(FIELD(probe))},
    {"--json", "FILE", BENCH_TEXT, FIELD(json), 0, 0, "write all figures there"},
#undef FIELD
};
const struct bench_options bench_kernels_options = {
    "kernels",
    "Each operator's time, bytes, FLOPs and share of what the device can do.",
    NULL,
    option_table,
    sizeof option_table / sizeof *option_table,
    "  operator   with its direction, forward if none is said\n"
    "  dropout    with which it ran\n"
    "  us         microseconds of a call, the median\n"
    "  host us    of these the host's, to launch it\n"
    "  MB, GB/s   bytes, each array counted once, or those that cross the link\n"
    "  GFLOP      of matrix products; TFLOP/s: their rate\n"
    "  share      of the limit that is nearer: the device's own copy, or its product;\n"
    "             what fits into a cache can pass 100% of copy\n"};

struct table {
    struct kernel_bench *bench;
    struct bench_rates rates;
    int rounds;
    json_t *lines;
};

/* One line of the table, and the same for the JSON file. */
static void report(const struct table *t, const char *name, void (*run)(void *),
                   const struct op_cost *cost, float dropout)
{
    struct device *device = t->bench->device;
    double seconds = bench_seconds(device, t->rounds, run, t->bench);
    double launch = bench_launch_seconds(device, t->rounds, run, t->bench);
    double by_copy = cost->bytes / seconds / t->rates.copy;
    double by_product = cost->flops / seconds / t->rates.product;
    bool product = by_product > by_copy;
    const char *limit = cost->link > 0 ? "link" : product ? "product" : "copy";
    double share = product ? by_product : by_copy;
    printf("%-26s %7g %10.2f %8.2f %10.3f %9.1f %10.3f %9.3f  ", name, (double)dropout,
           seconds * 1e6, launch * 1e6, (cost->link > 0 ? cost->link : cost->bytes) * 1e-6,
           (cost->link > 0 ? cost->link : cost->bytes) / seconds * 1e-9, cost->flops * 1e-9,
           cost->flops / seconds * 1e-12);
    if (cost->link > 0)
        printf("  link\n");
    else
        printf("%5.1f%% of %s\n", 100 * share, limit);
    fflush(stdout);
    json_array_append_new(t->lines,
                          json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:o}", "kernel", name,
                                    "dropout", (double)dropout, "seconds", seconds,
                                    "launch_seconds", launch, "bytes", cost->bytes, "link_bytes",
                                    cost->link, "flops", cost->flops, "limit", limit, "share",
                                    cost->link > 0 ? json_null() : json_real(share)));
}

static void report_products(const struct table *t)
{
    struct kernel_bench *b = t->bench;
    struct kernel_product products[KERNEL_PRODUCTS];
    kernel_products(b, products);
    for (int i = 0; i < KERNEL_PRODUCTS; i++) {
        b->product = products[i].product;
        struct op_cost cost = cost_matmul(b->shape.element, &b->product);
        report(t, products[i].name, kernel_run_product, &cost, 0);
    }
}

static void report_cases(const struct table *t, double dropout)
{
    struct kernel_bench *b = t->bench;
    for (int i = 0; i < n_kernel_cases; i++) {
        const struct kernel_case *c = &kernel_cases[i];
        struct op_cost cost = c->cost(&b->shape);
        for (int with = 0; with <= (c->drops && dropout > 0); with++) {
            b->p = with ? (float)dropout : 0;
            report(t, c->name, c->run, &cost, b->p);
        }
    }
}

static struct kernel_shape shape_of(const struct options *o, const struct gpt_config *c,
                                    enum dtype dtype)
{
    struct kernel_shape s = {
        .n = o->n_seqs * o->length,
        .n_seqs = o->n_seqs,
        .length = o->length,
        .C = c->n_embd,
        .inner = c->n_inner,
        .heads = gpt_heads(c),
        .swiglu = c->parts.swiglu,
        .vocab = gpt_head_outputs(c),
        .positions = c->n_positions,
        .element = (int)dtype_size(dtype),
    };
    s.logit_rows = s.n < LOGIT_ROWS ? s.n : LOGIT_ROWS;
    return s;
}

static json_t *describe(const struct options *o, const struct table *t)
{
    const struct device *device = t->bench->device;
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:O}", "preset", o->preset, "device",
                     device->name, "sequences", o->n_seqs, "length", o->length, "product_side",
                     t->rates.side, "copy_bytes_per_second", t->rates.copy,
                     "product_flops_per_second", t->rates.product, "kernels", t->lines);
}

static bool measure(const struct options *o, const struct gpt_config *config, struct device *device,
                    struct zf_error *err)
{
    struct kernel_bench bench = {
        .device = device,
        .shape = shape_of(o, config, device->dtype),
        .act = config->activation_function,
    };
    live_begin(terminal_is_at(STDERR_FILENO));
    live_stage("measuring the device's limits", 0);
    struct table t = {&bench, bench_measure_rates(device, o->probe, o->rounds), o->rounds,
                      json_array()};
    live_end();
    kernel_bench_create(&bench);
    printf(
        "%s on the %s device (%s): %d sequences of %d tokens, width %d; medians of %d rounds\n"
        "its own limits: copy %.1f GB/s, read and written; product of %d x %d matrices %.2f "
        "TFLOP/s\nzf-bench kernels --help explains the columns\n\n%-26s %7s %10s %8s %10s %9s %10s "
        "%9s  %s\n",
        o->preset, device->name, dtype_name(device->dtype), o->n_seqs, o->length, config->n_embd,
        o->rounds, t.rates.copy * 1e-9, t.rates.side, t.rates.side, t.rates.product * 1e-12,
        "operator", "dropout", "us", "host us", "MB", "GB/s", "GFLOP", "TFLOP/s", "share");
    report_products(&t);
    report_cases(&t, o->dropout);
    json_t *root = describe(o, &t);
    bool ok = !o->json || json_write(o->json, root, 9, err);
    json_decref(root);
    json_decref(t.lines);
    kernel_bench_destroy(&bench);
    return ok;
}

bool bench_kernels(int argc, char **argv, struct zf_error *err)
{
    struct options o = {
        .preset = "gpt2",
        .device = "auto",
        .n_seqs = 8,
        .length = 128,
        .rounds = 7,
        .dropout = 0.1,
    };
    struct gpt_config config;
    if (!bench_options_read(&bench_kernels_options, argc, argv, &o, &o.help, err))
        return false;
    if (o.help)
        return true;
    if (!gpt_config_preset(&config, o.preset, err))
        return false;
    if (o.length > config.n_positions)
        return zf_fail_usage(err, "kernels: --length is %d, but %s has %d positions", o.length,
                             o.preset, config.n_positions);
    struct device *device = bench_device("kernels", o.device, o.threads, 0, err);
    return device && measure(&o, &config, device, err);
}
