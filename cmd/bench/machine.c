#include "cmd/bench/machine.h"

#include "cmd/bench/device.h"
#include "cmd/bench/kernels_cases.h"
#include "cmd/bench/options.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/json.h"
#include "model/plan/machine.h"
#include "offload/comm/comm.h"
#include "offload/host/adam.h"
#include "offload/host/cores.h"
#include "offload/host/memory.h"
#include "offload/host/workers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDTH      512 /* of the operators' rows */
#define HEAD_DIM   64
#define DROPOUT    0.1f
#define ADAM_WIDTH 4096
#define ADAM_ROWS  4096               /* 16 M parameters, 256 MB: beyond any cache */
#define EXCHANGED  ((size_t)16 << 20) /* bytes of a collective */
#define FEW        ((size_t)64)       /* and of one that takes its latency */

/* Of products. */
static const double sides[] = {8, 32, 128, 512, 2048};
#define N_SIDES ((int)(sizeof sides / sizeof *sides))

struct options {
    const char *name, *json;
    int threads, rounds, sizes;
    bool help;
};

static const struct bench_option option_table[] = {
#define FIELD(field) offsetof(struct options, field)
    {"--name", BENCH_TEXT, FIELD(name), 0, 0, "of the machine (this machine)"},
    {"--threads", BENCH_WHOLE, FIELD(threads), 1, 4096, "of the CPU device (as OMP_NUM_THREADS)"},
    {"--rounds", BENCH_WHOLE, FIELD(rounds), 1, 1000,
     "of which the fastest counts: what others take from the machine is not its own (9)"},
    {"--sizes", BENCH_WHOLE, FIELD(sizes), 2, N_SIDES,
     "of products, sides from 8 on, each four times the one before (5)"},
    {"--json", BENCH_TEXT, FIELD(json), 0, 0, "write the machine file there"},
#undef FIELD
};
static const struct bench_options options_of_machine = {
    "machine",
    "Measures this machine's CPU device for plans. Under mpirun -n N: as each of N ranks has it.",
    option_table, sizeof option_table / sizeof *option_table};

struct measuring {
    struct machine *machine;
    struct device *device;
    struct comm *comm;
    int rounds, sizes;
};

#define ROUND_SECONDS 1e-3

/* All ranks are here. */
static void together(const struct measuring *m)
{
    comm_max(m->comm, 0);
}

static double time_runs(const struct measuring *m, int runs, void (*run)(void *), void *argument)
{
    double begin = clock_seconds();
    for (int i = 0; i < runs; i++)
        run(argument);
    m->device->stream_wait(m->device->compute);
    return (clock_seconds() - begin) / runs;
}

/* Seconds of one run: the least of the rounds, each of about ROUND_SECONDS. All ranks measure the
 * same at the same time. */
static double seconds_of(const struct measuring *m, void (*run)(void *), void *argument)
{
    together(m);
    double least = fmin(time_runs(m, 1, run, argument), time_runs(m, 1, run, argument));
    int runs = least < ROUND_SECONDS ? (int)(ROUND_SECONDS / fmax(least, 1e-7)) + 1 : 1;
    for (int i = 0; i < m->rounds; i++)
        least = fmin(least, time_runs(m, runs, run, argument));
    return least;
}

/* ---- products ---- */

/* In a step, what is multiplied on the left has just been written; the weights, and gradients that
 * are added to, were last touched long ago. So the right side and the result move on through
 * memory. */
#define MOVING_ELEMENTS ((size_t)8 << 20) /* floats of each: with both, more than most caches */

struct product_run {
    struct device *device;
    float *a, *b, *c;
    size_t at;
    struct matmul product;
};

static void run_product(void *argument)
{
    struct product_run *r = argument;
    const struct matmul *p = &r->product;
    size_t right = (size_t)p->k * (size_t)p->n, result = (size_t)p->m * (size_t)p->n;
    size_t step = ((right > result ? right : result) + 63) / 64 * 64;
    r->at = r->at + 2 * step <= MOVING_ELEMENTS ? r->at + step : 0;
    r->device->ops->matmul(r->device->compute, r->c + r->at, r->a, r->b + r->at, p);
}

