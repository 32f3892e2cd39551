/* The nine GLUE tasks, and plain text for language modelling, as one table; and the reader of their
 * TSV files. Columns, labels, splits and metrics are those of https://gluebenchmark.com and of
 * Transformers' run_glue.py. */
#ifndef ZF_DATA_GLUE_H
#define ZF_DATA_GLUE_H

#include "data/error.h"
#include "data/metrics.h"

#include <stdbool.h>
#include <stddef.h>

enum glue_split {
    GLUE_TRAIN,
    GLUE_DEV,
    GLUE_TEST,
    GLUE_DEV_MISMATCHED, /* MNLI only */
    GLUE_TEST_MISMATCHED,
};

struct glue_task {
    const char *name;          /* as run_glue.py spells it: "cola", "sst2", ..., "lm" */
    const char *directory;     /* as GLUE's archive spells it: "CoLA", "SST-2", ... */
    const char *title;         /* for people: "SST-2" */
    int n_labels;              /* 1: regression; 0: language modelling */
    const char *const *labels; /* as the submission format spells them, in id order */
    const char *const *names;  /* in words, as Transformers' data sets name them */
    bool pair;                 /* two sentences */
    bool has_mismatched;       /* MNLI */
    enum metric metrics[3];    /* METRIC_NONE-terminated unless full; the first is the task's own */
};

/* The task of this name: run_glue.py's name or GLUE's directory, in any case ("SST-2", "sst2");
 * or NULL and a sentence that lists the names. */
const struct glue_task *glue_find_task(const char *name, struct zf_error *err);
/* All tasks in order; NULL after the last. */
const struct glue_task *glue_task_at(int i);

struct glue_example {
    const char *sentence[2]; /* UTF-8, NUL-terminated; [1] is NULL unless the task has pairs */
    float label;             /* the label's id, or the score (STS-B: 0 to 5); -1 in a test split */
    int index;               /* test splits: as the file's index column says; else, or where there
                                is none, the example's number from 0 */
};

struct glue_data {
    struct glue_example *examples;
    int n_examples;
    int n_skipped; /* rows left out, as GLUE's own loaders do: see glue_read_file */
    char *text;    /* holds all sentences */
};

/* Reads one split's file. `directory` is the task's own folder or the one that holds it
 * (".../glue" or ".../glue/SST-2"). Columns are found by the names in the header; CoLA's train and
 * dev files have none. A bad row is a fault that names the file and line. Not for "lm". */
bool glue_read_split(struct glue_data *data, const struct glue_task *task, const char *directory,
                     enum glue_split split, struct zf_error *err);
/* Reads any file in the layout of a task's split (for --train_file and --validation_file).
 * Two kinds of row are skipped and counted: in QQP's train and dev files, whose published versions
 * have some, rows with a wrong number of columns; in MNLI's, rows on whose label the annotators did
 * not agree ("-"). */
bool glue_read_file(struct glue_data *data, const struct glue_task *task, const char *path,
                    enum glue_split split, struct zf_error *err);
void glue_free(struct glue_data *data);

/* "train", "dev", "dev_matched", ... as the file is named. */
const char *glue_split_name(const struct glue_task *task, enum glue_split split);

/* A test split's file in `directory`, such as SST-2.tsv or MNLI-mm.tsv, as a new string. */
char *glue_submission_path(const struct glue_task *task, enum glue_split split,
                           const char *directory);
/* Writes it in GLUE's submission format ("index\tprediction"); makes the directory. prediction:
 * (n_examples), label ids or scores. */
bool glue_write_submission(const struct glue_task *task, enum glue_split split,
                           const struct glue_data *data, const float *prediction,
                           const char *directory, struct zf_error *err);

#endif
