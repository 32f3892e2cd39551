/* cmd/memory_plan: what a run is said to need, and what is said where it does not fit, on a device
 * that claims a memory of its own. */
#include "tests/testing.h"

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

static double saving(const char *change)
{
    double mib = NAN;
    const char *at = strstr(err.text, change);
    if (!at)
        fail_msg("no %s in: %s", change, err.text);
    assert_int_equal(sscanf(at + strlen(change), " saves %lf MiB", &mib), 1);
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

static void says_what_to_change(void **state)
{
    (void)state;
    const char *const adamw[] = {"--per_device_train_batch_size", "32", NULL};
    make_run(adamw);
    assert_works(plan((size_t)1 << 30), err);
    double total = row("total");
    size_t enough = (size_t)(total * (1 << 20)) + (1 << 17);
    assert_works(plan(enough), err);
    assert_int_not_equal(reserved, 0);
    assert_false(plan((size_t)(1 << 20)));
    assert_int_equal(reserved, 0);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "needs %.1f MiB of device memory, %.1f MiB more than there is",
             total, total - 1);
    assert_says(err, wanted);
    assert_says(err, "(1.0 MiB)");
    /* each change saves what it is said to */
    double halved = saving("per_device_train_batch_size 16");
    double recomputed = saving("gradient_checkpointing true");
    double offloaded = saving("offload_optimizer.device \"cpu\" (stage 2)");
    assert_null(strstr(err.text, "zenflow.accumulate"));
    config.per_device_train_batch_size = 16;
    assert_works(plan(enough), err);
    assert_true(fabs(total - row("total") - halved) < 0.2);
    config.per_device_train_batch_size = 32;
    config.gradient_checkpointing = true;
    assert_works(plan(enough), err);
    assert_true(fabs(total - row("total") - recomputed) < 0.2);
    config.gradient_checkpointing = false;
    config.offload_optimizer = OFFLOAD_CPU;
    assert_works(plan(enough), err);
    assert_true(fabs(total - row("total") - offloaded) < 0.2);
    assert_true(halved > 1 && recomputed > 1 && offloaded > 1);
    assert_false(plan((size_t)(1 << 20)));
    assert_null(strstr(err.text, "offload_optimizer.device"));
    config_free(&config);
}

static void names_the_batch_that_is_largest(void **state)
{
    (void)state;
    const char *const larger[] = {"--per_device_eval_batch_size", "64", NULL};
    make_run(larger);
    assert_false(plan(1));
    assert_true(saving("per_device_eval_batch_size 32") > 1);
    config.per_device_train_batch_size = 40;
    assert_false(plan(1));
    saving(": per_device_train_batch_size and per_device_eval_batch_size 32");
    config.per_device_eval_batch_size = config.per_device_train_batch_size = 1;
    assert_false(plan(1));
    assert_null(strstr(err.text, "batch_size"));
    config_free(&config);
    const char *const evaluation[] = {"--do_train", "false", "--per_device_eval_batch_size", "1",
                                      NULL};
    make_run(evaluation);
    assert_false(plan(1));
    assert_says(err, "max_seq_length");
    assert_works(plan((size_t)1 << 30), err);
    assert_true(row("gradients") == 0 && row("important state") == 0);
    config_free(&config);
}

static void windows_go_to_the_host_where_they_must(void **state)
{
    (void)state;
    const char *const zenflow[] = {"--zero_optimization.stage",
                                   "2",
                                   "--zero_optimization.offload_optimizer.device",
                                   "cpu",
                                   "--zero_optimization.zenflow.topk_ratio",
                                   "0.05",
                                   "--zero_optimization.zenflow.update_interval",
                                   "4",
                                   NULL};
    make_run(zenflow);
    assert_int_equal(config.zenflow.accumulate, ZENFLOW_ACCUMULATE_AUTO);
    assert_works(plan((size_t)1 << 30), err);
    assert_int_equal(config.zenflow.accumulate, ZENFLOW_ACCUMULATE_DEVICE);
    double total = row("total"), windows = row("windows");
    assert_true(windows > 1);
    config.zenflow.accumulate = ZENFLOW_ACCUMULATE_AUTO;
    assert_works(plan((size_t)((total - windows / 2) * (1 << 20))), err);
    assert_int_equal(config.zenflow.accumulate, ZENFLOW_ACCUMULATE_HOST);
    assert_true(row("windows") == 0);
    config.zenflow.accumulate = ZENFLOW_ACCUMULATE_DEVICE; /* as asked for: not changed */
    assert_false(plan((size_t)((total - windows / 2) * (1 << 20))));
    assert_true(saving("zenflow.accumulate \"host\"") > 1);
    saving("offload_optimizer.device \"cpu\" without zenflow (stage 2)");
    config_free(&config);
}

