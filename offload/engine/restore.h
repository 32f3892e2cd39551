/* What a checkpoint may say of an engine: checkpoint.c reads it, and restore.c judges it. */
#ifndef ZF_OFFLOAD_ENGINE_RESTORE_H
#define ZF_OFFLOAD_ENGINE_RESTORE_H

#include "offload/engine/internal.h"

/* A checkpoint's counters. */
struct restored {
    int step, interval, lag, began, selected, skipped_in_a_row, observed_steps, least_interval,
        chosen_in;
    float lr;
};

/* A group, as a checkpoint has it. What is told of no open window, or of no update in flight, is
 * 0. */
struct group_state {
    int32_t open_steps, oldest, in_flight, due, oldest_in_flight, closing_steps, has_leaving;
};

/* Each says whether an engine of this configuration can have left it. */
bool restore_counters(const struct engine *e, const char *text, struct restored *r);
/* Once e has the counters; norms: (n) */
bool restore_group(const struct engine *e, int group, const struct group_state *found);
/* Or all n groups are as engine_finish leaves them. */
bool restore_is_finished(const struct group_state *groups, int n);
bool restore_norms(const double *norms, size_t n);
/* Once it has the groups, and the flags of all the matrix's channels. */
bool restore_places(const struct engine *e, const struct matrix *m);

#endif
