/* cmd/config: what is accepted but does nothing, and is warned of. */
#include "tests/unit/config_testing.h"

/* The case has warned of this alone; NULL: of nothing. */
static void assert_warned(size_t number, const char *warning)
{
    if (count(warnings, "warning:") != (warning != NULL) || (warning && !strstr(warnings, warning)))
        fail_msg("case %zu: %s", number, warnings);
}

static void warns_once_a_key(void **state)
{
    (void)state;
    assert_works(parse_text("{\"wall_clock_breakdown\": true,\n"
                            "\"comet\": {\"enabled\": false, \"project\": \"x\"},\n"
                            "\"prescale_gradients\": true}",
                            COMPLETE "--no_pad_to_max_length --tf32 --optim adamw_torch "
                                     "--dataloader_num_workers 4 --local_rank=0",
                            1),
                 err);
    assert_int_equal(count(warnings, "warning:"), 5);
    assert_non_null(strstr(warnings, ":1: wall_clock_breakdown has no meaning here: trainer_log"));
    assert_non_null(
        strstr(warnings, ":3: prescale_gradients has no meaning here: ranks exchange "));
    assert_non_null(
        strstr(warnings, "--pad_to_max_length has no meaning here: there is no padding"));
    config_free(&c);
}

/* Of settings that do nothing beside another one. */
static void warns_of_idle_settings(void **state)
{
    (void)state;
    static const struct {
        const char *options, *warning;
    } cases[] = {
        {"--text_column body", "--text_column has no meaning here: task sst2's files have "},
        {"--lr_scheduler_type constant --warmup_steps 2", "there are 2 steps of warm-up (warmup_"},
        {"--lr_scheduler_type constant_with_warmup --warmup_steps 2", NULL},
        {"--lr_scheduler_type constant", NULL},
        {"--zero_optimization.stage 2 --zero_optimization.offload_optimizer.device cpu "
         "--zero_optimization.zenflow.full_warm_up_rounds 8",
         "full_warm_up_rounds is 8, and the run has 8 steps: "},
        {"--eval_delay 2", "--eval_delay has no meaning here: nothing is evaluated while training"},
        {"--eval_delay 0", NULL},
        {"--eval_delay 2 --eval_strategy epoch", NULL},
        {"--eval_strategy no --eval_steps 2", "--eval_steps has no meaning here: nothing is eval"},
        {"--eval_strategy epoch --eval_steps 2",
         "--eval_steps has no meaning here: eval_strategy is \"epoch\""},
        {"--eval_steps 2", NULL},
        {"--save_strategy epoch --save_steps 2",
         "--save_steps has no meaning here: save_strategy is not \"steps\""},
        {"--save_strategy epoch --save_steps 500", NULL},
        {"--save_strategy no --save_total_limit 2",
         "--save_total_limit has no meaning here: save_strategy is \"no\""},
        {"--save_strategy epoch --save_total_limit 2", NULL},
        {"--logging_dir d", "--logging_dir has no meaning here: report_to does not name tensorb"},
        {"--logging_dir d --report_to all", NULL},
        {"--csv_monitor.job_name j",
         "--csv_monitor.job_name has no meaning here: csv_monitor.enabled is not given"},
        {"--csv_monitor.job_name j --csv_monitor.enabled", NULL},
        {"--tensorboard.output_path j",
         "--tensorboard.output_path has no meaning here: tensorboard.enabled is not given"},
        {"--csv_monitor.job_name j --csv_monitor.enabled false", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[512];
        snprintf(options, sizeof options, COMPLETE "--max_steps 8 %s", cases[i].options);
        assert_works(parse_text("{}", options, 1), err);
        assert_works(resolve_steps(1000), err);
        assert_warned(i, cases[i].warning);
        config_free(&c);
    }
}

#define OFF                                                                                        \
    "zero_optimization.zenflow.enabled is false, and without it these have no meaning here: "

/* Keys of ZenFlow that do nothing, in one line; NULL: they do something, or are put aside. */
static void warns_of_idle_zenflow_keys(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *options, *warning;
    } cases[] = {
        {"\"enabled\": false, \"offload\": true,\n\"accumulate\": \"host\"", "",
         ":2: " OFF "offload, accumulate\n"},
        {"\"enabled\": false", "", NULL},
        {"\"enabled\": false, \"pt_reserved_cores_perc\": 0.2", "", NULL},
        {"\"enabled\": false", "--zero_optimization.zenflow.topk_ratio 0.2", NULL},
        {"\"accumulate\": \"host\"", "--zero_optimization.zenflow.enabled false", NULL},
        {"", "--zero_optimization.zenflow.enabled false --zero_optimization.zenflow.apply_lag 0",
         "warning: --" OFF "apply_lag\n"},
        {"\"topk_ratio\": 1, \"accumulate\": \"host\"", "",
         ":2: zero_optimization.zenflow.accumulate has no meaning here: with topk_ratio 1 no "},
        {"\"topk_ratio\": 1, \"accumulate\": \"device\"", "", NULL},
        {"\"topk_ratio\": 0.9, \"accumulate\": \"host\", \"device_windows\": 2", "", NULL},
        {"\"topk_ratio\": 1, \"deferred_lr_scale\": \"sqrt\"", "",
         ":2: zero_optimization.zenflow.deferred_lr_scale has no meaning here: with topk_ratio 1 "},
        {"\"topk_ratio\": 1, \"deferred_update\": \"all_steps\"", "",
         ":2: zero_optimization.zenflow.deferred_update has no meaning here: with topk_ratio 1 "
         "no "},
        {"\"deferred_lr_scale\": \"sqrt\"", "--zero_optimization.zenflow.topk_ratio 1", NULL},
        {"\"accumulate\": \"device\", \"device_windows\": 0", "", NULL},
        {"\"accumulate\": \"device\", \"device_windows\": 2", "",
         ":2: zero_optimization.zenflow.device_windows has no meaning here: with accumulate "},
        {"\"topk_ratio\": 1, \"update_interval\": \"keep_up\"", "",
         ":2: zero_optimization.zenflow.update_interval has no meaning here: with topk_ratio 1 "
         "no "},
        {"\"update_interval\": \"keep_up\"", "",
         ":2: zero_optimization.zenflow.update_interval is \"keep_up\", but without overlap_step"},
        {"\"update_interval\": \"keep_up\", \"overlap_step\": true, \"stagger\": false", "",
         ":2: zero_optimization.zenflow.update_interval is \"keep_up\", but without stagger all "},
        {"\"update_interval\": \"keep_up\", \"overlap_step\": true", "", NULL},
        {"\"update_interval\": \"auto\"", "", NULL},
        {"\"update_interval\": \"auto\", \"topk_ratio\": 0", "",
         ":2: zero_optimization.zenflow.update_interval is \"auto\", but without overlap_step"},
        {"\"update_interval\": \"keep_up\", \"overlap_step\": true",
         "--zero_optimization.offload_optimizer.zero_copy true",
         ":2: zero_optimization.zenflow.update_interval is \"keep_up\", but with "
         "offload_optimizer.zero_copy nobody knows "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512], options[512];
        snprintf(text, sizeof text, ZENFLOW("%s"), cases[i].keys);
        snprintf(options, sizeof options, COMPLETE "%s", cases[i].options);
        assert_works(parse_text(text, options, 1), err);
        assert_warned(i, cases[i].warning);
        config_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warns_once_a_key),
        cmocka_unit_test(warns_of_idle_settings),
        cmocka_unit_test(warns_of_idle_zenflow_keys),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
