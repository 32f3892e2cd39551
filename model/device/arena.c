#include "model/device/arena.h"

#include "data/alloc.h"

#include <stdlib.h>

#define ALIGNMENT 256 /* of device->allocate */

size_t memory_total(const struct memory_use *use)
{
    return use->parameters + use->gradients + use->windows + use->important + use->activations +
           use->workspace + use->collectives;
}

/* What an allocation of so many bytes takes. */
static size_t rounded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void *arena_take(struct arena *a, size_t *use, size_t count, size_t element_bytes)
{
    size_t bytes = count * element_bytes;
    *use += rounded(bytes);
    if (!a->device || bytes == 0)
        return NULL;
    a->pieces = zf_realloc(a->pieces, (size_t)(a->n_pieces + 1) * sizeof *a->pieces);
    return a->pieces[a->n_pieces++] = a->device->allocate(bytes);
}

void arena_release(struct arena *a)
{
    while (a->n_pieces > 0)
        a->device->release(a->pieces[--a->n_pieces]);
    free(a->pieces);
    *a = (struct arena){0};
}
