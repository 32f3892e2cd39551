#include "cmd/plan.h"

#include "cmd/live.h"
#include "cmd/plan_report.h"
#include "cmd/train.h"
#include "model/plan/plan.h"

#include <stdio.h>

#define LEAST_STEPS   24
#define WINDOWS       3  /* that each channel's steps cover at least */
#define UNKNOWN_STEPS 16 /* of a window, where the length is chosen while training */

bool plan_execute(struct run *run, struct zf_error *err)
{
    const struct zenflow_config *z = &run->config->zenflow;
    struct plan_report *report = plan_report_create(run->device);
    size_t n_parameters = gpt_params(run->model)->n_parameters;
    int interval = !z->enabled ? 1 : z->update_interval < 0 ? UNKNOWN_STEPS : z->update_interval;
    int steps = WINDOWS * interval > LEAST_STEPS ? WINDOWS * interval : LEAST_STEPS;
    int warm_up = interval + z->apply_lag + (z->enabled ? z->full_warm_up_rounds : 0) + 2;
    live_stage("simulating steps", warm_up + steps);
    bool ok = train_plan(run, warm_up, steps, report, err);
    live_stage_end();
    live_give_way();
    if (ok)
        plan_report_print(report, n_parameters, stdout);
    live_come_back();
    plan_report_destroy(report);
    return ok;
}
