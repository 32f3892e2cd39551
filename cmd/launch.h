/* Whether the ranks that a launcher started know of each other. */
#ifndef ZF_CMD_LAUNCH_H
#define ZF_CMD_LAUNCH_H

#include "data/error.h"

#include <stdbool.h>

/* Fails, with how to start instead, where the environment says that this process is one of several
 * of one launcher's, but MPI found n_ranks = 1:
 * each would be a run of its own in the same folder. */
bool launch_check(int n_ranks, struct zf_error *err);

#endif
