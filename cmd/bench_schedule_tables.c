#include "cmd/bench_schedule_tables.h"

#include <stdio.h>
#include <string.h>

/* ---- models and machines ---- */

enum model_name { GPT_1_3B, GPT_2_7B, GPT_6_7B, LLAMA_2_7B, GPT_13B, OPT_30B, LLAMA_2_70B };

/* Layers, width, of keys and values, in between, gated, tokens, positions, tied. */
static const struct sim_model models[] = {
    [GPT_1_3B] = {"gpt-1.3b", 24, 2048, 2048, 8192, false, 50257, 2048, true},
    [GPT_2_7B] = {"gpt-2.7b", 32, 2560, 2560, 10240, false, 50257, 2048, true},
    [GPT_6_7B] = {"gpt-6.7b", 32, 4096, 4096, 16384, false, 50257, 2048, true},
    [LLAMA_2_7B] = {"llama-2-7b", 32, 4096, 4096, 11008, true, 32000, 0, false},
    [GPT_13B] = {"gpt-13b", 40, 5120, 5120, 20480, false, 50257, 2048, true},
    [OPT_30B] = {"opt-30b", 48, 7168, 7168, 28672, false, 50272, 2050, true},
    [LLAMA_2_70B] = {"llama-2-70b", 80, 8192, 1024, 28672, true, 32000, 0, false},
};
static const int n_models = sizeof models / sizeof *models;

enum machine_name { A100_4, H200_1 };

/* Where the rates come from is printed with the tables: print_assumed_rates. */
static const struct sim_machine machines[] = {
    [A100_4] = {.name = "a100x4",
                .device_step = 0.45,
                .backward_share = 2.0 / 3,
                .device_gbs = 1500,
                .device_gigabytes = 80,
                .link_gbs = 24,
                .ranks_per_link = 1,
                .host_gbs = 300,
                .ranks = 4,
                .ranks_per_node = 4,
                .exchange_gbs = 200,
                .network_gbs = 90},
    [H200_1] = {.name = "h200",
                .device_step = 0.40,
                .backward_share = 2.0 / 3,
                .device_gbs = 4000,
                .device_gigabytes = 141,
                .link_gbs = 50,
                .ranks_per_link = 1,
                .host_gbs = 340,
                .ranks = 1,
                .ranks_per_node = 8,
                .exchange_gbs = 300,
                .network_gbs = 300},
};
static const int n_machines = sizeof machines / sizeof *machines;

const struct sim_model *sim_find_model(const char *name)
{
    for (int i = 0; i < n_models; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

const struct sim_machine *sim_find_machine(const char *name)
{
    for (int i = 0; i < n_machines; i++)
        if (strcmp(machines[i].name, name) == 0)
            return &machines[i];
    return NULL;
}

void sim_print_names(void)
{
    fputs("\nmodels:  ", stdout);
    for (int i = 0; i < n_models; i++)
        printf(" %s", models[i].name);
    fputs("\nmachines:", stdout);
    for (int i = 0; i < n_machines; i++)
        printf(" %s", machines[i].name);
    putchar('\n');
}

/* ---- policies ---- */

enum policy_name {
    RESIDENT,
    ZERO_OFFLOAD,
    BURST_INLINE,
    BURST,
    STAGGERED,
    STAGGERED_INLINE,
    HOST_WINDOWS,
    N_POLICIES
};

static struct sim_policy policy_of(const struct sim_request *o, enum policy_name name)
{
    struct sim_policy p = o->policy;
    switch (name) {
    case RESIDENT:
        return (struct sim_policy){.name = "resident AdamW", .topk_ratio = 1, .interval = 1};
    case ZERO_OFFLOAD:
        return (struct sim_policy){.name = "ZeRO-Offload",
                                   .interval = 1,
                                   .stagger = true,
                                   .down_in_backward = true,
                                   .inline_copies = true};
    case BURST_INLINE:
        p.name = "ZenFlow, burst, lag S, copies wait";
        p.lag = p.interval;
        p.inline_copies = true;
        return p;
    case BURST:
        p.name = "ZenFlow, burst";
        return p;
    case STAGGERED:
        p.name = "ZenFlow, staggered";
        break;
    case STAGGERED_INLINE:
        p.name = "ZenFlow, staggered, copies wait";
        p.inline_copies = true;
        break;
    default:
        p.name = "ZenFlow, staggered, windows on host";
        p.accumulate = ENGINE_ACCUMULATE_HOST;
    }
    p.stagger = true;
    return p;
}

/* ---- printing ---- */

static json_t *result_json(const struct sim_result *r)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "median_seconds",
                     r->median, "worst_seconds", r->worst, "mean_seconds", r->mean, "stall_share",
                     r->stall_share, "exchange_share", r->exchange_share, "host_busy_share",
                     r->host_share, "down_model_sizes", r->down, "up_model_sizes", r->up,
                     "host_bytes_per_parameter", r->host_bytes, "device_bytes_per_parameter",
                     r->device_bytes, "steps", r->steps);
}

