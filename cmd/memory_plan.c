#include "cmd/memory_plan.h"

#include "cmd/memory_choice.h"
#include "data/log.h"
#include "model/plan/plan.h"

#include <string.h>
#include <unistd.h>

static struct memory_job job_of(const struct run *run, int longest)
{
    return (struct memory_job){run->device, run->comm, &run->model_config, longest};
}

/* Where the device's memory is. */
static const char *memory_name(const struct run *run)
{
    return run->device->unified ? "host" : "device";
}

static void print_row(const char *name, size_t bytes)
{
    log_info("  %-16s %12s", name, size_text((double)bytes).text);
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

/* Of the rank that lacks the most. */
static bool will_not_fit(const struct run *run, int longest, double lacks, size_t available,
                         struct zf_error *err)
{
    const struct memory_job job = job_of(run, longest);
    char advice[700];
    memory_advise(&job, run->config, available, advice, sizeof advice);
    return zf_fail(err, "this run needs %s of %s memory, %s more than there is (%s): %s",
                   size_text((double)available + lacks).text, memory_name(run),
                   size_text(lacks).text, size_text((double)available).text, advice);
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

/* What is left to "auto" is settled, and said. */
static void choose(struct run *run, int longest, size_t available)
{
    const struct memory_job job = job_of(run, longest);
    char told[1200] = "";
    if (run->device->unified)
        memory_settle(&job, run->config);
    else
        memory_choose(&job, run->config, available, told, sizeof told);
    for (const char *line = told; *line; line += strcspn(line, "\n") + 1)
        log_info("%.*s", (int)strcspn(line, "\n"), line);
}

static void warn_of_slots(const struct run *run)
{
    const struct config *c = run->config;
    const int blocks = run->model_config.n_layer;
    if (c->do_train && c->offload_param == OFFLOAD_CPU && c->param_buffers >= blocks)
        log_warn("zero_optimization.offload_param.buffer_count is %d, and the model has %d blocks: "
                 "all of them have room on the device, so that offload_param saves nothing there",
                 c->param_buffers, blocks);
}

bool memory_plan(struct run *run, int longest, struct zf_error *err)
{
    const struct memory_job job = job_of(run, longest);
    struct device *d = run->device;
    size_t available = available_bytes(run);
    choose(run, longest, available);
    warn_of_slots(run);
    run->size = memory_step_size(&job, run->config);
    struct memory_use use = memory_need(&job, run->config);
    size_t needed = memory_total(&use);
    double lacks = comm_max(run->comm, (double)needed - (double)available);
    bool ok = lacks <= 0 || will_not_fit(run, longest, lacks, available, err);
    /* What a plan would take is told all the same; the host's memory is taken as it is needed. */
    if (!ok && (d->plan || d->unified)) {
        log_warn("%s", err->text);
        available = needed > available ? needed : available;
        ok = true;
    }
    /* ranks on the same device: nobody takes memory before all have seen how much there is */
    if (!comm_all_ok(run->comm, ok, err))
        return false;
    run->memory = use;
    run->memory_available = available;
    if (!d->unified)
        print_table(run);
    size_t placed = needed - use.collectives - memory_scratch(&job, &run->size);
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
             size_text((double)state).text, unified ? " beside these" : "", ranks,
             size_text((double)(each * ranks)).text, size_text((double)all).text,
             each <= all / ranks ? "" : ": IT DOES NOT FIT");
}

void memory_tell(const struct run *run)
{
    if (run->device->unified)
        print_table(run);
    if (run->engine)
        print_host_memory(run);
}
