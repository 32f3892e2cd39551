#include "data/own.h"

#include "data/alloc.h"
#include "data/batch.h"
#include "data/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool need_column(const struct table *t, const char *name, const char *key,
                        struct zf_error *err)
{
    char columns[300];
    const bool told = table_find(t, "messages") >= 0 || table_find(t, "prompt") >= 0 ||
                      table_find(t, "instruction") >= 0;
    int n = 0;
    for (int i = 0; i < t->n_columns; i++)
        n += strcmp(t->columns[i], name) == 0;
    if (n > 1)
        return zf_fail(err, "%s: %d columns are called \"%.60s\" (%s)", t->path, n, name, key);
    return n == 1 || zf_fail(err, "%s: there is no column \"%.60s\" (%s); its columns are: %s%s",
                             t->path, name, key, table_list_columns(t, columns, sizeof columns),
                             told ? "; conversations and instructions are for task_name lm" : "");
}

/* A column without a name is pandas' index, or what a comma at the end of all rows makes. */
static bool may_be_text(const struct own_columns *c, const char *name)
{
    return *name && strcasecmp(name, "id") != 0 && strcasecmp(name, "idx") != 0 &&
           strcasecmp(name, "index") != 0 && !(c->label && strcmp(name, c->label) == 0) &&
           !(c->pair && strcmp(name, c->pair) == 0);
}

/* A name that tells by itself, or NULL. */
static const char *find_usual_text(const struct own_columns *c, const struct table *t)
{
    if (table_find(t, "sentence1") >= 0 && table_find(t, "sentence2") >= 0)
        return may_be_text(c, "sentence1") ? "sentence1" : "sentence2";
    return table_find(t, "sentence") >= 0 && may_be_text(c, "sentence") ? "sentence" : NULL;
}

static bool find_texts(struct own_columns *c, const struct table *t, struct zf_error *err)
{
    char columns[300];
    const char *one = find_usual_text(c, t), *other = NULL;
    const bool two = one && strcmp(one, "sentence1") == 0;
    if (two)
        other = "sentence2";
    for (int i = 0; !one && i < t->n_columns; i++) {
        if (!may_be_text(c, t->columns[i]))
            continue;
        one = t->columns[i];
        for (i++; i < t->n_columns && !other; i++)
            other = may_be_text(c, t->columns[i]) ? t->columns[i] : NULL;
    }
    if (other && !two && table_find(t, c->label) < 0)
        return zf_fail(err,
                       "%s: without a column \"%.60s\" it is not clear which are the text's: "
                       "text_column names it, and text_pair_column a second one; its columns are: "
                       "%s",
                       t->path, c->label, table_list_columns(t, columns, sizeof columns));
    if (!one)
        return zf_fail(
            err, "%s: there is no column of text beside the label%s; its columns are: %s", t->path,
            c->pair ? " and text_pair_column" : "", table_list_columns(t, columns, sizeof columns));
    c->text = one;
    if (!c->pair)
        c->pair = other;
    return true;
}

bool own_find_columns(struct own_columns *c, const struct table *t, bool needs_label,
                      struct zf_error *err)
{
    const char *label = c->label ? c->label : "label";
    if (needs_label && !need_column(t, label, "label_column", err))
        return false;
    c->label = label; /* no text, where it is there */
    if (!c->text && !find_texts(c, t, err))
        return false;
    if (needs_label && (strcmp(c->text, label) == 0 || (c->pair && strcmp(c->pair, label) == 0)))
        return zf_fail(err, "%s: column \"%.60s\" cannot be text and label at once", t->path,
                       label);
    if (c->pair && strcmp(c->text, c->pair) == 0)
        return zf_fail(err,
                       "%s: column \"%.60s\" cannot be text_column and text_pair_column at once",
                       t->path, c->text);
    return need_column(t, c->text, "text_column", err) &&
           (!c->pair || need_column(t, c->pair, "text_pair_column", err));
}

