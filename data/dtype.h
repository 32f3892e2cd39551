/* Types of an array's elements: all that safetensors knows, so that a file opens whatever buffers
 * stand beside its weights. */
#ifndef ZF_DATA_DTYPE_H
#define ZF_DATA_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_I8,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64,
    DTYPE_F64,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
};

size_t dtype_size(enum dtype dtype);      /* bytes of one element */
const char *dtype_name(enum dtype dtype); /* "F32", ... as safetensors spells it */
/* The type of this name; false where there is none. */
bool dtype_find(const char *name, enum dtype *dtype);

#endif
