/* output_dir/report.html of a run: its curves, results, memory, mistakes and configuration, written
 * while it trains. Rank 0 only. */
#ifndef ZF_CMD_REPORT_REPORT_H
#define ZF_CMD_REPORT_REPORT_H

#include "cmd/run.h"

#include <jansson.h>

struct report;

/* run: borrowed. A run that is resumed has the curves of output_dir's log up to first_step. Nothing
 * is written yet. */
struct report *report_create(const struct run *run, int first_step, struct zf_error *err);
void report_destroy(struct report *r);

/* An entry of the log. One of an evaluation has the mistakes of run->dev with it. */
void report_log(struct report *r, const json_t *entry);

/* Writes the page, unless the last one is so young that writing would take more than a hundredth of
 * the time. A page that cannot be written stops no run: it is warned of once. */
void report_refresh(struct report *r, int step);
/* Writes it in any case. state: "training", "done", "stopped" or "failed", and then why, else NULL;
 * results: of all_results.json, or NULL. */
bool report_write(struct report *r, int step, const char *state, const char *why,
                  const json_t *results, struct zf_error *err);

#endif
