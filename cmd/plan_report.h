/* What a plan says: the steps of a run on a device that only counts (model/plan/plan.h), collected
 * one by one, and told. */
#ifndef ZF_CMD_PLAN_REPORT_H
#define ZF_CMD_PLAN_REPORT_H

#include "model/device/arena.h"
#include "offload/engine/engine.h"

#include <stdio.h>

struct plan_report;

/* Steps begin now. */
struct plan_report *plan_report_create(struct device *device);
void plan_report_destroy(struct plan_report *r);

/* The steps so far were the warm-up: what is told begins now. */
void plan_report_restart(struct plan_report *r);
/* A step has ended, for the host. */
void plan_report_step(struct plan_report *r, const struct step_report *report);

/* Time per step, stall, traffic, and the critical path of the median step, and of the worst where
 * it is much longer. There has been a step. */
void plan_report_print(const struct plan_report *r, size_t n_parameters, FILE *out);
/* The same for programs. */
json_t *plan_report_describe(const struct plan_report *r, size_t n_parameters);

#endif
