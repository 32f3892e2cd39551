#include "cmd/bench/machine.h"

#include "cmd/bench/device.h"
#include "cmd/bench/machine_parts.h"
#include "cmd/bench/options.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/json.h"
#include "data/log.h"
#include "offload/host/cores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define EXCHANGED ((size_t)16 << 20) /* bytes of a collective */
#define FEW       ((size_t)64)       /* and of one that takes its latency */

/* Of products. */
#define N_SIDES 5
static const double cpu_sides[N_SIDES] = {8, 32, 128, 512, 2048};
static const double gpu_sides[N_SIDES] = {32, 128, 512, 2048, 8192};

struct options {
    const char *name, *device, *json;
    int threads, rounds, sizes;
    bool help;
};

static const struct bench_option option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--name", "TEXT", BENCH_TEXT, FIELD(name), 0, 0,
     "of the machine (this machine, or the GPU's)"},
    {BENCH_DEVICE(FIELD(device))},
    {BENCH_THREADS(FIELD(threads))},
    {"--rounds", "N", BENCH_WHOLE, FIELD(rounds), 1, 1000,
     "of which the fastest counts: others may take from the machine (9)"},
    {"--sizes", "N", BENCH_WHOLE, FIELD(sizes), 2, N_SIDES,
     "of products, from side 8 (a GPU: 32) on, each four times the last (5)"},
    {"--json", "FILE", BENCH_TEXT, FIELD(json), 0, 0, "write the machine file there"},
#undef FIELD
};
const struct bench_options bench_machine_options = {
    "machine",
    "Measures this machine for plans. Under mpirun -n N: as each of N ranks has it.",
    NULL,
    option_table,
    sizeof option_table / sizeof *option_table,
    "  products   the rate of the largest matrices\n"
    "  memory     of a large copy on the device, read and written\n"
    "  AdamW      of the host's updates\n"
    "  ranks      of what ranks exchange; latency: of the least exchange\n"
    "  link       between host and device\n"
    "  attention  the rate of its FLOPs\n"
    "  launches   what it takes the host to start an operator, and to learn of its end\n"};

/* ---- between ranks ---- */

struct exchange_run {
    const struct measuring *m;
    struct comm_shares data;
};

/* As the engine reduces a matrix's gradient: each rank's part to it. */
static void run_exchange(const struct exchange_run *r)
{
    struct comm *comm = r->m->comm;
    comm_device_reduce(comm, r->m->device->compute, &r->data, 1);
    comm_device_finish(comm, r->m->device->compute);
    r->m->device->stream_wait(r->m->device->compute);
}

static double exchange_seconds(const struct measuring *m, size_t bytes)
{
    const size_t ranks = (size_t)comm_size(m->comm);
    const size_t part = bytes / sizeof(float) / ranks * sizeof(float);
    void *data = m->device->allocate(bytes);
    const struct exchange_run r = {m, {data, NULL, part * ranks, part, COMM_DIVIDED}};
    double least = INFINITY;
    m->device->zero(m->device->compute, data, bytes);
    for (int i = 0; i <= m->rounds; i++) { /* so many on each rank: a collective */
        machine_together(m);
        double begin = clock_seconds();
        run_exchange(&r);
        least = fmin(least, clock_seconds() - begin);
    }
    least = comm_max(m->comm, least);
    m->device->release(data);
    return least;
}

/* Between hosts where the ranks are on several, else on one; what was not measured is as the other.
 */
static void measure_exchange(const struct measuring *m)
{
    int ranks = comm_size(m->comm);
    struct machine *machine = m->machine;
    machine->exchange_rate = machine->network_rate = machine->memory_rate;
    if (ranks == 1)
        return;
    double passing = (double)EXCHANGED * (ranks - 1) / ranks;
    machine->exchange_latency = exchange_seconds(m, FEW);
    machine->exchange_rate = machine->network_rate = passing / exchange_seconds(m, EXCHANGED);
}

/* ---- the machine ---- */

static void print_device(const struct machine *m)
{
    if (m->is_cpu)
        printf("  %d operators\n", m->n_operators);
    else
        printf("  link       %8.1f GB/s each way, latency %.1f us\n"
               "  attention  %8.1f GFLOP/s, forward and backward\n"
               "  launches   %8.1f us of the host, %.1f us between operators, %.1f us to learn of "
               "an end\n",
               m->link_rate * 1e-9, m->link_latency * 1e6, m->attention_rate * 1e-9,
               m->launch * 1e6, m->latency * 1e6, m->wait * 1e6);
}

/* Before anything is measured. */
static void print_heading(const struct measuring *m)
{
    const struct device *d = m->device;
    printf("%s, %s device%s%s, measured with %g rank(s) at a time\n", m->machine->name,
           m->machine->is_cpu ? "CPU" : "CUDA", d->model ? ": " : "", d->model ? d->model : "",
           m->machine->measured);
    if (d->emulated)
        puts("the device is emulated on the host: its figures mean nothing, but that all of them "
             "are there");
    fflush(stdout);
}