/* What is told of a run whose state and parameters may live on the host: each change that saves
 * memory, and none that would be refused. */
static void what_else_goes_to_the_host(void **state)
{
    (void)state;
    const char *const zenflow[] = {"--zero_optimization.stage",
                                   "3",
                                   "--zero_optimization.offload_optimizer.device",
                                   "cpu",
                                   "--zero_optimization.zenflow.topk_ratio",
                                   "0.1",
                                   "--zero_optimization.zenflow.accumulate",
                                   "host",
                                   NULL};
    make_run(zenflow);
    run.model_config.n_layer = 6;
    assert_false(plan(1));
    const double parameters = saving("offload_param.device \"cpu\" (stage 3)");
    const double state_saved = saving("zenflow.offload true");
    assert_null(strstr(err.text, "buffer_count"));
    assert_works(plan((size_t)1 << 30), err);
    const double total = row("total");
    config.offload_param = OFFLOAD_CPU;
    config.param_buffers = 3;
    assert_false(plan(1));
    const double slots = saving("offload_param.buffer_count 1");
    assert_null(strstr(err.text, "offload_param.device"));
    config.zenflow.offload = true;
    config.param_buffers = 1;
    assert_false(plan(1));
    assert_null(strstr(err.text, "zenflow.offload"));
    assert_null(strstr(err.text, "buffer_count"));
    config.offload_param = OFFLOAD_NONE;
    assert_works(plan((size_t)1 << 30), err);
    assert_true(fabs(total - row("total") - state_saved) < 0.2);
    assert_true(parameters > 0.5 && slots > 0.5 && state_saved > 0.2);
    config.zenflow.offload = false;
    config.zenflow.topk_ratio = 1; /* the device updates all parameters, and keeps them */
    assert_false(plan(1));
    assert_null(strstr(err.text, "offload_param"));
    config_free(&config);
}

/* Of two ranks, parameters may be divided over them: what that saves, and slots for fewer blocks.
 * Embeddings are whole in their slot, and a half of them besides. */
static void parameters_are_divided_over_ranks(void **state)
{
    (void)state;
    const char *const offload[] = {"--zero_optimization.stage", "2",
                                   "--zero_optimization.offload_optimizer.device", "cpu", NULL};
    struct comm *alone = run.comm;
    make_run(offload);
    run.model_config.n_layer = 40;
    assert_false(plan(1));
    assert_null(strstr(err.text, "zero_optimization.stage"));
    run.comm = comm_create_planned(2, 1);
    config.n_ranks = 2;
    assert_false(plan(1));
    const double divided = saving("zero_optimization.stage 3");
    assert_works(plan((size_t)1 << 30), err);
    const double total = row("total"), parameters = row("parameters");
    config.zero_stage = 3;
    assert_works(plan((size_t)1 << 30), err);
    assert_int_equal(run.size.value_slots, 2);
    assert_true(divided > 1 && fabs(total - row("total") - divided) < 0.2);
    assert_true(row("parameters") < parameters);
    assert_false(plan(1));
    assert_null(strstr(err.text, "zero_optimization.stage 3"));
    saving("offload_param.buffer_count 1");
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
    device.unified = true;
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
    device.unified = false;
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
        cmocka_unit_test(says_what_to_change),
        cmocka_unit_test(names_the_batch_that_is_largest),
        cmocka_unit_test(windows_go_to_the_host_where_they_must),
        cmocka_unit_test(what_else_goes_to_the_host),
        cmocka_unit_test(parameters_are_divided_over_ranks),
        cmocka_unit_test(the_cpu_devices_memory_is_the_hosts),
        cmocka_unit_test(nccl_is_allowed_memory),
    };
    device = *device_cpu(0);
    device.unified = false;
    device.free_bytes = free_bytes;
    device.reserve = reserve;
    run.comm = comm_create_alone();
    run.device = &device;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_destroy(run.comm);
    return failed;
}
