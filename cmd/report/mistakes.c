#include "cmd/report/mistakes.h"

#include "data/alloc.h"
#include "data/show.h"

#include <stdlib.h>

#define LONGEST 1000 /* bytes of a text that is shown */

/* A pair of labels, and how often it is. */
struct cell {
    int right, answer, n;
};

static int by_labels(const void *a, const void *b)
{
    const struct cell *x = a, *y = b;
    return x->right != y->right ? x->right - y->right : x->answer - y->answer;
}

static int by_count(const void *a, const void *b)
{
    const struct cell *x = a, *y = b;
    return x->n != y->n ? y->n - x->n : by_labels(a, b);
}

/* Cells that are the same become one; returns how many are left. */
static int unite(struct cell *cells, int n)
{
    int left = 0;
    qsort(cells, (size_t)n, sizeof *cells, by_labels);
    for (int i = 0; i < n; i++)
        if (left > 0 && by_labels(&cells[left - 1], &cells[i]) == 0)
            cells[left - 1].n += cells[i].n;
        else
            cells[left++] = cells[i];
    return left;
}

static void add_cells(json_t *json, const struct eval_split *split)
{
    const int n = split->set.n_sequences;
    struct cell *cells = zf_malloc((size_t)n * sizeof *cells);
    json_t *shown = json_array();
    json_int_t left_out = 0;
    for (int i = 0; i < n; i++)
        cells[i] = (struct cell){(int)split->set.label[i], (int)split->answers[i], 1};
    const int different = unite(cells, n);
    qsort(cells, (size_t)different, sizeof *cells, by_count);
    for (int i = 0; i < different; i++)
        if (i < MISTAKES_CELLS)
            json_array_append_new(
                shown, json_pack("[i, i, i]", cells[i].right, cells[i].answer, cells[i].n));
        else
            left_out += cells[i].n;
    free(cells);
    json_object_set_new(json, "cells", shown);
    json_object_set_new(json, "left_out", json_integer(left_out));
}

static void add_points(json_t *json, const struct eval_split *split)
{
    const int n = split->set.n_sequences;
    const int shown = n < MISTAKES_POINTS ? n : MISTAKES_POINTS;
    json_t *points = json_array();
    for (int i = 0; i < shown; i++) {
        const int at = (int)((long)i * n / shown);
        json_array_append_new(
            points, json_pack("[f, f]", (double)split->set.label[at], (double)split->answers[at]));
    }
    json_object_set_new(json, "points", points);
}

static void add_labels(json_t *json, const struct glue_task *task)
{
    const char *const *names = task->names ? task->names : task->labels;
    json_t *labels = json_array();
    char shown[LONGEST];
    for (int i = 0; i < task->n_labels; i++) {
        show_text(shown, sizeof shown, names[i]);
        json_array_append_new(labels, json_string(shown));
    }
    json_object_set_new(json, "labels", labels);
}

static double loss_of(const struct eval_split *split, int i)
{
    const double error = (double)split->answers[i] - (double)split->set.label[i];
    return split->losses ? (double)split->losses[i] : error * error;
}

/* The examples with the greatest losses, of labels among those that are answered wrong, in order;
 * returns how many. */
static int find_wrongest(const struct eval_split *split, int worst[MISTAKES_WORST])
{
    int found = 0;
    for (int i = 0; i < split->set.n_sequences; i++) {
        int at = found;
        if (split->answers[i] == split->set.label[i])
            continue;
        while (at > 0 && loss_of(split, worst[at - 1]) < loss_of(split, i))
            at--;
        found += found < MISTAKES_WORST;
        for (int j = found - 1; j > at; j--)
            worst[j] = worst[j - 1];
        if (at < found)
            worst[at] = i;
    }
    return found;
}

/* The caller frees it. */
static char *text_of(const struct run *run, const struct dataset *set, int i)
{
    const size_t first = set->start[i], n = set->start[i + 1] - first;
    size_t bytes;
    char *text = tokenizer_decode(run->tokenizer, set->tokens + first, n, &bytes);
    char *shown = zf_malloc(LONGEST);
    for (size_t at = 0; at < bytes; at++) /* a NUL would end it */
        text[at] = text[at] ? text[at] : ' ';
    show_text(shown, LONGEST, text);
    free(text);
    return shown;
}

static void add_wrongest(json_t *json, const struct run *run, const struct eval_split *split)
{
    int worst[MISTAKES_WORST];
    const int n = find_wrongest(split, worst);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        char *text = text_of(run, &split->set, worst[i]);
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f}", "text", text, "right",
                                              (double)split->set.label[worst[i]], "answer",
                                              (double)split->answers[worst[i]], "loss",
                                              loss_of(split, worst[i])));
        free(text);
    }
    json_object_set_new(json, "wrongest", list);
}

json_t *mistakes_json(const struct run *run, const struct eval_split *split)
{
    if (!split->answers)
        return NULL;
    json_t *json = json_pack("{s:s, s:i}", "split", glue_split_name(run->task, split->split),
                             "examples", split->set.n_sequences);
    add_wrongest(json, run, split);
    if (!split->losses) {
        add_points(json, split);
    } else {
        add_labels(json, run->task);
        add_cells(json, split);
    }
    return json;
}
