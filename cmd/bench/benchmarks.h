/* zf-bench's benchmarks by name. */
#ifndef ZF_CMD_BENCH_BENCHMARKS_H
#define ZF_CMD_BENCH_BENCHMARKS_H

#include "data/error.h"

#include <stddef.h>

struct bench_options;

struct benchmark {
    const char *name, *help;
    const struct bench_options *options;
    bool (*run)(int argc, char **argv, struct zf_error *err); /* argv[0] is the name */
};

extern const struct benchmark benchmarks[];
extern const size_t n_benchmarks;

#endif
