/* Evaluation and prediction of a split, divided over the ranks. */
#ifndef ZF_CMD_EVALUATE_H
#define ZF_CMD_EVALUATE_H

#include "cmd/run.h"

#include <jansson.h>

/* Adds to `results`: eval_loss and the task's metrics in run_glue.py's names (eval_accuracy,
 * eval_matthews_correlation, ..., with "_mm" behind them for MNLI's mismatched split; for language
 * modelling eval_perplexity), the mean of a GLUE task's metrics as eval_combined_score where it
 * has several, eval_samples, eval_runtime in seconds, eval_samples_per_second and
 * eval_steps_per_second; the split keeps the answers. Fails where what the model gives is not
 * finite: it has no results then. Collective: every rank gets the same numbers, but for times,
 * whatever the number of ranks. Changes nothing in the model. Where run->stoppable holds and a
 * rank is asked to stop, run->stopped does from then on, and nothing is added. */
bool evaluate_split(struct run *run, struct eval_split *split, json_t *results,
                    struct zf_error *err);

/* Whether evaluation gives a metric of this name, without its "eval_"; err says which there are. */
bool evaluate_has_metric(const struct run *run, const char *name, struct zf_error *err);

/* Fails where a test split's predictions are in output_dir already. */
bool predict_check_output(const struct run *run, const struct eval_split *split,
                          struct zf_error *err);

/* Writes the predictions for a test split into output_dir: run_glue.py's predict_results_TASK.txt
 * with GLUE's submission file, or predict_results.txt of own examples. Fails where the model's
 * answers are not finite. Stopped as evaluate_split is, it writes nothing. Collective. */
bool predict_split(struct run *run, const struct eval_split *split, struct zf_error *err);

#endif
