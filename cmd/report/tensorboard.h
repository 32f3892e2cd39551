/* report_to "tensorboard": an entry of the log as Transformers' TensorBoardCallback writes it, tags
 * train/loss, train/learning_rate, eval/accuracy, ..., at the optimizer's steps; and before the
 * first one the texts args, the effective configuration, and model_config. */
#ifndef ZF_CMD_REPORT_TENSORBOARD_H
#define ZF_CMD_REPORT_TENSORBOARD_H

#include "cmd/run.h"

#include <jansson.h>

struct tensorboard;

/* *t stays NULL where report_to does not ask for it. In logging_dir, in what the environment's
 * TENSORBOARD_LOGGING_DIR names, or in a new folder of output_dir/runs called by date and host. A
 * resumed run, whose first_step is above 0, goes on in the last one there: what it does again
 * counts once. */
bool tensorboard_create(struct tensorboard **t, const struct run *run, int first_step,
                        struct zf_error *err);
void tensorboard_destroy(struct tensorboard *t);

/* Each number of an entry with "step". Nothing where t is NULL. */
bool tensorboard_log(struct tensorboard *t, const json_t *entry, struct zf_error *err);

#endif
