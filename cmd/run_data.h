/* What a run is given to learn from and to be judged by: a GLUE task's files, text, or examples of
 * a person's own. */
#ifndef ZF_CMD_RUN_DATA_H
#define ZF_CMD_RUN_DATA_H

#include "cmd/run.h"

/* Of own examples, reads the files, finds columns and labels and makes run->task of them; the
 * effective configuration gets what was found. Nothing to do for others. */
bool run_open_data(struct run *run, struct zf_error *err);
/* Makes the data sets. The tokenizer is there, and max_seq_length settled. */
bool run_load_data(struct run *run, struct zf_error *err);
void run_free_data(struct run *run);

/* Whether the task is own examples'. */
static inline bool run_has_own_data(const struct run *run)
{
    return run->task == &run->own.task;
}

#endif
