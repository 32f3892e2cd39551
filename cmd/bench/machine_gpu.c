/* A GPU's memory, link, launches and attention. */
#include "cmd/bench/kernels_cases.h"
#include "cmd/bench/machine_parts.h"
#include "data/clock.h"
#include "model/device/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define QUEUED       100  /* small pieces of work in a row, fewer than a stream's queue takes */
#define LONG_SECONDS 2e-3 /* of what is before them: launching them takes less */
#define MOST_LONG    1000 /* pieces of that */
#define FEW          64   /* elements of a small piece, bytes of a small copy */
#define HEAD_DIM     64
#define MOST_WIDTH   1024 /* of attention, */
#define MOST_LENGTH  1024 /* and tokens of a sequence */

/* So large are arrays whose bandwidth is measured: as fp32 matrices of the largest products. */
static size_t large_bytes(const struct measuring *m)
{
    double side = m->sides[m->n_sides - 1];
    return (size_t)(side * side) * sizeof(float);
}

static void measure_memory(const struct measuring *m)
{
    struct device *d = m->device;
    size_t bytes = large_bytes(m);
    struct machine_copy c = {d, d->allocate(bytes), d->allocate(bytes), bytes};
    d->zero(d->compute, c.from, bytes);
    m->machine->memory_rate = 2 * (double)bytes / machine_seconds(m, machine_run_copy, &c);
    d->release(c.to);
    d->release(c.from);
}

static void measure_link(const struct measuring *m)
{
    struct device *d = m->device;
    size_t bytes = large_bytes(m);
    char *there = d->allocate(bytes), *here = d->allocate_host(bytes);
    struct machine_copy down = {d, here, there, bytes}, up = {d, there, here, bytes};
    memset(here, 0, bytes);
    d->zero(d->compute, there, bytes);
    double down_rate = (double)bytes / machine_seconds(m, machine_run_copy, &down),
           up_rate = (double)bytes / machine_seconds(m, machine_run_copy, &up);
    m->machine->link_rate = fmin(down_rate, up_rate);
    if (comm_rank(m->comm) == 0)
        printf("  link       pinned memory: down %.1f GB/s, up %.1f GB/s; the lesser counts\n",
               down_rate * 1e-9, up_rate * 1e-9);
    d->release(there);
    d->release_host(here);
}

/* ---- small pieces of work ---- */

struct small_run {
    struct device *device;
    float *wide;
    void *narrow, *pinned;
    struct machine_copy occupation; /* what keeps the device busy */
    int n_long;
};

static void run_operator(void *argument)
{
    const struct small_run *r = argument;
    r->device->ops->from_f32(r->device->compute, r->narrow, r->wide, FEW);
}

static void run_small_copy(void *argument)
{
    const struct small_run *r = argument;
    r->device->copy(r->device->compute, r->narrow, r->pinned, FEW);
}

/* Seconds of the device for one of many in a row: it is busy until all of them are queued, so that
 * it never waits for a launch. *launch: of the host for one, or NULL. */
static double queued_seconds(const struct measuring *m, const struct small_run *r,
                             void (*run)(void *), double *launch)
{
    struct device *d = m->device;
    struct event *begin = d->event_create_timed(), *end = d->event_create_timed();
    double least = INFINITY, least_launch = INFINITY;
    for (int round = 0; round <= m->rounds; round++) {
        for (int i = 0; i < r->n_long; i++)
            machine_run_copy((void *)&r->occupation);
        d->event_record(begin, d->compute);
        double start = clock_seconds();
        for (int i = 0; i < QUEUED; i++)
            run((void *)r);
        least_launch = fmin(least_launch, (clock_seconds() - start) / QUEUED);
        d->event_record(end, d->compute);
        d->stream_wait(d->compute);
        least = fmin(least, d->event_elapsed(begin, end) / QUEUED);
    }
    d->event_destroy(begin);
    d->event_destroy(end);
    if (launch)
        *launch = least_launch;
    return least;
}

/* Seconds until the host knows that an operator is done, which it has just launched. */
static double round_trip_seconds(const struct measuring *m, const struct small_run *r)
{
    struct device *d = m->device;
    struct event *event = d->event_create();
    double least = INFINITY;
    for (int round = 0; round <= 10 * m->rounds; round++) {
        double begin = clock_seconds();
        run_operator((void *)r);
        d->event_record(event, d->compute);
        d->event_wait(event);
        least = fmin(least, clock_seconds() - begin);
    }
    d->event_destroy(event);
    return least;
}