/* Appends {"model", "machine", "results": {}} to what goes into --json; returns the results. */
static json_t *begin_table(const struct sim_request *o, const struct sim_model *model,
                           const struct sim_machine *m)
{
    json_t *results = json_object();
    json_array_append_new(
        o->tables, json_pack("{s:s, s:f, s:s, s:i, s:f, s:f, s:f, s:o}", "model", model->name,
                             "parameters", sim_count_parameters(model), "machine", m->name, "ranks",
                             m->ranks, "device_step_seconds", m->device_step, "link_gbs",
                             m->link_gbs, "host_gbs", m->host_gbs, "results", results));
    return results;
}

static void print_policies(const struct sim_request *o, const struct sim_model *model,
                           const struct sim_machine *m)
{
    json_t *results = begin_table(o, model, m);
    printf("%-36s %7s %7s %6s %6s %6s %6s %6s %6s %6s\n", "simulated", "median", "worst", "stall",
           "ranks", "host", "down", "up", "host", "device");
    printf("%-36s %7s %7s %6s %6s %6s %13s %6s %6s\n", "", "s", "s", "%", "%", "busy %",
           "model sizes", "B/p", "B/p");
    for (int i = 0; i < N_POLICIES; i++) {
        if (i == HOST_WINDOWS && o->policy.accumulate == ENGINE_ACCUMULATE_HOST)
            continue; /* the others do it too */
        struct sim_policy p = policy_of(o, i);
        struct sim_result r = sim_run(model, m, &p, o->steps);
        printf("%-36s %7.2f %7.2f %6.1f %6.1f %6.1f %6.2f %6.2f %6.1f %6.1f\n", p.name, r.median,
               r.worst, 100 * r.stall_share, 100 * r.exchange_share, 100 * r.host_share, r.down,
               r.up, r.host_bytes, r.device_bytes);
        json_object_set_new(results, p.name, result_json(&r));
    }
    putchar('\n');
}

static void print_rates(const struct sim_model *model, const struct sim_machine *m)
{
    printf("%s (%.2f B parameters), %d rank%s, %d a node; device %.2f s forward and backward,\n"
           "link %.0f GB/s each way, host AdamW %.0f GB/s a node, exchange %.0f GB/s\n\n",
           model->name, sim_count_parameters(model) / 1e9, m->ranks, m->ranks == 1 ? "" : "s",
           m->ranks_per_node, m->device_step, m->link_gbs, m->host_gbs,
           m->ranks > m->ranks_per_node && m->network_gbs < m->exchange_gbs ? m->network_gbs
                                                                            : m->exchange_gbs);
}

static void print_reading(const struct sim_request *o)
{
    printf("SIMULATED: the engine's schedule functions over assumed rates; nothing here was\n"
           "measured. ZenFlow with topk_ratio %g, S = %d, apply_lag %d.\n"
           "\n"
           "Rows:\n"
           "  ZeRO-Offload  gradients go down during backward; then host AdamW; then parameters\n"
           "                go up; nothing else overlaps\n"
           "  burst         all windows close in every S-th step; with \"lag S, copies wait\" as\n"
           "                DeepSpeed does it: an update has until the next closing, and the\n"
           "                device waits for its copies\n"
           "  staggered     one group's window closes in each step\n"
           "  copies wait   the device waits for each copy, as on the CPU device; else copies\n"
           "                have streams of their own, and a layer's forward pass waits for\n"
           "                its parameters\n"
           "Columns:\n"
           "  stall, ranks  the device waited for the host or the link; for other ranks\n"
           "  down, up      traffic of all ranks a step, in sizes of the model in bf16\n"
           "                (published, both ways: 2 for ZeRO-Offload, 1.13 for ZenFlow)\n"
           "  B/p           bytes of memory per parameter of the model: on all hosts together\n"
           "                (DeepSpeed's overlapped ZenFlow: 32), and on each device without\n"
           "                activations\n"
           "All ranks run alike. Re-selection, evaluation and the loader are left out. Layers\n"
           "are the unit of work on the device and the link, a group's update on the host.\n"
           "\n",
           o->policy.topk_ratio, o->policy.interval, o->policy.lag);
}

