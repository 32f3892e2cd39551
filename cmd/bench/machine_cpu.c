/* The CPU device's operators, at several sizes. */
#include "cmd/bench/kernels_cases.h"
#include "cmd/bench/machine_parts.h"

#include <math.h>
#include <stdio.h>

#define WIDTH    512 /* of the operators' rows */
#define HEAD_DIM 64
#define DROPOUT  0.1f

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
        .heads = {WIDTH / HEAD_DIM, WIDTH / HEAD_DIM, HEAD_DIM},
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
                seconds[i] = machine_seconds(m, c->run, &benches[i]);
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
            add_point(m->machine, name, c->cost(&b->shape), machine_seconds(m, c->run, b));
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
    double alone = machine_seconds(m, kernel_run_product, b);
    all[0].product.bias = all[1].product.bias = b->bias;
    all[1].product.act = all[2].product.act = ACT_GELU_TANH;
    all[1].product.pre = b->wide[3];
    all[2].product.gradient_of = b->wide[3];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        b->product = all[i].product;
        double with = machine_seconds(m, kernel_run_product, b);
        add_point(m->machine, all[i].name, cost, fmax(with - alone, with / 100));
    }
}

static void run_zero(void *argument)
{
    const struct machine_copy *r = argument;
    r->device->zero(r->device->compute, r->to, r->bytes);
}

static void measure_memory(const struct measuring *m, size_t bytes)
{
    struct machine_copy r = {m->device, m->device->allocate(bytes), m->device->allocate(bytes),
                             bytes};
    m->device->zero(m->device->compute, r.from, bytes);
    double copy = machine_seconds(m, machine_run_copy, &r), zero = machine_seconds(m, run_zero, &r);
    add_point(m->machine, "copy", cost_copy_rows((double)bytes), copy);
    add_point(m->machine, "zero", (struct op_cost){.bytes = (double)bytes}, zero);
    m->machine->memory_rate = 2 * (double)bytes / copy; /* of the largest, which comes last */
    m->device->release(r.to);
    m->device->release(r.from);
}

void machine_measure_cpu(const struct measuring *m)
{
    static const struct {
        int n, length, rows;
    } shapes[] = {{16, 16, 64}, {128, 32, 1024}, {1024, 32, 8192}, {4096, 32, 65536}};
    measure_attention(m);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && (int)i < m->n_sides; i++) {
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
