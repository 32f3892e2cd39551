/* What the operators ask of the device. */
#include "model/cuda/cuda.cuh"

#include <stdio.h>
#include <stdlib.h>

void cuda_check(cudaError_t code, const char *call, const char *file, int line)
{
    if (code == cudaSuccess)
        return;
    fflush(stdout);
    if (code == cudaErrorMemoryAllocation)
        fprintf(stderr, "zf-train: %s:%d: the CUDA device is out of memory (in %s)\n", file, line,
                call);
    else
        fprintf(stderr, "zf-train: %s:%d: %s failed: %s\n", file, line, call,
                cudaGetErrorString(code));
    exit(1);
}

void *cuda_scratch(struct stream *s, size_t bytes)
{
    if (bytes <= s->scratch_bytes)
        return s->scratch;
    if (s->scratch) {
        check_cuda(cudaStreamSynchronize(s->cuda));
        check_cuda(cudaFree(s->scratch));
    }
    s->scratch_bytes = (bytes + bytes / 4 + 255) / 256 * 256;
    check_cuda(cudaMalloc(&s->scratch, s->scratch_bytes));
    return s->scratch;
}

static int count_multiprocessors(void)
{
    int ordinal, n;
    check_cuda(cudaGetDevice(&ordinal));
    check_cuda(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, ordinal));
    return n;
}

int cuda_multiprocessors(void)
{
    static const int n = count_multiprocessors(); /* device_cuda asks first: a process has one */
    return n;
}
