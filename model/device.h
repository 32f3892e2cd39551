/* A device: memory, copies, streams and events, and the table of operators that run on it.
 *
 * Work given to a stream runs in order; work on two streams is ordered by events alone. On the CPU
 * device a stream runs its work inline, on OpenMP threads. */
#ifndef ZF_MODEL_DEVICE_H
#define ZF_MODEL_DEVICE_H

#include "data/safetensors.h"

#include <stdbool.h>
#include <stddef.h>

struct ops;
struct stream;
struct event;

struct device {
    const char *name; /* "cpu" */
    const struct ops *ops;
    enum dtype dtype;       /* of parameters and activations: F32 on the CPU device */
    struct stream *compute; /* the stream that forward and backward run on */

    void *(*allocate)(size_t bytes); /* device memory, 64-byte aligned, not initialised */
    void (*release)(void *memory);
    void *(*allocate_host)(size_t bytes); /* host memory that copies to and from at full speed */
    void (*release_host)(void *memory);

    struct stream *(*stream_create)(void);
    void (*stream_destroy)(struct stream *stream);
    void (*stream_wait)(struct stream *stream); /* the host waits until the stream is empty */
    struct event *(*event_create)(void);
    void (*event_destroy)(struct event *event);
    void (*event_record)(struct event *event, struct stream *stream);
    void (*event_order)(struct stream *stream, struct event *event); /* the stream waits for it */

    /* Copies in any direction, host to device, device to host, within the device. */
    void (*copy)(struct stream *stream, void *dst, const void *src, size_t bytes);
    void (*zero)(struct stream *stream, void *dst, size_t bytes);
};

/* The CPU device. `n_threads` OpenMP threads, 0: as the environment says. Never fails. */
struct device *device_cpu(int n_threads);

#endif
