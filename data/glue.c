#include "data/glue.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/tsv.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABELS(...) ((const char *const[]){__VA_ARGS__})
#define DIGITS      LABELS("0", "1")
#define ENTAILMENT  LABELS("entailment", "not_entailment")
#define NLI         LABELS("entailment", "neutral", "contradiction")

/* clang-format off */
static const struct glue_task tasks[] = {
    {"cola", "CoLA", "CoLA", 2, DIGITS, LABELS("unacceptable", "acceptable"), false, false,
     {METRIC_MATTHEWS}},
    {"sst2", "SST-2", "SST-2", 2, DIGITS, LABELS("negative", "positive"), false, false,
     {METRIC_ACCURACY}},
    {"mrpc", "MRPC", "MRPC", 2, DIGITS, LABELS("not_equivalent", "equivalent"), true, false,
     {METRIC_ACCURACY, METRIC_F1}},
    {"stsb", "STS-B", "STS-B", 1, NULL, NULL, true, false, {METRIC_PEARSON, METRIC_SPEARMAN}},
    {"qqp", "QQP", "QQP", 2, DIGITS, LABELS("not_duplicate", "duplicate"), true, false,
     {METRIC_ACCURACY, METRIC_F1}},
    {"mnli", "MNLI", "MNLI", 3, NLI, NLI, true, true, {METRIC_ACCURACY}},
    {"qnli", "QNLI", "QNLI", 2, ENTAILMENT, ENTAILMENT, true, false, {METRIC_ACCURACY}},
    {"rte", "RTE", "RTE", 2, ENTAILMENT, ENTAILMENT, true, false, {METRIC_ACCURACY}},
    {"wnli", "WNLI", "WNLI", 2, DIGITS, LABELS("not_entailment", "entailment"), true, false,
     {METRIC_ACCURACY}},
    {"lm", "lm", "language modelling", 0, NULL, NULL, false, false, {METRIC_NONE}},
};
/* clang-format on */

#define N_TASKS ((int)(sizeof tasks / sizeof *tasks))

/* How the columns are called in each task's files; CoLA's names stand for the second and fourth
 * column of its files without a header. */
static const struct layout {
    const char *sentence[2];
    const char *label;
    const char *index; /* in test files */
} layouts[] = {
    {{"sentence"}, "label", "index"},
    {{"sentence"}, "label", "index"},
    {{"#1 String", "#2 String"}, "Quality", "index"},
    {{"sentence1", "sentence2"}, "score", "index"},
    {{"question1", "question2"}, "is_duplicate", "id"},
    {{"sentence1", "sentence2"}, "gold_label", "index"},
    {{"question", "sentence"}, "label", "index"},
    {{"sentence1", "sentence2"}, "label", "index"},
    {{"sentence1", "sentence2"}, "label", "index"},
};

#define MAX_SCORE 5.0f /* of STS-B */

/* Where one file's columns are; -1: not there. */
struct columns {
    int count; /* that every row has */
    int sentence[2];
    int label;
    int index;
};

const struct glue_task *glue_task_at(int i)
{
    return i >= 0 && i < N_TASKS ? &tasks[i] : NULL;
}

const struct glue_task *glue_find_task(const char *name, struct zf_error *err)
{
    char names[256] = "";
    for (int i = 0; i < N_TASKS; i++) {
        if (strcasecmp(name, tasks[i].name) == 0 || strcasecmp(name, tasks[i].directory) == 0)
            return &tasks[i];
        strcat(strcat(names, i ? ", " : ""), tasks[i].name);
    }
    zf_fail(err, "there is no task \"%.100s\"; the tasks are %s", name, names);
    return NULL;
}

const char *glue_split_name(const struct glue_task *task, enum glue_split split)
{
    switch (split) {
    case GLUE_TRAIN:
        return "train";
    case GLUE_DEV:
        return task->has_mismatched ? "dev_matched" : "dev";
    case GLUE_TEST:
        return task->has_mismatched ? "test_matched" : "test";
    case GLUE_DEV_MISMATCHED:
        return "dev_mismatched";
    case GLUE_TEST_MISMATCHED:
        return "test_mismatched";
    }
    return "";
}

static bool is_test(enum glue_split split)
{
    return split == GLUE_TEST || split == GLUE_TEST_MISMATCHED;
}

