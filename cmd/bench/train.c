#include "cmd/bench/train.h"

#include "cmd/bench/device.h"
#include "cmd/bench/options.h"
#include "cmd/bench/train_run.h"
#include "cmd/live.h"
#include "cmd/memory_choice.h"
#include "data/alloc.h"
#include "data/json.h"
#include "data/log.h"
#include "data/terminal.h"
#include "model/plan/plan.h"
#include "offload/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIGABYTE 1e9
#define SEED     1 /* of the data */

/* What zf-train's configuration has a name for stands there. */
struct options {
    struct config config;
    const char *preset, *head, *device, *method, *lengths, *json, *accumulate, *plan, *trace;
    int length, steps, warm_up, threads, probe, ranks, width, layers, batch, offload_param;
    int buffer_count;
    double dropout;
    bool compare, fit, recompute, offload, no_prefetch, help;
};

static const struct bench_option option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--preset", "NAME", BENCH_TEXT, FIELD(preset), 0, 0, "the model (gpt2)"},
    {"--width", "N", BENCH_WHOLE, FIELD(width), 8, 1 << 16, "another width, with as large heads"},
    {"--layers", "N", BENCH_WHOLE, FIELD(layers), 1, 4096, "and number of blocks"},
    {"--head", "lm|classify", BENCH_TEXT, FIELD(head), 0, 0, "what it ends in (lm)"},
    {"--seqs", "N", BENCH_WHOLE, FIELD(config.per_device_train_batch_size), 1, 1 << 16,
     "sequences of a micro-batch (8)"},
    {"--length", "N", BENCH_WHOLE, FIELD(length), 2, 1 << 16, "tokens of each (128)"},
    {"--lengths", "FILE", BENCH_TEXT, FIELD(lengths), 0, 0,
     "or a file of numbers, which the sequences take by turns"},
    {"--micro-batches", "N", BENCH_WHOLE, FIELD(config.gradient_accumulation_steps), 1, 1 << 16,
     "of a step (1)"},
    {"--train_batch_size", "N", BENCH_WHOLE, FIELD(batch), 1, 1 << 20,
     "instead of both: sequences of a step, of all ranks"},
    {"--fit", NULL, BENCH_FLAG, FIELD(fit), 0, 0,
     "what is not given is chosen so that it fits, as zf-train chooses"},
    {"--steps", "N", BENCH_WHOLE, FIELD(steps), 1, 1 << 16, "that are counted (20)"},
    {"--warm-up", "N", BENCH_WHOLE, FIELD(warm_up), 0, 1 << 16,
     "steps before them (8; of keep_up at least 10, or apply_lag and 5)"},
    {"--dropout", "X", BENCH_REAL, FIELD(dropout), 0, 0.9, "everywhere (the preset's)"},
    {"--gradient_checkpointing", NULL, BENCH_FLAG, FIELD(recompute), 0, 0,
     "compute activations again for backward (no; with --fit: chosen)"},
    {"--bf16", NULL, BENCH_FLAG, FIELD(config.bf16), 0, 0,
     "parameters in bf16, on the CPU device too (CUDA: always)"},
    {"--compare", NULL, BENCH_FLAG, FIELD(compare), 0, 0, "all methods, one after the other"},
    {"--method", "NAME", BENCH_TEXT, FIELD(method), 0, 0,
     "or one: resident, offload, burst, staggered, auto, keep_up (resident)"},
    {"--topk_ratio", "X", BENCH_REAL, FIELD(config.zenflow.topk_ratio), 0, 1, "of ZenFlow (0.05)"},
    {"--update_interval", "N", BENCH_WHOLE, FIELD(config.zenflow.update_interval), 1,
     ENGINE_MAX_INTERVAL, "of ZenFlow (4); auto and keep_up choose it"},
    {"--select_interval", "N", BENCH_WHOLE, FIELD(config.zenflow.select_interval), 1, 1 << 16,
     "of ZenFlow (16)"},
    {"--apply_lag", "N", BENCH_WHOLE, FIELD(config.zenflow.apply_lag), 0, ENGINE_MAX_INTERVAL,
     "of ZenFlow (1)"},
    {"--accumulate", "device|host", BENCH_TEXT, FIELD(accumulate), 0, 0,
     "where ZenFlow's windows are (device; with --fit: chosen)"},
    {"--device_windows", "N", BENCH_WHOLE, FIELD(config.zenflow.device_windows), 0, 1 << 16,
     "with host: blocks whose windows are not there (0; with --fit: chosen)"},
    {"--offload", NULL, BENCH_FLAG, FIELD(offload), 0, 0,
     "important channels' state rests on the host (no; with --fit: chosen)"},
    {"--zero_copy", NULL, BENCH_FLAG, FIELD(config.zero_copy), 0, 0,
     "kernels cross the link, in place of copy engines"},
    {"--offload_param", "N", BENCH_WHOLE, FIELD(offload_param), 0, 1 << 16,
     "blocks on the host, room for N on the device (0; with --fit: chosen)"},
    {"--no_prefetch", NULL, BENCH_FLAG, FIELD(no_prefetch), 0, 0,
     "they come no earlier than they are needed"},
    {"--stage", "N", BENCH_WHOLE, FIELD(config.zero_stage), 1, 3,
     "of ZeRO: 3 divides parameters over ranks, as --offload_param does (2)"},
    {"--buffer_count", "N", BENCH_WHOLE, FIELD(buffer_count), 1, 1 << 16,
     "blocks that a device then has room for (2; with --fit: as many as fit)"},
    {"--pt_reserved_cores_perc", "X", BENCH_REAL, FIELD(config.zenflow.pt_reserved_cores_perc), 0,
     1, "share of the cores that host workers leave free (0.5)"},
    {"--learning_rate", "X", BENCH_REAL, FIELD(config.learning_rate), 0, 1, "of AdamW (1e-4)"},
    {BENCH_DEVICE(FIELD(device))},
    {BENCH_THREADS(FIELD(threads))},
    {BENCH_PROBE(FIELD(probe))},
    {"--plan", "MACHINE", BENCH_TEXT, FIELD(plan), 0, 0,
     "simulate it on this machine: a file, or a name in configs/machines"},
    {"--ranks", "N", BENCH_WHOLE, FIELD(ranks), 1, 4096, "of a plan (1); else as under mpirun"},
    {"--trace", "FILE", BENCH_TEXT, FIELD(trace), 0, 0,
     "write a timeline there, for ui.perfetto.dev"},
    {"--json", "FILE", BENCH_TEXT, FIELD(json), 0, 0, "write all figures there"},
