#include "cmd/bench_schedule.h"

#include "cmd/bench_schedule_tables.h"
#include "data/json.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *model, *machine; /* names, or NULL */
    const char *accumulate, *json;
    struct sim_model shape;
    struct sim_machine rates;
    double parameters, tokens, device_tflops;
    struct sim_policy policy;
    int steps;
    bool custom; /* anything but --steps, --json was given */
    bool help;
};

/* ---- options ---- */

enum option_kind { WHOLE, REAL, TEXT };

static const struct option {
    const char *name;
    enum option_kind kind;
    size_t offset;
    double least, greatest;
    const char *help;
} option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--model", TEXT, FIELD(model), 0, 0, "a shape by name (llama-2-7b)"},
    {"--parameters", REAL, FIELD(parameters), 1e6, 1e13, "a GPT of about so many instead"},
    {"--layers", WHOLE, FIELD(shape.n_layers), 1, 1000, "or: blocks"},
    {"--width", WHOLE, FIELD(shape.width), 1, 1 << 20, "    width; 4 times it in between"},
    {"--vocab", WHOLE, FIELD(shape.vocab), 1, 1 << 24, "    tokens"},
    {"--machine", TEXT, FIELD(machine), 0, 0, "rates by name (a100x4); what follows changes them"},
    {"--ranks", WHOLE, FIELD(rates.ranks), 1, 4096, "devices"},
    {"--ranks-per-node", WHOLE, FIELD(rates.ranks_per_node), 1, 64, "that share a host"},
    {"--ranks-per-link", WHOLE, FIELD(rates.ranks_per_link), 1, 64, "that share a link"},
    {"--device-step", REAL, FIELD(rates.device_step), 1e-6, 1e6,
     "seconds, forward and backward (by parameters)"},
    {"--tokens", REAL, FIELD(tokens), 1, 1e9, "or: a device's tokens in a step, with"},
    {"--device-tflops", REAL, FIELD(device_tflops), 1e-3, 1e6, "    what it reaches"},
    {"--device-gbs", REAL, FIELD(rates.device_gbs), 1e-3, 1e9, "device memory, GB/s"},
    {"--link-gbs", REAL, FIELD(rates.link_gbs), 1e-3, 1e9, "link, each way"},
    {"--host-gbs", REAL, FIELD(rates.host_gbs), 1e-3, 1e9, "host AdamW of a node, 28 bytes each"},
    {"--exchange-gbs", REAL, FIELD(rates.exchange_gbs), 1e-3, 1e9, "collectives within a node"},
    {"--network-gbs", REAL, FIELD(rates.network_gbs), 1e-3, 1e9, "and into a node"},
    {"--topk", REAL, FIELD(policy.topk_ratio), 0, 1, "share of important channels (0.05)"},
    {"--interval", WHOLE, FIELD(policy.interval), 1, ENGINE_MAX_INTERVAL, "S (4)"},
    {"--lag", WHOLE, FIELD(policy.lag), 0, ENGINE_MAX_INTERVAL, "apply_lag, to S (1)"},
    {"--accumulate", TEXT, FIELD(accumulate), 0, 0, "device or host (device)"},
    {"--steps", WHOLE, FIELD(steps), 1, 1000000, "to simulate, once settled (64)"},
    {"--json", TEXT, FIELD(json), 0, 0, "write all results there"},
#undef FIELD
};
static const size_t n_options = sizeof option_table / sizeof *option_table;

static void print_help(void)
{
    fputs("usage: zf-bench schedule [options]\n\n"
          "Simulates steps. Without options that name a model, machine or policy: the tables of\n"
          "assumed machines beside published figures. Else one table.\n\n",
          stdout);
    for (size_t i = 0; i < n_options; i++)
        printf("  %-18s %s\n", option_table[i].name, option_table[i].help);
    sim_print_names();
}

static bool set_number(struct options *o, const struct option *option, const char *text,
                       struct zf_error *err)
{
    char *end, *field = (char *)o + option->offset;
    double value = strtod(text, &end);
    bool whole = option->kind == WHOLE;
    if (!*text || *end || !(value >= option->least && value <= option->greatest) ||
        (whole && value != floor(value)))
        return zf_fail(err, "schedule: %s is \"%s\", but it is a %s from %g to %g", option->name,
                       text, whole ? "whole number" : "number", option->least, option->greatest);
    if (whole)
        *(int *)(void *)field = (int)value;
    else
        *(double *)(void *)field = value;
    return true;
}

static const struct option *find_option(const char *name)
{
    for (size_t i = 0; i < n_options; i++)
        if (strcmp(option_table[i].name, name) == 0)
            return &option_table[i];
    return NULL;
}