static bool fail_row(const struct tsv *t, struct zf_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool fail_row(const struct tsv *t, struct zf_error *err, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return zf_fail(err, "%s:%d: %s", t->path, t->line, what);
}

/* Lists the current row's fields, for a sentence. */
static void list_fields(const struct tsv *t, char *list, size_t capacity)
{
    size_t used = 0;
    list[0] = 0;
    for (int i = 0; i < t->n_fields && i < TSV_MAX_FIELDS && used < capacity; i++)
        used +=
            (size_t)snprintf(list + used, capacity - used, "%s%.40s", i ? ", " : "", t->fields[i]);
}

static bool find_column(const struct tsv *t, const char *name, int *column, struct zf_error *err)
{
    char found[300];
    *column = tsv_find(t, name);
    if (*column >= 0)
        return true;
    list_fields(t, found, sizeof found);
    return fail_row(t, err, "there is no column \"%s\" in the header; its columns are: %s", name,
                    found);
}

/* Reads the header, where the file has one. */
static bool read_columns(struct tsv *t, struct columns *c, const struct glue_task *task,
                         enum glue_split split, struct zf_error *err)
{
    const struct layout *layout = &layouts[task - tasks];
    *c = (struct columns){.count = 4, .sentence = {3, -1}, .label = 1, .index = -1};
    if (task == &tasks[0] && !is_test(split))
        return true;
    if (!tsv_next(t))
        return zf_fail(err, "%s: the file is empty", t->path);
    if (t->n_fields > TSV_MAX_FIELDS)
        return fail_row(t, err, "the header has %d columns, but at most %d are read", t->n_fields,
                        TSV_MAX_FIELDS);
    c->count = t->n_fields;
    c->label = -1;
    for (int i = 0; i < (task->pair ? 2 : 1); i++) {
        if (!find_column(t, layout->sentence[i], &c->sentence[i], err))
            return false;
    }
    if (is_test(split))
        c->index = tsv_find(t, layout->index);
    else if (!find_column(t, layout->label, &c->label, err))
        return false;
    return true;
}

static bool parse_score(const struct tsv *t, const char *text, float *score, struct zf_error *err)
{
    char *end;
    *score = strtof(text, &end);
    if (end == text || *end != 0 || !(*score >= 0 && *score <= MAX_SCORE))
        return fail_row(t, err, "the score is \"%.40s\", but it is a number from 0 to 5", text);
    return true;
}

static bool parse_label(const struct tsv *t, const struct glue_task *task, const char *text,
                        float *label, struct zf_error *err)
{
    char names[64] = "";
    if (task->n_labels == 1)
        return parse_score(t, text, label, err);
    for (int i = 0; i < task->n_labels; i++) {
        if (strcmp(text, task->labels[i]) == 0) {
            *label = (float)i;
            return true;
        }
        const char *between = i == 0 ? "" : i + 1 < task->n_labels ? ", " : " or ";
        strcat(strcat(names, between), task->labels[i]);
    }
    return fail_row(t, err, "the label is \"%.40s\", but it is %s", text, names);
}

static bool parse_index(const struct tsv *t, const char *text, int *index, struct zf_error *err)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || value < 0 || value > INT_MAX)
        return fail_row(t, err, "the index is \"%.40s\", but it is a whole number from 0", text);
    *index = (int)value;
    return true;
}

/* Moves the row's sentences to `to`, in the order of their columns, and returns the end. They move
 * towards the file's beginning, over what has been read. */
static char *keep_sentences(char *to, const struct tsv *t, const struct columns *c, bool pair)
{
    bool second_first = pair && c->sentence[1] < c->sentence[0];
    for (int i = 0; i < (pair ? 2 : 1); i++) {
        const char *sentence = t->fields[c->sentence[second_first ? 1 - i : i]];
        size_t bytes = strlen(sentence) + 1;
        memmove(to, sentence, bytes);
        to += bytes;
    }
    return to;
}

/* Points the examples at the sentences, which keep_sentences left one behind the other. */
static void link_sentences(struct glue_data *data, const struct columns *c, bool pair)
{
    bool second_first = pair && c->sentence[1] < c->sentence[0];
    const char *p = data->text;
    for (int i = 0; i < data->n_examples; i++) {
        for (int k = 0; k < (pair ? 2 : 1); k++) {
            data->examples[i].sentence[second_first ? 1 - k : k] = p;
            p += strlen(p) + 1;
        }
    }
}

enum row { ROW_FAULT, ROW_EXAMPLE, ROW_SKIPPED };