#undef FIELD
};
const struct bench_options bench_train_options = {
    "train",
    "Synthetic training steps: what one takes, moves and holds.",
    NULL,
    option_table,
    sizeof option_table / sizeof *option_table,
    "  S          steps of a window: how often a channel that waits is updated\n"
    "  ms/step    milliseconds of a step, the median; worst: of the slowest\n"
    "  tokens/s   of all ranks\n"
    "  TFLOP/s    of each rank, of matrix products alone\n"
    "  product    these beside what the largest product gave\n"
    "  stall      share of the time that the device waits for the host\n"
    "  down, up   a step's traffic to the host and from it, in sizes of the model in bf16\n"
    "  moved      important channels' state on its way to the host and back, the same\n"
    "  dev. GB    device memory of each rank\n"
    "  host GB    of each rank's host, for the optimizer\n"
    "  loss       of a batch that is not trained on, before the steps; after: behind them\n"};

/* ---- the table ---- */

struct table {
    struct bench_rates rates;
    double model_size;  /* bytes of all parameters in bf16 */
    double host_memory; /* bytes of a plan's host, for so many ranks */
    int ranks, ranks_of_host;
    json_t *lines;
};

/* A plan has no losses. */
static void print_heading(bool planned)
{
    printf("%-19s %4s %9s %9s %10s %8s %7s %6s %6s %6s %6s %8s %8s%s\n", "", "S", "ms/step",
           "worst", "tokens/s", "TFLOP/s", "product", "stall", "down", "up", "moved", "dev. GB",
           "host GB", planned ? "" : "     loss    after");
}

