#include "cmd/bench/device.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "data/median.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_SIDE   8192
#define CPU_SIDE    1024
#define COPY_ARRAYS 32      /* the copy is of so many of the product's matrices */
#define MOST_RUNS   1000    /* in a round */
#define LAUNCHES    32      /* in a row, fewer than a stream's queue takes */
#define STAGED      1000000 /* random values made at a time */

struct device *bench_device(const char *benchmark, const char *name, int threads, int local_rank,
                            struct zf_error *err)
{
    int devices = device_cuda_count();
    if (strcmp(name, "cpu") == 0 || (strcmp(name, "auto") == 0 && devices == 0))
        return device_cpu(threads);
    if (strcmp(name, "cuda") == 0 || strcmp(name, "auto") == 0)
        return device_cuda(devices > 0 ? local_rank % devices : 0, err);
    zf_fail_usage(err, "%s: --device is \"%s\", but it is cuda, cpu or auto", benchmark, name);
    return NULL;
}

static double time_runs(struct device *device, int runs, void (*run)(void *), void *argument)
{
    device->stream_wait(device->compute);
    double begin = clock_seconds();
    for (int i = 0; i < runs; i++)
        run(argument);
    device->stream_wait(device->compute);
    return clock_seconds() - begin;
}

double bench_seconds(struct device *device, int rounds, void (*run)(void *), void *argument)
{
    double *seconds = zf_malloc((size_t)rounds * sizeof *seconds);
    time_runs(device, 1, run, argument); /* plans are made, memory is touched */
    double once = time_runs(device, 1, run, argument);
    int runs =
        once * MOST_RUNS < BENCH_ROUND_SECONDS ? MOST_RUNS : (int)(BENCH_ROUND_SECONDS / once) + 1;
    for (int r = 0; r < rounds; r++)
        seconds[r] = time_runs(device, runs, run, argument) / runs;
    double middle = median_of(seconds, rounds);
    free(seconds);
    return middle;
}

double bench_launch_seconds(struct device *device, int rounds, void (*run)(void *), void *argument)
{
    double least = INFINITY;
    for (int r = 0; r < rounds; r++) {
        double begin = clock_seconds();
        for (int i = 0; i < LAUNCHES; i++)
            run(argument);
        least = fmin(least, (clock_seconds() - begin) / LAUNCHES);
        device->stream_wait(device->compute);
    }
    return least;
}

void *bench_upload(struct device *device, const void *data, size_t bytes)
{
    void *memory = device->allocate(bytes);
    device->copy(device->compute, memory, data, bytes);
    return memory;
}

void *bench_random(struct device *device, size_t n, float scale)
{
    const size_t size = dtype_size(device->dtype);
    float *host = zf_malloc(STAGED * sizeof *host),
          *staged = device->allocate(STAGED * sizeof *host);
    char *memory = device->allocate(n * size);
    uint32_t state = 1;
    for (size_t at = 0; at < n; at += STAGED) {
        size_t count = n - at < STAGED ? n - at : STAGED;
        for (size_t i = 0; i < count; i++) {
            state = state * 1664525u + 1013904223u;
            host[i] = scale * ((float)(state >> 8) * 0x1p-23f - 1);
        }
        device->copy(device->compute, staged, host, count * sizeof *host);
        device->ops->from_f32(device->compute, memory + at * size, staged, count);
    }
    device->stream_wait(device->compute);
    device->release(staged);
    free(host);
    return memory;
}

struct probe {
    struct device *device;
    void *a, *b, *c;
    size_t bytes; /* of a copy */
    int side;
};

static void run_copy(void *argument)
{
    const struct probe *p = argument;
    p->device->copy(p->device->compute, p->b, p->a, p->bytes);
}

static void run_product(void *argument)
{
    const struct probe *p = argument;
    p->device->ops->matmul(p->device->compute, p->c, p->a, p->b,
                           &(struct matmul){.m = p->side, .n = p->side, .k = p->side});
}

struct bench_rates bench_measure_rates(struct device *device, int side, int rounds)
{
    bool is_cpu = strcmp(device->name, "cpu") == 0;
    struct bench_rates rates = {.side = side ? side : is_cpu ? CPU_SIDE : CUDA_SIDE};
    struct probe p = {.device = device, .side = rates.side};
    size_t elements = (size_t)p.side * (size_t)p.side, quarter = device->free_bytes() / 4;
    p.bytes = COPY_ARRAYS * elements * dtype_size(device->dtype);
    p.bytes = p.bytes < quarter ? p.bytes : quarter / 2 * 2;

    p.a = device->allocate(p.bytes);
    p.b = device->allocate(p.bytes);
    device->zero(device->compute, p.a, p.bytes);
    rates.copy = 2 * (double)p.bytes / bench_seconds(device, rounds, run_copy, &p);
    device->release(p.a);
    device->release(p.b);

    p.a = bench_random(device, elements, 1);
    p.b = bench_random(device, elements, 1);
    p.c = device->allocate(elements * dtype_size(device->dtype));
    double flops = 2 * (double)p.side * (double)p.side * (double)p.side;
    rates.product = flops / bench_seconds(device, rounds, run_product, &p);
    device->release(p.a);
    device->release(p.b);
    device->release(p.c);
    return rates;
}