/* Reads the options that are numbers, or those that are not. */
static bool read_options(int argc, char **argv, bool numbers, struct options *o,
                         struct zf_error *err)
{
    for (int i = 1; i < argc; i += 2) {
        const struct option *option = find_option(argv[i]);
        if (strcmp(argv[i], "--help") == 0)
            return o->help = true;
        if (!option)
            return zf_fail(err, "schedule: there is no option %s (see zf-bench schedule --help)",
                           argv[i]);
        if (i + 1 == argc)
            return zf_fail(err, "schedule: %s is the last word, but it takes a value", argv[i]);
        o->custom |= strcmp(argv[i], "--steps") != 0 && strcmp(argv[i], "--json") != 0;
        if (option->kind == TEXT && !numbers)
            *(const char **)(void *)((char *)o + option->offset) = argv[i + 1];
        if (option->kind != TEXT && numbers && !set_number(o, option, argv[i + 1], err))
            return false;
    }
    return true;
}

/* What the options that are not numbers name. */
static bool find_names(struct options *o, struct zf_error *err)
{
    const struct sim_model *model = sim_find_model(o->model);
    const struct sim_machine *machine = sim_find_machine(o->machine);
    bool on_host = strcmp(o->accumulate, "host") == 0;
    if (!model)
        return zf_fail(err, "schedule: --model is \"%s\", but --help lists the names", o->model);
    if (!machine)
        return zf_fail(err, "schedule: --machine is \"%s\", but --help lists the names",
                       o->machine);
    if (!on_host && strcmp(o->accumulate, "device") != 0)
        return zf_fail(err, "schedule: --accumulate is \"%s\", but it is device or host",
                       o->accumulate);
    o->policy.accumulate = on_host ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
    o->shape = *model;
    o->rates = *machine;
    o->rates.device_step = 0; /* unless it is given */
    return true;
}

/* The named model with what was given in its place: GPT's proportions for another width. */
static void finish_shape(struct options *o)
{
    const struct sim_model *named = sim_find_model(o->model);
    struct sim_model *shape = &o->shape;
    if (o->parameters > 0) { /* 12 layers width^2, and width = 128 layers as at 6.7 B */
        shape->width = (int)(cbrt(o->parameters * 128 / 12) / 128 + 0.5) * 128;
        shape->width = shape->width > 128 ? shape->width : 128;
        shape->n_layers = shape->width / 128;
    }
    if (o->parameters > 0 || shape->width != named->width) {
        shape->kv_width = shape->width;
        shape->inner = 4 * shape->width;
        shape->gated = false;
    }
    if (o->parameters > 0 || shape->width != named->width || shape->n_layers != named->n_layers ||
        shape->vocab != named->vocab)
        shape->name = "custom";
}

/* 6 operations a parameter and token; else what the named machine takes, by parameters. */
static bool finish_device_step(struct options *o, struct zf_error *err)
{
    double n = sim_count_parameters(&o->shape);
    double usual = sim_count_parameters(sim_find_model(SIM_DEFAULT_MODEL));
    if ((o->tokens > 0) != (o->device_tflops > 0))
        return zf_fail(err, "schedule: --tokens and --device-tflops are given together");
    if (o->tokens > 0)
        o->rates.device_step = 6 * n * o->tokens / (o->device_tflops * 1e12);
    else if (o->rates.device_step == 0)
        o->rates.device_step = sim_find_machine(o->machine)->device_step * n / usual;
    return true;
}

static bool parse_options(int argc, char **argv, struct options *o, struct zf_error *err)
{
    if (!read_options(argc, argv, false, o, err))
        return false;
    if (o->help)
        return true;
    if (!find_names(o, err) || !read_options(argc, argv, true, o, err))
        return false;
    if (o->policy.lag > o->policy.interval)
        return zf_fail(err, "schedule: --lag is %d, but it is at most --interval, %d",
                       o->policy.lag, o->policy.interval);
    finish_shape(o);
    if (o->shape.width < o->rates.ranks)
        return zf_fail(err,
                       "schedule: a width of %d is less than the %d ranks, but ranks are taken to "
                       "be alike",
                       o->shape.width, o->rates.ranks);
    return finish_device_step(o, err);
}

static bool write_tables(const char *path, json_t *tables, struct zf_error *err)
{
    json_t *root = json_pack("{s:b, s:O}", "simulated", 1, "tables", tables);
    bool ok = json_write(path, root, 6, err);
    json_decref(root);
    return ok;
}

bool bench_schedule(int argc, char **argv, struct zf_error *err)
{
    struct options o = {.model = SIM_DEFAULT_MODEL,
                        .machine = SIM_DEFAULT_MACHINE,
                        .accumulate = "device",
                        .policy = {.topk_ratio = 0.05, .interval = 4, .lag = 1},
                        .steps = 64};
    if (!parse_options(argc, argv, &o, err))
        return false;
    if (o.help) {
        print_help();
        return true;
    }
    struct sim_request request = {o.policy, o.steps, json_array()};
    if (o.custom)
        sim_print_custom(&request, &o.shape, &o.rates);
    else
        sim_print_answers(&request);
    bool ok = !o.json || write_tables(o.json, request.tables, err);
    json_decref(request.tables);
    return ok;
}
