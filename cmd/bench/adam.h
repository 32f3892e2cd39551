/* zf-bench adam: how near the engine's host updates come to the memory's bandwidth.
 *
 * They are the engine's own jobs and tasks (offload/host/adam.h) on its worker pool: a window's
 * length of closings, group after group, of one matrix. For each thread count, width and
 * instruction set, in turns so that a busy machine disturbs all alike: a triad a = b + s c over
 * fp32 arrays (12 bytes counted per element, as STREAM counts; with plain stores, where the memory
 * also reads what will be overwritten, and with non-temporal stores, where it does not; the faster
 * one counts), and updates with bf16 (28 bytes per parameter) and fp32 exchange (32). Prints
 * medians. */
#ifndef ZF_CMD_BENCH_ADAM_H
#define ZF_CMD_BENCH_ADAM_H

#include "cmd/bench/options.h"

bool bench_adam(int argc, char **argv, struct zf_error *err);
extern const struct bench_options bench_adam_options;

#endif
