/* Large arrays in host memory: aligned to 2 MiB, on huge pages where the system has them, and not
 * touched, so that the thread which first writes a page decides on which NUMA node it lies. */
#ifndef ZF_OFFLOAD_HOST_MEMORY_H
#define ZF_OFFLOAD_HOST_MEMORY_H

#include "data/error.h"

#include <stddef.h>

/* Zeroed. NULL where the system refuses; err then says how much was asked for. */
void *host_memory_allocate(size_t bytes, struct zf_error *err);
/* bytes: as given to host_memory_allocate. memory may be NULL. */
void host_memory_free(void *memory, size_t bytes);

#endif