static void measure_launches(const struct measuring *m)
{
    struct device *d = m->device;
    size_t bytes = large_bytes(m);
    struct small_run r = {.device = d,
                          .wide = d->allocate(FEW * sizeof(float)),
                          .narrow = d->allocate(FEW * sizeof(float)),
                          .pinned = d->allocate_host(FEW),
                          .occupation = {d, d->allocate(bytes), d->allocate(bytes), bytes}};
    double copies = ceil(LONG_SECONDS * m->machine->memory_rate / (2 * (double)bytes));
    r.n_long = copies < MOST_LONG ? (int)copies : MOST_LONG;
    d->zero(d->compute, r.wide, FEW * sizeof(float));
    d->zero(d->compute, r.occupation.from, bytes);
    memset(r.pinned, 0, FEW);
    m->machine->latency = queued_seconds(m, &r, run_operator, &m->machine->launch);
    m->machine->link_latency =
        fmax(queued_seconds(m, &r, run_small_copy, NULL) - m->machine->latency, 0);
    m->machine->wait =
        fmax(round_trip_seconds(m, &r) - m->machine->launch - m->machine->latency, 0);
    d->release(r.wide);
    d->release(r.narrow);
    d->release_host(r.pinned);
    d->release(r.occupation.to);
    d->release(r.occupation.from);
}

/* ---- attention ---- */

static struct kernel_shape attention_shape(const struct measuring *m)
{
    int n = (int)m->sides[m->n_sides - 1];
    int length = n / 4 < MOST_LENGTH ? n / 4 : MOST_LENGTH;
    int width = n / 8 / HEAD_DIM * HEAD_DIM;
    width = width < HEAD_DIM ? HEAD_DIM : width > MOST_WIDTH ? MOST_WIDTH : width;
    return (struct kernel_shape){
        .n = n,
        .n_seqs = n / length,
        .length = length,
        .C = width,
        .inner = 4 * width,
        .heads = {width / HEAD_DIM, width / HEAD_DIM, HEAD_DIM},
        .vocab = HEAD_DIM,
        .positions = length,
        .logit_rows = 1,
        .element = (int)dtype_size(m->device->dtype),
    };
}

/* Forward and backward together, as a step has them. */
static void measure_attention(const struct measuring *m)
{
    struct kernel_bench b = {.device = m->device, .shape = attention_shape(m)};
    double flops = 0, seconds = 0;
    kernel_bench_create(&b);
    for (int k = 0; k < n_kernel_cases; k++) {
        const struct kernel_case *c = &kernel_cases[k];
        if (c->cost(&b.shape).flops == 0)
            continue;
        flops += c->cost(&b.shape).flops;
        seconds += machine_seconds(m, c->run, &b);
    }
    kernel_bench_destroy(&b);
    m->machine->attention_rate = flops / seconds;
}

/* ---- all of it ---- */

/* By a formula, for who reads the file; plans go by the table. Where one side is the least and the
 * others are the greatest, the rate is that of the greatest times side / (side + half). */
static void find_halves(const struct measuring *m)
{
    const struct machine_products *t = &m->machine->products;
    const int n = t->n_sides - 1;
    double *half[] = {&m->machine->half_m, &m->machine->half_n, &m->machine->half_k};
    const double small[] = {t->rates[0][0][n][n], t->rates[0][n][0][n], t->rates[0][n][n][0]};
    for (int i = 0; i < 3; i++)
        *half[i] = fmin(fmax(t->sides[0] * (m->machine->product_rate / small[i] - 1), 0), 1e5);
}

void machine_measure_gpu(const struct measuring *m)
{
    m->machine->multiprocessors = m->device->multiprocessors;
    m->machine->transfer_multiprocessors = fmin(ROW_SIDE_BLOCKS, m->machine->multiprocessors);
    m->machine->ranks_per_link = 1; /* what each has while all others use theirs */
    measure_memory(m);
    measure_link(m);
    measure_launches(m);
    measure_attention(m);
    machine_measure_products(m);
    find_halves(m);
}
