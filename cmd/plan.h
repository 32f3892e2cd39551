/* zf-train --plan: the run's memory, time and traffic on a machine that is not here. */
#ifndef ZF_CMD_PLAN_H
#define ZF_CMD_PLAN_H

#include "cmd/run.h"

/* Does enough steps of the run, which has been created for a plan, to see several windows and new
 * choices, and prints what they take. Nothing is written but the trace, where one is asked for. */
bool plan_execute(struct run *run, struct zf_error *err);

#endif
