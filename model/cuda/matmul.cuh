/* What the sources of the matrix products share. */
#ifndef ZF_MODEL_CUDA_MATMUL_CUH
#define ZF_MODEL_CUDA_MATMUL_CUH

#include "model/cuda/cuda.cuh"

#include <cublasLt.h>

/* Makes cuBLASLt ready for the current device; fails where its library is absent. */
bool matmul_open(struct zf_error *err);

/* The part of cuBLASLt that is used, without "cublasLt" before the names. The library is loaded
 * when a device is opened, not when the program starts: it is half a gigabyte, and a program on the
 * CPU device needs none of it. */
#define CUBLASLT_FUNCTIONS(X)                                                                      \
    X(Create)                                                                                      \
    X(GetStatusString)                                                                             \
    X(Matmul)                                                                                      \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)

struct cublaslt {
#define DECLARE(name) decltype(&cublasLt##name) name;
    CUBLASLT_FUNCTIONS(DECLARE)
#undef DECLARE
};

bool cublaslt_load(struct cublaslt *lt, struct zf_error *err);

/* c = op(a) op(b), + old c if p->accumulate, and nothing else of p; for shapes that cuBLASLt does
 * not take. */
void matmul_small(struct stream *s, void *c, const void *a, const void *b, const struct matmul *p);

/* What follows a product that is in `product`, of c's type: bias, pre, activation or slope, + old
 * c, in this order, each where p asks for it. product may be c (then p does not accumulate) or
 * p->pre. */
void matmul_finish(struct stream *s, void *c, const void *product, const struct matmul *p);

#endif