static void measure_products(const struct measuring *m)
{
    struct machine_products *t = &m->machine->products;
    const int n = m->sizes;
    const size_t largest = (size_t)sides[n - 1] * (size_t)sides[n - 1];
    struct product_run r = {.device = m->device};
    r.a = bench_random(m->device, largest, 1);
    r.b = bench_random(m->device, MOVING_ELEMENTS, 1);
    r.c = bench_random(m->device, MOVING_ELEMENTS, 1);
    t->n_sides = n;
    memcpy(t->sides, sides, sizeof *sides * (size_t)n);
    for (int kind = 0; kind < MACHINE_PRODUCTS; kind++)
        for (int i = 0; i < n * n * n; i++) {
            int a = i / (n * n), b = i / n % n, c = i % n;
            r.product = (struct matmul){
                .m = (int)sides[a],
                .n = (int)sides[b],
                .k = (int)sides[c],
                .trans_a = kind == 1,
                .accumulate = kind == 1,
                .trans_b = kind == 2,
            };
            t->rates[kind][a][b][c] =
                2 * sides[a] * sides[b] * sides[c] / seconds_of(m, run_product, &r);
        }
    m->machine->product_rate = t->rates[0][n - 1][n - 1][n - 1];
    m->device->release(r.a);
    m->device->release(r.b);
    m->device->release(r.c);
}

/* ---- operators ---- */

/* The operator of that name, a new one where there is none. */
static struct machine_operator *operator_named(struct machine *machine, const char *name)
{
    struct machine_operator *o = (struct machine_operator *)machine_find(machine, name);
    if (!o) {
        o = &machine->operators[machine->n_operators++];
        snprintf(o->name, sizeof o->name, "%.*s", (int)sizeof o->name - 1, name);
    }
    return o;
}

/* Larger arrays come later; a size that has been measured is passed over. */
static void add_point(struct machine *machine, const char *name, struct op_cost cost,
                      double seconds)
{
    struct machine_operator *o = operator_named(machine, name);
    int n = o->n_points;
    if (cost.bytes <= 0 || (n > 0 && cost.bytes <= o->bytes[n - 1]) || n == MACHINE_POINTS)
        return;
    if (o->flops_per_second > 0)
        seconds = fmax(seconds - cost.flops / o->flops_per_second, seconds / 20);
    o->bytes[n] = cost.bytes;
    o->seconds[n] = seconds;
    o->n_points++;
}

static struct kernel_shape shape_of(int n, int length, int rows)
{
    return (struct kernel_shape){
        .n = n,
        .n_seqs = n / length,
        .length = length,
        .C = WIDTH,
        .inner = 4 * WIDTH,
        .n_head = WIDTH / HEAD_DIM,
        .vocab = rows,
        .positions = length,
        .logit_rows = n < 256 ? n : 256,
        .element = sizeof(float),
    };
}

static void name_case(char *text, size_t bytes, const struct kernel_case *c, bool drops)
{
    snprintf(text, bytes, "%s%s", c->name, drops ? ", dropout" : "");
}

/* FLOPs apart from bytes: as many tokens, in long sequences and in short ones. */
static void measure_attention(const struct measuring *m)
{
    struct kernel_bench benches[2] = {{.device = m->device, .shape = shape_of(1024, 16, 64)},
                                      {.device = m->device, .shape = shape_of(1024, 256, 64)}};
    for (int i = 0; i < 2; i++)
        kernel_bench_create(&benches[i]);
    for (int k = 0; k < n_kernel_cases; k++) {
        const struct kernel_case *c = &kernel_cases[k];
        if (c->cost(&benches[0].shape).flops == 0)
            continue;
        for (int drops = 0; drops < 2; drops++) {
            char name[64];
            double seconds[2];
            name_case(name, sizeof name, c, drops);
            for (int i = 0; i < 2; i++) {
                benches[i].p = drops ? DROPOUT : 0;
                seconds[i] = seconds_of(m, c->run, &benches[i]);
            }
            double more = c->cost(&benches[1].shape).flops - c->cost(&benches[0].shape).flops;
            operator_named(m->machine, name)->flops_per_second =
                more / fmax(seconds[1] - seconds[0], 1e-9);
        }
    }
    for (int i = 0; i < 2; i++)
        kernel_bench_destroy(&benches[i]);
}

