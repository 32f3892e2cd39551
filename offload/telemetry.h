/* What offloading costs, and what it chooses, for the log. */
#ifndef ZF_OFFLOAD_TELEMETRY_H
#define ZF_OFFLOAD_TELEMETRY_H

#include <jansson.h>
#include <stddef.h>

struct engine_choice;
struct step_report;

/* Sums over steps, from all 0. */
struct telemetry {
    int steps;
    double step_seconds, stall_seconds, host_seconds;
    double bytes_down, bytes_up, bytes_moved, bytes_gathered, bytes_norms, bytes_gradients;
    double important_share;
    int staleness, update_interval;
};

void telemetry_add(struct telemetry *t, const struct step_report *report, double step_seconds);
/* The share of the time that the device waited for the host, 0 to 1. */
double telemetry_stall(const struct telemetry *t);
/* Adds, per step: stall_seconds, host_seconds, bytes_down, bytes_up, bytes_moved, link_model_sizes
 * (both ways, in units of the model's bf16 size), bytes_gathered (parameters from other ranks),
 * bytes_norms, bytes_gradients (summed over ranks), important_share; and stall (the share),
 * staleness (steps, the greatest), update_interval.
 * n_parameters: of the whole model. */
void telemetry_describe(const struct telemetry *t, size_t n_parameters, json_t *entry);
/* Adds, of one choice: selection_overlap, the share of the chosen channels that the choice before
 * had too (not of a first choice), and selection_share, of the squared norm that the chosen hold;
 * and arrays of the same, selection_overlap_by_layer and selection_share_by_layer, with null where
 * there is nothing to choose from. */
void telemetry_describe_choice(const struct engine_choice *choice, json_t *entry);

#endif
