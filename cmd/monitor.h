/* DeepSpeed's monitors: csv_monitor, one CSV file for each name, OUTPUT_PATH/JOB_NAME/
 * Train_Samples_lr.csv, with the columns "step" and the name's last part; and tensorboard, event
 * files in OUTPUT_PATH/JOB_NAME. Both have a row for each optimizer step and for each evaluation,
 * at the number of samples that have been trained on. */
#ifndef ZF_CMD_MONITOR_H
#define ZF_CMD_MONITOR_H

#include "cmd/config/config.h"

#include <jansson.h>

struct monitor;

/* *monitor stays NULL where none is enabled. A run that is resumed (first_step is above 0), or
 * starts anew over another, takes the place of the rows from its first one on; else rows follow
 * those that are there. */
bool monitor_create(struct monitor **monitor, const struct config *config, int first_step,
                    struct zf_error *err);
void monitor_destroy(struct monitor *monitor);

/* Nothing where monitor is NULL. step: optimizer steps so far; loss: not finite where the step was
 * skipped, and has none. */
bool monitor_step(struct monitor *monitor, int step, double loss, double lr, struct zf_error *err);
/* The numbers of an evaluation: Train/Samples/eval_loss, Train/Samples/eval_accuracy, ... */
bool monitor_evaluation(struct monitor *monitor, const json_t *entry, struct zf_error *err);

#endif
