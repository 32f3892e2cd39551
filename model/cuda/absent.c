/* Stands for the CUDA device in a build without a CUDA toolkit. */
#include "model/device/device.h"

#include <stddef.h>

struct device *device_cuda(int ordinal, struct zf_error *err)
{
    (void)ordinal;
    zf_fail(err, "this build has no CUDA device: it was built where no CUDA toolkit was found");
    return NULL;
}

int device_cuda_count(void)
{
    return 0;
}

const char *device_cuda_toolkit(void)
{
    return NULL;
}

void *device_cuda_stream(struct stream *stream)
{
    (void)stream;
    return NULL;
}