static void measure_cases(const struct measuring *m, struct kernel_bench *b)
{
    for (int k = 0; k < n_kernel_cases; k++) {
        const struct kernel_case *c = &kernel_cases[k];
        for (int drops = 0; drops <= c->drops; drops++) {
            char name[64];
            name_case(name, sizeof name, c, drops);
            b->p = drops ? DROPOUT : 0;
            add_point(m->machine, name, c->cost(&b->shape), seconds_of(m, c->run, b));
        }
    }
}

/* What follows a product: the product with it, less the product alone. */
static void measure_finishing(const struct measuring *m, struct kernel_bench *b)
{
    const struct matmul plain = {.m = b->shape.n, .n = b->shape.inner, .k = 8};
    const struct op_cost cost = {.bytes = 4.0 * plain.m * plain.n};
    struct {
        const char *name;
        struct matmul product;
    } all[] = {{"bias", plain}, {"activation", plain}, {"activation, slope", plain}};
    b->product = plain;
    double alone = seconds_of(m, kernel_run_product, b);
    all[0].product.bias = all[1].product.bias = b->bias;
    all[1].product.act = all[2].product.act = ACT_GELU_TANH;
    all[1].product.pre = b->wide[3];
    all[2].product.gradient_of = b->wide[3];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        b->product = all[i].product;
        double with = seconds_of(m, kernel_run_product, b);
        add_point(m->machine, all[i].name, cost, fmax(with - alone, with / 100));
    }
}

struct memory_run {
    struct device *device;
    char *to, *from;
    size_t bytes;
};

static void run_zero(void *argument)
{
    const struct memory_run *r = argument;
    r->device->zero(r->device->compute, r->to, r->bytes);
}

static void run_copy(void *argument)
{
    const struct memory_run *r = argument;
    r->device->copy(r->device->compute, r->to, r->from, r->bytes);
}

static void measure_memory(const struct measuring *m, size_t bytes)
{
    struct memory_run r = {m->device, m->device->allocate(bytes), m->device->allocate(bytes),
                           bytes};
    m->device->zero(m->device->compute, r.from, bytes);
    double copy = seconds_of(m, run_copy, &r), zero = seconds_of(m, run_zero, &r);
    add_point(m->machine, "copy", cost_copy_rows((double)bytes), copy);
    add_point(m->machine, "zero", (struct op_cost){.bytes = (double)bytes}, zero);
    m->machine->memory_rate = 2 * (double)bytes / copy; /* of the largest, which comes last */
    m->device->release(r.to);
    m->device->release(r.from);
}

static void measure_operators(const struct measuring *m)
{
    static const struct {
        int n, length, rows;
    } shapes[] = {{16, 16, 64}, {128, 32, 1024}, {1024, 32, 8192}, {4096, 32, 65536}};
    measure_attention(m);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && (int)i < m->sizes; i++) {
        struct kernel_bench b = {
            .device = m->device,
            .shape = shape_of(shapes[i].n, shapes[i].length, shapes[i].rows),
            .act = ACT_GELU_TANH,
        };
        kernel_bench_create(&b);
        measure_cases(m, &b);
        measure_finishing(m, &b);
        kernel_bench_destroy(&b);
        measure_memory(m, (size_t)shapes[i].rows * WIDTH * sizeof(float));
    }
}

