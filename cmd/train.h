/* The training loop. */
#ifndef ZF_CMD_TRAIN_H
#define ZF_CMD_TRAIN_H

#include "cmd/run.h"

#include <jansson.h>

/* Trains to config->total_steps, from a checkpoint if one is asked for; logs, evaluates and saves
 * on the way; adds train_loss, train_runtime, ... in Transformers' names to `results`. Collective.
 */
bool train(struct run *run, json_t *results, struct zf_error *err);

#endif
