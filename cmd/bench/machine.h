/* zf-bench machine: measures this machine, its CPU device or a GPU, and writes what was found as a
 * machine file (model/plan/machine.h) for plans. */
#ifndef ZF_CMD_BENCH_MACHINE_H
#define ZF_CMD_BENCH_MACHINE_H

#include "cmd/bench/options.h"

bool bench_machine(int argc, char **argv, struct zf_error *err);
extern const struct bench_options bench_machine_options;

#endif
