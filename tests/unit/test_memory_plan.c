/* cmd/memory_plan: what a run is said to need, and what is said where it does not fit, on a device
 * that claims a memory of its own. */
#include "tests/testing.h"

#include "cmd/memory_choice.h"
#include "cmd/memory_plan.h"
#include "model/plan/plan.h"

#include <math.h>

#define LONGEST 64

static struct device device; /* the CPU device, but for what it says of its memory */
static size_t free_memory, reserved;
static struct config config;
static struct run run;
static struct zf_error err;
static char printed[4096];

static size_t free_bytes(void)
{
    return free_memory;
}

static bool reserve(size_t bytes, struct zf_error *fault)
{
    (void)fault;
    reserved = bytes;
    return true;
}

/* A run of the preset gpt with these options, which end with NULL. */
static void make_run(const char *const *options)
{
    const char *argv[40] = {"zf-train", "--task_name",  "sst2", "--config_name",
                            "gpt",      "--data_dir",   "d",    "--tokenizer_name",
                            "t",        "--output_dir", "o",    "--max_steps",
                            "10"};
    int argc = 13;
    while (*options)
        argv[argc++] = *options++;
    assert_works(config_parse(&config, argc, (char **)argv, 1, &err), err);
    assert_works(config_resolve_steps(&config, 1000, &err), err);
    run.config = &config;
    assert_works(gpt_config_preset(&run.model_config, "gpt", &err), err);
    run.model_config.head = GPT_HEAD_CLASSIFY;
    run.model_config.num_labels = 2;
}

/* With so much free memory. */
static bool plan(size_t available)
{
    free_memory = available;
    reserved = 0;
    fflush(stderr);
    FILE *captured = tmpfile();
    int old = dup(STDERR_FILENO);
    dup2(fileno(captured), STDERR_FILENO);
    bool ok = memory_plan(&run, LONGEST, &err);
    if (ok)
        memory_tell(&run);
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(captured);
    printed[fread(printed, 1, sizeof printed - 1, captured)] = 0;
    fclose(captured);
    return ok;
}

/* MiB behind a row's name in what was printed. */
static double row(const char *name)
{
    char pattern[40];
    double mib = NAN;
    snprintf(pattern, sizeof pattern, "  %s ", name);
    const char *at = strstr(printed, pattern);
    if (!at)
        fail_msg("the table has no %s:\n%s", name, printed);
    assert_int_equal(sscanf(at + strlen(pattern), "%lf MiB", &mib), 1);
    return mib;
}

static void prints_a_table(void **state)
{
    (void)state;
    const char *const adamw[] = {NULL};
    make_run(adamw);
    assert_works(plan((size_t)1 << 30), err);
    double sum = 0;
    assert_true(row("parameters") > 3.5 && row("parameters") < 4.5); /* a million in fp32 */
    assert_true(row("gradients") == row("parameters"));
    assert_true(row("windows") == 0 && row("activations") > 0 && row("workspace") > 0);
    assert_true(row("important state") > 1.9 * row("parameters")); /* m and v */
    const char *const rows[] = {"parameters",      "gradients",   "windows",
                                "important state", "activations", "workspace"};
    for (int i = 0; i < 6; i++)
        sum += row(rows[i]);
    assert_true(fabs(sum - row("total")) < 0.4);
    assert_true(fabs(row("total") + row("free") - 1024) < 0.2);
    double all = (double)reserved / (1 << 20);
    assert_true(all > sum - row("workspace") && all < sum); /* scratch is not placed */
    config_free(&config);
}

static size_t needed(void)
{
    assert_works(plan((size_t)1 << 40), err);
    return memory_total(&run.memory);
}

/* With a byte less than this takes, the least change of it that fits is said, and nothing is
 * changed. */
static void assert_advice(const char *change)
{
    char wanted[400];
    const size_t enough = needed();
    const struct config before = config;
    assert_false(plan(enough - 1));
    assert_int_equal(reserved, 0);
    assert_memory_equal(&config, &before, sizeof config);
    snprintf(wanted, sizeof wanted, "0.0 MiB more than there is (%.1f MiB): it fits with %s, and",
             (double)enough / (1 << 20), change);
    assert_says(err, wanted);
}

