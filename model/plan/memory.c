/* Memory with addresses and sizes, and bytes only where it is small. */
#include "data/alloc.h"
#include "model/plan/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

void *plan_take(struct plan *p, size_t bytes, bool on_device, bool of_model)
{
    struct allocation a = {.bytes = bytes,
                           .on_device = on_device,
                           .of_model = of_model,
                           .mapped = bytes > PLAN_MAP_LIMIT};
    if (a.mapped)
        a.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    else
        a.memory = zf_calloc(1, bytes);
    if (a.memory == MAP_FAILED) {
        fprintf(stderr, "zf-train: no address space for %zu bytes that are only planned\n", bytes);
        exit(1);
    }
    if (p->n_allocations == p->allocations_capacity) {
        p->allocations_capacity = 2 * p->allocations_capacity + 64;
        p->allocations =
            zf_realloc(p->allocations, p->allocations_capacity * sizeof *p->allocations);
    }
    p->allocations[p->n_allocations++] = a;
    *(on_device ? &p->device_bytes : &p->host_bytes) += bytes;
    return a.memory;
}

void plan_give_back(struct plan *p, void *memory)
{
    size_t i = 0;
    while (i < p->n_allocations && p->allocations[i].memory != memory)
        i++;
    assert(i < p->n_allocations);
    struct allocation a = p->allocations[i];
    p->allocations[i] = p->allocations[--p->n_allocations];
    *(a.on_device ? &p->device_bytes : &p->host_bytes) -= a.bytes;
    if (a.mapped)
        munmap(a.memory, a.bytes);
    else
        free(a.memory);
}

const struct allocation *plan_find(const struct plan *p, const void *memory)
{
    for (size_t i = 0; i < p->n_allocations; i++) {
        const struct allocation *a = &p->allocations[i];
        if ((const char *)memory >= a->memory && (const char *)memory < a->memory + a->bytes)
            return a;
    }
    return NULL;
}

bool plan_on_device(const struct plan *p, const void *memory)
{
    const struct allocation *a = plan_find(p, memory);
    return a && a->on_device;
}
