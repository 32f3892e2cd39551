#include "cmd/memory_plan.h"

#include "cmd/config/engine_settings.h"
#include "cmd/config/table.h"
#include "cmd/memory_choice.h"
#include "data/log.h"

#include <stdio.h>
#include <string.h>

#define ZERO         "zero_optimization."
#define BUFFER_COUNT ZERO "offload_param.buffer_count"

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

/* A part of the sentence, in the order of what lacks; or nothing. */
static void name_lack(char *text, size_t size, const char *memory, double lack, size_t room)
{
    const size_t n = strlen(text);
    if (lack > 0)
        snprintf(text + n, size - n, "%s%s of %s memory, %s more than there is (%s)",
                 n > 0 ? ", and " : "", size_text((double)room + lack).text, memory,
                 size_text(lack).text, size_text((double)room).text);
}

/* Of the rank that lacks the most. */
static bool will_not_fit(const struct run *run, int longest, struct memory_lack lack,
                         const struct memory_room *room, struct zf_error *err)
{
    const struct memory_job job = job_of(run, longest);
    char advice[700], lacks[300] = "";
    memory_advise(&job, run->config, room, advice, sizeof advice);
    name_lack(lacks, sizeof lacks, memory_name(run), lack.device, room->device);
    name_lack(lacks, sizeof lacks, "host", lack.host, room->host);
    return zf_fail(err, "this run needs %s: %s", lacks, advice);
}

int memory_sharers(const struct comm *comm)
{
    int ranks = comm_local_size(comm), devices = device_cuda_count();
    return devices > 0 ? (ranks + devices - 1) / devices : ranks;
}

/* To each rank. */
static struct memory_room room_of(const struct run *run)
{
    const struct device *d = run->device;
    const int local = comm_local_size(run->comm);
    const int sharing = d->unified ? local : d->plan ? 1 : memory_sharers(run->comm);
    return (struct memory_room){d->free_bytes() / (size_t)sharing,
                                memory_of_host(d) / (size_t)local};
}

/* What is left to "auto" is settled, and said. */
static void choose(struct run *run, int longest, const struct memory_room *room)
{
    const struct memory_job job = job_of(run, longest);
    char told[1200] = "";
    if (run->device->unified)
        memory_settle(&job, run->config);
    else
        memory_choose(&job, run->config, room, told, sizeof told);
    for (const char *line = told; *line; line += strcspn(line, "\n") + 1)
        log_info("%.*s", (int)strcspn(line, "\n"), line);
}

static void warn_of_slots(const struct run *run)
{
    const struct config *c = run->config;
    const int blocks = run->model_config.n_layer;
    if (config_is_given(c, BUFFER_COUNT) && c->offload_param == OFFLOAD_CPU &&
        c->param_buffers >= blocks)
        log_warn(
            "%s is %d, and the model has %d blocks: all of them have room on the device, so that "
            "offload_param saves nothing there",
            BUFFER_COUNT, c->param_buffers, blocks);
}

/* What was asked for of crossings that this run does not have. */
static void warn_of_idle(const struct run *run)
{
    static const char no_slots[] =
        "all parameters stay on the device; they come to it only with offload_param.device "
        "\"cpu\", or in stage 3 of several ranks";
    const struct config *c = run->config;
    const bool slots = engine_value_slots(c) > 0;
    const struct {
        bool idle;
        const char *key, *why;
    } keys[] = {{!slots && config_is_given(c, BUFFER_COUNT), BUFFER_COUNT, no_slots},
                {!slots && c->prefetch == 0, ZERO "stage3_prefetch_bucket_size", no_slots},
                {run->device->unified && c->zero_copy, ZERO "offload_optimizer.zero_copy",
                 "the device is the CPU, whose operators work in the host's memory anyway"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].idle)
            config_warn_idle(c, keys[i].key, "%s", keys[i].why);
}

bool memory_plan(struct run *run, int longest, struct zf_error *err)
{
    const struct memory_job job = job_of(run, longest);
    const struct memory_room room = room_of(run);
    struct device *d = run->device;
    choose(run, longest, &room);
    warn_of_slots(run);
    warn_of_idle(run);
    run->size = memory_step_size(&job, run->config);
    run->memory = memory_need(&job, run->config);
    const size_t needed = memory_total(&run->memory);
    const struct memory_lack lack = memory_lack(&job, run->config, &room);
    bool ok = (lack.device <= 0 && lack.host <= 0) || will_not_fit(run, longest, lack, &room, err);
    run->memory_available = room.device;
    /* What a plan would take is told all the same; the host's memory is taken as it is needed. */
    if (!ok && (d->plan || d->unified)) {
        log_warn("%s", err->text);
        run->memory_available = needed > room.device ? needed : room.device;
        ok = true;
    }
    /* ranks on the same device: nobody takes memory before all have seen how much there is */
    if (!comm_all_ok(run->comm, ok, err))
        return false;
    if (!d->unified)
        print_table(run);
    size_t placed = needed - run->memory.collectives - memory_scratch(&job, &run->size);
    return comm_all_ok(run->comm, d->reserve(placed, err), err);
}

/* What there is of it. */
static void print_host_uses(const struct engine_memory *engine)
{
    const struct engine_host_use *use = &engine->host_use;
    const struct {
        const char *name;
        size_t bytes;
    } rows[] = {{"optimizer state", use->optimizer}, {"parameters", use->parameters},
                {"windows", use->windows},           {"staged gradients", use->staged},
                {"exchange", use->exchange},         {"total", engine->host}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].bytes > 0)
            print_row(rows[i].name, rows[i].bytes);
}

static void print_host_memory(const struct run *run)
{
    const struct engine_memory engine = engine_memory(run->engine);
    const size_t all = memory_of_host(run->device), ranks = (size_t)comm_local_size(run->comm);
    const bool unified = run->device->unified;
    const size_t each = engine.host_most + (unified ? memory_total(&run->memory) : 0);
    char most[80] = "";
    if (engine.host < engine.host_most)
        snprintf(most, sizeof most, ", %s where windows are shorter",
                 size_text((double)engine.host_most).text);
    log_info("host memory of each rank: %s of %s%s%s; of %zu rank(s) on a host %s, where there are "
             "%s%s",
             size_text((double)engine.host).text,
             run->config->do_train ? "optimizer state and exchange" : "parameters",
             unified ? " beside these" : "", most, ranks, size_text((double)(each * ranks)).text,
             size_text((double)all).text, each <= all / ranks ? "" : ": IT DOES NOT FIT");
    print_host_uses(&engine);
}

void memory_tell(const struct run *run)
{
    if (run->device->unified)
        print_table(run);
    if (run->engine && engine_memory(run->engine).host > 0)
        print_host_memory(run);
}
