/* What every transport of offload/comm/comm.h must do, for tests/unit/test_comm.c (the CPU device)
 * and tests/gpu/test_cuda_comm.c. A program says once which ranks and device it means. */
#ifndef ZF_TESTS_COMM_CHECKS_H
#define ZF_TESTS_COMM_CHECKS_H

#include "tests/testing.h"

#include "data/alloc.h"
#include "model/device/device.h"
#include "offload/comm/comm.h"

static struct comm *world;
static struct device *device;

/* Floats that are sent and what is expected back, in host memory; the same on the device. */
struct arrays {
    size_t n;
    float *host, *expected, *data, *result;
    struct stream *stream;
};

static struct arrays arrays_create(size_t n)
{
    struct arrays a = {.n = n, .stream = device->stream_create(STREAM_BEHIND)};
    a.host = device->allocate_host(n * sizeof(float));
    a.expected = zf_malloc(n * sizeof(float));
    a.data = device->allocate(n * sizeof(float));
    a.result = device->allocate(n * sizeof(float));
    return a;
}

static void arrays_destroy(struct arrays *a)
{
    device->stream_wait(a->stream);
    device->stream_destroy(a->stream);
    device->release_host(a->host);
    device->release(a->data);
    device->release(a->result);
    free(a->expected);
}

/* Small whole numbers, whose sums are exact in any order. */
static float value_of(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 101) - 40;
}

static float sum_of(size_t i)
{
    float sum = 0;
    for (int r = 0; r < comm_size(world); r++)
        sum += value_of(r, i);
    return sum;
}

static void send_values(struct arrays *a)
{
    device->stream_wait(a->stream); /* the host array may still be on its way */
    for (size_t i = 0; i < a->n; i++)
        a->host[i] = value_of(comm_rank(world), i);
    device->copy(a->stream, a->data, a->host, a->n * sizeof(float));
}

/* What is on the device, when the stream gets there, is what is expected. */
static void check_values(struct arrays *a, const float *values)
{
    device->copy(a->stream, a->host, values, a->n * sizeof(float));
    device->stream_wait(a->stream);
    for (size_t i = 0; i < a->n; i++)
        if (a->host[i] != a->expected[i])
            fail_msg("rank %d of %d, number %zu of %zu: %g, not %g", comm_rank(world),
                     comm_size(world), i, a->n, a->host[i], a->expected[i]);
}

