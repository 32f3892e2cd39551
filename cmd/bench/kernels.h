/* zf-bench kernels: how near a step's operators come to what the device can do.
 *
 * For every operator of a model's passes, and those on rows that each step of a window has, at a
 * preset's shapes: its time, the bytes that it must move and the FLOPs of its matrix products (each
 * array read or written once; formulas in model/device/op_cost.h), and the share that it reaches
 * of the nearer of two limits, which are measured in the same run: a large copy within the device
 * and a large matrix product. */
#ifndef ZF_CMD_BENCH_KERNELS_H
#define ZF_CMD_BENCH_KERNELS_H

#include "cmd/bench/options.h"

bool bench_kernels(int argc, char **argv, struct zf_error *err);
extern const struct bench_options bench_kernels_options;

#endif
