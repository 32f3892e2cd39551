/* zf-bench: measures or plans what decides the trainer's speed, one subcommand each. */
#include "cmd/about.h"
#include "cmd/bench/benchmarks.h"
#include "cmd/openmp_spin.h"
#include "cmd/standard_streams.h"
#include "data/address_space.h"

#include <stdio.h>
#include <string.h>

static void print_help(FILE *out)
{
    fputs("usage: zf-bench NAME [options], or zf-bench NAME --help\n\n", out);
    for (size_t i = 0; i < n_benchmarks; i++)
        fprintf(out, "  %-10s %s\n", benchmarks[i].name, benchmarks[i].help);
    fputs("\n  --help, --version\n", out);
}

static bool run(int argc, char **argv, struct zf_error *err)
{
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < n_benchmarks; i++)
        if (strcmp(name, benchmarks[i].name) == 0)
            return benchmarks[i].run(argc - 1, argv + 1, err);
    const bool help = strcmp(name, "--help") == 0, version = strcmp(name, "--version") == 0;
    if (help)
        print_help(stdout);
    if (version)
        about_print_version("zf-bench");
    if (argc < 2)
        return zf_fail_usage(err, "no benchmark is named (see zf-bench --help)");
    return help || version ||
           zf_fail_usage(err, "there is no benchmark \"%s\" (see zf-bench --help)", name);
}

int main(int argc, char **argv)
{
    openmp_spin_briefly(argv);
    address_space_begin();
    address_space_start_threads();
    struct zf_error err = {0};
    if (standard_streams_begin(&err) && run(argc, argv, &err) && standard_streams_end(&err))
        return 0;
    fprintf(stderr, "zf-bench: %s\n", err.text);
    return about_status(&err);
}