static void print_lack(const struct train_result *r)
{
    printf("does not fit: it needs %.2f GB of device memory, %.2f GB are free",
           (double)r->needed / GIGABYTE, (double)r->free / GIGABYTE);
}

static void print_figures(const struct table *t, const struct train_result *r)
{
    double rate = r->flops / r->median / t->ranks;
    printf("%4d %9.2f %9.2f %10.0f %8.3f %6.1f%% %5.1f%% %6.3f %6.3f %6.3f %8.3f %8.3f ",
           r->interval, r->median * 1e3, r->worst * 1e3, r->tokens / r->median, rate * 1e-12,
           100 * rate / t->rates.product, 100 * r->stall, r->down / t->model_size,
           r->up / t->model_size, r->moved / t->model_size, (double)r->needed / GIGABYTE,
           (double)r->memory.host / GIGABYTE);
}

static void print_result(const struct table *t, const struct train_result *r)
{
    live_give_way();
    printf("%-19s ", r->name);
    if (r->fits || r->planned)
        print_figures(t, r);
    if (!r->fits)
        print_lack(r);
    else if (!r->planned)
        printf("%8.4f %8.4f", r->loss_before, r->loss_after);
    if (r->planned && (double)r->memory.host_most * t->ranks_of_host > t->host_memory)
        printf("%sdoes not fit on its host, which has %.0f GB", r->fits ? "" : "; ",
               t->host_memory / GIGABYTE);
    putchar('\n');
    if (r->planned)
        plan_report_print(r->planned, (size_t)(t->model_size / 2), stdout);
    live_come_back();
}

static json_t *describe_result(const struct table *t, const struct train_result *r, int steps)
{
    json_t *line =
        json_pack("{s:s, s:b, s:I, s:I}", "method", r->name, "fits", (int)r->fits, "device_bytes",
                  (json_int_t)r->needed, "device_bytes_free", (json_int_t)r->free);
    if (!r->fits && !r->planned)
        return line;
    const struct {
        const char *key;
        double value;
    } figures[] = {
        {"median_seconds", r->median},
        {"worst_seconds", r->worst},
        {"mean_seconds", r->mean},
        {"tokens", r->tokens},
        {"tokens_per_second", r->tokens / r->median},
        {"flops", r->flops},
        {"product_share", r->flops / r->median / t->rates.product / t->ranks},
        {"stall_share", r->stall},
        {"bytes_down", r->down},
        {"bytes_up", r->up},
        {"bytes_moved", r->moved},
        {"bytes_gathered", r->gathered},
        {"link_model_sizes", (r->down + r->up) / t->model_size},
        {"host_bytes", (double)r->memory.host},
        {"host_parameters", (double)r->memory.host_elements},
        {"update_interval", r->interval},
        {"created_seconds", r->created}, /* from here on: not of a plan */
        {"filled_seconds", r->filled},
        {"first_step_seconds", r->first},
        {"loss_before", r->loss_before},
        {"loss_after", r->loss_after},
    };
    const size_t n = sizeof figures / sizeof *figures - (r->planned ? 5 : 0);
    for (size_t i = 0; i < n; i++)
        json_object_set_new(line, figures[i].key, json_real(figures[i].value));
    json_t *seconds = json_array();
    for (int i = 0; i < steps; i++)
        json_array_append_new(seconds, json_real(r->seconds[i]));
    json_object_set_new(line, "seconds", seconds);
    if (r->planned)
        json_object_set_new(line, "plan",
                            plan_report_describe(r->planned, (size_t)(t->model_size / 2)));
    return line;
}