static void print_assumed_rates(void)
{
    puts("Rates that are assumed, three quarters to nine tenths of what is published:\n"
         "  link    PCIe 4 x16: 24 of 31.5 GB/s, PCIe 5 x16: 50 of 63; each way at once,\n"
         "          pinned memory, one device a link\n"
         "  host    AdamW at 0.9 of STREAM's triad, 28 bytes a parameter. Two EPYC 7003\n"
         "          sockets: 330 to 350 GB/s (Azure, HBv3), so 300; one EPYC 9004 socket:\n"
         "          378 GB/s (Micron), so 340. What the link itself takes of the host's\n"
         "          memory is not charged\n"
         "  ranks   NVLink: 200 of 300 GB/s; 90 GB/s into a node, four 200 Gb/s adapters\n"
         "  device  optimizer's passes: A100 1.5 of 2.0 TB/s, H200 4 of 4.8. Forward and\n"
         "          backward: 0.45 s on A100, so that resident AdamW comes to the published\n"
         "          0.5 s; 0.40 s on H200, about 4,000 tokens at 40% of 989 TFLOP/s\n");
}

/* ---- the questions ---- */

/* The machine with the host's rate at which a policy's longest step would be what was published. */
static struct sim_machine at_published(const struct sim_model *model, struct sim_machine m,
                                       const struct sim_policy *p, double seconds)
{
    double assumed = m.host_gbs;
    m.host_gbs = sim_find_host_rate(model, &m, p, seconds);
    printf("\"%s\" would have a step of %.2f s at most\nwith host AdamW at %.0f GB/s a "
           "node, %.0f%% of the %.0f assumed. With such a host:\n\n",
           p->name, seconds, m.host_gbs, 100 * m.host_gbs / assumed, assumed);
    return m;
}

#define HIDDEN 0.01 /* share of stall that counts as none */

/* From which S on the host keeps up. */
static void print_least_interval(const struct sim_request *o, const struct sim_model *model,
                                 const struct sim_machine *m)
{
    struct sim_policy p = policy_of(o, STAGGERED);
    struct sim_result r;
    do
        r = sim_run(model, m, &p, o->steps);
    while (r.stall_share > HIDDEN && ++p.interval <= ENGINE_MAX_INTERVAL);
    if (r.stall_share > HIDDEN)
        printf("No S hides a host this slow.\n\n");
    else
        printf("Staggering evens out what it cannot hide. S = %d is the least whose stall is below "
               "%.0f%%:\n%.2f s a step, with gradients up to %d steps old.\n\n",
               p.interval, 100 * HIDDEN, r.median, p.interval - 1 + p.lag);
}

#define PUBLISHED_ZERO_OFFLOAD 7.0
#define PUBLISHED_LOG_BURST    2.07 /* mean of its two steps in which windows close */

static void answer_llama(const struct sim_request *o)
{
    const struct sim_model *model = &models[LLAMA_2_7B];
    struct sim_machine m = machines[A100_4];
    struct sim_policy zero = policy_of(o, ZERO_OFFLOAD);
    printf("==== Llama-2-7B on 4 A100s, PCIe 4 ====\n\n");
    print_rates(model, &m);
    print_policies(o, model, &m);
    printf("Published (DeepSpeed's ZenFlow blog): 0.5 s without offloading, over 7 s with "
           "ZeRO-Offload, of which\nthe CPU's part more than 4 s and backward, with its copies, "
           "about 2 s.\n"
           "The simulation does not reproduce the 7 s: these rates do not hold for DeepSpeed's CPU "
           "path there,\nand why is not something that it can tell.\n");
    m = at_published(model, m, &zero, PUBLISHED_ZERO_OFFLOAD);
    m.name = "a100x4, host rate fitted to ZeRO-Offload at 7 s";
    print_policies(o, model, &m);
    print_least_interval(o, model, &m);
}

static void answer_log(const struct sim_request *o)
{
    const struct sim_model *model = &models[LLAMA_2_7B];
    struct sim_request with = *o;
    with.policy.topk_ratio = 0.1;
    with.policy.interval = 4;
    struct sim_machine m = machines[A100_4];
    m.ranks = 2;
    m.device_step = 0.65; /* so that quiet steps take what the log says */
    printf("==== DeepSpeed's example log: Llama-2-7B on 2 devices, topk_ratio 0.1, S = 4 ====\n\n");
    printf("Published (DeepSpeedExamples, DeepSpeed-ZenFlow/finetuning): steps of 0.70 to 0.74 s, "
           "every fourth\n1.91 and 2.22 s, the next 0.89 and 1.06 s. Its machine is not named: "
           "A100s with PCIe 4 assumed.\nThe slower next step is not reproduced.\n");
    struct sim_policy deepspeed = policy_of(&with, BURST_INLINE);
    m = at_published(model, m, &deepspeed, PUBLISHED_LOG_BURST);
    m.name = "2 A100s, host rate fitted to DeepSpeed's log";
    print_rates(model, &m);
    print_policies(&with, model, &m);
    print_least_interval(&with, model, &m);
}

