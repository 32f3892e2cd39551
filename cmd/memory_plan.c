#include "cmd/memory_plan.h"

#include "cmd/config/engine_settings.h"
#include "data/log.h"
#include "model/plan/plan.h"

#include <stdio.h>
#include <unistd.h>

struct gpt_size model_size(const struct config *c, int longest)
{
    int seqs = c->do_train ? c->per_device_train_batch_size : 0;
    if ((c->do_eval || c->do_predict) && seqs < c->per_device_eval_batch_size)
        seqs = c->per_device_eval_batch_size;
    return (struct gpt_size){.max_tokens = seqs * longest,
                             .max_seqs = seqs,
                             .mode = !c->do_train                ? GPT_EVALUATE
                                     : c->gradient_checkpointing ? GPT_TRAIN_RECOMPUTE
                                                                 : GPT_TRAIN};
}

/* Left free for what a GPU's operators take when they first need it: cuBLASLt's workspace, kernels
 * that are loaded when they first run, and partial sums over rows, which are less than two
 * activations. */
#define SCRATCH_BYTES ((size_t)256 << 20)

static size_t scratch_bytes(const struct run *run, const struct config *c, int longest)
{
    if (run->device->unified)
        return 0;
    struct gpt_size size = model_size(c, longest);
    size_t activation = (size_t)size.max_tokens * (size_t)run->model_config.n_embd;
    return SCRATCH_BYTES + 2 * activation * dtype_size(run->device->dtype);
}

static struct gpt_size step_size(const struct run *run, const struct config *c, int longest)
{
    struct gpt_size size = model_size(c, longest);
    size.value_slots = c->do_train ? engine_value_slots(c) : 0;
    gpt_size_for_step(run->device, &run->model_config, &size,
                      c->do_train ? c->gradient_accumulation_steps : 1);
    return size;
}

/* What the run would take with this configuration. */
static struct memory_use measure(const struct run *run, const struct config *c, int longest)
{
    struct memory_use use = {.workspace = scratch_bytes(run, c, longest),
                             .collectives = comm_device_allowance(run->comm)};
    struct gpt_size size = step_size(run, c, longest);
    gpt_measure(run->device, &run->model_config, &size, &use);
    if (c->do_train) {
        struct param_table table = gpt_param_table(&run->model_config);
        params_share_values(&table, size.value_slots);
        params_share_gradients(&table, size.gradient_slots);
        struct engine_config e = engine_settings(c, NULL);
        engine_measure(&e, &table, run->device->dtype, comm_rank(run->comm), comm_size(run->comm),
                       &use);
        params_free(&table);
    }
    return use;
}

/* A size as a person reads it. */
struct size_text {
    char text[32];
};

static struct size_text size_text(size_t bytes)
{
    struct size_text s;
    double mib = (double)bytes / (1 << 20);
    if (mib < 1024)
        snprintf(s.text, sizeof s.text, "%.1f MiB", mib);
    else
        snprintf(s.text, sizeof s.text, "%.2f GiB", mib / 1024);
    return s;
}

/* Where the device's memory is. */
static const char *memory_name(const struct run *run)
{
    return run->device->unified ? "host" : "device";
}

static void print_row(const char *name, size_t bytes)
{
    log_info("  %-16s %12s", name, size_text(bytes).text);
}

static void print_table(const struct run *run)
{
    const struct memory_use *use = &run->memory;
    log_info("%s memory of each rank%s:", memory_name(run),
             run->device->unified ? ", which is the CPU device's" : "");
    print_row("parameters", use->parameters);
    print_row("gradients", use->gradients);
    print_row("windows", use->windows);
    print_row("important state", use->important);
    print_row("activations", use->activations);
    print_row("workspace", use->workspace);
    if (use->collectives > 0)
        print_row("NCCL, allowed", use->collectives);
    print_row("total", memory_total(use));
    print_row("free", run->memory_available - memory_total(use));
}