/* What the options leave open is settled: with --fit so that it fits, where the device has memory
 * of its own. */
static void settle(const struct train_job *job, struct config *c)
{
    const struct memory_job memory = {job->device, job->comm, &job->config, job->data.max_length};
    const struct memory_room room = {job->device->free_bytes(),
                                     memory_of_host(job->device) /
                                         (size_t)comm_local_size(job->comm)};
    char told[1200] = "";
    if (job->device->unified)
        memory_settle(&memory, c);
    else
        memory_choose(&memory, c, &room, told, sizeof told);
    if (comm_rank(job->comm) == 0 && *told) {
        live_give_way();
        fputs(told, stdout);
        live_come_back();
    }
}

static bool measure_method(const struct options *o, const struct train_job *job,
                           enum train_kind kind, const struct table *t, struct zf_error *err)
{
    struct config own = train_config(kind, &o->config);
    struct train_job held = *job;
    struct train_result result;
    comm_attach(job->comm, job->device);
    settle(job, &own);
    held.n_seqs = own.per_device_train_batch_size;
    held.micro_batches = own.gradient_accumulation_steps;
    held.recompute = own.gradient_checkpointing;
    struct train_method method = train_method_make(kind, &own);
    bool ok = train_measure(&held, &method, &result, err);
    if (ok && comm_rank(job->comm) == 0) {
        print_result(t, &result);
        json_array_append_new(t->lines, describe_result(t, &result, job->steps));
    }
    train_result_free(&result);
    return ok;
}

/* ---- what is asked for ---- */

/* The numbers of a file, each a length from 2 (a classifier's: 1) to n_positions. */
static int *read_lengths(const char *path, const struct gpt_config *config, int *n,
                         struct zf_error *err)
{
    FILE *file = fopen(path, "r");
    int least = config->head == GPT_HEAD_LM ? 2 : 1, capacity = 0, value, got;
    int *list = NULL;
    *n = 0;
    if (!file) {
        zf_fail(err, "train: %s, which --lengths names, cannot be read", path);
        return NULL;
    }
    while ((got = fscanf(file, "%d", &value)) == 1 && value >= least &&
           value <= config->n_positions) {
        if (*n == capacity)
            list = zf_realloc(list, (size_t)(capacity = 2 * capacity + 64) * sizeof *list);
        list[(*n)++] = value;
    }
    fclose(file);
    if (got == EOF && *n > 0)
        return list;
    zf_fail(err, "train: %s: number %d is not a length from %d to %d", path, *n + 1, least,
            config->n_positions);
    free(list);
    return NULL;
}

static bool find_method(const struct options *o, enum train_kind *kind, struct zf_error *err)
{
    for (*kind = 0; *kind < TRAIN_N_KINDS; ++*kind)
        if (strcmp(train_kind_name(*kind), o->method) == 0)
            return true;
    return zf_fail_usage(
        err,
        "train: --method is \"%s\", but it is resident, offload, burst, staggered, auto or "
        "keep_up",
        o->method);
}

/* The preset in another size. */
static bool shape_model(const struct options *o, struct gpt_config *config, struct zf_error *err)
{
    const struct heads heads = gpt_heads(config);
    const int group = heads.n_head / heads.n_kv_head, group_width = group * heads.head_dim;
    if (o->layers > 0)
        config->n_layer = o->layers;
    if (o->width == 0)
        return true;
    if (o->width % group_width != 0)
        return zf_fail_usage(err,
                             "train: --width is %d, but it is a multiple of the preset's heads, %d",
                             o->width, group_width);
    config->n_inner = (int)((long long)o->width * config->n_inner / config->n_embd);
    config->n_embd = o->width;
    config->n_head = o->width / heads.head_dim;
    config->n_kv_heads = config->n_head / group;
    return true;
}

