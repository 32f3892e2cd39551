#include "cmd/bench/report.h"

#include "cmd/report/page.h"
#include "data/alloc.h"
#include "data/file.h"

#include <stdio.h>
#include <stdlib.h>

struct options {
    const char *output;
    bool help, compare;
};

static const struct bench_option option_table[] = {
    {"--output", "FILE", BENCH_TEXT, offsetof(struct options, output), 0, 0,
     "the page to write (comparison.html)"},
    {"--compare", NULL, BENCH_FLAG, offsetof(struct options, compare), 0, 0,
     "is what it does anyway"},
};

const struct bench_options bench_report_options = {
    "report",
    "Puts the reports of several runs on one page, to compare them. A FOLDER is an output_dir of\n"
    "zf-train, its report.html, or a page that this has made.",
    "FOLDER...",
    option_table,
    sizeof option_table / sizeof *option_table,
    "  FILE: N runs  the page that is written, and how many runs are on it\n"};

/* Adds the runs of a folder's page, or of a page. */
static bool add_runs(json_t *runs, const char *name, struct zf_error *err)
{
    char *path = file_is_directory(name) ? zf_format("%s/report.html", name) : zf_strdup(name);
    json_t *more = page_read(path, err);
    if (more)
        json_array_extend(runs, more);
    json_decref(more);
    free(path);
    return more != NULL;
}

static bool compare(char **folders, int n, const char *output, struct zf_error *err)
{
    json_t *runs = json_array();
    bool ok = n > 0 || zf_fail_usage(err, "report: no FOLDER is given: the output_dir of a run, or "
                                          "of several (see zf-bench report --help)");
    for (int i = 0; ok && i < n; i++)
        ok = add_runs(runs, folders[i], err);
    ok = ok && page_write(output, runs, err);
    const size_t count = json_array_size(runs);
    if (ok)
        printf("%s: %zu run%s\n", output, count, count == 1 ? "" : "s");
    json_decref(runs);
    return ok;
}

bool bench_report(int argc, char **argv, struct zf_error *err)
{
    struct options o = {.output = "comparison.html"};
    int n = 0;
    if (!bench_options_read(&bench_report_options, argc, argv, &o, &o.help, err))
        return false;
    while (!o.help && argv[n + 1])
        n++;
    return o.help || compare(argv + 1, n, o.output, err);
}
