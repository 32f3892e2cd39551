/* How much host memory there is; and large arrays in it: aligned to 2 MiB, on huge pages where the
 * system has them, and not touched, so that the thread which first writes a page decides on which
 * NUMA node it lies. */
#ifndef ZF_OFFLOAD_HOST_MEMORY_H
#define ZF_OFFLOAD_HOST_MEMORY_H

#include "data/error.h"

#include <stddef.h>

/* Zeroed. NULL where the system refuses; err then says how much was asked for. */
void *host_memory_allocate(size_t bytes, struct zf_error *err);
/* bytes: as given to host_memory_allocate. memory may be NULL. */
void host_memory_free(void *memory, size_t bytes);

/* Bytes that this process and its like on the host may have at most: the machine's memory, or what
 * their control groups allow. root: "", or a folder that /proc and /sys are looked for in. */
size_t host_memory_limit(const char *root);

#endif
