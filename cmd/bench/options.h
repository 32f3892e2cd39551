/* Options of zf-bench's subcommands: a table of names, each with the field that it sets. */
#ifndef ZF_CMD_BENCH_OPTIONS_H
#define ZF_CMD_BENCH_OPTIONS_H

#include "data/error.h"

#include <stddef.h>

enum bench_option_kind {
    BENCH_WHOLE, /* int */
    BENCH_REAL,  /* double */
    BENCH_TEXT,  /* const char * */
    BENCH_FLAG,  /* bool, set to true; takes no value */
};

struct bench_option {
    const char *name, *value; /* value: what stands for it in help, NULL for a flag */
    enum bench_option_kind kind;
    size_t offset;          /* of the field */
    double least, greatest; /* of a number */
    const char *help;       /* what it is, and its default in parentheses */
};

/* Rows of several tables, but for the field's offset. */
#define BENCH_DEVICE(field)                                                                        \
    "--device", "cuda|cpu|auto", BENCH_TEXT, field, 0, 0,                                          \
        "what computes; auto: a GPU if there is one (auto)"
#define BENCH_THREADS(field)                                                                       \
    "--threads", "N", BENCH_WHOLE, field, 1, 4096, "of the CPU device (as OMP_NUM_THREADS)"
#define BENCH_PROBE(field)                                                                         \
    "--probe", "N", BENCH_WHOLE, field, 16, 1 << 15,                                               \
        "side of the measured product's matrices (8192; 1024 on the CPU)"

struct bench_options {
    const char *benchmark; /* what messages begin with: "train" */
    const char *about;     /* what it does, for --help */
    const char *words; /* what words that are no options are: "FOLDER..."; NULL: there are none */
    const struct bench_option *table;
    size_t n;
    const char *columns; /* lines that explain those of what it prints */
};

/* Sets the fields that options name; argv[0] is passed over, and argv[argc] is NULL, as main's.
 * Other words, where there may be some, are then argv[1] on, with NULL behind them. --help prints
 * the options, sets *help and reads no further. Fails where a word may not be there, an option
 * lacks its value, or that is out of range. */
bool bench_options_read(const struct bench_options *options, int argc, char **argv, void *fields,
                        bool *help, struct zf_error *err);

#endif
