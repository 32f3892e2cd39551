/* The CUDA device's operators: one function for each of ops.h and row_ops.h. */
#ifndef ZF_MODEL_CUDA_CUDA_OPS_H
#define ZF_MODEL_CUDA_CUDA_OPS_H

#include "model/device/ops.h"
#include "model/device/row_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define X(name) op_##name cuda_##name;
MODEL_OPERATORS(X)
ROW_OPERATORS(X)
#undef X

#ifdef __cplusplus
}
#endif

#endif
