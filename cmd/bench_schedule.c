#include "cmd/bench_schedule.h"

#include "cmd/bench_options.h"
#include "cmd/bench_schedule_tables.h"
#include "data/json.h"

#include <math.h>
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

static const struct bench_option option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--model", BENCH_TEXT, FIELD(model), 0, 0, "a shape by name (llama-2-7b)"},
    {"--parameters", BENCH_REAL, FIELD(parameters), 1e6, 1e13, "a GPT of about so many instead"},
    {"--layers", BENCH_WHOLE, FIELD(shape.n_layers), 1, 1000, "or: blocks"},
    {"--width", BENCH_WHOLE, FIELD(shape.width), 1, 1 << 20, "    width; 4 times it in between"},
    {"--vocab", BENCH_WHOLE, FIELD(shape.vocab), 1, 1 << 24, "    tokens"},
    {"--machine", BENCH_TEXT, FIELD(machine), 0, 0,
     "rates by name (a100x4); what follows changes them"},
    {"--ranks", BENCH_WHOLE, FIELD(rates.ranks), 1, 4096, "devices"},
    {"--ranks-per-node", BENCH_WHOLE, FIELD(rates.ranks_per_node), 1, 64, "that share a host"},
    {"--ranks-per-link", BENCH_WHOLE, FIELD(rates.ranks_per_link), 1, 64, "that share a link"},
    {"--device-step", BENCH_REAL, FIELD(rates.device_step), 1e-6, 1e6,
     "seconds, forward and backward (by parameters)"},
    {"--tokens", BENCH_REAL, FIELD(tokens), 1, 1e9, "or: a device's tokens in a step, with"},
    {"--device-tflops", BENCH_REAL, FIELD(device_tflops), 1e-3, 1e6, "    what it reaches"},
    {"--device-gbs", BENCH_REAL, FIELD(rates.device_gbs), 1e-3, 1e9, "device memory, GB/s"},
    {"--link-gbs", BENCH_REAL, FIELD(rates.link_gbs), 1e-3, 1e9, "link, each way"},
    {"--host-gbs", BENCH_REAL, FIELD(rates.host_gbs), 1e-3, 1e9,
     "host AdamW of a node, 28 bytes each"},
    {"--exchange-gbs", BENCH_REAL, FIELD(rates.exchange_gbs), 1e-3, 1e9,
     "collectives within a node"},
    {"--network-gbs", BENCH_REAL, FIELD(rates.network_gbs), 1e-3, 1e9, "and into a node"},
    {"--topk", BENCH_REAL, FIELD(policy.topk_ratio), 0, 1, "share of important channels (0.05)"},
    {"--interval", BENCH_WHOLE, FIELD(policy.interval), 1, ENGINE_MAX_INTERVAL, "S (4)"},
    {"--lag", BENCH_WHOLE, FIELD(policy.lag), 0, ENGINE_MAX_INTERVAL, "apply_lag, to S (1)"},
    {"--accumulate", BENCH_TEXT, FIELD(accumulate), 0, 0, "device or host (device)"},
    {"--steps", BENCH_WHOLE, FIELD(steps), 1, 1000000, "to simulate, once settled (64)"},
    {"--json", BENCH_TEXT, FIELD(json), 0, 0, "write all results there"},
#undef FIELD
};
static const struct bench_options options_of_schedule = {
    "schedule",
    "Simulates steps. Without options that name a model, machine or policy: the tables of\n"
    "assumed machines beside published figures. Else one table.",
    option_table, sizeof option_table / sizeof *option_table};

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
    if (!bench_options_read(&options_of_schedule, argc, argv, o, &o->help, err))
        return false;
    if (o->help)
        return true;
    /* Once more: what is given replaces what the named model and machine have. */
    if (!find_names(o, err) ||
        !bench_options_read(&options_of_schedule, argc, argv, o, &o->help, err))
        return false;
    for (int i = 1; i < argc; i += 2)
        o->custom |= strcmp(argv[i], "--steps") != 0 && strcmp(argv[i], "--json") != 0;
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
        sim_print_names();
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
