/* Loads cuBLASLt. */
#include "model/cuda/matmul.cuh"

#ifdef __CUDACC__

#include <dlfcn.h>
#include <stdio.h>

bool cublaslt_load(struct cublaslt *lt, struct zf_error *err)
{
    char file[64];
    snprintf(file, sizeof file, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return zf_fail(err, "the CUDA device needs %s (part of the CUDA toolkit): %s", file,
                       dlerror());
#define LOAD(name)                                                                                 \
    lt->name = (decltype(lt->name))dlsym(library, "cublasLt" #name);                               \
    if (!lt->name)                                                                                 \
        return zf_fail(err, "%s has no cublasLt%s", file, #name);
    CUBLASLT_FUNCTIONS(LOAD)
#undef LOAD
    return true;
}

#else

bool cublaslt_load(struct cublaslt *lt, struct zf_error *err)
{
    (void)err;
#define LOAD(name) lt->name = cublasLt##name;
    CUBLASLT_FUNCTIONS(LOAD)
#undef LOAD
    return true;
}

#endif