static void says_the_least_that_would_fit(void **state)
{
    (void)state;
    const char *const adamw[] = {"--per_device_train_batch_size", "2",
                                 "--per_device_eval_batch_size", "2", NULL};
    make_run(adamw);
    assert_advice("gradient_checkpointing true");
    const size_t kept = needed();
    config.gradient_checkpointing = true;
    const size_t again = needed();
    config.gradient_checkpointing = false;
    char wanted[120];
    assert_false(plan(again)); /* that much is enough for it */
    snprintf(wanted, sizeof wanted,
             "needs %.1f MiB of device memory, %.1f MiB more than there is (%.1f MiB)",
             (double)kept / (1 << 20), (double)(kept - again) / (1 << 20),
             (double)again / (1 << 20));
    assert_says(err, wanted);
    snprintf(wanted, sizeof wanted, "it fits with gradient_checkpointing true, and then needs %.1f",
             (double)again / (1 << 20));
    assert_says(err, wanted);
    /* one less is not, and then a smaller batch is the least, evaluation's with it */
    assert_false(plan(again - 1));
    assert_says(err,
                "it fits with per_device_eval_batch_size 1 and per_device_train_batch_size 1 with "
                "gradient_accumulation_steps 2, and");
    config_free(&config);
}

static void evaluation_alone_takes_a_smaller_batch(void **state)
{
    (void)state;
    const char *const larger[] = {"--per_device_eval_batch_size", "64", NULL};
    make_run(larger);
    assert_advice("per_device_eval_batch_size 32");
    config_free(&config);
    const char *const evaluation[] = {"--do_train", "false", "--per_device_eval_batch_size", "1",
                                      NULL};
    make_run(evaluation);
    assert_advice("zero_optimization.offload_param.device \"cpu\" (zero_optimization.stage 3) and "
                  "zero_optimization.offload_param.buffer_count 1"); /* of two blocks */
    config.zero_stage = 3;
    config.offload_param = OFFLOAD_CPU;
    config.param_buffers = 1;
    const size_t least = needed();
    assert_true(row("gradients") == 0 && row("important state") == 0);
    assert_false(plan(least - 1));
    char wanted[160];
    snprintf(wanted, sizeof wanted,
             "the least that this run can need is %.1f MiB: a smaller max_seq_length or model",
             (double)least / (1 << 20));
    assert_says(err, wanted);
    config_free(&config);
}

/* Where nothing is trained there is a place for parameters to choose, and nothing else. */
static void evaluation_alone_chooses_where_parameters_are(void **state)
{
    (void)state;
    const char *const evaluation[] = {"--do_train",
                                      "false",
                                      "--zero_optimization.stage",
                                      "3",
                                      "--zero_optimization.offload_optimizer.device",
                                      "cpu",
                                      "--zero_optimization.zenflow.topk_ratio",
                                      "0.1",
                                      "--zero_optimization.offload_param.device",
                                      "auto",
                                      "--gradient_checkpointing",
                                      "auto",
                                      NULL};
    make_run(evaluation);
    assert_true(config.zenflow.enabled);
    run.model_config.n_layer = 6;
    const size_t all = needed();
    const char *const chosen = "chosen: zero_optimization.offload_param.device \"none\"\ndevice ";
    assert_memory_equal(printed, chosen, strlen(chosen));
    config.offload_param = OFFLOAD_AUTO;
    config.param_buffers = CONFIG_AUTO;
    assert_works(plan(all - 1), err);
    assert_int_equal(config.offload_param, OFFLOAD_CPU);
    assert_true(config.param_buffers > 1 && config.param_buffers < 6);
    config_free(&config);
}

#define OPTIMIZER "--zero_optimization.offload_optimizer.device", "cpu"
#define ZENFLOW   "--zero_optimization.zenflow."

