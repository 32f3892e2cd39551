/* From the configuration to the engine's: which of its named points is meant. */
#ifndef ZF_CMD_CONFIG_ENGINE_SETTINGS_H
#define ZF_CMD_CONFIG_ENGINE_SETTINGS_H

#include "cmd/config/config.h"
#include "offload/engine/engine.h"

/* zero_optimization.zenflow: ZenFlow; else offload_optimizer.device "cpu": ZeRO-Offload; else AdamW
 * with all state on the device. Without do_train parameters are all that there is; with it, to be
 * called after config_resolve_steps. */
struct engine_config engine_settings(const struct config *c, struct trace *trace);
/* Whether ranks keep their own channels' parameters alone: ZeRO stage 3. */
bool engine_divides_parameters(const struct config *c);
/* Slots that blocks then share for their parameters on the device; 0: each has its own place. */
int engine_value_slots(const struct config *c);

#endif
