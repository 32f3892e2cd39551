#include "cmd/bench/report.h"

#include "cmd/report/page.h"
#include "data/alloc.h"
#include "data/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct bench_option option_table[] = {
    {"--output", "FILE", BENCH_TEXT, 0, 0, 0, "the page (comparison.html)"}};
const struct bench_options bench_report_options = {
    "report", "several runs' report.html on one page, to compare them: report FOLDER...",
    option_table, sizeof option_table / sizeof *option_table, NULL};

static void print_help(void)
{
    puts("usage: zf-bench report FOLDER... [--output FILE]\n\n"
         "several runs' report.html on one page, to compare them\n\n"
         "  FOLDER        an output_dir of zf-train, or a report\n"
         "  --output FILE the page (comparison.html)");
}

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

static bool read_words(int argc, char **argv, json_t *runs, const char **output,
                       struct zf_error *err)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--output") == 0 && i + 1 == argc)
            return zf_fail_usage(err, "report: --output needs a value: the page to write");
        else if (strcmp(argv[i], "--output") == 0)
            *output = argv[++i];
        else if (strncmp(argv[i], "--", 2) == 0)
            return zf_fail_usage(err, "report: %s is not an option: there are --output and --help",
                                 argv[i]);
        else if (!add_runs(runs, argv[i], err))
            return false;
    return json_array_size(runs) > 0 ||
           zf_fail_usage(err, "report: no FOLDER is given: the output_dir of a run, or of several");
}

bool bench_report(int argc, char **argv, struct zf_error *err)
{
    const char *output = "comparison.html";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            print_help();
            return true;
        }
    json_t *runs = json_array();
    bool ok = read_words(argc, argv, runs, &output, err) && page_write(output, runs, err);
    if (ok)
        printf("%s: %zu run(s)\n", output, json_array_size(runs));
    json_decref(runs);
    return ok;
}
