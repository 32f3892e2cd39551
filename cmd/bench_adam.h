/* zf-bench adam: how near host AdamW comes to the memory's bandwidth.
 *
 * For each thread count, in turns so that a busy machine disturbs all alike: a triad a = b + s c
 * over fp32 arrays (12 bytes counted per element, as STREAM counts; with plain stores, where the
 * memory also reads what will be overwritten, and with non-temporal stores, where it does not), and
 * host AdamW with bf16 (28 bytes per parameter) and fp32 exchange (32). Prints medians. */
#ifndef ZF_CMD_BENCH_ADAM_H
#define ZF_CMD_BENCH_ADAM_H

#include "data/error.h"

bool bench_adam(int argc, char **argv, struct zf_error *err);

#endif
