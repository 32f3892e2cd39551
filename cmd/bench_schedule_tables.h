/* The models and machines that zf-bench schedule knows by name, and the tables that it prints. */
#ifndef ZF_CMD_BENCH_SCHEDULE_TABLES_H
#define ZF_CMD_BENCH_SCHEDULE_TABLES_H

#include "cmd/bench_schedule_sim.h"

#include <jansson.h>

#define SIM_DEFAULT_MODEL   "llama-2-7b" /* device_step of all machines is for it */
#define SIM_DEFAULT_MACHINE "a100x4"

/* What all tables share. */
struct sim_request {
    struct sim_policy policy; /* topk_ratio, interval, lag and accumulate of ZenFlow's rows */
    int steps;
    json_t *tables; /* an array: each table's numbers are appended */
};

/* By name, or NULL. */
const struct sim_model *sim_find_model(const char *name);
const struct sim_machine *sim_find_machine(const char *name);
/* Two lines that list the names. */
void sim_print_names(void);

/* One table: all policies on one machine. */
void sim_print_custom(const struct sim_request *request, const struct sim_model *model,
                      const struct sim_machine *machine);
/* The machines that are not here, beside what is published, and the sweeps. */
void sim_print_answers(const struct sim_request *request);

#endif
