/* The training loop. */
#ifndef ZF_CMD_TRAIN_H
#define ZF_CMD_TRAIN_H

#include "cmd/run.h"

#include "cmd/plan_report.h"

#include <jansson.h>

/* Trains to config->total_steps, from a checkpoint if one is asked for; logs, evaluates and saves
 * on the way; adds train_loss, train_runtime, ... in Transformers' names to `results`.
 * Collective. */
bool train(struct run *run, json_t *results, struct zf_error *err);

/* On a device that only counts: the loop's first steps, without reports, evaluation and
 * checkpoints. The first warm_up of them are not told. */
bool train_plan(struct run *run, int warm_up, int steps, struct plan_report *report,
                struct zf_error *err);

#endif
