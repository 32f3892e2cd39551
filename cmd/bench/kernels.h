/* zf-bench kernels: how near each operator of model/device/ops.h comes to what the device can do.
 *
 * For every operator at a preset's shapes: its time, the bytes that it must move and the FLOPs of
 * its matrix products (each array read or written once; formulas in bench_kernels_cases.c), and the
 * share that it reaches of the nearer of two limits, which are measured in the same run: a large
 * copy within the device and a large matrix product. */
#ifndef ZF_CMD_BENCH_KERNELS_H
#define ZF_CMD_BENCH_KERNELS_H

#include "cmd/bench/options.h"

bool bench_kernels(int argc, char **argv, struct zf_error *err);
extern const struct bench_options bench_kernels_options;

#endif