static bool configure_model(struct options *o, struct gpt_config *config, struct zf_error *err)
{
    if (!gpt_config_preset(config, o->preset, err))
        return false;
    if (!shape_model(o, config, err))
        return false;
    if (strcmp(o->head, "classify") == 0)
        config->head = GPT_HEAD_CLASSIFY;
    else if (strcmp(o->head, "lm") != 0)
        return zf_fail_usage(err, "train: --head is \"%s\", but it is lm or classify", o->head);
    if (o->dropout >= 0)
        config->embd_pdrop = config->attn_pdrop = config->resid_pdrop = (float)o->dropout;
    if (!o->lengths && o->length > config->n_positions)
        return zf_fail_usage(err, "train: --length is %d, but %s has %d positions", o->length,
                             o->preset, config->n_positions);
    struct zenflow_config *z = &o->config.zenflow;
    if (z->apply_lag > z->update_interval)
        return zf_fail_usage(err,
                             "train: --apply_lag is %d, but it is at most --update_interval, %d",
                             z->apply_lag, z->update_interval);
    return true;
}

/* Where things live. */
static bool configure_places(struct options *o, struct zf_error *err)
{
    struct config *c = &o->config;
    const int open = o->fit ? CONFIG_AUTO : false;
    const bool on_host = o->accumulate && strcmp(o->accumulate, "host") == 0;
    if (o->accumulate && !on_host && strcmp(o->accumulate, "device") != 0)
        return zf_fail_usage(err, "train: --accumulate is \"%s\", but it is device or host",
                             o->accumulate);
    if (!o->compare && strcmp(o->method, train_kind_name(TRAIN_RESIDENT)) == 0 &&
        (o->offload_param > 0 || on_host || o->offload))
        return zf_fail_usage(
            err,
            "train: %s puts something on the host, but with --method resident all is on "
            "the device: choose another method",
            o->offload_param > 0 ? "--offload_param"
            : on_host            ? "--accumulate host"
                                 : "--offload");
    c->zenflow.accumulate = on_host                    ? ZENFLOW_ACCUMULATE_HOST
                            : o->accumulate || !o->fit ? ZENFLOW_ACCUMULATE_DEVICE
                                                       : ZENFLOW_ACCUMULATE_AUTO;
    c->gradient_checkpointing = o->recompute ? true : open;
    c->zenflow.offload = o->offload ? true : open;
    c->offload_param = o->offload_param > 0             ? OFFLOAD_CPU
                       : o->offload_param < 0 && o->fit ? OFFLOAD_AUTO
                                                        : OFFLOAD_NONE;
    c->prefetch = o->no_prefetch ? 0 : CONFIG_AUTO;
    c->param_buffers = o->offload_param > 0  ? o->offload_param
                       : o->buffer_count > 0 ? o->buffer_count
                                             : CONFIG_AUTO;
    c->zero_stage = o->offload_param > 0 ? 3 : c->zero_stage;
    return true;
}

/* How a step is cut. */
static bool configure_batch(struct options *o, int ranks, struct zf_error *err)
{
    struct config *c = &o->config;
    c->n_ranks = ranks;
    if (o->batch == 0)
        return true;
    if (o->batch % ranks != 0)
        return zf_fail_usage(
            err, "train: --train_batch_size is %d, but it is a multiple of the %d ranks", o->batch,
            ranks);
    c->per_device_train_batch_size = o->batch / ranks;
    c->gradient_accumulation_steps = 1;
    c->divides_batch = o->fit;
    return true;
}

static void print_limits(const struct train_job *job, const struct table *t)
{
    const double copy = t->rates.copy * 1e-9, product = t->rates.product * 1e-12;
    if (job->device->plan)
        printf("limits of each device there: copy %.1f GB/s, largest products %.2f TFLOP/s\n", copy,
               product);
    else
        printf("limits of each device: copy %.1f GB/s, product of %d x %d matrices %.2f TFLOP/s\n",
               copy, t->rates.side, t->rates.side, product);
}

