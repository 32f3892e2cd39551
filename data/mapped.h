/* Files read through memory. Where one becomes shorter while it is read, the program ends with a
 * sentence that names it, and status 1. */
#ifndef ZF_DATA_MAPPED_H
#define ZF_DATA_MAPPED_H

#include "data/error.h"

#include <stddef.h>

/* NULL where it cannot be mapped, or is empty. For one thread at a time. */
const void *mapped_open(const char *path, size_t *bytes, struct zf_error *err);
void mapped_close(const void *memory);

#endif