/* ---- the host's workers ---- */

static double adam_rate(const struct measuring *m, struct host_adam_job *job, int n_tasks,
                        int threads)
{
    struct worker_config config = {
        .local_rank = comm_core_rank(m->comm),
        .local_size = comm_core_size(m->comm),
        .threads = threads,
    };
    struct worker_pool *pool = worker_pool_create(&config);
    double least = INFINITY;
    for (int i = 0; i <= m->rounds; i++) {
        together(m);
        double begin = clock_seconds();
        const struct worker_job work = {.run = host_adam_run, .argument = job, .n_chunks = n_tasks};
        worker_pool_wait(pool, worker_pool_submit(pool, &work));
        least = fmin(least, clock_seconds() - begin);
    }
    worker_pool_destroy(pool);
    return 32.0 * ADAM_ROWS * ADAM_WIDTH / least;
}

static void do_nothing(void *argument, int chunk)
{
    (void)argument, (void)chunk;
}

/* From a job's submission to a sleeping worker until the host knows that it is done. */
static double wake_seconds(const struct measuring *m)
{
    struct worker_config config = {.local_size = 1, .reserved_share = 0.5f};
    struct worker_pool *pool = worker_pool_create(&config);
    const struct worker_job job = {.run = do_nothing, .n_chunks = 1};
    double least = INFINITY;
    for (int i = 0; i <= m->rounds; i++) {
        usleep(2000);
        double begin = clock_seconds();
        worker_pool_wait(pool, worker_pool_submit(pool, &job));
        least = fmin(least, clock_seconds() - begin);
    }
    worker_pool_destroy(pool);
    return least;
}

static bool measure_workers(const struct measuring *m, struct zf_error *err)
{
    const size_t bytes = sizeof(float) * ADAM_ROWS * ADAM_WIDTH;
    struct host_adam_matrix matrix = {
        .rows = ADAM_ROWS,
        .cols = ADAM_WIDTH,
        .dtype = DTYPE_F32,
        .part = {.rows = ADAM_ROWS, .cols = ADAM_WIDTH},
    };
    struct host_adam_matrix *x = &matrix;
    struct host_adam_chunk *tasks = zf_malloc(sizeof *tasks * (size_t)host_adam_cut(x, NULL));
    const int n_tasks = host_adam_cut(x, tasks);
    struct host_adam_job job = {
        .chunks = tasks,
        .n_groups = 1,
        .rule = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},
        .path = host_adam_best_path(),
    };
    x->updates = zf_calloc(ADAM_ROWS, sizeof *x->updates);
    bool ok = (x->parameters = host_memory_allocate(bytes, err)) &&
              (x->m = host_memory_allocate(bytes, err)) &&
              (x->v = host_memory_allocate(bytes, err)) &&
              (x->exchange = host_memory_allocate(bytes, err));
    if (ok) {
        int mine = (int)m->machine->cores / comm_core_size(m->comm);
        m->machine->core_rate = adam_rate(m, &job, n_tasks, 1);
        m->machine->wake = wake_seconds(m);
        m->machine->host_rate =
            mine > 1 ? adam_rate(m, &job, n_tasks, mine) : m->machine->core_rate;
        m->machine->host_rate = fmax(m->machine->host_rate, m->machine->core_rate);
    }
    host_memory_free(x->parameters, bytes);
    host_memory_free(x->m, bytes);
    host_memory_free(x->v, bytes);
    host_memory_free(x->exchange, bytes);
    free(x->updates);
    free(tasks);
    return ok;
}

/* ---- between ranks ---- */

struct exchange_run {
    const struct measuring *m;
    float *data, *result;
    size_t n;
};

/* As the engine reduces a gradient: each rank's part to it. */
static void run_exchange(void *argument)
{
    const struct exchange_run *r = argument;
    struct comm *comm = r->m->comm;
    int ranks = comm_size(comm);
    size_t part = r->n / (size_t)ranks;
    for (int i = 0; i < ranks; i++)
        comm_device_reduce(comm, r->m->device->compute, r->data + (size_t)i * part, part, i);
    comm_device_reduce_begin(comm);
    comm_device_finish(comm, r->m->device->compute);
}