/* Everything by name: what is told for each in turn, of a short step. */
static void names_what_the_host_could_take(void **state)
{
    (void)state;
    const char *const zenflow[] = {"--zero_optimization.stage",
                                   "2",
                                   OPTIMIZER,
                                   ZENFLOW "topk_ratio",
                                   "0.1",
                                   ZENFLOW "accumulate",
                                   "device",
                                   "--gradient_checkpointing",
                                   "--per_device_train_batch_size",
                                   "1",
                                   "--per_device_eval_batch_size",
                                   "1",
                                   NULL};
    make_run(zenflow);
    run.model_config.n_layer = 6;
    assert_advice("zero_optimization.zenflow.offload true");
    config.zenflow.offload = true;
    assert_advice("zero_optimization.offload_param.device \"cpu\" (zero_optimization.stage 3)");
    config.offload_param = OFFLOAD_CPU;
    config.param_buffers = 3;
    assert_advice("zero_optimization.offload_param.buffer_count 1");
    config.param_buffers = 1;
    assert_advice("zero_optimization.zenflow.accumulate \"host\"");
    config.zenflow.accumulate = ZENFLOW_ACCUMULATE_HOST;
    assert_advice("zero_optimization.zenflow.enabled false");
    config.zenflow.enabled = false;
    const size_t least = needed();
    assert_false(plan(least - 1));
    assert_says(err, "the least that this run can need is");
    config.zenflow.enabled = true;
    config.offload_param = OFFLOAD_NONE;
    config.zenflow.topk_ratio = 1; /* the device updates all parameters, and keeps them */
    assert_false(plan(needed() - 1));
    assert_null(strstr(err.text, "offload_param"));
    config_free(&config);
    const char *const adamw[] = {"--gradient_checkpointing",
                                 "--per_device_train_batch_size",
                                 "1",
                                 "--per_device_eval_batch_size",
                                 "1",
                                 NULL};
    make_run(adamw);
    assert_advice("zero_optimization.offload_optimizer.device \"cpu\" (zero_optimization.stage 2)");
    config_free(&config);
}

/* However many micro-batches a step has, all go through a layer whose parameters come for them. */
static void parameters_come_for_all_micro_batches(void **state)
{
    (void)state;
    const char *const there[] = {"--zero_optimization.stage",
                                 "3",
                                 OPTIMIZER,
                                 "--zero_optimization.offload_param.device",
                                 "cpu",
                                 "--zero_optimization.offload_param.buffer_count",
                                 "2",
                                 "--per_device_train_batch_size",
                                 "1",
                                 "--gradient_accumulation_steps",
                                 "64",
                                 NULL};
    make_run(there);
    run.model_config.n_layer = 6;
    needed();
    assert_int_equal(run.size.micro_batches, 64);
    assert_int_equal(run.size.gradient_slots, 2);
    config.offload_param = OFFLOAD_NONE; /* else one after the other, if that takes less */
    needed();
    assert_int_equal(run.size.micro_batches, 1);
    config_free(&config);
}

static void slots_for_all_blocks_are_told_of(void **state)
{
    (void)state;
    const char *const there[] = {"--zero_optimization.stage",
                                 "3",
                                 OPTIMIZER,
                                 "--zero_optimization.offload_param.device",
                                 "cpu",
                                 "--zero_optimization.offload_param.buffer_count",
                                 "6",
                                 NULL};
    make_run(there);
    run.model_config.n_layer = 6;
    needed();
    assert_non_null(strstr(printed, "warning: zero_optimization.offload_param.buffer_count is 6, "
                                    "and the model has 6 blocks: "));
    config.param_buffers = 5;
    needed();
    assert_null(strstr(printed, "warning"));
    config.param_buffers = CONFIG_AUTO; /* where all fit, they stay */
    assert_works(plan((size_t)1 << 40), err);
    assert_int_equal(config.offload_param, OFFLOAD_NONE);
    assert_int_equal(config.zero_stage, 2);
    assert_non_null(strstr(printed, "chosen: all 6 blocks' parameters stay on the device"));
    config_free(&config);
}

#define NO_SLOTS " has no meaning here: all parameters stay on the device; they come to it only "

