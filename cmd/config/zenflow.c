/* The rules of the zenflow block, beyond each key's own range: those by which DeepSpeed refuses,
 * and ours for our keys. */
#include "cmd/config/table.h"
#include "data/log.h"

#include <string.h>

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

/* The host's workers leave cores alone without ZenFlow too. */
static bool is_idle(const struct config_key *key)
{
    return key->name && strncmp(key->name, KEY(""), strlen(KEY(""))) == 0 &&
           strcmp(key->name, KEY("enabled")) != 0 &&
           strcmp(key->name, KEY("pt_reserved_cores_perc")) != 0;
}

/* Keys beside "enabled" false. To say that as an option is how a file's block is put aside, whose
 * keys are then meant to do nothing. */
static void warn_of_disabled(const struct config *c)
{
    const enum config_level level = config_origin_of(c, KEY("enabled"))->level;
    char names[512] = "", where[512];
    for (int i = 0; i < config_table_rows; i++) {
        const struct config_key *key = &config_table[i];
        const size_t n = strlen(names);
        if (is_idle(key) && config_is_given(c, key->name) &&
            config_origin_of(c, key->name)->level == level)
            snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "",
                     key->name + strlen(KEY("")));
    }
    if (*names)
        log_warn("%s is false, and without it these have no meaning here: %s",
                 config_name_origin(c, KEY("enabled"), where, sizeof where), names);
}

bool zenflow_keeps_up(const struct zenflow_config *z)
{
    return z->update_interval == CONFIG_KEEP_UP ||
           (z->update_interval == CONFIG_AUTO && z->topk_ratio == 0);
}

/* How long windows are says nothing here of how long the device waits. */
static void warn_of_waiting(const struct config *c)
{
    const struct zenflow_config *z = &c->zenflow;
    const char *rule = z->update_interval == CONFIG_AUTO ? "auto" : "keep_up";
    char where[512];
    if (!zenflow_keeps_up(z) || z->topk_ratio == 1)
        return;
    config_name_origin(c, KEY("update_interval"), where, sizeof where);
    if (z->apply_lag == 0)
        log_warn("%s is \"%s\", but without overlap_step, or with an apply_lag of 0, each "
                 "step waits for the host, however long windows are",
                 where, rule);
    else if (!z->stagger)
        log_warn("%s is \"%s\", but without stagger all windows close in one step, which may "
                 "wait for the host, however long they are",
                 where, rule);
    if (c->zero_copy)
        log_warn("%s is \"%s\", but with offload_optimizer.zero_copy nobody knows how long the "
                 "link takes: windows are as long as the host alone needs them",
                 where, rule);
}

bool zenflow_config_resolve(struct config *c, struct zf_error *err)
{
    struct zenflow_config *z = &c->zenflow;
    if (!z->enabled) {
        warn_of_disabled(c);
        return true;
    }
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
    warn_of_waiting(c);
    return check_selection(c, err) && check_deferred(c, err);
}

bool zenflow_config_check_epoch(const struct config *c, struct zf_error *err)
{
    const struct zenflow_config *z = &c->zenflow;
    if (z->enabled && z->full_warm_up_rounds >= c->total_steps)
        log_warn(
            "%s is %d, and the run has %d steps: all of them update every channel, and ZenFlow "
            "does not begin",
            KEY("full_warm_up_rounds"), z->full_warm_up_rounds, c->total_steps);
    if (!z->enabled || z->select_strategy != ZENFLOW_SELECT_EPOCH ||
        (long long)z->select_interval * c->steps_per_epoch >= z->update_interval)
        return true;
    return config_clash(c, KEY("select_interval"), err,
                        "that is %lld steps, and it must be at least update_interval, which is %d",
                        (long long)z->select_interval * c->steps_per_epoch, z->update_interval);
}
