/* Examples of a person's own: the rows of a table (table.h) as sentences with labels, the way
 * Transformers' run_glue.py and run_classification.py take a --train_file. */
#ifndef ZF_DATA_OWN_H
#define ZF_DATA_OWN_H

#include "data/glue.h"
#include "data/table.h"

#include <stdint.h>

/* How the columns are called; NULL: none. Borrowed. */
struct own_columns {
    const char *text, *pair, *label;
};

/* Fills in names that are not given (NULL), which are then the table's. The label: "label". The
 * text: "sentence1" with "sentence2" as its pair; or "sentence"; or the first column that has a
 * name, is not the label and is not called "id", "idx" or "index", and the second such one as its
 * pair. A text that is given has no pair but the one that is given; with a pair alone given, the
 * text is looked for among the others. Fails where a column is not there, or there twice, a label
 * only where it is needed; where one is to be two of text, pair and label; and where two columns
 * may be text and, for want of a label, one of them may be that. */
bool own_find_columns(struct own_columns *c, const struct table *t, bool needs_label,
                      struct zf_error *err);

/* Names of labels, in the order of their ids. */
struct own_labels {
    int n;
    char **names;
};
void own_labels_free(struct own_labels *labels);
/* Adds the labels of a table's rows that are not there yet, and sorts all: whole numbers by value,
 * others by their bytes. *row: the first that has a new one, or -1. Fails on a row without a
 * label. */
bool own_labels_add(struct own_labels *labels, const struct table *t, const char *column, int *row,
                    struct zf_error *err);
/* Whether both have the same names, in any order. */
bool own_labels_same(const struct own_labels *a, const struct own_labels *b);

/* *scores: whether a column holds numbers, and not all written as whole ones: what pandas reads as
 * floats. Fails where some are such numbers and others are none. */
bool own_tell_scores(const struct table *t, const char *column, bool *scores, struct zf_error *err);

/* Makes examples of all rows, whose text data takes from the table. labels: what ids are looked up
 * in; NULL: labels are scores. Without c->label, examples have none. Fails on a row without a text,
 * with a label that is none of these, or a score that is no finite number. */
bool own_examples(struct glue_data *data, struct table *t, const struct own_columns *c,
                  const struct own_labels *labels, struct zf_error *err);

/* Moves n examples, drawn by seed, to `to`, whose texts stay in `from`. */
void own_hold_out(struct glue_data *from, struct glue_data *to, int n, uint64_t seed);

/* Writes FILE with "index\tprediction" and a row for each of n predictions: names of labels, or
 * scores where names is NULL, as run_glue.py writes its predict_results. */
bool own_write_predictions(const char *path, const float *prediction, int n,
                           const char *const *names, struct zf_error *err);

#endif
