#include "cmd/bench/report.h"

#include "cmd/report/page.h"
#include "data/alloc.h"
#include "data/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *output;
    bool help;
};

static const struct bench_option option_table[] = {
    {"--output", "FILE", BENCH_TEXT, offsetof(struct options, output), 0, 0,
     "the page to write (comparison.html)"},
};

const struct bench_options bench_report_options = {
    "report",
    "the reports of several runs on one page: zf-bench report FOLDER... [options], where a FOLDER "
    "is\nan output_dir of zf-train, or a report",
    option_table, sizeof option_table / sizeof *option_table, NULL};

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
    if (ok)
        printf("%s: %zu run(s)\n", output, json_array_size(runs));
    json_decref(runs);
    return ok;
}

bool bench_report(int argc, char **argv, struct zf_error *err)
{
    struct options o = {.output = "comparison.html"};
    int n = 0;
    while (n + 1 < argc && strncmp(argv[n + 1], "--", 2) != 0)
        n++;
    if (!bench_options_read(&bench_report_options, argc - n, argv + n, &o, &o.help, err))
        return false;
    return o.help || compare(argv + 1, n, o.output, err);
}
