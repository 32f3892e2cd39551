/* Evaluation and prediction of a split, divided over the ranks. */
#ifndef ZF_CMD_EVALUATE_H
#define ZF_CMD_EVALUATE_H

#include "cmd/run.h"

#include <jansson.h>

/* Adds to `results`: eval_loss and the task's metrics in run_glue.py's names (eval_accuracy,
 * eval_matthews_correlation, ..., with "_mm" behind them for MNLI's mismatched split; for language
 * modelling eval_perplexity), eval_samples and eval_runtime in seconds. Collective: every rank gets
 * the same numbers, whatever the number of ranks. Changes nothing in the model. */
void evaluate_split(struct run *run, const struct eval_split *split, json_t *results);

/* Writes GLUE's submission file of a test split into output_dir. Collective. */
bool predict_split(struct run *run, const struct eval_split *split, struct zf_error *err);

#endif
