#include "cmd/summary.h"

#include "cmd/live.h"
#include "cmd/manifest.h"
#include "data/alloc.h"
#include "data/chat.h"
#include "data/file.h"
#include "data/show.h"
#include "data/terminal.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMES_COLUMN 24

/* What may lie in output_dir and is of use. */
static const struct {
    const char *pattern, *what;
} kinds[] = {
    {"model.safetensors", "the model, for zf-run and Transformers"},
    {"all_results.json", "the results"},
    {"report.html", "curves and results, for a browser"},
    {"trainer_log.jsonl", "losses, rates and evaluations, step by step"},
    {"*.tsv", "predictions, in GLUE's format"},
    {"predict_results*.txt", "predictions"},
    {"checkpoint-*", "to go on from, with --resume_from_checkpoint"},
    {"zf_train_config.json", "the whole configuration, to do it again"},
};

static void print_word(const char *text)
{
    char *word = show_shell_word(text);
    fputs(word, stdout);
    free(word);
}

/* A checkpoint is one that is finished. */
static bool is_of_kind(const char *folder, size_t kind, const char *name)
{
    const bool checkpoint = strncmp(kinds[kind].pattern, "checkpoint-", 11) == 0;
    char *path = zf_format("%s/%s", folder, name);
    bool is =
        fnmatch(kinds[kind].pattern, name, 0) == 0 && (!checkpoint || manifest_is_there(path));
    free(path);
    return is;
}

/* The first of them by name, and how many more there are. */
static void print_kind(const char *folder, size_t kind, const struct file_names *names)
{
    int n = 0, first = 0;
    for (int i = names->n - 1; i >= 0; i--)
        if (is_of_kind(folder, kind, names->list[i])) {
            first = i;
            n++;
        }
    if (n == 0)
        return;
    char text[128], shown[128];
    show_text(shown, sizeof shown, names->list[first]);
    if (n > 1)
        snprintf(text, sizeof text, "%.100s + %d", shown, n - 1);
    printf("  %-*s  %s\n", NAMES_COLUMN, n > 1 ? text : shown, kinds[kind].what);
}

static void print_heading(const char *before, const char *folder)
{
    const bool colour = live_has_colour() && terminal_is_at(STDOUT_FILENO);
    char shown[4096];
    show_text(shown, sizeof shown, folder);
    printf("\n%s%s%s:%s\n", colour ? TERMINAL_BOLD : "", before, shown,
           colour ? TERMINAL_PLAIN : "");
}

static void print_files(const char *folder)
{
    struct file_names names = {0};
    struct zf_error ignored;
    if (file_list(folder, &names, &ignored)) {
        print_heading("In ", folder);
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
            print_kind(folder, kind, &names);
    }
    file_names_free(&names);
}

/* One that lies beside this one, called as this one was. */
static void print_program(const char *name)
{
    const char *me = program_invocation_name, *slash = strrchr(me, '/');
    char path[4096];
    snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash + 1 - me) : 0, me, name);
    fputs("  ", stdout);
    print_word(path);
    putchar(' ');
}

/* Whether it has learned to answer in conversations. */
static bool has_learned_to_talk(const struct run *run)
{
    struct chat_template chat = {0};
    struct zf_error ignored;
    const bool talks = run->train.learned &&
                       chat_template_read(&chat, run->tokenizer, "tokenizer", &ignored) &&
                       chat.family != CHAT_NONE;
    chat_template_free(&chat);
    return talks;
}

static void print_answering(const struct run *run, const char *model)
{
    const bool lm = run->task->n_labels == 0;
    print_program("zf-run");
    print_word(model);
    if (lm)
        puts(has_learned_to_talk(run) ? " --chat \"a question\"" : " \"how a text begins\"");
    else
        puts(run->task->pair ? " \"a sentence\" --pair \"another one\"" : " \"a sentence\"");
}

static void print_resuming(const struct run *run)
{
    char path[4096];
    if (comm_size(run->comm) > 1)
        printf("  mpirun -n %d", comm_size(run->comm));
    print_program("zf-train");
    snprintf(path, sizeof path, "%s/zf_train_config.json", run->config->output_dir);
    fputs("--config ", stdout);
    print_word(path);
    puts(" --resume_from_checkpoint latest");
}

/* A model of random weights that is not trained is left nowhere. */
static void print_next(const struct run *run)
{
    const struct config *c = run->config;
    const char *model = c->do_train ? c->output_dir : c->model_name_or_path;
    if (!run->stopped && !model)
        return;
    print_heading("Next", "");
    if (run->stopped)
        print_resuming(run);
    else
        print_answering(run, model);
}

void summary_print(const struct run *run)
{
    const struct config *c = run->config;
    live_give_way();
    if (c->output_dir && !run->stopped)
        print_files(c->output_dir);
    print_next(run);
    live_come_back();
}