/* Where parameters do not come to the device, room for them and when they come; where its memory is
 * the host's, how the link is crossed. */
static void crossings_that_are_none_are_told_of(void **state)
{
    (void)state;
    const char *const all[] = {"--zero_optimization.stage",
                               "3",
                               OPTIMIZER,
                               "--zero_optimization.offload_optimizer.zero_copy",
                               "--zero_optimization.offload_param.device",
                               "cpu",
                               "--zero_optimization.offload_param.buffer_count",
                               "1",
                               "--zero_optimization.stage3_prefetch_bucket_size",
                               "0",
                               NULL};
    make_run(all);
    needed();
    assert_null(strstr(printed, "warning"));
    config.offload_param = OFFLOAD_NONE;
    needed();
    assert_non_null(strstr(
        printed, "warning: --zero_optimization.offload_param.buffer_count" NO_SLOTS "with offl"));
    assert_non_null(strstr(
        printed, "warning: --zero_optimization.stage3_prefetch_bucket_size" NO_SLOTS "with offl"));
    assert_null(strstr(printed, "zero_copy"));
    config.n_ranks = 2;
    needed();
    assert_null(strstr(printed, "warning"));
    device.is_cpu = device.unified = true;
    needed();
    assert_non_null(strstr(printed, "warning: --zero_optimization.offload_optimizer.zero_copy has "
                                    "no meaning here: the device is the CPU"));
    assert_null(strstr(printed, NO_SLOTS));
    device.is_cpu = device.unified = false;
    config_free(&config);
}

/* "auto" asks for nothing, and what a run settles on is not kept as if it had been asked for. */
static void slots_that_are_none_are_not_told_of(void **state)
{
    (void)state;
    const char *const left[] = {"--zero_optimization.offload_param.buffer_count", "auto",
                                "--zero_optimization.stage3_prefetch_bucket_size", "auto", NULL};
    make_run(left);
    needed();
    assert_null(strstr(printed, "warning"));
    json_t *kept = config_json(&config);
    char *text = json_dumps(kept, 0);
    assert_non_null(strstr(text, "stage3_prefetch_bucket_size"));
    assert_null(strstr(text, "buffer_count"));
    free(text);
    json_decref(kept);
    config_free(&config);
}

/* ---- what is left to "auto" ---- */

/* What may be chosen, of a run that leaves all of it open; and what it takes. */
struct choice {
    int micro, recompute, on_host, parameters, important, slots;
    size_t bytes, host; /* of the device's memory, and of the host's */
};
#define BATCH 256 /* of LONGEST tokens */

static const char *const all_open[] = {"--zero_optimization.stage",
                                       "3",
                                       OPTIMIZER,
                                       ZENFLOW "topk_ratio",
                                       "0.1",
                                       ZENFLOW "offload",
                                       "auto",
                                       "--zero_optimization.offload_param.device",
                                       "auto",
                                       "--gradient_checkpointing",
                                       "auto",
                                       "--train_batch_size",
                                       "256",
                                       "--train_micro_batch_size_per_gpu",
                                       "auto",
                                       "--no_do_eval",
                                       NULL};

static struct choice chosen(void)
{
    return (struct choice){config.per_device_train_batch_size,
                           config.gradient_checkpointing,
                           config.zenflow.accumulate == ZENFLOW_ACCUMULATE_HOST,
                           config.offload_param == OFFLOAD_CPU,
                           config.zenflow.offload,
                           config.param_buffers,
                           memory_total(&run.memory),
                           0};
}

static void measure(struct choice *k)
{
    struct config c = config;
    const struct memory_job job = {run.device, run.comm, &run.model_config, LONGEST};
    c.per_device_train_batch_size = k->micro;
    c.gradient_accumulation_steps = BATCH / k->micro;
    c.gradient_checkpointing = k->recompute;
    c.zenflow.accumulate = k->on_host ? ZENFLOW_ACCUMULATE_HOST : ZENFLOW_ACCUMULATE_DEVICE;
    c.offload_param = k->parameters ? OFFLOAD_CPU : OFFLOAD_NONE;
    c.zenflow.offload = k->important;
    c.param_buffers = k->slots;
    const struct memory_use use = memory_need(&job, &c);
    k->bytes = memory_total(&use);
    k->host = memory_need_host(&job, &c);
}

