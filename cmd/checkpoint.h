/* Checkpoints: OUTPUT_DIR/checkpoint-<step>, a folder as Transformers' Trainer makes it, with the
 * model, its configuration and tokenizer, the optimizer's state and trainer_state.json. A run
 * resumed from one goes on exactly as it would have. A manifest (manifest.h) is the last file of
 * it, and says whether it is whole; checkpoint_folders.h says which ones there are. */
#ifndef ZF_CMD_CHECKPOINT_H
#define ZF_CMD_CHECKPOINT_H

#include "cmd/run.h"
#include "cmd/saving.h"
#include "cmd/trainer_state.h"

/* Writes checkpoint-<state->step> under its temporary name, and hands it to those who bring it to
 * the disk while training goes on; or NULL and a sentence, and nothing is left of it.
 * Collective. */
struct saving *checkpoint_save(struct run *run, const struct train_state *state,
                               struct zf_error *err);

/* Fails where a checkpoint is not as it was written. Collective. */
bool checkpoint_check(struct run *run, const char *directory, struct zf_error *err);

/* Loads model, optimizer and state from a checkpoint that has been checked, whatever the run has
 * done before. Fails where it was made with another model, other data, or another batch size or
 * seed, since the run could not go on exactly. Collective. */
bool checkpoint_load(struct run *run, const char *directory, struct train_state *state,
                     struct zf_error *err);

/* The model with its tokenizer, as Transformers loads it, into `directory`. Collective. */
bool checkpoint_export(struct run *run, const char *directory, struct zf_error *err);

#endif
