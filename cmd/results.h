/* The files of results that Transformers' Trainer and run_glue.py leave in output_dir, and the
 * table at a run's end. */
#ifndef ZF_CMD_RESULTS_H
#define ZF_CMD_RESULTS_H

#include "cmd/run.h"

#include <jansson.h>

/* Writes what a run has found: train_results.json if it trained, eval_results.json if it evaluated,
 * and both as all_results.json, where evaluation alone leaves what it does not replace. What was
 * there of another model is gone. Prints the table. For one rank. */
bool results_write(const struct run *run, const json_t *results, struct zf_error *err);

#endif
