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

/* The folder of the newest checkpoint in output_dir as a new string, or NULL. */
char *checkpoint_find_last(const char *output_dir);

/* Loads model, optimizer and state. Fails where the checkpoint was made with another batch size,
 * seed or number of training examples, since the run could not go on exactly. Collective. */
bool checkpoint_load(struct run *run, const char *directory, struct train_state *state,
                     struct zf_error *err);

/* The model with its tokenizer, as Transformers loads it, into `directory`. Collective. */
bool checkpoint_export(struct run *run, const char *directory, struct zf_error *err);

#endif