/* The text of a cell, which must be there. */
static bool get_cell(const struct table *t, int row, int column, const char **text,
                     struct zf_error *err)
{
    *text = table_cell(t, row, column);
    if (*text && *text != TABLE_NESTED)
        return true;
    return zf_fail(err, "%s:%d: %.60s is %s, but it is one text", t->path, t->line[row],
                   t->columns[column], *text ? "a list or an object" : "absent or null");
}

static bool get_label(const struct table *t, int row, int column, const char **label,
                      struct zf_error *err)
{
    if (!get_cell(t, row, column, label, err))
        return false;
    for (const char *p = *label; *p; p++)
        if ((unsigned char)*p < ' ')
            return zf_fail(err, "%s:%d: the label has a tab or a line break in it", t->path,
                           t->line[row]);
    return **label || zf_fail(err, "%s:%d: the label is empty", t->path, t->line[row]);
}

/* Labels. */

void own_labels_free(struct own_labels *labels)
{
    for (int i = 0; i < labels->n; i++)
        free(labels->names[i]);
    free(labels->names);
    *labels = (struct own_labels){0};
}

static bool is_whole(const char *text)
{
    const char *digits = text + (*text == '-');
    size_t n = strlen(digits);
    return n > 0 && n < 18 && strspn(digits, "0123456789") == n;
}

static int compare_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_values(const void *a, const void *b)
{
    long long x = strtoll(*(const char *const *)a, NULL, 10);
    long long y = strtoll(*(const char *const *)b, NULL, 10);
    return x != y ? (x > y) - (x < y) : compare_bytes(a, b);
}

static void sort_labels(struct own_labels *labels)
{
    bool whole = true;
    for (int i = 0; i < labels->n; i++)
        whole = whole && is_whole(labels->names[i]);
    if (labels->n > 0)
        qsort(labels->names, (size_t)labels->n, sizeof *labels->names,
              whole ? compare_values : compare_bytes);
}

/* Names in the order of their bytes, each with its id. */
struct index_entry {
    const char *name;
    int id;
};

static struct index_entry *index_labels(const struct own_labels *labels)
{
    struct index_entry *index = zf_malloc(((size_t)labels->n + 1) * sizeof *index);
    for (int i = 0; i < labels->n; i++)
        index[i] = (struct index_entry){labels->names[i], i};
    if (labels->n > 0)
        qsort(index, (size_t)labels->n, sizeof *index, compare_bytes);
    return index;
}

/* The id of a name, or -1. */
static int find_label(const struct index_entry *index, int n, const char *name)
{
    const struct index_entry wanted = {name, 0};
    const struct index_entry *found =
        n > 0 ? bsearch(&wanted, index, (size_t)n, sizeof *index, compare_bytes) : NULL;
    return found ? found->id : -1;
}

bool own_labels_add(struct own_labels *labels, const struct table *t, const char *column, int *row,
                    struct zf_error *err)
{
    const int at = table_find(t, column);
    const char **all = zf_malloc(((size_t)t->n_rows + 1) * sizeof *all);
    bool ok = true;
    *row = -1;
    for (int i = 0; ok && i < t->n_rows; i++)
        ok = get_label(t, i, at, &all[i], err);
    if (ok) {
        struct index_entry *index = index_labels(labels);
        const int known = labels->n;
        for (int i = 0; i < t->n_rows && *row < 0; i++)
            if (find_label(index, known, all[i]) < 0)
                *row = i;
        qsort(all, (size_t)t->n_rows, sizeof *all, compare_bytes);
        for (int i = 0; i < t->n_rows; i++) {
            if ((i > 0 && strcmp(all[i], all[i - 1]) == 0) || find_label(index, known, all[i]) >= 0)
                continue;
            labels->names =
                zf_realloc(labels->names, ((size_t)labels->n + 1) * sizeof *labels->names);
            labels->names[labels->n++] = zf_strdup(all[i]);
        }
        free(index);
        sort_labels(labels);
    }
    free(all);
    return ok;
}

bool own_labels_same(const struct own_labels *a, const struct own_labels *b)
{
    struct index_entry *index = index_labels(a);
    bool same = a->n == b->n;
    for (int i = 0; same && i < b->n; i++)
        same = find_label(index, a->n, b->names[i]) >= 0;
    free(index);
    return same;
}