/* Reads all of the current row but its sentences. */
static enum row read_row(struct glue_example *example, const struct tsv *t, const struct columns *c,
                         const struct glue_task *task, struct zf_error *err)
{
    if (t->n_fields != c->count) {
        if (strcmp(task->name, "qqp") == 0 && c->label >= 0)
            return ROW_SKIPPED;
        fail_row(t, err, "the row has %d column%s, but every row here has %d", t->n_fields,
                 t->n_fields == 1 ? "" : "s", c->count);
        return ROW_FAULT;
    }
    if (task->has_mismatched && c->label >= 0 && strcmp(t->fields[c->label], "-") == 0)
        return ROW_SKIPPED;
    if (c->label >= 0 && !parse_label(t, task, t->fields[c->label], &example->label, err))
        return ROW_FAULT;
    if (c->index >= 0 && !parse_index(t, t->fields[c->index], &example->index, err))
        return ROW_FAULT;
    return ROW_EXAMPLE;
}

static bool read_rows(struct glue_data *data, struct tsv *t, const struct columns *c,
                      const struct glue_task *task, struct zf_error *err)
{
    char *kept = t->text;
    int capacity = 0;
    while (tsv_next(t)) {
        struct glue_example example = {.label = -1, .index = data->n_examples};
        enum row row = read_row(&example, t, c, task, err);
        if (row == ROW_FAULT)
            return false;
        if (row == ROW_SKIPPED) {
            data->n_skipped++;
            continue;
        }
        if (data->n_examples == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            data->examples = zf_realloc(data->examples, (size_t)capacity * sizeof example);
        }
        data->examples[data->n_examples++] = example;
        kept = keep_sentences(kept, t, c, task->pair);
    }
    if (data->n_examples == 0)
        return zf_fail(err, "%s: there are no examples in the file", t->path);
    /* MNLI's files are four fifths parse trees, which nobody reads. */
    t->text = zf_realloc(t->text, (size_t)(kept - t->text));
    return true;
}

bool glue_read_file(struct glue_data *data, const struct glue_task *task, const char *path,
                    enum glue_split split, struct zf_error *err)
{
    struct tsv t;
    struct columns c;
    assert(task->n_labels > 0);
    *data = (struct glue_data){0};
    if (!tsv_open(&t, path, err))
        return false;
    bool ok = read_columns(&t, &c, task, split, err) && read_rows(data, &t, &c, task, err);
    data->text = t.text;
    if (ok)
        link_sentences(data, &c, task->pair);
    else
        glue_free(data);
    return ok;
}

/* The split's file: "directory/SST-2/train.tsv" where that is there, else "directory/train.tsv".
 * The caller frees it. */
static char *split_path(const struct glue_task *task, const char *directory, enum glue_split split)
{
    const char *name = glue_split_name(task, split);
    char *path = zf_format("%s/%s/%s.tsv", directory, task->directory, name);
    if (file_exists(path))
        return path;
    free(path);
    return zf_format("%s/%s.tsv", directory, name);
}

bool glue_read_split(struct glue_data *data, const struct glue_task *task, const char *directory,
                     enum glue_split split, struct zf_error *err)
{
    *data = (struct glue_data){0};
    char *path = split_path(task, directory, split);
    if (!file_exists(path)) {
        const char *name = glue_split_name(task, split);
        free(path);
        return zf_fail(err,
                       "%s/%s/%s.tsv: there is no such file, nor is there %s/%s.tsv; "
                       "scripts/download_glue.sh fetches GLUE",
                       directory, task->directory, name, directory, name);
    }
    bool ok = glue_read_file(data, task, path, split, err);
    free(path);
    return ok;
}

void glue_free(struct glue_data *data)
{
    free(data->examples);
    free(data->text);
    *data = (struct glue_data){0};
}

char *glue_submission_path(const struct glue_task *task, enum glue_split split,
                           const char *directory)
{
    const bool mismatched = split == GLUE_DEV_MISMATCHED || split == GLUE_TEST_MISMATCHED;
    const char *suffix = !task->has_mismatched ? "" : mismatched ? "-mm" : "-m";
    return zf_format("%s/%s%s.tsv", directory, task->directory, suffix);
}

bool glue_write_submission(const struct glue_task *task, enum glue_split split,
                           const struct glue_data *data, const float *prediction,
                           const char *directory, struct zf_error *err)
{
    struct file_replace f;
    if (!file_make_directory(directory, err))
        return false;
    char *path = glue_submission_path(task, split, directory);
    bool ok = file_replace_begin(&f, path, err);
    free(path);
    if (!ok)
        return false;
    fprintf(f.stream, "index\tprediction\n");
    for (int i = 0; i < data->n_examples; i++) {
        int index = data->examples[i].index;
        if (task->n_labels == 1) {
            fprintf(f.stream, "%d\t%.3f\n", index, (double)prediction[i]);
        } else {
            int label = (int)prediction[i];
            assert(label >= 0 && label < task->n_labels);
            fprintf(f.stream, "%d\t%s\n", index, task->labels[label]);
        }
    }
    return file_replace_end(&f, true, err);
}
