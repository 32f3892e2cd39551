/* Everything that one run of zf-train holds: tokenizer, data, model, optimizer; made in the order
 * in which it can fail, so that a fault in the data is found before memory is
 * spent on the model. */
#ifndef ZF_CMD_RUN_H
#define ZF_CMD_RUN_H

#include "cmd/config/config.h"
#include "data/batch.h"
#include "data/checksum.h"
#include "data/folder_lock.h"
#include "data/own.h"
#include "model/device/arena.h"
#include "model/gpt.h"
#include "offload/comm/comm.h"
#include "offload/engine/engine.h"
#include "offload/trace.h"

/* A split that is evaluated or predicted: GLUE's rows and their token sequences. */
struct eval_split {
    enum glue_split split;
    struct glue_data data; /* empty for language modelling */
    struct dataset set;
    /* What the model answered when it was evaluated last, on every rank; NULL before, and for
     * language modelling. */
    float *answers; /* (set.n_sequences), labels or scores */
    float *losses;  /* (set.n_sequences), of the label that is right; regression: NULL */
};

#define RUN_MAX_SPLITS 2 /* MNLI: matched and mismatched */

/* Examples of a person's own, in place of a task's. */
struct own_data {
    struct glue_task task; /* what follows from them */
    struct own_labels labels;
    struct own_columns columns;
    struct table train, dev, test; /* until they are tokenized */
};

struct run {
    struct config *config;
    struct comm *comm;            /* borrowed; of a plan its own */
    const struct glue_task *task; /* config's, or own.task */
    struct own_data own;          /* where config->task is NULL */
    struct tokenizer *tokenizer;
    struct gpt_config model_config;
    bool head_fits; /* model_name_or_path's score head, if it has one, is for the task's labels */
    struct device *device;
    struct gpt_size size;     /* how the model is held */
    struct memory_use memory; /* that it takes of the device's, */
    size_t memory_available;  /* and how much this rank has there */
    struct gpt *model;
    struct engine *engine; /* NULL unless do_train */
    struct trace *trace;   /* where one is asked for, else NULL */
    struct dataset train;
    struct checksum train_sum; /* its own, by which checkpoints and ranks know it */
    struct checksum dev_sum;   /* of what it is evaluated on */
    struct eval_split dev[RUN_MAX_SPLITS], test[RUN_MAX_SPLITS];
    int n_dev, n_test;
    struct batch *batches;    /* (size.micro_batches) of the largest micro-batch, for training; the
                              first one for evaluation too */
    int *eval_order;          /* 0, 1, ...: evaluation visits examples in file order */
    struct checksum weights;  /* of those that were loaded (agree.h) */
    struct folder_lock *lock; /* of output_dir: rank 0, else NULL */
    bool stoppable;           /* evaluation and prediction heed stop_asked */
    bool stopped;             /* the run has ended before its end (stop.h) */
};

/* The same answer on every rank: a fault on any is a fault on all, with the same sentence. */
bool run_create(struct run *run, struct config *config, struct comm *comm, struct zf_error *err);
/* Fails where the timeline could not be written whole. */
bool run_destroy(struct run *run, struct zf_error *err);

/* Trains, evaluates, predicts and writes output_dir, as the configuration says. */
bool run_execute(struct run *run, struct zf_error *err);

#endif
