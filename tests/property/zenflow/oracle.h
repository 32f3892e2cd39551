/* ZenFlow told a second time, naively: every channel is a struct with its own list of gradients,
 * and AdamW runs in double. What offload/ does fast, this does obviously. It also checks as it goes
 * that each gradient enters exactly one update, by the staleness bound.
 * fp32 parameters, one rank. */
#ifndef ZF_TESTS_ZENFLOW_ORACLE_H
#define ZF_TESTS_ZENFLOW_ORACLE_H

#include "tests/property/zenflow/problem.h"

struct oracle;

struct oracle *oracle_create(const struct problem *p, const struct engine_config *config);
void oracle_destroy(struct oracle *o);

/* One step with this gradient, (n_elements) fp32, before clipping. */
void oracle_step(struct oracle *o, const float *grads, float lr);
/* Closes all windows. */
void oracle_finish(struct oracle *o, float lr);

/* The parameters as they are visible now, (n_elements). */
const float *oracle_params(const struct oracle *o);
/* Steps in a window, in force: where update_interval is 0, by the oracle's own reckoning. With
 * auto_keeps_up, config->step_seconds and host_seconds say how fast the host is. */
int oracle_interval(const struct oracle *o);
/* Whether a channel is important, (channels of the model). */
bool oracle_is_important(const struct oracle *o, int channel);
/* Of the choice that the last step made, in a layer, or in all (layer -1). Whether it made one. */
bool oracle_choice(const struct oracle *o, int layer, struct choice_part *part);

#endif