/* Twice in a row, without waiting: the second sees the first's result, and a copy the second's. */
static void check_all_reduce(size_t n)
{
    struct arrays a = arrays_create(n);
    send_values(&a);
    comm_device_all_reduce(world, a.stream, a.data, n);
    comm_device_all_reduce(world, a.stream, a.data, n);
    device->copy(a.stream, a.result, a.data, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        a.expected[i] = sum_of(i) * (float)comm_size(world);
    check_values(&a, a.result);
    arrays_destroy(&a);
}

/* Rank r's share of n numbers ends here. Shares are even, or grow with the rank, and the first is
 * empty. */
static size_t share_end(size_t n, int r, bool even)
{
    const size_t size = (size_t)comm_size(world);
    return even ? n * ((size_t)r + 1) / size : r == comm_size(world) - 1 ? n : n * (size_t)r / size;
}

/* The shares of n numbers; the last rank has the beginning where they are not even. (ranks) */
static struct comm_share *make_shares(size_t n, bool even)
{
    const int size = comm_size(world);
    struct comm_share *shares = zf_calloc((size_t)size, sizeof *shares);
    for (int r = 0; r < size; r++) {
        const int place = even ? r : size - 1 - r;
        const size_t first = place > 0 ? share_end(n, place - 1, even) : 0;
        shares[r].at = first * sizeof(float);
        shares[r].bytes = (share_end(n, place, even) - first) * sizeof(float);
    }
    return shares;
}

/* n, or a little more, so that it divides. */
static size_t evenly(size_t n)
{
    const size_t size = (size_t)comm_size(world);
    return (n + size - 1) / size * size;
}

/* Each rank gets the sums of its shares, of three arrays at once, `rounds` times before one finish;
 * every second array has even shares. */
static void check_reduce(size_t n, int rounds)
{
    enum { ARRAYS = 3 };
    const int me = comm_rank(world);
    const size_t each = evenly(n);
    struct arrays a = arrays_create(each * ARRAYS * (size_t)rounds);
    struct comm_share *kinds[] = {make_shares(each, false), make_shares(each, true)};
    send_values(&a);
    for (int round = 0; round < rounds; round++) {
        struct comm_shares shares[ARRAYS];
        for (int k = 0; k < ARRAYS; k++)
            shares[k] = (struct comm_shares){.data = a.data + each * (size_t)(round * ARRAYS + k),
                                             .shares = kinds[k % 2]};
        comm_device_reduce(world, a.stream, shares, ARRAYS);
    }
    comm_device_finish(world, a.stream);
    device->copy(a.stream, a.host, a.data, a.n * sizeof(float));
    device->stream_wait(a.stream);
    for (size_t i = 0; i < a.n; i++) {
        const struct comm_share *mine = &kinds[i / each % ARRAYS % 2][me];
        const size_t at = i % each * sizeof(float);
        if (at >= mine->at && at < mine->at + mine->bytes && a.host[i] != sum_of(i))
            fail_msg("rank %d of %d, number %zu of %zu: %g, not %g", me, comm_size(world), i, a.n,
                     a.host[i], sum_of(i));
    }
    free(kinds[0]);
    free(kinds[1]);
    arrays_destroy(&a);
}

/* Two arrays at once, of even shares and of others; this rank's are in their places, or come from
 * elsewhere. */
static void check_all_gather(size_t n, bool in_place)
{
    enum { ARRAYS = 2 };
    const int size = comm_size(world), me = comm_rank(world);
    struct comm_shares shares[ARRAYS];
    struct arrays a[ARRAYS];
    struct comm_share *parts[] = {make_shares(evenly(n), true), make_shares(evenly(n), false)};
    struct stream *stream = device->stream_create(STREAM_BEHIND);
    for (int k = 0; k < ARRAYS; k++) {
        a[k] = arrays_create(evenly(n));
        device->stream_destroy(a[k].stream);
        a[k].stream = stream;
        send_values(&a[k]);
        for (int r = 0; r < size; r++)
            for (size_t i = 0; i < parts[k][r].bytes / sizeof(float); i++) {
                const size_t at = parts[k][r].at / sizeof(float) + i;
                a[k].expected[at] = value_of(r, at);
            }
        shares[k] = (struct comm_shares){in_place ? a[k].data : a[k].result, NULL, parts[k]};
        if (!in_place)
            shares[k].own = (char *)a[k].data + parts[k][me].at;
    }
    comm_device_all_gather(world, stream, shares, ARRAYS);
    for (int k = 0; k < ARRAYS; k++) {
        if (size > 1)
            check_values(&a[k], shares[k].data);
        a[k].stream = device->stream_create(STREAM_BEHIND);
        arrays_destroy(&a[k]);
        free(parts[k]);
    }
    device->stream_wait(stream);
    device->stream_destroy(stream);
}

/* As the engine does it: gradients come on one stream, their sums are made on a second in the shade
 * of what the first does next, and the first waits for them before it uses them. */
static void check_two_streams(size_t n)
{
    enum { LAYERS = 5 };
    int owner[LAYERS];
    struct arrays layers[LAYERS];
    struct stream *side = device->stream_create(STREAM_BEHIND);
    struct event *ready = device->event_create(), *done = device->event_create();
    for (int l = 0; l < LAYERS; l++) {
        owner[l] = l % comm_size(world);
        layers[l] = arrays_create(n + (size_t)l);
        device->stream_destroy(layers[l].stream);
        layers[l].stream = device->compute;
    }
    device->stream_wait(device->compute);
    for (int l = 0; l < LAYERS; l++) {
        struct arrays *a = &layers[l];
        for (size_t i = 0; i < a->n; i++) {
            a->host[i] = value_of(comm_rank(world), i);
            a->expected[i] = sum_of(i);
        }
        device->copy(device->compute, a->data, a->host, a->n * sizeof(float));
        device->event_record(ready, device->compute);
        device->event_order(side, ready);
        struct comm_share *shares = zf_calloc((size_t)comm_size(world), sizeof *shares);
        shares[owner[l]].bytes = a->n * sizeof(float);
        comm_device_reduce(world, side, &(struct comm_shares){a->data, NULL, shares}, 1);
        free(shares);
    }
    comm_device_finish(world, side);
    device->event_record(done, side);
    device->event_order(device->compute, done);
    for (int l = 0; l < LAYERS; l++)
        if (owner[l] == comm_rank(world))
            check_values(&layers[l], layers[l].data);
    for (int l = 0; l < LAYERS; l++) {
        layers[l].stream = device->stream_create(STREAM_BEHIND);
        arrays_destroy(&layers[l]);
    }
    device->event_destroy(ready);
    device->event_destroy(done);
    device->stream_destroy(side);
}

/* Collectives follow one another on streams that know nothing of each other. */
static void check_many_streams(size_t n)
{
    enum { STREAMS = 4 };
    struct arrays a[STREAMS];
    for (size_t k = 0; k < STREAMS; k++) {
        a[k] = arrays_create(n);
        for (size_t i = 0; i < n; i++) {
            a[k].host[i] = value_of(comm_rank(world), i + k);
            a[k].expected[i] = sum_of(i + k);
        }
        device->copy(a[k].stream, a[k].data, a[k].host, n * sizeof(float));
    }
    for (size_t k = 0; k < STREAMS; k++)
        comm_device_all_reduce(world, a[k].stream, a[k].data, n);
    for (size_t k = 0; k < STREAMS; k++) {
        check_values(&a[k], a[k].data);
        arrays_destroy(&a[k]);
    }
}

/* Sums that are rounded have the same bits each time. */
static void check_same_bits(size_t n)
{
    struct arrays a = arrays_create(n);
    for (int time = 0; time < 3; time++) {
        device->stream_wait(a.stream);
        for (size_t i = 0; i < n; i++)
            a.host[i] = 1 / (1 + value_of(comm_rank(world), i) * value_of(comm_rank(world), i + 3));
        device->copy(a.stream, a.data, a.host, n * sizeof(float));
        comm_device_all_reduce(world, a.stream, a.data, n);
        if (time == 0) {
            device->copy(a.stream, a.host, a.data, n * sizeof(float));
            device->stream_wait(a.stream);
            memcpy(a.expected, a.host, n * sizeof(float));
        }
        check_values(&a, a.data);
    }
    arrays_destroy(&a);
}

#endif
