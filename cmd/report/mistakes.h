/* Where a model is wrong: what it answered to an evaluated split, beside what is right. */
#ifndef ZF_CMD_REPORT_MISTAKES_H
#define ZF_CMD_REPORT_MISTAKES_H

#include "cmd/run.h"

#include <jansson.h>

#define MISTAKES_WORST  25    /* examples that are shown */
#define MISTAKES_CELLS  20000 /* of a confusion matrix, the fullest */
#define MISTAKES_POINTS 1000  /* of a regression */

/* NULL for language modelling, and before the split's first evaluation. Else {"split": its file's
 * name, "examples": how many, "wrongest": [{"text", "right", "answer", "loss"}]}, the text as the
 * model reads it, and
 *   of labels "labels": [names], "cells": [[right, answer, how many]] and "left_out", how many
 *             examples are in cells that are left out
 *   of scores "points": [[right, answer]], of evenly many examples, and the "loss" of an example is
 *             its squared error.
 * The caller releases it. */
json_t *mistakes_json(const struct run *run, const struct eval_split *split);

#endif
