/* A device: memory, copies, streams and events, and the table of operators that run on it.
 *
 * Work given to a stream runs in order; work on two streams is ordered by events alone. On the CPU
 * device a stream runs its work inline, on OpenMP threads. */
#ifndef ZF_MODEL_DEVICE_DEVICE_H
#define ZF_MODEL_DEVICE_DEVICE_H

#include "data/dtype.h"
#include "data/error.h"

#include <stdbool.h>
#include <stddef.h>

struct ops;
struct row_ops;
struct plan;
struct stream;
struct event;

/* Whose kernels a GPU runs first, where several streams have some that could run: device->compute
 * stands between the two. */
enum stream_priority {
    STREAM_FIRST,  /* collectives, which all ranks wait for */
    STREAM_BEHIND, /* what forward and backward leave */
};

struct device {
    const char *name;              /* "cpu", "cuda" */
    const struct ops *ops;         /* of models (model/device/ops.h) */
    const struct row_ops *row_ops; /* of the engine (model/device/row_ops.h) */
    bool is_cpu; /* the CPU device, or a plan of it: the host's cores compute; else a GPU does */
    enum dtype dtype; /* of parameters and activations: F32 on the CPU device, BF16 on CUDA */
    bool unified;     /* device memory is host memory: the host may look into it */
    int head_rows;    /* of logits that a language model's head makes at a time: few enough for the
                         CPU's caches, enough to occupy a GPU */
    /* The widest models that its operators take; 0: any. */
    struct {
        int n_embd, odd_n_embd; /* odd: that are no multiple of 8 */
        int head_dim;
    } most;
    const char *products;   /* what computes matrix products, for the log; NULL: nothing to tell */
    struct stream *compute; /* the stream that forward and backward run on */
    struct plan *plan;      /* of a device that only counts (model/plan/plan.h), whose arrays have
                               no bytes; NULL of all others */

    /* of a GPU that computes */
    const char *model;   /* what it calls itself; else NULL */
    int multiprocessors; /* else 0 */
    const char *address; /* on the PCI bus, "0000:3b:00.0"; else NULL */
    bool emulated;       /* the host stands for it: what it takes means nothing */

    /* Takes device memory of so many bytes in one piece, which allocate() then hands out until all
     * of that is released. Fails where there is not so much. The CPU device does nothing. */
    bool (*reserve)(size_t bytes, struct zf_error *err);
    /* Device memory, 256-byte aligned, not initialised. What a plan (model/device/arena.h) has
     * reserved comes out of one piece. Ends the program with a sentence where
     * there is none left. */
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory);
    size_t (*free_bytes)(void);           /* of device memory, as of now */
    void *(*allocate_host)(size_t bytes); /* host memory that copies to and from at full speed */
    /* The same, for large arrays: it is pinned piece by piece, while the host goes on. Copies to
     * and from it wait for the pieces that they need, and for no others. Operators neither read
     * nor write it. */
    void *(*allocate_host_later)(size_t bytes);
    void (*release_host)(void *memory); /* of either */

    struct stream *(*stream_create)(enum stream_priority priority);
    void (*stream_destroy)(struct stream *stream);
    void (*stream_wait)(struct stream *stream); /* the host waits until the stream is empty */
    struct event *(*event_create)(void);
    void (*event_destroy)(struct event *event);
    void (*event_record)(struct event *event, struct stream *stream);
    void (*event_order)(struct stream *stream, struct event *event); /* the stream waits for it */
    void (*event_wait)(struct event *event);                         /* the host waits for it */
    /* An event that notes the time when the stream gets there. Of such: whether it has passed; and
     * the seconds from one to another that both have passed, of any streams. */
    struct event *(*event_create_timed)(void);
    bool (*event_passed)(struct event *event);
    double (*event_elapsed)(struct event *from, struct event *to);
    /* Calls function(argument) on the host when the stream gets there: on another thread perhaps,
     * one call at a time. The stream goes on when it returns: it may wait for other threads, if
     * these do not wait for the device. The function does not use the device. */
    void (*stream_call)(struct stream *stream, void (*function)(void *), void *argument);

    /* Copies in any direction, host to device, device to host, within the device. Ordinary host
     * memory is read before the call returns, or written before it returns (the host waits); memory
     * of allocate_host is read or written when the stream gets there. */
    void (*copy)(struct stream *stream, void *dst, const void *src, size_t bytes);
    void (*zero)(struct stream *stream, void *dst, size_t bytes);
};

/* A CUDA device of compute capability 8.0 or newer, by its number among those that are visible.
 * Fails where this build has no CUDA, or the machine no such device. */
struct device *device_cuda(int ordinal, struct zf_error *err);
/* How many CUDA devices this machine has; 0 where the build has no CUDA. */
int device_cuda_count(void);
/* The CUDA toolkit of this build, "13.0"; NULL where it has no CUDA. */
const char *device_cuda_toolkit(void);
/* The cudaStream_t of a CUDA device's stream, for libraries that take one. */
void *device_cuda_stream(struct stream *stream);
/* The CPU device. `n_threads` OpenMP threads, 0: as the environment says. Never fails. */
struct device *device_cpu(int n_threads);
/* What computes its matrix products: library, version, and the instructions that it uses. */
const char *device_cpu_products(void);
/* The share of n_threads that a product of (m, n) elements keeps busy: tiles are cut by its shape,
 * and few of them leave threads without one. */
double device_cpu_product_share(int m, int n, int n_threads);

#endif
