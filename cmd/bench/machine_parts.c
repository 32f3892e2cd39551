/* How long a run takes, and the rates of products. */
#include "cmd/bench/machine_parts.h"

#include "cmd/bench/device.h"
#include "data/clock.h"
#include "model/device/ops.h"

#include <math.h>
#include <string.h>

#define ROUND_SECONDS 1e-3
#define LEAST_SHARE   20 /* of a time, that is left where something has been taken from it */

void machine_together(const struct measuring *m)
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

double machine_seconds(const struct measuring *m, void (*run)(void *), void *argument)
{
    machine_together(m);
    double least = fmin(time_runs(m, 1, run, argument), time_runs(m, 1, run, argument));
    int runs = least < ROUND_SECONDS ? (int)(ROUND_SECONDS / fmax(least, 1e-7)) + 1 : 1;
    for (int i = 0; i < m->rounds; i++)
        least = fmin(least, time_runs(m, runs, run, argument));
    return least;
}

void machine_run_copy(void *copy)
{
    const struct machine_copy *c = copy;
    c->device->copy(c->device->compute, c->to, c->from, c->bytes);
}

/* ---- products ---- */

/* In a step, what is multiplied on the left has just been written; the weights, and gradients that
 * are added to, were last touched long ago. So the right side and the result move on through
 * memory. */
#define MOVING_ELEMENTS ((size_t)8 << 20) /* of each: with both, more than most caches */

struct product_run {
    struct device *device;
    char *a, *b, *c;
    size_t moving, at; /* elements of b and c; where the next ones begin */
    struct matmul product;
};

static void run_product(void *argument)
{
    struct product_run *r = argument;
    const struct matmul *p = &r->product;
    size_t right = (size_t)p->k * (size_t)p->n, result = (size_t)p->m * (size_t)p->n;
    size_t step = ((right > result ? right : result) + 63) / 64 * 64;
    size_t size = dtype_size(r->device->dtype);
    r->at = r->at + 2 * step <= r->moving ? r->at + step : 0;
    r->device->ops->matmul(r->device->compute, r->c + r->at * (p->c_is_f32 ? sizeof(float) : size),
                           r->a, r->b + r->at * size, p);
}

static double product_rate(const struct measuring *m, struct product_run *r, int kind,
                           const double side[3])
{
    r->product = (struct matmul){
        .m = (int)side[0],
        .n = (int)side[1],
        .k = (int)side[2],
        .trans_a = kind == 1,
        .accumulate = kind == 1,
        .c_is_f32 = kind == 1,
        .trans_b = kind == 2,
    };
    double seconds = machine_seconds(m, run_product, r);
    seconds = fmax(seconds - m->machine->latency, seconds / LEAST_SHARE);
    const double rate = 2 * side[0] * side[1] * side[2] / seconds;
    return m->machine->is_cpu ? rate / device_cpu_product_share(r->product.m, r->product.n,
                                                                (int)m->machine->threads)
                              : rate;
}

void machine_measure_products(const struct measuring *m)
{
    struct machine_products *t = &m->machine->products;
    const int n = m->n_sides;
    const size_t largest = (size_t)m->sides[n - 1] * (size_t)m->sides[n - 1];
    struct product_run r = {.device = m->device};
    r.moving = 2 * largest > MOVING_ELEMENTS ? 2 * largest : MOVING_ELEMENTS;
    r.a = bench_random(m->device, largest, 1);
    r.b = bench_random(m->device, r.moving, 1);
    r.c = m->device->allocate(r.moving * sizeof(float));
    m->device->zero(m->device->compute, r.c, r.moving * sizeof(float));
    t->n_sides = n;
    memcpy(t->sides, m->sides, sizeof *t->sides * (size_t)n);
    for (int kind = 0; kind < MACHINE_PRODUCTS; kind++)
        for (int i = 0; i < n * n * n; i++) {
            int a = i / (n * n), b = i / n % n, c = i % n;
            const double side[] = {m->sides[a], m->sides[b], m->sides[c]};
            t->rates[kind][a][b][c] = product_rate(m, &r, kind, side);
        }
    m->machine->product_rate = t->rates[0][n - 1][n - 1][n - 1];
    m->device->release(r.a);
    m->device->release(r.b);
    m->device->release(r.c);
}
