/* The learning rate of each step: Transformers' lr_scheduler_type and DeepSpeed's schedulers. */
#ifndef ZF_CMD_LR_SCHEDULE_H
#define ZF_CMD_LR_SCHEDULE_H

#include "cmd/config/config.h"

/* The rate of optimizer step `step` (from 0), with the scheduler and the totals that
 * config_resolve_steps has filled in. */
float lr_at_step(const struct config *config, int step);

#endif
