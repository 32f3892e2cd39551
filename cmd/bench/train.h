/* zf-bench train: synthetic training steps through the model and the engine as zf-train drives
 * them, at a preset's shape; with --compare under each way of keeping the optimizer's state, from
 * the same weights on the same data. Prints what a step takes, what it moves and what is held
 * where. */
#ifndef ZF_CMD_BENCH_TRAIN_H
#define ZF_CMD_BENCH_TRAIN_H

#include "cmd/bench/options.h"

bool bench_train(int argc, char **argv, struct zf_error *err);
extern const struct bench_options bench_train_options;

#endif
