#include "cmd/bench/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 27 /* where what an option is begins */

static bool set_number(const struct bench_options *options, const struct bench_option *option,
                       const char *text, void *field, struct zf_error *err)
{
    char *end;
    double value = strtod(text, &end);
    bool whole = option->kind == BENCH_WHOLE;
    if (!*text || *end || !(value >= option->least && value <= option->greatest) ||
        (whole && value != floor(value)))
        return zf_fail_usage(err, "%s: %s is \"%s\", but it is a %s from %.10g to %.10g",
                             options->benchmark, option->name, text,
                             whole ? "whole number" : "number", option->least, option->greatest);
    if (whole)
        *(int *)field = (int)value;
    else
        *(double *)field = value;
    return true;
}

static const struct bench_option *find_option(const struct bench_options *options, const char *name)
{
    for (size_t i = 0; i < options->n; i++)
        if (strcmp(options->table[i].name, name) == 0)
            return &options->table[i];
    return NULL;
}

static void print_help(const struct bench_options *options)
{
    printf("usage: zf-bench %s [options]%s%s\n\n%s\n\n", options->benchmark,
           options->words ? " " : "", options->words ? options->words : "", options->about);
    for (size_t i = 0; i < options->n; i++) {
        const struct bench_option *o = &options->table[i];
        const char *value = o->value ? o->value : "";
        const int room = HELP_COLUMN - (int)strlen(o->name) - 1;
        printf("  %s %-*s %s\n", o->name, room > 0 ? room : 0, value, o->help);
    }
    printf("\nWhat it prints:\n\n%s", options->columns);
}

bool bench_options_read(const struct bench_options *options, int argc, char **argv, void *fields,
                        bool *help, struct zf_error *err)
{
    int n_words = 0;
    for (int i = 1; i < argc; i++) {
        if (options->words && strncmp(argv[i], "--", 2) != 0) {
            argv[++n_words] = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--help") == 0) {
            print_help(options);
            return *help = true;
        }
        const struct bench_option *option = find_option(options, argv[i]);
        if (!option)
            return zf_fail_usage(err, "%s: there is no option %s (see zf-bench %s --help)",
                                 options->benchmark, argv[i], options->benchmark);
        void *field = (char *)fields + option->offset;
        if (option->kind == BENCH_FLAG) {
            *(bool *)field = true;
            continue;
        }
        if (++i == argc)
            return zf_fail_usage(err, "%s: %s is the last word, but it takes a value",
                                 options->benchmark, option->name);
        if (option->kind == BENCH_TEXT)
            *(const char **)field = argv[i];
        else if (!set_number(options, option, argv[i], field, err))
            return false;
    }
    if (options->words)
        argv[n_words + 1] = NULL;
    return true;
}
