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

/* Numbers of each rank's part of n, of which the last may lack some. */
static size_t part_of(size_t n)
{
    const size_t size = (size_t)comm_size(world);
    return (n + size - 1) / size;
}

/* Room for n numbers in parts. */
static size_t room_for(size_t n)
{
    return part_of(n) * (size_t)comm_size(world);
}

/* Of three arrays one is divided, one is the last rank's, and one is a single part of numbers and
 * empty parts, where there are several ranks. */
enum { ARRAYS = 3 };

static struct comm_shares make_shares(float *data, size_t n, size_t k)
{
    const int last = comm_size(world) - 1;
    const size_t bytes = (k == 2 ? part_of(n) : n) * sizeof *data;
    return (struct comm_shares){data, NULL, bytes, part_of(n) * sizeof *data,
                                k == 1 ? last : COMM_DIVIDED};
}

/* The rank whose number i of an array is; -1: nobody's. */
static int owner_of(const struct comm_shares *array, size_t i)
{
    const size_t at = i * sizeof(float);
    if (at >= array->bytes)
        return -1;
    return array->owner != COMM_DIVIDED ? array->owner : (int)(at / array->part);
}

/* Each rank gets the sums of its parts, of three arrays at once, `rounds` times before one
 * finish. */
static void check_reduce(size_t n, int rounds)
{
    const int me = comm_rank(world);
    const size_t each = room_for(n);
    struct arrays a = arrays_create(each * ARRAYS * (size_t)rounds);
    send_values(&a);
    for (int round = 0; round < rounds; round++) {
        struct comm_shares shares[ARRAYS];
        for (size_t k = 0; k < ARRAYS; k++)
            shares[k] = make_shares(a.data + each * ((size_t)round * ARRAYS + k), n, k);
        comm_device_reduce(world, a.stream, shares, ARRAYS);
    }
    comm_device_finish(world, a.stream);
    device->copy(a.stream, a.host, a.data, a.n * sizeof(float));
    device->stream_wait(a.stream);
    for (size_t i = 0; i < a.n; i++) {
        const struct comm_shares array = make_shares(a.data, n, i / each % ARRAYS);
        if (owner_of(&array, i % each) == me && a.host[i] != sum_of(i))
            fail_msg("rank %d of %d, number %zu of %zu: %g, not %g", me, comm_size(world), i, a.n,
                     a.host[i], sum_of(i));
    }
    arrays_destroy(&a);
}

/* Three arrays at once; this rank's parts are in their places, or come from elsewhere. What is
 * nobody's may be anything. */
static void check_all_gather(size_t n, bool in_place)
{
    struct comm_shares shares[ARRAYS];
    struct arrays a[ARRAYS];
    struct stream *stream = device->stream_create(STREAM_BEHIND);
    for (size_t k = 0; k < ARRAYS; k++) {
        a[k] = arrays_create(room_for(n));
        device->stream_destroy(a[k].stream);
        a[k].stream = stream;
        send_values(&a[k]);
        shares[k] = make_shares(in_place ? a[k].data : a[k].result, n, k);
        for (size_t i = 0; i < a[k].n; i++)
            a[k].expected[i] = value_of(owner_of(&shares[k], i), i);
        if (!in_place)
            shares[k].own = a[k].data + (k == 1 ? 0 : (size_t)comm_rank(world) * part_of(n));
    }
    comm_device_all_gather(world, stream, shares, ARRAYS);
    for (size_t k = 0; k < ARRAYS; k++) {
        a[k].n = shares[k].bytes / sizeof(float);
        if (comm_size(world) > 1)
            check_values(&a[k], shares[k].data);
        a[k].stream = device->stream_create(STREAM_BEHIND);
        arrays_destroy(&a[k]);
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
        comm_device_reduce(world, side,
                           &(struct comm_shares){a->data, NULL, a->n * sizeof(float), 0, owner[l]},
                           1);
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
