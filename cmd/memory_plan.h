/* The plan of device memory: what a run will hold is known, and shown,
 * before any of it is taken. */
#ifndef ZF_CMD_MEMORY_PLAN_H
#define ZF_CMD_MEMORY_PLAN_H

#include "cmd/run.h"

/* What gpt_create is asked for. longest: of all sequences that the run will meet, in tokens */
struct gpt_size model_size(const struct config *c, int longest);

/* How many ranks of this machine compute on the same GPU at most; with none, as if there were one.
 */
int memory_sharers(const struct comm *comm);

/* Decides how the model is held (run->size). On a GPU: measures this run, settles
 * zenflow.accumulate "auto", prints a table, and reserves the memory. Where it does not fit the
 * fault says by how much, and what each change of the configuration would save. On the CPU device
 * there is nothing to do. Collective; every rank's device has been created, and holds nothing of
 * the run yet. */
bool memory_plan(struct run *run, int longest, struct zf_error *err);

#endif