/* What it adds to a step of so many tokens, which computes longer than anything crosses: tokens of
 * computing, as cmd/memory_choice.c reckons them. */
static double added(const struct choice *k)
{
    return 250.0 * (BATCH / k->micro - 1) + (k->recompute ? 0.2 * BATCH * LONGEST : 0) +
           (k->parameters ? 1500 + (k->slots > 1 ? 0 : 4000) : 0) + (k->important ? 2500 : 0);
}

#define MOST_CHOICES 400

/* Until its parameters take as much as what they compute with. */
static void enlarge(struct gpt_config *c)
{
    c->n_layer = 6;
    c->n_embd = 1024;
    c->n_inner = 4 * c->n_embd;
    c->n_head = 16;
}

/* All, the fastest first; of two that are as fast the one that leaves more on the device. */
static int list_choices(struct machine *gpu, struct choice *all)
{
    int n = 0;
    struct device *before = run.device;
    assert_works(machine_load(gpu, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    run.device = device_plan_create(gpu, 1, &PLAN_GRADIENTS);
    make_run(all_open);
    enlarge(&run.model_config);
    for (int slots = 2; slots >= 1; slots--)
        for (int bits = 0; bits < 16; bits++)
            for (int micro = BATCH; micro >= 1; micro /= 2) {
                struct choice k = {
                    micro, bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1, slots, 0, 0};
                measure(&k);
                int at = n++;
                for (; at > 0 && added(&all[at - 1]) > added(&k); at--)
                    all[at] = all[at - 1];
                all[at] = k;
            }
    device_plan_destroy(run.device);
    run.device = before;
    config_free(&config);
    return n;
}

/* On a machine with so much memory of device and host; the plan of its run is the choice. */
static void plan_with_host(const struct machine *gpu, size_t bytes, size_t host)
{
    struct machine machine = *gpu;
    struct device *before = run.device;
    machine.memory_bytes = (double)bytes;
    machine.host_memory_bytes = (double)host;
    run.device = device_plan_create(&machine, 1, &PLAN_GRADIENTS);
    make_run(all_open);
    enlarge(&run.model_config);
    assert_true(plan(0)); /* the device says for itself what is free */
    device_plan_destroy(run.device);
    run.device = before;
}

static void plan_with(const struct machine *gpu, size_t bytes)
{
    plan_with_host(gpu, bytes, (size_t)1 << 40);
}

static void assert_chosen(const struct choice *expected, size_t bytes)
{
    const struct choice k = chosen();
    if (k.micro != expected->micro || k.recompute != expected->recompute ||
        k.on_host != expected->on_host || k.parameters != expected->parameters ||
        k.important != expected->important || (k.parameters && k.slots < expected->slots) ||
        k.bytes > bytes || config.gradient_accumulation_steps != BATCH / k.micro)
        fail_msg("with %zu bytes: micro-batch %d not %d, recompute %d not %d, windows on the host "
                 "%d not %d, parameters %d not %d, important state %d not %d, slots %d not %d\n%s",
                 bytes, k.micro, expected->micro, k.recompute, expected->recompute, k.on_host,
                 expected->on_host, k.parameters, expected->parameters, k.important,
                 expected->important, k.slots, expected->slots, printed);
}

/* With so much memory the first that fits is taken. seen: which changes were, as they stand in
 * `chosen`. */
static void choose_with(const struct machine *gpu, const struct choice *all, int n, size_t bytes,
                        bool seen[6])
{
    int first = 0;
    while (first < n && all[first].bytes > bytes)
        first++;
    if (first == n)
        return;
    plan_with(gpu, bytes);
    assert_chosen(&all[first], bytes);
    const struct choice k = chosen();
    seen[0] |= k.micro < BATCH;
    seen[1] |= k.recompute;
    seen[2] |= k.on_host;
    seen[3] |= k.parameters;
    seen[4] |= k.important;
    seen[5] |= k.parameters && k.slots > 2;
    config_free(&config);
}

/* With exactly what a choice needs, and with a byte less; and with little more than the least. */
static void the_fastest_that_fits_is_chosen(void **state)
{
    (void)state;
    struct machine gpu;
    struct choice all[MOST_CHOICES];
    const int n = list_choices(&gpu, all);
    size_t least = SIZE_MAX;
    bool seen[6] = {false};
    for (int i = 0; i < n; i += 1 + i / 8)
        for (size_t less = 0; less < 2; less++)
            choose_with(&gpu, all, n, all[i].bytes - less, seen);
    for (int i = 0; i < n; i++)
        least = all[i].bytes < least ? all[i].bytes : least;
    for (size_t bytes = least; bytes < 2 * least; bytes += least / 16)
        choose_with(&gpu, all, n, bytes, seen);
    for (int i = 0; i < 6; i++)
        if (!seen[i])
            fail_msg("nothing called for change %d", i);
}

/* Where the host has no room for windows, nothing that has them there is chosen. */
static void the_hosts_memory_counts_too(void **state)
{
    (void)state;
    struct machine gpu;
    struct choice all[MOST_CHOICES];
    const int n = list_choices(&gpu, all);
    int others = 0;
    for (int i = 0; i < n; i += 1 + i / 8) {
        const size_t bytes = all[i].bytes, host = all[0].host;
        int first = 0, either = 0;
        while (first < n && (all[first].bytes > bytes || all[first].host > host))
            first++;
        while (all[either].bytes > bytes)
            either++;
        if (first == n)
            continue;
        plan_with_host(&gpu, bytes, host);
        assert_chosen(&all[first], bytes);
        others += first != either;
        config_free(&config);
    }
    assert_true(others > 0);
    plan_with_host(&gpu, (size_t)1 << 40, all[0].host - 1);
    char wanted[400];
    snprintf(wanted, sizeof wanted,
             "warning: this run needs %s of host memory, %s more than there is (%s): it fits with "
             "zero_optimization.zenflow.update_interval 4, and then needs ",
             size_text((double)all[0].host).text, size_text(1).text,
             size_text((double)all[0].host - 1).text);
    if (!strstr(printed, wanted))
        fail_msg("not \"%s\":\n%s", wanted, printed);
    config_free(&config);
}

/* What lacks host memory is refused before anything is taken, and what was asked for by name is in
 * the advice: the cheapest first. */
static void advises_of_the_hosts_memory(void **state)
{
    (void)state;
    const char *const zenflow[] = {"--zero_optimization.stage",
                                   "2",
                                   OPTIMIZER,
                                   ZENFLOW "topk_ratio",
                                   "0.1",
                                   ZENFLOW "accumulate",
                                   "host",
                                   ZENFLOW "update_interval",
                                   "4",
                                   ZENFLOW "full_warm_up_rounds",
                                   "3",
                                   NULL};
    static const char *const advice[] = {
        "it fits with zero_optimization.zenflow.full_warm_up_rounds 0, and then needs ",
        "it fits with zero_optimization.zenflow.accumulate \"device\", and then needs ",
        "it fits with zero_optimization.offload_optimizer.device \"none\" with "};
    struct machine gpu;
    struct device *before = run.device;
    const struct memory_job job = {NULL, run.comm, &run.model_config, LONGEST};
    make_run(zenflow);
    for (int i = 0; i < 3; i++) {
        struct memory_job planned = job;
        assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
        run.device = planned.device = device_plan_create(&gpu, 1, &PLAN_GRADIENTS);
        const size_t host = memory_need_host(&planned, &config);
        device_plan_destroy(run.device);
        gpu.host_memory_bytes = (double)host - 1;
        run.device = device_plan_create(&gpu, 1, &PLAN_GRADIENTS);
        assert_true(plan(0));
        if (!strstr(printed, advice[i]))
            fail_msg("not \"%s\":\n%s", advice[i], printed);
        device_plan_destroy(run.device);
        if (i == 0)
            config.zenflow.full_warm_up_rounds = 0;
        else
            config.zenflow.accumulate = ZENFLOW_ACCUMULATE_DEVICE;
    }
    run.device = before;
    run.model_config.n_layer = 20; /* 8 TB: more than any host has that runs tests */
    run.model_config.n_embd = 51200;
    run.model_config.n_inner = 4 * 51200;
    run.model_config.head_dim = 128;
    run.model_config.n_head = run.model_config.n_kv_heads = 400;
    assert_false(plan((size_t)1 << 50));
    assert_int_equal(reserved, 0);
    assert_says(err, "this run needs ");
    assert_says(err, " of host memory, ");
    config_free(&config);
}

/* Each line says what was chosen, and what one change less would have lacked. */
static void choices_are_told(void **state)
{
    (void)state;
    struct machine gpu;
    struct choice all[MOST_CHOICES];
    const int n = list_choices(&gpu, all);
    plan_with(&gpu, (size_t)1 << 36);
    const size_t most = memory_total(&run.memory);
    assert_non_null(strstr(printed, "chosen: per_device_train_batch_size 256 with "
                                    "gradient_accumulation_steps 1\n"
                                    "chosen: gradient_checkpointing false\n"
                                    "chosen: zero_optimization.zenflow.accumulate \"device\"\n"
                                    "chosen: zero_optimization.offload_param.device \"none\"\n"
                                    "chosen: zero_optimization.zenflow.offload false\n"
                                    "device memory of each rank:"));
    config_free(&config);
    plan_with(&gpu, most - 1);
    assert_non_null(strstr(printed, "chosen: zero_optimization.zenflow.accumulate \"host\"; "
                                    "zero_optimization.zenflow.accumulate \"device\" needs "
                                    "0.0 MiB more than there is\n"));
    config_free(&config);
    plan_with(&gpu, 1); /* nothing fits: what takes least is planned all the same */
    assert_null(strstr(printed, "chosen"));
    assert_non_null(strstr(printed, "warning: this run needs"));
    assert_non_null(strstr(printed, "the least that this run can need is"));
    size_t least = SIZE_MAX;
    for (int i = 0; i < n; i++)
        least = all[i].bytes < least ? all[i].bytes : least;
    assert_int_equal(memory_total(&run.memory), least);
    config_free(&config);
}

/* On the CPU device nothing moves: its memory is the host's. */
static void auto_is_settled_where_memory_is_the_hosts(void **state)
{
    (void)state;
    device.is_cpu = device.unified = true;
    make_run(all_open);
    assert_works(plan(1), err);
    assert_null(strstr(printed, "chosen"));
    assert_true(config.offload_param == OFFLOAD_NONE && config.zenflow.offload == false &&
                config.gradient_checkpointing == false &&
                config.zenflow.accumulate == ZENFLOW_ACCUMULATE_DEVICE &&
                config.per_device_train_batch_size == BATCH);
    assert_null(strstr(printed, "zenflow")); /* and what moves is no advice */
    assert_works(plan(memory_total(&run.memory) - 1), err);
    assert_non_null(strstr(printed, "it fits with per_device_train_batch_size 128 with"));
    device.is_cpu = device.unified = false;
    config_free(&config);
}

/* Of two ranks, parameters may be divided over them: embeddings are whole in their slot, and a half
 * of them besides. */
static void parameters_are_divided_over_ranks(void **state)
{
    (void)state;
    const char *const offload[] = {"--zero_optimization.stage",
                                   "2",
                                   OPTIMIZER,
                                   "--gradient_checkpointing",
                                   "--per_device_train_batch_size",
                                   "1",
                                   "--per_device_eval_batch_size",
                                   "1",
                                   "--zero_optimization.offload_param.buffer_count",
                                   "2",
                                   NULL};
    struct comm *alone = run.comm;
    make_run(offload);
    run.model_config.n_layer = 40;
    run.comm = comm_create_planned(2, 1);
    config.n_ranks = 2;
    assert_advice("zero_optimization.stage 3");
    const size_t whole = needed();
    const double parameters = row("parameters");
    config.zero_stage = 3;
    assert_true(needed() < whole - (1 << 20));
    assert_int_equal(run.size.value_slots, 2);
    assert_true(row("parameters") < parameters);
    assert_false(plan(1));
    assert_null(strstr(err.text, "zero_optimization.stage 3,"));
    comm_destroy(run.comm);
    run.comm = alone;
    config_free(&config);
}

/* It is taken as it is needed, so what is more than there is free now is no fault. */
static void the_cpu_devices_memory_is_the_hosts(void **state)
{
    (void)state;
    const char *const adamw[] = {NULL};
    make_run(adamw);
    device.is_cpu = device.unified = true;
    assert_works(plan((size_t)1 << 30), err);
    assert_non_null(strstr(printed, "host memory of each rank, which is the CPU device's:"));
    assert_true(row("workspace") < 8); /* no cuBLASLt */
    double total = row("total"), sum = row("parameters") + row("gradients") + row("windows") +
                                       row("important state") + row("activations") +
                                       row("workspace");
    assert_true(fabs(sum - total) < 0.4 && fabs(total + row("free") - 1024) < 0.2);
    assert_null(strstr(printed, "warning"));
    assert_works(plan((size_t)1 << 20), err);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "warning: this run needs %.1f MiB of host memory", total);
    assert_non_null(strstr(printed, wanted));
    assert_true(row("total") == total && row("free") == 0);
    device.is_cpu = device.unified = false;
    config_free(&config);
}

/* What NCCL takes is nobody's to place: it is left free, and said. */
static void nccl_is_allowed_memory(void **state)
{
    (void)state;
    struct machine gpu;
    const char *const adamw[] = {NULL};
    make_run(adamw);
    assert_works(plan((size_t)2 << 30), err);
    assert_null(strstr(printed, "NCCL"));
    struct comm *alone = run.comm;
    assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    run.device = device_plan_create(&gpu, 2, &PLAN_GRADIENTS);
    run.comm = comm_create_planned(2, 8);
    comm_attach(run.comm, run.device);
    assert_works(plan(0), err);
    assert_non_null(strstr(printed, "  NCCL, allowed        1.00 GiB\n"));
    double total = NAN;
    assert_int_equal(sscanf(strstr(printed, "  total "), " total %lf GiB", &total), 1);
    double sum = row("parameters") + row("gradients") + row("windows") + row("important state") +
                 row("activations") + row("workspace");
    assert_true(fabs(1024 * total - 1024 - sum) < 1024 * 0.006);
    comm_destroy(run.comm);
    device_plan_destroy(run.device);
    run.comm = alone;
    run.device = &device;
    config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prints_a_table),
        cmocka_unit_test(says_the_least_that_would_fit),
        cmocka_unit_test(evaluation_alone_takes_a_smaller_batch),
        cmocka_unit_test(evaluation_alone_chooses_where_parameters_are),
        cmocka_unit_test(names_what_the_host_could_take),
        cmocka_unit_test(parameters_are_divided_over_ranks),
        cmocka_unit_test(parameters_come_for_all_micro_batches),
        cmocka_unit_test(slots_for_all_blocks_are_told_of),
        cmocka_unit_test(crossings_that_are_none_are_told_of),
        cmocka_unit_test(slots_that_are_none_are_not_told_of),
        cmocka_unit_test(the_fastest_that_fits_is_chosen),
        cmocka_unit_test(the_hosts_memory_counts_too),
        cmocka_unit_test(advises_of_the_hosts_memory),
        cmocka_unit_test(choices_are_told),
        cmocka_unit_test(auto_is_settled_where_memory_is_the_hosts),
        cmocka_unit_test(the_cpu_devices_memory_is_the_hosts),
        cmocka_unit_test(nccl_is_allowed_memory),
    };
    device = *device_cpu(0); /* it stands for a GPU */
    device.is_cpu = device.unified = false;
    device.free_bytes = free_bytes;
    device.reserve = reserve;
    run.comm = comm_create_alone();
    run.device = &device;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_destroy(run.comm);
    return failed;
}
