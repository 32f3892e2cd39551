/* Device memory is planned before the first step: what each part of a run will hold is measured by
 * the code that later places it, so that a run which will not fit says so before it has begun.
 *
 * A part goes through its arrays twice: with an arena that only measures, and with one that
 * allocates. On a GPU all of it comes out of one piece, which the plan has reserved
 * (device->reserve); unplanned, as in tests, each array is an allocation of its own, so that
 * AddressSanitizer and the emulator of tests/cuda_emulator/ see what goes beyond its end. */
#ifndef ZF_MODEL_DEVICE_ARENA_H
#define ZF_MODEL_DEVICE_ARENA_H

#include "model/device/device.h"

#include <stddef.h>

/* Bytes of device memory, by use. */
struct memory_use {
    size_t parameters;
    size_t gradients;
    size_t windows;     /* gradients gathered for the host's next update */
    size_t important;   /* fp32 masters and moments of the channels that are updated every step */
    size_t activations; /* what forward leaves for backward, logits and their gradients */
    size_t workspace;   /* inputs, staging, scratch of operators */
    size_t collectives; /* an allowance for what a library takes that ranks exchange by */
};

size_t memory_total(const struct memory_use *use);

struct arena {
    struct device *device; /* NULL: only measures */
    struct memory_use use;
    void **pieces; /* (n_pieces) */
    int n_pieces;
};

/* An array in device memory, not initialised; NULL while measuring. use: the field of a->use that
 * it counts for. */
void *arena_take(struct arena *a, size_t *use, size_t count, size_t element_bytes);
/* Releases all that was taken. */
void arena_release(struct arena *a);

#endif
