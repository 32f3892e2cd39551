/* zf-bench: measures or plans what decides the trainer's speed, one subcommand each. */
#include "cmd/bench/adam.h"
#include "cmd/bench/kernels.h"
#include "cmd/bench/machine.h"
#include "cmd/bench/report.h"
#include "cmd/bench/train.h"
#include "cmd/openmp_spin.h"
#include "cmd/standard_streams.h"

#include <stdio.h>
#include <string.h>

struct benchmark {
    const char *name, *help;
    bool (*run)(int argc, char **argv, struct zf_error *err); /* argv[0] is the name */
};

static const struct benchmark benchmarks[] = {
    {"adam", "host AdamW's bandwidth beside a STREAM-like triad's, by thread count", bench_adam},
    {"kernels", "each operator's time and its share of the device's own limits", bench_kernels},
    {"train", "synthetic training steps, with --compare under each offloading method", bench_train},
    {"machine", "this machine's rates, as a file for plans", bench_machine},
    {"report", "several runs' report.html on one page, to compare them", bench_report},
};
static const size_t n_benchmarks = sizeof benchmarks / sizeof *benchmarks;

static void print_help(FILE *out)
{
    fputs("usage: zf-bench NAME [options], or zf-bench NAME --help\n\n", out);
    for (size_t i = 0; i < n_benchmarks; i++)
        fprintf(out, "  %-10s %s\n", benchmarks[i].name, benchmarks[i].help);
}

int main(int argc, char **argv)
{
    openmp_spin_briefly(argv);
    struct zf_error err = {""};
    if (!standard_streams_begin(&err)) {
        fprintf(stderr, "zf-bench: %s\n", err.text);
        return 1;
    }
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (argc < 2) {
        print_help(stderr);
        return 1;
    }
    for (size_t i = 0; i < n_benchmarks; i++)
        if (strcmp(argv[1], benchmarks[i].name) == 0) {
            if (benchmarks[i].run(argc - 1, argv + 1, &err) && standard_streams_end(&err))
                return 0;
            fprintf(stderr, "zf-bench: %s\n", err.text);
            return 1;
        }
    fprintf(stderr, "zf-bench: there is no benchmark \"%s\"\n", argv[1]);
    print_help(stderr);
    return 1;
}
