/* What was given beside what leaves nothing for it to do. */
#include "cmd/config/table.h"

#define ZENF(name) "zero_optimization.zenflow." name

/* By value: a default says nothing. */
static bool is_default(const struct config *c, const char *name)
{
    const struct config_key *key = config_find_option(name);
    json_t *value = config_value(c, key);
    json_t *standard = key->standard ? config_parse_text(key, key->standard) : NULL;
    const bool numbers = json_is_number(value) && json_is_number(standard);
    const bool same = numbers ? json_number_value(value) == json_number_value(standard)
                              : json_equal(value, standard);
    json_decref(value);
    json_decref(standard);
    return same;
}

/* A file's value that an option leaves idle is put aside on purpose. */
static bool is_asked_for(const struct config *c, const char *name, const char *beside)
{
    return config_is_given(c, name) && !is_default(c, name) &&
           config_origin_of(c, name)->level >= config_origin_of(c, beside)->level;
}

void config_warn_of_idle(const struct config *c)
{
    static const char no_deferral[] = "with topk_ratio 1 no channel is deferred";
    static const char no_evaluation[] = "nothing is evaluated while training";
    const struct zenflow_config *z = &c->zenflow;
    const bool all = z->enabled && z->topk_ratio == 1;
    const bool on_host = z->accumulate == ZENFLOW_ACCUMULATE_HOST;
    const bool on_device = z->enabled && z->accumulate == ZENFLOW_ACCUMULATE_DEVICE;
    /* given as false it puts its block aside */
    const bool no_events = !config_is_given(c, "tensorboard.enabled");
    const bool no_csv = !config_is_given(c, "csv_monitor.enabled");
    const struct {
        bool idle;
        const char *key, *beside, *why;
    } rows[] = {
        {c->eval_strategy == STRATEGY_NO, "eval_delay", "eval_strategy", no_evaluation},
        {c->eval_strategy == STRATEGY_NO, "eval_steps", "eval_strategy", no_evaluation},
        {c->eval_strategy == STRATEGY_EPOCH, "eval_steps", "eval_strategy",
         "eval_strategy is \"epoch\""},
        {c->save_strategy != STRATEGY_STEPS, "save_steps", "save_strategy",
         "save_strategy is not \"steps\""},
        {c->save_strategy == STRATEGY_NO, "save_total_limit", "save_strategy",
         "save_strategy is \"no\""},
        {!c->reports_to_tensorboard, "logging_dir", "report_to",
         "report_to does not name tensorboard"},
        {no_events, "tensorboard.output_path", "tensorboard.enabled",
         "tensorboard.enabled is not given"},
        {no_events, "tensorboard.job_name", "tensorboard.enabled",
         "tensorboard.enabled is not given"},
        {no_csv, "csv_monitor.output_path", "csv_monitor.enabled",
         "csv_monitor.enabled is not given"},
        {no_csv, "csv_monitor.job_name", "csv_monitor.enabled", "csv_monitor.enabled is not given"},
        {all, ZENF("update_interval"), ZENF("topk_ratio"), no_deferral},
        {all, ZENF("deferred_update"), ZENF("topk_ratio"), no_deferral},
        {all, ZENF("deferred_lr_scale"), ZENF("topk_ratio"), no_deferral},
        {all && on_host, ZENF("accumulate"), ZENF("topk_ratio"), no_deferral},
        {on_device && z->device_windows > 0, ZENF("device_windows"), ZENF("accumulate"),
         "with accumulate \"device\" all windows are there"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].idle && is_asked_for(c, rows[i].key, rows[i].beside))
            config_warn_idle(c, rows[i].key, "%s", rows[i].why);
}
