/* What a person and a program see of a run: lines for its steps and evaluations, the live line
 * below them on a terminal, trainer_log.jsonl, and the table of results at the end. Rank 0 only. */
#ifndef ZF_CMD_PROGRESS_H
#define ZF_CMD_PROGRESS_H

#include "data/error.h"

#include <jansson.h>

struct progress;

/* Opens output_dir/trainer_log.jsonl: anew, or keeping the entries up to `first_step` when a run is
 * resumed there, but for those with "model", which say what the run left. */
struct progress *progress_create(const char *output_dir, int first_step, int total_steps,
                                 struct zf_error *err);
void progress_destroy(struct progress *p);

/* After each step; for the live line (live.h). stall: the share of the time that the device waits
 * for the host; negative where it never does. */
void progress_step(struct progress *p, int step, double epoch, double loss, double lr, double stall,
                   long tokens);
/* One log entry: an object with "step", which is written as one line of trainer_log.jsonl and, what
 * people want of it, printed as a line that stays; on a terminal as much of it as fits, but no less
 * than fits 80 columns. Takes the reference. Fails where it cannot be written. */
bool progress_log(struct progress *p, json_t *entry, struct zf_error *err);

/* The same of an entry that is not printed. */
bool progress_note(struct progress *p, json_t *entry, struct zf_error *err);
/* The entry of a checkpoint that is on the disk: a line of the log, and a sentence. It has "step",
 * "save_seconds", in which training stood still for it, and "disk_seconds", after which it was
 * there. Takes the reference. Fails as progress_log does. */
bool progress_saved(struct progress *p, json_t *entry, struct zf_error *err);

/* Tokens per second over the whole run so far. */
double progress_tokens_per_second(const struct progress *p);

/* The table of results on standard output: one row per key of `results`, an object of numbers. */
void progress_results_table(const char *title, const json_t *results);

#endif