static double exchange_seconds(const struct measuring *m, size_t bytes)
{
    struct exchange_run r = {.m = m, .n = bytes / sizeof(float)};
    double least = INFINITY;
    r.data = m->device->allocate(bytes);
    r.result = m->device->allocate(bytes);
    m->device->zero(m->device->compute, r.data, bytes);
    for (int i = 0; i <= m->rounds; i++) { /* so many on each rank: a collective */
        together(m);
        double begin = clock_seconds();
        run_exchange(&r);
        least = fmin(least, clock_seconds() - begin);
    }
    least = comm_max(m->comm, least);
    m->device->release(r.data);
    m->device->release(r.result);
    return least;
}

static void measure_exchange(const struct measuring *m)
{
    int ranks = comm_size(m->comm);
    m->machine->exchange_rate = m->machine->memory_rate;
    if (ranks == 1)
        return;
    double passing = (double)EXCHANGED * (ranks - 1) / ranks;
    m->machine->exchange_latency = exchange_seconds(m, FEW) / ranks;
    m->machine->exchange_rate = passing / exchange_seconds(m, EXCHANGED);
}

/* ---- the machine ---- */

static void print(const struct machine *m, int threads)
{
    printf("%s, CPU device, %d threads, measured with %g rank(s) at a time\n"
           "  products   %8.1f GFLOP/s of the largest matrices\n"
           "  memory     %8.1f GB/s, a large copy, read and written\n"
           "  AdamW      %8.1f GB/s on one core, %.1f on all\n"
           "  ranks      %8.1f GB/s, latency %.1f us\n"
           "  %d operators\n",
           m->name, threads, m->measured, m->product_rate * 1e-9, m->memory_rate * 1e-9,
           m->core_rate * 1e-9, m->host_rate * 1e-9, m->exchange_rate * 1e-9,
           m->exchange_latency * 1e6, m->n_operators);
}

static bool write_machine(const struct machine *m, const char *path, struct zf_error *err)
{
    json_t *root = machine_describe(m, "measured by zf-bench machine");
    bool ok = json_write(path, root, 6, err);
    json_decref(root);
    return ok;
}

static bool measure(const struct options *o, struct comm *comm, struct zf_error *err)
{
    int *cpus, threads = o->threads ? o->threads : comm_core_threads(comm);
    struct machine *machine = zf_calloc(1, sizeof *machine);
    struct measuring m = {machine, device_cpu(threads), comm, o->rounds, o->sizes};
    snprintf(machine->name, sizeof machine->name, "%s", o->name);
    machine->is_cpu = true;
    machine->threads = threads;
    machine->measured = comm_size(comm);
    machine->ranks_per_host = comm_local_size(comm);
    machine->cores = cpu_cores_list(&cpus);
    free(cpus);
    machine->memory_bytes = machine->host_memory_bytes = (double)m.device->free_bytes();
    comm_attach(comm, m.device);
    bool ok = comm_all_ok(comm, measure_workers(&m, err), err);
    if (ok) {
        measure_operators(&m);
        measure_products(&m);
        measure_exchange(&m);
    }
    if (ok && comm_rank(comm) == 0) {
        print(machine, threads);
        ok = !o->json || write_machine(machine, o->json, err);
    }
    free(machine);
    return ok;
}

bool bench_machine(int argc, char **argv, struct zf_error *err)
{
    struct options o = {.name = "this machine", .rounds = 9, .sizes = N_SIDES};
    if (!bench_options_read(&options_of_machine, argc, argv, &o, &o.help, err))
        return false;
    if (o.help)
        return true;
    struct comm *comm = comm_create();
    bool ok = measure(&o, comm, err);
    comm_destroy(comm);
    return ok;
}
