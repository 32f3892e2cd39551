/* Checkpoints: OUTPUT_DIR/checkpoint-<step>, a folder as Transformers' Trainer makes it, with the
 * model, its configuration and tokenizer, the optimizer's state and trainer_state.json. A run
 * resumed from one goes on exactly as it would have. A folder of that name is always complete. */
#ifndef ZF_CMD_CHECKPOINT_H
#define ZF_CMD_CHECKPOINT_H

#include "cmd/run.h"

/* Where training stands, beyond what model and optimizer hold. */
struct train_state {
    int step;              /* optimizer steps done */
    double loss_sum;       /* of the steps' mean losses since the last log entry */
    int loss_steps;        /* how many */
    double total_loss_sum; /* of all steps */
    int skipped_steps;     /* steps whose gradient was not finite */
    int best_step;         /* of the best evaluation, 0: none yet (load_best_model_at_end) */
    double best_metric;
};

/* Writes checkpoint-<state->step> and removes the oldest beyond save_total_limit. Collective. */
bool checkpoint_save(struct run *run, const struct train_state *state, struct zf_error *err);

/* The folder of a step's checkpoint, or of the newest one in output_dir (NULL: there is none), as a
 * new string. */
char *checkpoint_path(const char *output_dir, int step);
char *checkpoint_find_last(const char *output_dir);

/* The folder that a checkpoint lies in, as a new string (NULL: there is no such checkpoint); and
 * whether it is output_dir, whatever either is called. */
char *checkpoint_home(const char *directory);
bool checkpoint_is_in(const char *directory, const char *output_dir);

/* Removes the checkpoints of later steps than `last` (-1: all) from output_dir, and what is left of
 * unfinished ones. For one rank. */
bool checkpoint_remove_after(const char *output_dir, int last, struct zf_error *err);

/* Loads model, optimizer and state, whatever the run has done before. Fails where the checkpoint
 * was made with another batch size, seed or number of training examples, since the run could not go
 * on exactly. Collective. */
bool checkpoint_load(struct run *run, const char *directory, struct train_state *state,
                     struct zf_error *err);

/* The model with its tokenizer, as Transformers loads it, into `directory`. Collective. */
bool checkpoint_export(struct run *run, const char *directory, struct zf_error *err);

#endif
