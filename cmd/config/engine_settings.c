#include "cmd/config/engine_settings.h"

/* ZenFlow's own settings. */
static void set_zenflow(struct engine_config *e, const struct config *c)
{
    const struct zenflow_config *z = &c->zenflow;
    bool is_auto = z->select_strategy == ZENFLOW_SELECT_AUTO;
    int every = is_auto ? 1 : z->select_interval;
    e->topk_ratio = z->topk_ratio;
    e->select_every =
        z->select_strategy == ZENFLOW_SELECT_STEP ? every : every * c->steps_per_epoch;
    e->reselect_when_stale = is_auto;
    e->update_interval = z->update_interval > 0 ? z->update_interval : 0;
    e->interval_rule = zenflow_keeps_up(z) ? ENGINE_INTERVAL_KEEP_UP : ENGINE_INTERVAL_DEEPSPEED;
    e->auto_ratio = z->auto_ratio;
    e->auto_keeps_up = true;
    e->apply_lag = z->overlap_step ? z->apply_lag : 0;
    e->stagger = z->stagger;
    e->offload_important = z->offload == true;
    e->full_warm_up_rounds = z->full_warm_up_rounds;
    e->accumulate = z->accumulate == ZENFLOW_ACCUMULATE_HOST ? ENGINE_ACCUMULATE_HOST
                                                             : ENGINE_ACCUMULATE_DEVICE;
    e->device_windows = z->device_windows > 0 ? z->device_windows : 0;
    e->all_steps = z->deferred_update == ZENFLOW_ALL_STEPS;
    e->deferred_lr_scale =
        z->deferred_lr_scale == ZENFLOW_LR_SQRT ? ENGINE_LR_SQRT : z->deferred_lr_scale;
    e->reserved_cores = z->pt_reserved_cores_perc;
}

/* ZeRO-Offload: each layer's gradient goes to the host during backward, and none stays behind. */
static void set_zero_offload(struct engine_config *e)
{
    e->topk_ratio = 0;
    e->accumulate = ENGINE_ACCUMULATE_HOST;
}

bool engine_divides_parameters(const struct config *c)
{
    return c->zero_stage == 3 && c->n_ranks > 1;
}

int engine_value_slots(const struct config *c)
{
    const bool fills = c->offload_param == OFFLOAD_CPU || engine_divides_parameters(c);
    return fills ? c->param_buffers : 0;
}

struct engine_config engine_settings(const struct config *c, struct trace *trace)
{
    struct engine_config e = {
        .beta1 = (float)c->adam_beta1,
        .beta2 = (float)c->adam_beta2,
        .eps = (float)c->adam_epsilon,
        .weight_decay = (float)c->weight_decay,
        .adam_w_mode = c->adam_w_mode,
        .gradient_clipping = (float)c->max_grad_norm,
        .bf16 = c->bf16,
        .topk_ratio = 1,
        .update_interval = 1,
        .stagger = true,
        .deferred_lr_scale = 1,
        .reserved_cores = c->zenflow.pt_reserved_cores_perc,
        .params_on_host = c->offload_param == OFFLOAD_CPU,
        .zero_copy = c->zero_copy,
        .params_come_late = c->prefetch == 0,
        .params_divided = c->zero_stage == 3,
        .recomputes = c->gradient_checkpointing == true,
        .evaluates = !c->do_train,
        .trace = trace,
    };
    if (c->zenflow.enabled)
        set_zenflow(&e, c);
    else if (c->offload_optimizer == OFFLOAD_CPU)
        set_zero_offload(&e);
    return e;
}
