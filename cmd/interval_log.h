/* What a run tells of its windows' length where "auto" or "keep_up" chooses it. */
#ifndef ZF_CMD_INTERVAL_LOG_H
#define ZF_CMD_INTERVAL_LOG_H

#include "cmd/config/config.h"
#include "offload/engine/engine.h"

#include <stdbool.h>

struct interval_log {
    int interval; /* in force before the next step */
    bool told;    /* that one was chosen: "auto" goes on choosing, which the log of steps has; */
    bool rarer;   /* that channels are chosen more rarely than select_interval asks for */
};

/* Step `step`, counted from 1, is over. */
void interval_log_step(struct interval_log *l, const struct config *c, int step,
                       const struct step_report *report);
/* The run is over, which began with the first step or was resumed. */
void interval_log_end(struct interval_log *l, const struct config *c, bool resumed);

#endif