/* A finite number, all of it. */
static bool read_number(const char *text, float *value)
{
    char *end;
    *value = strtof(text, &end);
    return end != text && end[strspn(end, " ")] == 0 && isfinite(*value);
}

bool own_tell_scores(const struct table *t, const char *column, bool *scores, struct zf_error *err)
{
    const int at = table_find(t, column);
    const char *label;
    float value;
    int score = -1, word = -1; /* rows: the first of each kind */
    for (int i = 0; i < t->n_rows; i++) {
        if (!get_label(t, i, at, &label, err))
            return false;
        if (!read_number(label, &value))
            word = word < 0 ? i : word;
        else if (!is_whole(label))
            score = score < 0 ? i : score;
    }
    *scores = score >= 0;
    return score < 0 || word < 0 ||
           zf_fail(err,
                   "%s:%d: the label is \"%.40s\", but line %d has the score %.40s: scores are "
                   "finite numbers, and --do_regression false makes all of them labels",
                   t->path, t->line[word], table_cell(t, word, at), t->line[score],
                   table_cell(t, score, at));
}

/* Examples. */

static bool read_label(const struct table *t, int row, int column, const struct own_labels *labels,
                       const struct index_entry *index, float *label, struct zf_error *err)
{
    const char *text;
    if (!get_label(t, row, column, &text, err))
        return false;
    if (!labels)
        return read_number(text, label) ||
               zf_fail(err, "%s:%d: the score is \"%.40s\", but it is a finite number", t->path,
                       t->line[row], text);
    int id = find_label(index, labels->n, text);
    *label = (float)id;
    return id >= 0 || zf_fail(err, "%s:%d: the label is \"%.60s\", which is none of the %d labels",
                              t->path, t->line[row], text, labels->n);
}

bool own_examples(struct glue_data *data, struct table *t, const struct own_columns *c,
                  const struct own_labels *labels, struct zf_error *err)
{
    const int text = table_find(t, c->text), pair = c->pair ? table_find(t, c->pair) : -1;
    const int label = c->label ? table_find(t, c->label) : -1;
    struct index_entry *index = labels ? index_labels(labels) : NULL;
    bool ok = true;
    *data = (struct glue_data){.n_examples = t->n_rows};
    data->examples = zf_malloc((size_t)t->n_rows * sizeof *data->examples);
    for (int i = 0; ok && i < t->n_rows; i++) {
        struct glue_example *e = &data->examples[i];
        *e = (struct glue_example){.label = -1, .index = i};
        ok = get_cell(t, i, text, &e->sentence[0], err) &&
             (pair < 0 || get_cell(t, i, pair, &e->sentence[1], err)) &&
             (label < 0 || read_label(t, i, label, labels, index, &e->label, err));
    }
    free(index);
    if (!ok) {
        glue_free(data);
        return false;
    }
    data->text = t->text;
    t->text = NULL;
    return true;
}

void own_hold_out(struct glue_data *from, struct glue_data *to, int n, uint64_t seed)
{
    const int all = from->n_examples;
    int *order = zf_malloc((size_t)all * sizeof *order);
    bool *held = zf_calloc((size_t)all, sizeof *held);
    sampler_shuffle(order, all, seed, 0);
    for (int i = 0; i < n; i++)
        held[order[i]] = true;
    *to = (struct glue_data){.examples = zf_malloc((size_t)n * sizeof *to->examples)};
    from->n_examples = 0;
    for (int i = 0; i < all; i++) {
        struct glue_data *side = held[i] ? to : from;
        side->examples[side->n_examples++] = from->examples[i];
    }
    free(order);
    free(held);
}

bool own_write_predictions(const char *path, const float *prediction, int n,
                           const char *const *names, struct zf_error *err)
{
    struct file_replace f;
    if (!file_replace_begin(&f, path, err))
        return false;
    fprintf(f.stream, "index\tprediction\n");
    for (int i = 0; i < n; i++)
        if (names)
            fprintf(f.stream, "%d\t%s\n", i, names[(int)prediction[i]]);
        else
            fprintf(f.stream, "%d\t%.3f\n", i, (double)prediction[i]);
    return file_replace_end(&f, true, err);
}
