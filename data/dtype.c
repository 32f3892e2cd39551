#include "data/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [DTYPE_F32] = {"F32", 4},   [DTYPE_F16] = {"F16", 2},         [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_I32] = {"I32", 4},   [DTYPE_I64] = {"I64", 8},         [DTYPE_U8] = {"U8", 1},
    [DTYPE_BOOL] = {"BOOL", 1}, [DTYPE_I8] = {"I8", 1},           [DTYPE_I16] = {"I16", 2},
    [DTYPE_U16] = {"U16", 2},   [DTYPE_U32] = {"U32", 4},         [DTYPE_U64] = {"U64", 8},
    [DTYPE_F64] = {"F64", 8},   [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1},
};
#define N_DTYPES ((int)(sizeof dtypes / sizeof *dtypes))

size_t dtype_size(enum dtype dtype)
{
    return dtypes[dtype].size;
}

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

bool dtype_find(const char *name, enum dtype *dtype)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    return false;
}
