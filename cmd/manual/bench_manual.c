#include "cmd/bench/benchmarks.h"
#include "cmd/bench/options.h"
#include "cmd/manual/manual.h"
#include "data/alloc.h"

#include <stdlib.h>

static void add_columns(struct manual *m, const struct benchmark *benchmark)
{
    char *title = zf_format("What %s prints", benchmark->name);
    manual_add_text(m, title, false, benchmark->options->columns);
    free(title);
}

struct manual *manual_of_bench(void)
{
    struct manual *m = manual_create("zf-bench", "measures or plans what decides zf-train's speed");
    manual_add_text(
        m, "Synopsis", false,
        "  zf-bench NAME [options]\n  zf-bench report [options] FOLDER...\n  zf-bench NAME --help");
    manual_add_text(m, "Description", false,
                    "Each NAME is a benchmark of its own, with options of its own.");
    for (size_t i = 0; i < n_benchmarks; i++) {
        const struct bench_options *options = benchmarks[i].options;
        char *heading = zf_format("%s: %s", benchmarks[i].name, options->about);
        manual_begin_options(m, heading, benchmarks[i].name);
        free(heading);
        for (size_t j = 0; j < options->n; j++)
            manual_add_option(m, options->table[j].name, options->table[j].value,
                              options->table[j].help);
        manual_add_option(m, "--help", NULL, "show these");
    }
    manual_begin_options(m, "The program", NULL);
    manual_add_option(m, "--help", NULL, "show the names");
    manual_add_option(m, "--version", NULL,
                      "show the version and commit, and the CUDA, MPI and BLAS that it has");
    for (size_t i = 0; i < n_benchmarks; i++)
        add_columns(m, &benchmarks[i]);
    manual_add_text(m, "Exit status", false,
                    "  0   all is measured\n"
                    "  1   it failed, and says why in a sentence\n"
                    "  2   the command line is wrong, and it says what");
    manual_add_text(m, "See also", false, "zf-train(1)");
    return m;
}
