/* trainer_state.json, as Transformers' TrainerState reads it: in each checkpoint, where training
 * stands beyond what model and optimizer hold; in output_dir, the run's history. What Transformers
 * has no key for stands in stateful_callbacks, under "zf-train".
 *
 * log_history has the entries of trainer_log.jsonl in Transformers' keys. In a checkpoint they are
 * without times, so that a checkpoint is a function of the run and not of the clock. */
#ifndef ZF_CMD_TRAINER_STATE_H
#define ZF_CMD_TRAINER_STATE_H

#include "cmd/run.h"
#include "cmd/watch.h"
#include "data/checksum.h"

#include <jansson.h>

struct train_state {
    int step;                         /* optimizer steps done */
    double loss_sum;                  /* of the steps' mean losses since the last log entry */
    int loss_steps;                   /* how many */
    double total_loss_sum;            /* of all steps */
    int skipped_steps;                /* steps whose gradient was not finite */
    int64_t tokens;                   /* of all steps and ranks */
    struct watch watch;               /* of all evaluations */
    char watched_data[CHECKSUM_TEXT]; /* of what they were of, where this run does none; or "" */
    int best_step; /* of the best evaluation that has a checkpoint, 0: none yet */
    double best_metric;
    bool unevaluated; /* the run was stopped in this step's evaluation, which is still to come */
    char *best_home;  /* the folder that has the best one's checkpoint; NULL: none yet */
    json_t *history;  /* log_history; NULL: nothing yet */
};

void trainer_state_free(struct train_state *s);

/* Adds to the history what Transformers would of an entry of trainer_log.jsonl. */
void trainer_state_note(struct train_state *s, const json_t *entry);

/* Floating-point operations of all steps, by Transformers' rule: 6 for each token and parameter
 * that is not of an embedding. */
double trainer_state_flos(const struct run *run, const struct train_state *s);

/* Writes DIRECTORY/trainer_state.json; a checkpoint's is without times. For one rank. */
bool trainer_state_write(const struct run *run, const struct train_state *s, const char *directory,
                         bool is_checkpoint, struct zf_error *err);

/* Reads a checkpoint's. Fails where it is none, or looks for the best by another measure. */
bool trainer_state_read(const struct run *run, struct train_state *s, const char *directory,
                        struct zf_error *err);

#endif
