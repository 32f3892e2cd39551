/* The CPU device: a stream runs its work inline, so events and waits have nothing to do. */
#include "model/cpu/cpu.h"

#include "data/alloc.h"
#include "data/clock.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* It has always passed. */
struct event {
    double seconds; /* when it was recorded, on data/clock.h's clock */
};

static bool memory_reserve(size_t bytes, struct zf_error *err)
{
    (void)bytes;
    (void)err;
    return true;
}

/* MemAvailable, in kB, counts what the kernel would give up for an allocation; sysconf's free pages
 * do not, and stand in where /proc is not mounted. */
static size_t free_bytes(void)
{
    size_t kilobytes = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %zu", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    if (kilobytes)
        return kilobytes << 10;
    return (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

static struct stream *stream_create(enum stream_priority priority)
{
    (void)priority;
    return zf_calloc(1, sizeof(struct stream));
}

static void stream_destroy(struct stream *stream)
{
    free(stream->scratch);
    free(stream);
}

static void stream_wait(struct stream *stream)
{
    (void)stream;
}

static struct event *event_create(void)
{
    return zf_calloc(1, sizeof(struct event));
}

static void event_destroy(struct event *event)
{
    free(event);
}

static void event_record(struct event *event, struct stream *stream)
{
    (void)stream;
    event->seconds = clock_seconds();
}

static void event_order(struct stream *stream, struct event *event)
{
    (void)stream;
    (void)event;
}

static void event_wait(struct event *event)
{
    (void)event;
}

static bool event_passed(struct event *event)
{
    (void)event;
    return true;
}

static double event_elapsed(struct event *from, struct event *to)
{
    return to->seconds - from->seconds;
}

static void stream_call(struct stream *stream, void (*function)(void *), void *argument)
{
    (void)stream;
    function(argument);
}

static void copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    (void)stream;
    cpu_copy_bytes(dst, src, bytes);
}

static void zero(struct stream *stream, void *dst, size_t bytes)
{
    (void)stream;
    cpu_copy_bytes(dst, NULL, bytes);
}

#define X(name) .name = cpu_##name,
static const struct ops cpu_ops = {MODEL_OPERATORS(X).attention_cached = cpu_attention_cached};
static const struct row_ops cpu_row_ops = {ROW_OPERATORS(X)};
#undef X

struct device *device_cpu(int n_threads)
{
    static struct stream compute;
    static struct device device = {
        .name = "cpu",
        .ops = &cpu_ops,
        .row_ops = &cpu_row_ops,
        .is_cpu = true,
        .dtype = DTYPE_F32,
        .unified = true,
        .head_rows = 256,
        .compute = &compute,
        .reserve = memory_reserve,
        .allocate = cpu_allocate,
        .release = free,
        .free_bytes = free_bytes,
        .allocate_host = cpu_allocate,
        .allocate_host_later = cpu_allocate,
        .release_host = free,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .stream_wait = stream_wait,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_order = event_order,
        .event_wait = event_wait,
        .event_create_timed = event_create,
        .event_passed = event_passed,
        .event_elapsed = event_elapsed,
        .stream_call = stream_call,
        .copy = copy,
        .zero = zero,
    };
    device.products = device_cpu_products();
    if (n_threads > 0)
        omp_set_num_threads(n_threads);
    return &device;
}
