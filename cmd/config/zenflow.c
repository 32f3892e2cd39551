/* The rules of the zenflow block, beyond each key's own range: those by which DeepSpeed refuses,
 * and ours for our keys. */
#include "cmd/config/table.h"

#define KEY(name) "zero_optimization.zenflow." name

/* Who chooses when channels are selected again: the strategy "auto", or the interval. */
static bool check_selection(const struct config *c, struct zf_error *err)
{
    const struct zenflow_config *z = &c->zenflow;
    bool interval_is_auto = z->select_interval == CONFIG_AUTO;
    if (z->select_strategy == ZENFLOW_SELECT_AUTO)
        return interval_is_auto ||
               config_clash(c, KEY("select_interval"), err,
                            "select_strategy \"auto\" selects every epoch and would overwrite it: "
                            "use select_strategy \"step\" or \"epoch\"");
    if (interval_is_auto)
        return config_clash(c, KEY("select_interval"), err,
                            "with a select_strategy other than \"auto\" it must be a number");
    if (z->select_strategy == ZENFLOW_SELECT_STEP && z->select_interval < z->update_interval)
        return config_clash(c, KEY("select_interval"), err,
                            "it must be at least update_interval, which is %d", z->update_interval);
    return true;
}

/* An update that stands for all steps has their learning rates, and AdamW's moments. */
static bool check_deferred(const struct config *c, struct zf_error *err)
{
    const struct zenflow_config *z = &c->zenflow;
    if (z->deferred_update != ZENFLOW_ALL_STEPS)
        return true;
    if (z->deferred_lr_scale != 1)
        return config_clash(c, KEY("deferred_lr_scale"), err,
                            "deferred_update \"all_steps\" has the learning rates of the steps "
                            "that it stands for: it must be 1");
    return c->adam_w_mode ||
           config_clash(c, KEY("deferred_update"), err,
                        "it needs adam_w_mode: with L2 regularisation the decay is part of the "
                        "gradient, whose squares it does not count");
}

bool zenflow_config_resolve(struct config *c, struct zf_error *err)
{
    struct zenflow_config *z = &c->zenflow;
    if (!z->enabled)
        return true;
    if (c->zero_stage == 0)
        return config_clash(c, "zero_optimization.stage", err, "ZenFlow needs stage 1, 2 or 3");
    if (c->offload_optimizer != OFFLOAD_CPU)
        return config_clash(c, "zero_optimization.offload_optimizer.device", err,
                            "ZenFlow needs \"cpu\": that is where it keeps what it defers");
    if (!z->overlap_step && z->apply_lag != 0) {
        if (config_is_given(c, KEY("apply_lag")))
            return config_clash(c, KEY("apply_lag"), err,
                                "without overlap_step the step waits for the host: it must be 0");
        z->apply_lag = 0;
        config_mark_auto(c, KEY("apply_lag"));
    }
    return check_selection(c, err) && check_deferred(c, err);
}

bool zenflow_config_check_epoch(const struct config *c, struct zf_error *err)
{
    const struct zenflow_config *z = &c->zenflow;
    if (!z->enabled || z->select_strategy != ZENFLOW_SELECT_EPOCH ||
        (long long)z->select_interval * c->steps_per_epoch >= z->update_interval)
        return true;
    return config_clash(c, KEY("select_interval"), err,
                        "that is %lld steps, and it must be at least update_interval, which is %d",
                        (long long)z->select_interval * c->steps_per_epoch, z->update_interval);
}
