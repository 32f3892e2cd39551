/* The plan of memory: what a run will hold is known, and shown, before any of it is taken. */
#ifndef ZF_CMD_MEMORY_PLAN_H
#define ZF_CMD_MEMORY_PLAN_H

#include "cmd/run.h"

/* How many ranks of this machine compute on the same GPU at most; with no GPU, as if on one. */
int memory_sharers(const struct comm *comm);

/* Decides how the model is held (run->size) and measures this run; settles what is left to "auto".
 * On a GPU says what was chosen and why, prints a table and reserves the memory. Where the run does
 * not fit, into the device's memory or the host's, the fault says by how much, and the least change
 * that would; in a plan, and on the CPU device, whose memory is the host's and taken as it is
 * needed, that is a warning. longest: of all sequences that the run will meet, in tokens.
 * Collective; every rank's device has been created, and holds nothing of the run yet. */
bool memory_plan(struct run *run, int longest, struct zf_error *err);

/* Prints what the run, which has been created, holds on the host: on the CPU device the same table,
 * and what the engine has there. */
void memory_tell(const struct run *run);

#endif