static void announce(const struct options *o, const struct train_job *job, const struct table *t,
                     bool with_zenflow)
{
    const struct plan *plan = job->device->plan;
    const struct zenflow_config *z = &o->config.zenflow;
    live_give_way();
    printf("%s, %s head, %.2f M parameters, ", o->preset, o->head, t->model_size / 2e6);
    if (plan)
        printf("simulated on %d x %s", t->ranks, plan_machine(plan)->name);
    else
        printf("on the %s device (%s) of %d rank(s)", job->device->name,
               dtype_name(job->device->dtype), t->ranks);
    printf(": %d x %d sequences of up to %d tokens for each,\ndropout %g%s; %d steps after %d",
           job->micro_batches, job->n_seqs, job->data.max_length, (double)job->config.resid_pdrop,
           o->recompute ? ", gradient checkpointing" : "", job->steps, job->warm_up);
    if (with_zenflow)
        printf("; ZenFlow: topk_ratio %g, select_interval %d, apply_lag %d", z->topk_ratio,
               z->select_interval, z->apply_lag);
    putchar('\n');
    print_limits(job, t);
    printf("down, up, moved: in model sizes of %.3f GB (bf16); zf-bench train --help has all "
           "columns\n\n",
           t->model_size / GIGABYTE);
    print_heading(plan);
    live_come_back();
}

/* The most memory that this process has held at a time, in bytes;
 * 0 where the system does not say. */
static double process_peak(void)
{
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kilobytes = strtod(line + 6, NULL);
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

/* peak: process_peak(), of the rank that has held the most */
static bool write_json(const struct options *o, const struct train_job *job, const struct table *t,
                       double peak, struct zf_error *err)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:O}", "preset",
        o->preset, "head", o->head, "device", job->device->name, "sequences", job->n_seqs,
        "micro_batches", job->micro_batches, "max_length", job->data.max_length, "warm_up",
        job->warm_up, "dropout", (double)job->config.resid_pdrop, "topk_ratio",
        o->config.zenflow.topk_ratio, "model_bytes", t->model_size, "process_peak_bytes", peak,
        "product_side", t->rates.side, "copy_bytes_per_second", t->rates.copy,
        "product_flops_per_second", t->rates.product, "methods", t->lines);
    bool ok = json_write(o->json, root, 9, err);
    json_decref(root);
    return ok;
}

/* A plan's machine has its own. */
static struct bench_rates rates_of(const struct options *o, const struct train_job *job)
{
    const struct plan *plan = job->device->plan;
    live_stage("measuring the device's limits", 0);
    if (!plan)
        return bench_measure_rates(job->device, o->probe, 5);
    return (struct bench_rates){plan_machine(plan)->memory_rate, plan_machine(plan)->product_rate,
                                0};
}

static bool measure(const struct options *o, struct train_job *job, struct zf_error *err)
{
    enum train_kind kind;
    if (!find_method(o, &kind, err))
        return false;
    struct param_table params = gpt_param_table(&job->config);
    struct table t = {.rates = rates_of(o, job),
                      .model_size = 2 * (double)params.n_parameters,
                      .ranks = comm_size(job->comm),
                      .ranks_of_host = comm_local_size(job->comm),
                      .lines = json_array()};
    if (job->device->plan)
        t.host_memory = plan_machine(job->device->plan)->host_memory_bytes;
    bool first = comm_rank(job->comm) == 0;
    params_free(&params);
    if (first)
        announce(o, job, &t, o->compare || kind >= TRAIN_BURST);
    bool ok = true;
    for (int i = 0; ok && i < TRAIN_N_KINDS; i++)
        if (o->compare || i == (int)kind)
            ok = measure_method(o, job, i, &t, err);
    const double peak = comm_max(job->comm, process_peak());
    ok = ok && (!o->json || !first || write_json(o, job, &t, peak, err));
    json_decref(t.lines);
    return ok;
}