/* Changes of a configuration that save memory: each describes itself in `what`, or returns false
 * where it is none. */

static bool halve_batches(struct config *c, char *what, size_t bytes)
{
    int most = model_size(c, 1).max_seqs, half = most / 2;
    bool train = c->do_train && c->per_device_train_batch_size > half;
    bool eval = (c->do_eval || c->do_predict) && c->per_device_eval_batch_size > half;
    if (half == 0)
        return false;
    if (train)
        c->per_device_train_batch_size = half;
    if (eval)
        c->per_device_eval_batch_size = half;
    snprintf(what, bytes, "%s%s%s %d", train ? "per_device_train_batch_size" : "",
             train && eval ? " and " : "", eval ? "per_device_eval_batch_size" : "", half);
    return true;
}

static bool recompute(struct config *c, char *what, size_t bytes)
{
    snprintf(what, bytes, "gradient_checkpointing true");
    bool is_change = c->do_train && !c->gradient_checkpointing;
    c->gradient_checkpointing = true;
    return is_change;
}

static bool accumulate_on_host(struct config *c, char *what, size_t bytes)
{
    snprintf(what, bytes, "zenflow.accumulate \"host\"");
    bool is_change =
        c->do_train && c->zenflow.enabled && c->zenflow.accumulate != ZENFLOW_ACCUMULATE_HOST;
    c->zenflow.accumulate = ZENFLOW_ACCUMULATE_HOST;
    return is_change;
}

static bool offload_all(struct config *c, char *what, size_t bytes)
{
    snprintf(what, bytes, "offload_optimizer.device \"cpu\"%s (stage 2)",
             c->zenflow.enabled ? " without zenflow" : "");
    bool is_change = c->do_train && (c->zenflow.enabled || c->offload_optimizer != OFFLOAD_CPU);
    c->zenflow.enabled = false;
    c->offload_optimizer = OFFLOAD_CPU;
    return is_change;
}

static bool offload_important(struct config *c, char *what, size_t bytes)
{
    snprintf(what, bytes, "zenflow.offload true");
    bool is_change = c->do_train && c->zenflow.enabled && !c->zenflow.offload;
    c->zenflow.offload = true;
    return is_change;
}

static bool offload_parameters(struct config *c, char *what, size_t bytes)
{
    snprintf(what, bytes, "offload_param.device \"cpu\" (stage 3)");
    bool is_change = c->do_train && c->offload_optimizer == OFFLOAD_CPU &&
                     c->offload_param != OFFLOAD_CPU &&
                     !(c->zenflow.enabled && c->zenflow.topk_ratio == 1);
    c->offload_param = OFFLOAD_CPU;
    c->zero_stage = 3;
    return is_change;
}

static bool divide_parameters(struct config *c, char *what, size_t bytes)
{
    snprintf(what, bytes, "zero_optimization.stage 3");
    bool is_change = c->do_train && c->n_ranks > 1 && c->zero_stage != 3;
    c->zero_stage = 3;
    return is_change;
}

static bool hold_one_block(struct config *c, char *what, size_t bytes)
{
    snprintf(what, bytes, "offload_param.buffer_count 1");
    bool is_change = c->do_train && engine_value_slots(c) > 1;
    c->param_buffers = 1;
    return is_change;
}

/* Appends what each change alone would save. */
static void list_changes(const struct run *run, int longest, size_t needed, char *text,
                         size_t bytes)
{
    static bool (*const changes[])(struct config *, char *, size_t) = {
        halve_batches, recompute,         accumulate_on_host, offload_important,
        offload_all,   divide_parameters, offload_parameters, hold_one_block};
    size_t used = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct config changed = *run->config;
        char what[120];
        if (!changes[i](&changed, what, sizeof what))
            continue;
        struct memory_use use = measure(run, &changed, longest);
        if (memory_total(&use) >= needed)
            continue;
        int n = snprintf(text + used, bytes - used, "%s %s saves %s", used ? ";" : "", what,
                         size_text(needed - memory_total(&use)).text);
        used += (size_t)n < bytes - used ? (size_t)n : 0;
    }
    if (used == 0)
        snprintf(text, bytes, " a smaller max_seq_length or model is needed");
}

