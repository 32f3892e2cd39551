/* DeepSpeed's csv_monitor: one CSV file per name, OUTPUT_PATH/JOB_NAME/Train_Samples_lr.csv, with
 * the columns "step" (in samples) and the name's last part. */
#ifndef ZF_CMD_MONITOR_H
#define ZF_CMD_MONITOR_H

#include "cmd/config/config.h"

struct monitor;

/* *monitor stays NULL where the monitor is not enabled. */
bool monitor_create(struct monitor **monitor, const struct csv_monitor_config *config,
                    struct zf_error *err);
void monitor_destroy(struct monitor *monitor);

/* name: "Train/Samples/lr". Nothing where monitor is NULL. */
bool monitor_write(struct monitor *monitor, const char *name, long step, double value,
                   struct zf_error *err);

#endif