/* The device and the ranks: those that are there, or planned ones. */
static bool open_device(const struct options *o, struct train_job *job, struct zf_error *err)
{
    struct machine machine;
    if (!o->plan && o->ranks > 1)
        return zf_fail_usage(err,
                             "train: --ranks is %d, but --plan, which names the machine to "
                             "simulate, is not given: ranks of a run are mpirun's",
                             o->ranks);
    if (!o->plan) {
        job->comm = comm_create();
        log_set_rank(comm_rank(job->comm));
        int threads = o->threads ? o->threads : comm_core_threads(job->comm);
        job->device = bench_device("train", o->device, threads, comm_local_rank(job->comm), err);
        return job->device;
    }
    if (!machine_load(&machine, o->plan, err))
        return false;
    job->comm = comm_create_planned(o->ranks, (int)machine.ranks_per_host);
    job->device = device_plan_create(&machine, o->ranks, NULL);
    return true;
}

static void close_device(struct train_job *job)
{
    if (job->comm)
        comm_destroy(job->comm);
    if (job->device && job->device->plan)
        device_plan_destroy(job->device);
}

static bool prepare_and_measure(struct options *o, struct zf_error *err)
{
    const struct config *c = &o->config;
    struct train_job job = {
        .warm_up = o->warm_up,
        .apply_lag = c->zenflow.apply_lag,
        .steps = o->steps,
        .lr = (float)c->learning_rate,
    };
    int n = 1, *lengths = NULL;
    if (!configure_model(o, &job.config, err) || !configure_places(o, err) ||
        (o->lengths && !(lengths = read_lengths(o->lengths, &job.config, &n, err))))
        return false;
    bool ok =
        open_device(o, &job, err) && configure_batch(o, comm_size(job.comm), err) &&
        (!o->trace || (job.trace = trace_create(o->trace, job.comm, job.device, err)) != NULL);
    if (ok) {
        if (comm_rank(job.comm) == 0)
            live_begin(terminal_is_at(STDERR_FILENO));
        job.n_seqs = c->per_device_train_batch_size;
        job.micro_batches = c->gradient_accumulation_steps;
        o->config.bf16 |= job.device->dtype == DTYPE_BF16;
        train_data_make(&job, lengths ? lengths : &o->length, n, SEED);
        ok = measure(o, &job, err);
        live_end();
        dataset_free(&job.data);
    }
    struct zf_error late;
    if (!trace_destroy(job.trace, &late) && ok)
        ok = zf_fail(err, "%s", late.text);
    close_device(&job);
    free(lengths);
    return ok;
}

/* The options' defaults, where they are not the configuration's. */
static void set_defaults(struct options *o)
{
    struct config *c = &o->config;
    config_defaults(c, 1);
    c->per_device_train_batch_size = 8;
    c->gradient_accumulation_steps = 1;
    c->learning_rate = 1e-4;
    c->do_eval = false;
    c->zero_stage = 2;
    c->zenflow.topk_ratio = 0.05;
    c->zenflow.select_strategy = ZENFLOW_SELECT_STEP;
    c->zenflow.select_interval = 16;
    c->zenflow.update_interval = 4;
    c->zenflow.overlap_step = true;
    c->zenflow.device_windows = CONFIG_AUTO;
}

bool bench_train(int argc, char **argv, struct zf_error *err)
{
    struct options o = {
        .preset = "gpt2",
        .head = "lm",
        .device = "auto",
        .method = "resident",
        .offload_param = -1,
        .ranks = 1,
        .length = 128,
        .steps = 20,
        .warm_up = 8,
        .dropout = -1,
    };
    set_defaults(&o);
    bool ok = bench_options_read(&bench_train_options, argc, argv, &o, &o.help, err);
    ok = ok && (o.help || prepare_and_measure(&o, err));
    config_free(&o.config);
    return ok;
}
