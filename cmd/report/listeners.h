/* All who are told of a run's steps, log entries and evaluations beside the progress line and
 * trainer_log.jsonl: report_to's TensorBoard, DeepSpeed's monitors, and the report. Rank 0 only. */
#ifndef ZF_CMD_REPORT_LISTENERS_H
#define ZF_CMD_REPORT_LISTENERS_H

#include "cmd/run.h"

#include <jansson.h>

struct listeners;

/* Opens their files; what a run before has left there stays until the first step. NULL and a
 * sentence where one cannot be written. */
struct listeners *listeners_create(const struct run *run, int first_step, struct zf_error *err);
void listeners_destroy(struct listeners *l);

/* After each step; loss: not finite where it was skipped. */
bool listeners_step(struct listeners *l, int step, double loss, double lr, struct zf_error *err);
/* An entry as trainer_log.jsonl has it, borrowed. */
bool listeners_log(struct listeners *l, const json_t *entry, struct zf_error *err);
/* The run has ended. state: "done", "stopped" or "failed", and then why, else NULL; results: all
 * that is known. */
bool listeners_finish(struct listeners *l, int step, const char *state, const char *why,
                      const json_t *results, struct zf_error *err);

#endif