static bool will_not_fit(const struct run *run, int longest, size_t needed, size_t available,
                         struct zf_error *err)
{
    char changes[700];
    list_changes(run, longest, needed, changes, sizeof changes);
    return zf_fail(err, "this run needs %s of %s memory, %s more than there is (%s):%s",
                   size_text(needed).text, memory_name(run), size_text(needed - available).text,
                   size_text(available).text, changes);
}

/* zenflow.accumulate "auto" is the host where only then the run fits, on any rank. */
static void settle_accumulate(struct run *run, int longest, size_t available)
{
    struct config *c = run->config;
    if (!c->do_train || !c->zenflow.enabled || c->zenflow.accumulate != ZENFLOW_ACCUMULATE_AUTO)
        return;
    struct memory_use use = measure(run, c, longest);
    bool fits = comm_max(run->comm, memory_total(&use) > available) == 0;
    c->zenflow.accumulate = fits ? ZENFLOW_ACCUMULATE_DEVICE : ZENFLOW_ACCUMULATE_HOST;
    if (!fits)
        log_info("zenflow.accumulate: the windows' %s do not fit on the device; \"host\" it is",
                 size_text(use.windows).text);
}

int memory_sharers(const struct comm *comm)
{
    int ranks = comm_local_size(comm), devices = device_cuda_count();
    return devices > 0 ? (ranks + devices - 1) / devices : ranks;
}

/* To each rank. */
static size_t available_bytes(const struct run *run)
{
    const struct device *d = run->device;
    int sharing = d->unified ? comm_local_size(run->comm) : d->plan ? 1 : memory_sharers(run->comm);
    return d->free_bytes() / (size_t)sharing;
}

bool memory_plan(struct run *run, int longest, struct zf_error *err)
{
    struct device *d = run->device;
    size_t available = available_bytes(run);
    run->size = step_size(run, run->config, longest);
    if (!d->unified)
        settle_accumulate(run, longest, available);
    struct memory_use use = measure(run, run->config, longest);
    size_t needed = memory_total(&use);
    bool ok = needed <= available || will_not_fit(run, longest, needed, available, err);
    /* What a plan would take is told all the same; the host's memory is taken as it is needed. */
    if (!ok && (d->plan || d->unified)) {
        log_warn("%s", err->text);
        available = needed;
        ok = true;
    }
    /* ranks on the same device: nobody takes memory before all have seen how much there is */
    if (!comm_all_ok(run->comm, ok, err))
        return false;
    run->memory = use;
    run->memory_available = available;
    if (!d->unified)
        print_table(run);
    size_t placed = needed - use.collectives - scratch_bytes(run, run->config, longest);
    return comm_all_ok(run->comm, d->reserve(placed, err), err);
}

/* Of the whole host. */
static size_t host_bytes(const struct run *run)
{
    return run->device->plan ? (size_t)plan_machine(run->device->plan)->host_memory_bytes
                             : (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

static void print_host_memory(const struct run *run)
{
    const size_t state = engine_memory(run->engine).host, all = host_bytes(run);
    const bool unified = run->device->unified;
    const size_t each = state + (unified ? memory_total(&run->memory) : 0);
    const size_t ranks = (size_t)comm_local_size(run->comm);
    log_info("host memory of each rank: %s of optimizer state and exchange%s; of %zu rank(s) on a "
             "host %s, where there are %s%s",
             size_text(state).text, unified ? " beside these" : "", ranks,
             size_text(each * ranks).text, size_text(all).text,
             each <= all / ranks ? "" : ": IT DOES NOT FIT");
}

void memory_tell(const struct run *run)
{
    if (run->device->unified)
        print_table(run);
    if (run->engine)
        print_host_memory(run);
}