static void print_figures(const struct machine *m)
{
    printf("  products   %8.1f GFLOP/s of the largest matrices\n"
           "  memory     %8.1f GB/s, a large copy, read and written\n"
           "  AdamW      %8.1f GB/s on one core, %.1f on all\n"
           "  ranks      %8.1f GB/s, latency %.1f us%s\n",
           m->product_rate * 1e-9, m->memory_rate * 1e-9, m->core_rate * 1e-9, m->host_rate * 1e-9,
           m->exchange_rate * 1e-9, m->exchange_latency * 1e6,
           m->measured > 1 ? "" : ": not measured, there was one");
    print_device(m);
}

static void set_source(json_t *root, const char *block, const char *figure, const char *source)
{
    json_object_set_new(json_object_get(json_object_get(root, block), figure), "source",
                        json_string(source));
}

/* Not every figure is measured. */
static void correct_sources(json_t *root, const struct measuring *m)
{
    const bool alone = comm_size(m->comm) == 1;
    if (alone) {
        set_source(root, "ranks", "exchange_bytes_per_second", "not measured: as device memory");
        set_source(root, "ranks", "latency_seconds", "not measured");
    }
    if (m->machine->is_cpu)
        return;
    if (comm_size(m->comm) == comm_local_size(m->comm))
        set_source(root, "ranks", "network_bytes_per_second", "not measured: as within a host");
    set_source(root, "device", "multiprocessors", "as the driver says");
    set_source(root, "link", "ranks", "each rank was measured while all ran");
    set_source(root, "link", "kernel_multiprocessors", "ROW_SIDE_BLOCKS in model/device/row_ops.h");
}

static bool write_machine(const struct measuring *m, const char *path, struct zf_error *err)
{
    const struct device *d = m->device;
    const char *source = d->emulated ? "zf-bench machine on an EMULATED device: means nothing"
                                     : "measured by zf-bench machine";
    char *about = zf_format("%s, with %g rank(s) at a time: %s", d->model ? d->model : "CPU device",
                            m->machine->measured, source);
    json_t *root = machine_describe(m->machine, source);
    json_object_set_new(root, "about", json_string(about));
    correct_sources(root, m);
    bool ok = json_write(path, root, 6, err);
    json_decref(root);
    free(about);
    return ok;
}

/* What is known before anything is measured. */
static void describe(struct machine *machine, const struct device *d, const struct comm *comm,
                     const struct options *o, int threads)
{
    int *cpus;
    snprintf(machine->name, sizeof machine->name, "%s",
             o->name    ? o->name
             : d->model ? d->model
                        : "this machine");
    machine->is_cpu = d->is_cpu;
    machine->threads = d->is_cpu ? threads : 0;
    machine->measured = comm_size(comm);
    machine->ranks_per_host = comm_local_size(comm);
    machine->cores = cpu_cores_list(&cpus);
    machine->memory_bytes = (double)d->free_bytes();
    machine->host_memory_bytes = (double)device_cpu(threads)->free_bytes();
    free(cpus);
}

static bool measure(const struct measuring *m, struct zf_error *err)
{
    if (!comm_all_ok(m->comm, machine_measure_host(m, err), err))
        return false;
    if (m->machine->is_cpu) {
        machine_measure_cpu(m);
        machine_measure_products(m);
    } else {
        machine_measure_gpu(m);
    }
    measure_exchange(m);
    return true;
}

static bool measure_and_tell(const struct options *o, struct comm *comm, struct zf_error *err)
{
    int threads = o->threads ? o->threads : comm_core_threads(comm);
    struct device *d = bench_device("machine", o->device, threads, comm_local_rank(comm), err);
    if (!comm_all_ok(comm, d, err))
        return false;
    struct machine *machine = zf_calloc(1, sizeof *machine);
    const struct measuring m = {.machine = machine,
                                .device = d,
                                .comm = comm,
                                .rounds = o->rounds,
                                .sides = d->is_cpu ? cpu_sides : gpu_sides,
                                .n_sides = o->sizes};
    describe(machine, d, comm, o, threads);
    comm_attach(comm, d);
    if (comm_rank(comm) == 0)
        print_heading(&m);
    bool ok = measure(&m, err);
    if (ok && comm_rank(comm) == 0) {
        print_figures(machine);
        ok = !o->json || write_machine(&m, o->json, err);
    }
    free(machine);
    return ok;
}

bool bench_machine(int argc, char **argv, struct zf_error *err)
{
    struct options o = {.device = "auto", .rounds = 9, .sizes = N_SIDES};
    if (!bench_options_read(&bench_machine_options, argc, argv, &o, &o.help, err))
        return false;
    if (o.help)
        return true;
    struct comm *comm = comm_create();
    log_set_rank(comm_rank(comm));
    bool ok = measure_and_tell(&o, comm, err);
    comm_destroy(comm);
    return ok;
}
