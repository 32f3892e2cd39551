/* The plan of memory: what a run will hold is known, and shown, before any of it is taken. */
#ifndef ZF_CMD_MEMORY_PLAN_H
#define ZF_CMD_MEMORY_PLAN_H

#include "cmd/run.h"

/* What gpt_create is asked for. longest: of all sequences that the run will meet, in tokens */
struct gpt_size model_size(const struct config *c, int longest);

/* How many ranks of this machine compute on the same GPU at most; with none, as if there were one.
 */
int memory_sharers(const struct comm *comm);

/* Decides how the model is held (run->size) and measures this run. On a GPU settles
 * zenflow.accumulate "auto", prints a table and reserves the memory. Where it does not fit the
 * fault says by how much, and what each change of the configuration would save; in a plan, and on
 * the CPU device, whose memory is the host's and taken as it is needed, that is a warning.
 * Collective; every rank's device has been created, and holds nothing of the run yet. */
bool memory_plan(struct run *run, int longest, struct zf_error *err);

/* Prints what the run, which has been created, holds on the host: on the CPU device the same table,
 * and what the engine has there. */
void memory_tell(const struct run *run);

#endif