#define H200_NODE_HOST_GBS 680.0 /* two sockets */

static void answer_h200(const struct sim_request *o)
{
    struct sim_machine m = machines[H200_1];
    printf("==== GPT 6.7B on one H200, PCIe 5 ====\n\n");
    print_rates(&models[GPT_6_7B], &m);
    print_policies(o, &models[GPT_6_7B], &m);
    printf("The same with an eighth of a two-socket node's host memory, as where eight jobs share "
           "it:\n\n");
    m.name = "h200, an eighth of the node's host";
    m.host_gbs = H200_NODE_HOST_GBS / 8;
    print_policies(o, &models[GPT_6_7B], &m);
    print_least_interval(o, &models[GPT_6_7B], &m);
}

static void print_sweep_head(const char *what)
{
    printf("simulated; seconds    %12s %9s %15s %9s %8s %8s\n", "ZeRO-", "burst", "staggered",
           "host", "host", "device");
    printf("%-12s %8s %12s %9s %7s %7s %9s %8s %8s\n", what, "resident", "Offload", "worst",
           "median", "stall %", "busy %", "GB/node", "GB");
}

/* A `!` marks a device that cannot hold it. */
static void print_sweep_line(const struct sim_request *o, const char *label,
                             const struct sim_model *model, const struct sim_machine *m)
{
    static const enum policy_name shown[] = {RESIDENT, ZERO_OFFLOAD, BURST, STAGGERED};
    struct sim_result r[N_POLICIES];
    json_t *results = begin_table(o, model, m);
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        struct sim_policy p = policy_of(o, shown[i]);
        r[shown[i]] = sim_run(model, m, &p, o->steps);
        json_object_set_new(results, p.name, result_json(&r[shown[i]]));
    }
    double n = sim_count_parameters(model) / 1e9;
    int nodes = (m->ranks + m->ranks_per_node - 1) / m->ranks_per_node;
    const struct sim_result *z = &r[STAGGERED];
    char fits = n * r[RESIDENT].device_bytes > m->device_gigabytes ? '!' : ' ';
    printf("%-12s %7.2f%c %12.2f %9.2f %7.2f %7.1f %9.1f %8.0f %7.0f%s\n", label,
           r[RESIDENT].median, fits, r[ZERO_OFFLOAD].median, r[BURST].worst, z->median,
           100 * z->stall_share, 100 * z->host_share, n * z->host_bytes / nodes,
           n * z->device_bytes, n * z->device_bytes > m->device_gigabytes ? "!" : "");
}

static void answer_ranks(const struct sim_request *o)
{
    printf("==== Ranks: Llama-2-7B, A100s, 4 a node, the same batch on each ====\n\n");
    print_sweep_head("ranks");
    for (int ranks = 1; ranks <= 64; ranks *= 2) {
        struct sim_machine m = machines[A100_4];
        char label[16];
        m.ranks = ranks;
        snprintf(label, sizeof label, "%d", ranks);
        print_sweep_line(o, label, &models[LLAMA_2_7B], &m);
    }
    printf(
        "\n`!`: more than a device's memory, before activations. Offloaded state is divided among "
        "ranks: from\none node on, each host's work falls as nodes are added.\n\n");
}

static void answer_sizes(const struct sim_request *o)
{
    static const enum model_name swept[] = {GPT_1_3B, GPT_2_7B, LLAMA_2_7B,
                                            GPT_13B,  OPT_30B,  LLAMA_2_70B};
    double reference = sim_count_parameters(&models[LLAMA_2_7B]);
    printf("==== Model size: 4 A100s, the same tokens a step, device time as parameters ====\n\n");
    print_sweep_head("model");
    for (size_t i = 0; i < sizeof swept / sizeof *swept; i++) {
        const struct sim_model *model = &models[swept[i]];
        struct sim_machine m = machines[A100_4];
        m.device_step *= sim_count_parameters(model) / reference;
        print_sweep_line(o, model->name, model, &m);
    }
    printf("\n`!`: more than a device's memory: bf16 parameters and fp32 gradients are whole on "
           "every rank, so\nits times say what the schedule costs, not that it runs.\n\n");
}

void sim_print_custom(const struct sim_request *o, const struct sim_model *model,
                      const struct sim_machine *machine)
{
    print_reading(o);
    print_rates(model, machine);
    print_policies(o, model, machine);
}

void sim_print_answers(const struct sim_request *o)
{
    print_reading(o);
    print_assumed_rates();
    answer_llama(o);
    answer_log(o);
    answer_h200(o);
    answer_ranks(o);
    answer_sizes(o);
}
