/* cmd/config: what a configuration amounts to, and that a written configuration gives the same
 * run. */
#include "tests/unit/config_testing.h"

#include "cmd/config/engine_settings.h"
#include "cmd/config/table.h"
#include "cmd/manual/manual.h"

static void defaults(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE, 1), err);
    assert_int_equal(c.action, CONFIG_RUN);
    assert_true(c.do_train && c.do_eval && !c.do_predict && !c.bf16 && !c.zenflow.enabled);
    assert_true(!c.gradient_checkpointing && c.device == CONFIG_DEVICE_AUTO);
    assert_true(c.learning_rate == 5e-5 && c.adam_beta1 == 0.9 && c.adam_beta2 == 0.999);
    assert_true(c.adam_epsilon == 1e-8 && c.weight_decay == 0 && c.max_grad_norm == 1);
    assert_true(c.num_train_epochs == 3 && c.max_steps == -1 && c.seed == 42);
    assert_int_equal(c.train_batch_size, 8);
    assert_int_equal(c.per_device_eval_batch_size, 8);
    assert_int_equal(c.max_seq_length, 128);
    assert_int_equal(c.logging_steps, 500);
    assert_int_equal(c.save_strategy, STRATEGY_STEPS);
    assert_int_equal(c.save_steps, 500);
    assert_int_equal(c.eval_strategy, STRATEGY_NO);
    assert_int_equal(c.lr_scheduler_type, LR_LINEAR);
    assert_int_equal(c.scheduler.type, DS_SCHEDULER_NONE);
    assert_int_equal(c.optimizer_type, OPTIMIZER_ADAMW);
    assert_true(c.adam_w_mode && c.max_train_samples == CONFIG_AUTO && c.attn_pdrop == -1);
    assert_null(c.train_file);
    assert_string_equal(c.tokenizer_name, "m");
    assert_string_equal(c.task->title, "SST-2");
    config_free(&c);
}

static void reads_deepspeed(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json", "", 2), err);
    assert_int_equal(c.train_batch_size, 64);
    assert_int_equal(c.per_device_train_batch_size, 8);
    assert_int_equal(c.gradient_accumulation_steps, 4);
    assert_int_equal(c.optimizer_type, OPTIMIZER_ADAM);
    assert_true(!c.adam_w_mode && c.learning_rate == 0.00015 && c.adam_beta1 == 0.8);
    assert_true(c.adam_beta2 == 0.95 && c.adam_epsilon == 1e-7 && c.weight_decay == 3e-7);
    assert_true(c.max_grad_norm == 0.5 && c.logging_steps == 20);
    assert_int_equal(c.scheduler.type, DS_WARMUP_LR);
    assert_int_equal(c.scheduler.warmup_type, WARMUP_LOG);
    assert_true(c.scheduler.warmup_min_lr == 1e-6 && c.scheduler.warmup_max_lr == 0.0002);
    assert_int_equal(c.scheduler.warmup_num_steps, 100);
    assert_true(c.csv_monitor.enabled);
    assert_string_equal(c.csv_monitor.output_path, "logs");
    assert_string_equal(c.csv_monitor.job_name, "run");
    assert_true(c.zero_stage == 2 && c.offload_optimizer == OFFLOAD_CPU);
    assert_string_equal(c.task_name, "stsb");
    assert_true(c.max_steps == 120 && c.attn_pdrop == 0.25);
    assert_int_equal(count(warnings, "has no meaning here"), 3);
    assert_non_null(
        strstr(warnings, "wall_clock_breakdown has no meaning here: trainer_log.jsonl"));
    assert_non_null(strstr(warnings, "deepspeed.json:12: optimizer.params.torch_adam has no"));
    config_free(&c);
}

static void reads_how_the_link_is_crossed(void **state)
{
    (void)state;
    const char *without = "{\"zero_optimization\": {\"stage\": 2,\n"
                          "\"offload_optimizer\": {\"device\": \"cpu\", \"zero_copy\": true}}}";
    assert_works(parse_text(without, COMPLETE, 1), err);
    assert_true(engine_settings(&c, NULL).zero_copy);
    config_free(&c);
}

static void reads_zenflow(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json", "", 1), err);
    const struct zenflow_config *z = &c.zenflow;
    assert_true(z->enabled && z->topk_ratio == 0.05 && z->overlap_step && z->offload);
    assert_int_equal(z->select_strategy, ZENFLOW_SELECT_STEP);
    assert_true(z->select_interval == 16 && z->update_interval == 4 && z->auto_ratio == 0.9);
    assert_true(z->full_warm_up_rounds == 3 && z->pt_reserved_cores_perc == 0.25 && !z->stagger);
    assert_true(z->apply_lag == 2 && z->deferred_lr_scale == ZENFLOW_LR_SQRT);
    assert_int_equal(z->accumulate, ZENFLOW_ACCUMULATE_HOST);
    config_free(&c);
    assert_works(parse_text(ZENFLOW(""), COMPLETE, 1), err);
    assert_true(z->enabled && z->topk_ratio == 0.1 && !z->overlap_step && !z->offload);
    assert_false(engine_settings(&c, NULL).zero_copy);
    assert_true(z->select_interval == CONFIG_AUTO && z->update_interval == CONFIG_AUTO);
    assert_true(z->auto_ratio == 0.99 && z->full_warm_up_rounds == 0 && z->stagger);
    assert_true(z->pt_reserved_cores_perc == 0.5 && z->deferred_lr_scale == 1);
    assert_int_equal(z->apply_lag, 0); /* the step waits */
    assert_false(engine_settings(&c, NULL).all_steps);
    config_free(&c);
    assert_works(parse_text(ZENFLOW("\"deferred_update\": \"all_steps\""), COMPLETE, 1), err);
    assert_true(engine_settings(&c, NULL).all_steps);
    config_free(&c);
    assert_works(parse_text(ZENFLOW(""), COMPLETE "--zero_optimization.zenflow.enabled=no", 1),
                 err);
    assert_false(z->enabled);
    config_free(&c);
    assert_works(parse(NULL,
                       COMPLETE "--zero_optimization.zenflow.overlap_step "
                                "--zero_optimization.stage 1 "
                                "--zero_optimization.offload_optimizer.device cpu",
                       1),
                 err);
    assert_true(z->enabled && z->apply_lag == 1);
    config_free(&c);
}

/* The file that Transformers' documentation hands out: everything is left to the arguments. */
static void reads_auto(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "huggingface_auto.json",
                       COMPLETE "--learning_rate 1e-4 --adam_beta2 0.95 --adam_epsilon=1e-6 "
                                "--weight-decay .1 --max_grad_norm 2 --bf16 --warmup_ratio 0.1 "
                                "--per_device_train_batch_size 4 --gradient_accumulation_steps 3 "
                                "--gradient_checkpointing --device cuda",
                       2),
                 err);
    assert_true(c.gradient_checkpointing && c.device == CONFIG_DEVICE_CUDA);
    assert_true(c.learning_rate == 1e-4 && c.adam_beta2 == 0.95 && c.adam_epsilon == 1e-6);
    assert_true(c.weight_decay == 0.1 && c.max_grad_norm == 2 && c.bf16);
    assert_int_equal(c.train_batch_size, 24);
    assert_true(c.scheduler.warmup_max_lr == 1e-4 && c.scheduler.warmup_min_lr == 0);
    assert_int_equal(count(warnings, "warning:"), 3); /* overlap_comm, two bucket sizes */
    assert_int_equal(count(warnings, "fp16"), 0);
    assert_works(config_resolve_steps(&c, 100, &err), err);
    assert_int_equal(c.steps_per_epoch, 5);
    assert_int_equal(c.total_steps, 15);
    assert_int_equal(c.scheduler.warmup_num_steps, 2);
    config_free(&c);
}

/* The ready configurations name a task; files that can be none of GLUE's are a person's own. */
static void own_examples_put_the_files_task_aside(void **state)
{
    (void)state;
    static const struct {
        const char *file, *options;
        const char *task; /* NULL: none */
    } cases[] = {
        {CONFIGS "zenflow.json", "--train_file x.csv", NULL},
        {CONFIGS "zenflow.json", "--do_predict --test_file a/x.JSONL", NULL},
        {CONFIGS "zenflow.json", "--train_file x.json --task_name cola --data_dir d", "cola"},
        {CONFIGS "zenflow.json", "--train_file x.tsv --data_dir d", "sst2"},
        {CONFIGS "lm.json", "--train_file x.jsonl", "lm"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *options =
            zf_format("--model_name_or_path m --output_dir o --print_config %s", cases[i].options);
        assert_works(parse(cases[i].file, options, 1), err);
        assert_true((c.task != NULL) == (cases[i].task != NULL));
        if (cases[i].task)
            assert_string_equal(c.task->name, cases[i].task);
        config_free(&c);
        free(options);
    }
}

static void options_outrank_the_file(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json",
                       "--learning_rate 1e-3 --optimizer.params.eps 1e-5 --adam_beta1 0.7 "
                       "--train_batch_size 8 --gradient_clipping auto --lr_scheduler_type cosine "
                       "--logging-steps 7 --no_disable_tqdm --do_predict --do_eval false "
                       "--config_name gpt --tokenizer_name t --seed 1 --seed 2",
                       1),
                 err);
    assert_true(c.learning_rate == 1e-3 && c.adam_epsilon == 1e-5 && c.adam_beta1 == 0.7);
    assert_true(c.adam_beta2 == 0.95 && c.max_grad_norm == 1 && c.logging_steps == 7);
    assert_true(!c.disable_tqdm && c.do_predict && !c.do_eval && c.seed == 2);
    assert_int_equal(c.scheduler.type, DS_SCHEDULER_NONE);
    assert_int_equal(c.lr_scheduler_type, LR_COSINE);
    assert_null(c.model_name_or_path);
    assert_string_equal(c.config_name, "gpt");
    config_free(&c);
    assert_works(parse(CONFIGS "sample.json", "--model_name_or_path m", 1), err);
    assert_null(c.config_name);
    assert_string_equal(c.tokenizer_name, "m");
    config_free(&c);
    assert_works(parse_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                            "{\"warmup_max_lr\": 1e-3, \"warmup_num_steps\": 9}}}",
                            COMPLETE "--learning_rate 0.5 --warmup_steps 4", 1),
                 err);
    assert_works(config_resolve_steps(&c, 800, &err), err);
    assert_true(c.scheduler.warmup_max_lr == 0.5 && c.scheduler.warmup_num_steps == 4);
    assert_int_equal(c.scheduler.total_num_steps, 300);
    config_free(&c);
    /* Also where the file's scheduler is the same but for its warm-up. */
    assert_works(parse_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                            "{\"warmup_max_lr\": 1e-3, \"warmup_num_steps\": 9}}}",
                            COMPLETE "--lr_scheduler_type linear", 1),
                 err);
    assert_works(config_resolve_steps(&c, 800, &err), err);
    assert_int_equal(c.scheduler.type, DS_SCHEDULER_NONE);
    assert_int_equal(c.lr_scheduler_type, LR_LINEAR);
    assert_int_equal(c.warmup_steps, 0);
    config_free(&c);
}

static void use_cpu_is_a_device(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE "--use_cpu", 1), err);
    assert_int_equal(c.device, CONFIG_DEVICE_CPU);
    assert_string_equal(warnings, "");
    config_free(&c);
    assert_works(
        parse_text("{\"training_arguments\": {\"device\": \"cuda\"}}", COMPLETE "--no_cuda", 1),
        err);
    assert_int_equal(c.device, CONFIG_DEVICE_CPU);
    config_free(&c);
    assert_works(
        parse_text("{\"training_arguments\": {\"use_cpu\": true}}", COMPLETE "--device cuda", 1),
        err);
    assert_true(c.device == CONFIG_DEVICE_CUDA && !c.use_cpu);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--use_cpu false --device cuda", 1), err);
    assert_int_equal(c.device, CONFIG_DEVICE_CUDA);
    config_free(&c);
}

/* What Transformers does with the same arguments, and both training and evaluation without any. */
static void does_what_is_asked_for(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        bool train, eval, predict;
    } cases[] = {
        {"", true, true, false},
        {"--do_eval", false, true, false},
        {"--do_predict", false, false, true},
        {"--do_train", true, false, false},
        {"--do_train --do_eval --do_predict", true, true, true},
        {"--do_eval --do_predict", false, true, true},
        {"--do_train --eval_strategy epoch", true, true, false},
        {"--do_train --eval_steps 5", true, true, false},
        {"--no_do_train", false, true, false},
        {"--no_do_eval", true, false, false},
        {"--do_predict --no_do_eval --do_train", true, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *options = zf_format(COMPLETE "%s", cases[i].options);
        assert_works(parse(NULL, options, 1), err);
        if (c.do_train != cases[i].train || c.do_eval != cases[i].eval ||
            c.do_predict != cases[i].predict)
            fail_msg("%s: do_train %d, do_eval %d, do_predict %d", cases[i].options, c.do_train,
                     c.do_eval, c.do_predict);
        config_free(&c);
        free(options);
    }
    assert_works(
        parse_text("{\"training_arguments\": {\"do_train\": true}}", COMPLETE "--do_predict", 1),
        err);
    assert_true(c.do_train && !c.do_eval && c.do_predict);
    config_free(&c);
}

static void batch_triple(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int ranks, total, micro, steps;
    } cases[] = {
        {"{}", 3, 24, 8, 1},
        {"{\"train_batch_size\": 32}", 2, 32, 16, 1},
        {"{\"train_micro_batch_size_per_gpu\": 5}", 2, 10, 5, 1},
        {"{\"gradient_accumulation_steps\": 5}", 2, 80, 8, 5},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", 2, 32, 4, 4},
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 4}", 2, 32, 4, 4},
        {"{\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 4}", 2, 24, 3,
         4},
        {"{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"training_arguments\": {\"per_device_train_batch_size\": 6}}",
         2, 12, 6, 1},
        {"{\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 6, "
         "\"gradient_accumulation_steps\": 1}",
         2, 12, 6, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_works(parse_text(cases[i].text, COMPLETE, cases[i].ranks), err);
        assert_int_equal(c.train_batch_size, cases[i].total);
        assert_int_equal(c.per_device_train_batch_size, cases[i].micro);
        assert_int_equal(c.gradient_accumulation_steps, cases[i].steps);
        config_free(&c);
    }
}

static void resolves_steps(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE "--num_train_epochs 1.5 --warmup_ratio 0.1", 1), err);
    assert_works(config_resolve_steps(&c, 41, &err), err);
    assert_int_equal(c.steps_per_epoch, 6);
    assert_int_equal(c.total_steps, 9);
    assert_int_equal(c.warmup_steps, 1);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--max_steps 7 --warmup_ratio 0.5 --warmup_steps 2", 1), err);
    assert_works(config_resolve_steps(&c, 41, &err), err);
    assert_int_equal(c.total_steps, 7);
    assert_int_equal(c.warmup_steps, 2);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--num_train_epochs 1e300", 1), err);
    assert_false(config_resolve_steps(&c, 41, &err));
    assert_says(err, "--num_train_epochs is ");
    assert_false(config_resolve_steps(&c, 0, &err));
    assert_says(err, "there are no training examples");
    config_free(&c);
    assert_works(parse_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}", COMPLETE, 1), err);
    assert_non_null(strstr(warnings, "warms up to 0.001"));
    assert_works(config_resolve_steps(&c, 80000, &err), err);
    assert_int_equal(c.scheduler.warmup_num_steps, 1000);
    assert_int_equal(c.scheduler.total_num_steps, 30000);
    assert_true(c.scheduler.warmup_max_lr == 0.001 && c.scheduler.warmup_type == WARMUP_LOG);
    config_free(&c);
}

/* Each row of steps.tsv, which fixtures/make_trainer.py makes: all steps, a share, and what it is
 * of them by Transformers, as logging_steps, eval_steps or save_steps, and as warmup_steps. */
static void resolves_shares_of_steps(void **state)
{
    (void)state;
    char *text, *rest, *line;
    size_t n;
    int rows = 0;
    assert_works(file_read(ZF_TESTS_DIR "/fixtures/trainer/steps.tsv", &text, &n, &err), err);
    rest = text;
    while ((line = strsep(&rest, "\n")) && *line) {
        char share[32], options[512];
        int all, logging, warmup;
        if (*line == '#')
            continue;
        assert_int_equal(sscanf(line, "%d %31s %d %d", &all, share, &logging, &warmup), 4);
        snprintf(options, sizeof options,
                 COMPLETE "--max_steps %d --logging_steps %s --eval_steps %s --save_steps %s "
                          "--warmup_steps %s",
                 all, share, share, share, share);
        assert_works(parse(NULL, options, 1), err);
        assert_works(config_resolve_steps(&c, 100, &err), err);
        if (c.logging_steps != logging || c.eval_steps != logging || c.save_steps != logging ||
            c.warmup_steps != warmup)
            fail_msg("%s: %g %g", line, c.logging_steps, c.warmup_steps);
        config_free(&c);
        rows++;
    }
    free(text);
    assert_in_range(rows, 60, 1000);
    assert_works(parse(NULL,
                       COMPLETE "--load_best_model_at_end --max_steps 7 --save_steps 0.4 "
                                "--eval_steps 0.2",
                       1),
                 err);
    assert_false(config_resolve_steps(&c, 100, &err));
    assert_says(err,
                "it needs save_steps to be a multiple of eval_steps, and of 7 steps they are 3 "
                "and 2");
    config_free(&c);
}

static void settles_what_is_best(void **state)
{
    (void)state;
    static const char *const seekers[] = {"--load_best_model_at_end --save_strategy best",
                                          "--save_strategy best", "--early_stopping_patience 2"};
    for (int i = 0; i < 3; i++) {
        char *without = zf_format(COMPLETE "%s", seekers[i]);
        char *with = zf_format(COMPLETE "--eval_strategy epoch %s", seekers[i]);
        assert_false(parse(NULL, without, 1));
        assert_says(err, "it needs eval_strategy \"steps\" or \"epoch\"");
        assert_works(parse(NULL, with, 1), err);
        assert_string_equal(c.metric_for_best_model, "loss");
        assert_false(c.greater_is_better);
        config_free(&c);
        free(without);
        free(with);
    }
    assert_works(parse(NULL, COMPLETE "--eval_steps 5 --metric_for_best_model mse", 1), err);
    assert_false(c.greater_is_better);
    config_free(&c);
}

static void settles_evaluation(void **state)
{
    (void)state;
    assert_works(parse(NULL, COMPLETE "--eval_steps 20", 1), err);
    assert_int_equal(c.eval_strategy, STRATEGY_STEPS);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--evaluation_strategy steps --logging_steps 30", 1), err);
    assert_int_equal(c.eval_steps, 30);
    config_free(&c);
    assert_works(parse(CONFIGS "adamw.json", COMPLETE "--no_do_eval", 1), err);
    assert_int_equal(c.eval_strategy, STRATEGY_NO);
    config_free(&c);
    assert_works(parse(NULL,
                       COMPLETE "--load_best_model_at_end --eval_steps 250 "
                                "--metric_for_best_model eval_accuracy",
                       1),
                 err);
    assert_string_equal(c.metric_for_best_model, "accuracy");
    assert_true(c.greater_is_better);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--load_best_model_at_end --eval_steps 250", 1), err);
    assert_string_equal(c.metric_for_best_model, "loss");
    assert_false(c.greater_is_better);
    config_free(&c);
    assert_works(parse(NULL,
                       "--task_name lm --train_file t --config_name gpt --tokenizer_name v "
                       "--output_dir o --resume_from_checkpoint",
                       1),
                 err);
    assert_true(c.do_eval); /* on a part of train_file */
    assert_string_equal(c.resume_from_checkpoint, "latest");
    config_free(&c);
    assert_works(parse_text("{\"training_arguments\": {\"resume_from_checkpoint\": true}}",
                            COMPLETE "--resume_from_checkpoint false", 1),
                 err);
    assert_null(c.resume_from_checkpoint);
    config_free(&c);
}

/* "auto" has nothing to compare where nothing is important. */
static void chooses_the_rule(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        enum engine_interval_rule rule;
    } cases[] = {
        {"\"update_interval\": \"auto\"", ENGINE_INTERVAL_DEEPSPEED},
        {"\"update_interval\": \"auto\", \"topk_ratio\": 0", ENGINE_INTERVAL_KEEP_UP},
        {"\"update_interval\": \"keep_up\"", ENGINE_INTERVAL_KEEP_UP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(
            text, sizeof text,
            "{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"},"
            " \"zenflow\": {%s}}}",
            cases[i].keys);
        assert_works(parse_text(text, COMPLETE, 1), err);
        assert_int_equal(engine_settings(&c, NULL).interval_rule, cases[i].rule);
        config_free(&c);
    }
}

static void stage_3_divides_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int ranks, slots;
        bool on_host;
    } cases[] = {
        {"{\"zero_optimization\": {\"stage\": 2}}", 2, 0, false},
        {"{\"zero_optimization\": {\"stage\": 3}}", 1, 0, false},
        {"{\"zero_optimization\": {\"stage\": 3}}", 2, CONFIG_AUTO, false},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"buffer_count\": 3}}}", 2, 3,
         false},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},\n"
         "\"offload_param\": {\"device\": \"cpu\"}}}",
         1, CONFIG_AUTO, true},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},\n"
         "\"offload_param\": {\"device\": \"cpu\", \"buffer_count\": 1}}}",
         4, 1, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_works(parse_text(cases[i].json, COMPLETE, cases[i].ranks), err);
        assert_works(config_resolve_steps(&c, 800, &err), err);
        const struct engine_config e = engine_settings(&c, NULL);
        assert_int_equal(engine_value_slots(&c), cases[i].slots);
        assert_int_equal(e.params_on_host, cases[i].on_host);
        assert_int_equal(e.params_divided, c.zero_stage == 3);
        config_free(&c);
    }
}

/* What is the same in two configurations: every field of the table. */
static json_t *effective(const struct config *config)
{
    json_t *all = json_object();
    for (int i = 0; i < config_table_rows; i++) {
        const struct config_key *key = &config_table[i];
        if (key->name && !key->same_as)
            json_object_set_new(all, key->name, config_value(config, key));
    }
    return all;
}

static void round_trip(const char *file, const char *options, int ranks)
{
    assert_works(parse(file, options, ranks), err);
    assert_works(config_resolve_steps(&c, 1000, &err), err);
    json_t *before = effective(&c);
    assert_works(config_write(&c, path, &err), err);
    int steps = c.total_steps, per_epoch = c.steps_per_epoch;
    config_free(&c);
    assert_works(parse(path, "", ranks), err);
    assert_string_equal(warnings, "");
    assert_works(config_resolve_steps(&c, 1000, &err), err);
    json_t *after = effective(&c);
    char *a = config_dump(before, JSON_INDENT(1)), *b = config_dump(after, JSON_INDENT(1));
    assert_string_equal(a, b);
    assert_true(json_equal(before, after)); /* to the last digit */
    assert_true(c.total_steps == steps && c.steps_per_epoch == per_epoch);
    free(a);
    free(b);
    json_decref(before);
    json_decref(after);
    config_free(&c);
}

/* Where things live may be left to the plan of memory, and so may the micro-batch. */
static void leaves_places_open(void **state)
{
    (void)state;
    static const char open[] =
        "{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": \"auto\","
        " \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},"
        " \"offload_param\": {\"device\": \"auto\"}, \"zenflow\": {\"offload\": \"auto\"}},"
        " \"training_arguments\": {\"gradient_checkpointing\": \"auto\"}}";
    write_text(open);
    assert_works(parse(path, COMPLETE, 1), err);
    assert_true(c.offload_param == OFFLOAD_AUTO && c.param_buffers == CONFIG_AUTO);
    assert_true(c.gradient_checkpointing == CONFIG_AUTO && c.zenflow.offload == CONFIG_AUTO);
    assert_true(c.zenflow.accumulate == ZENFLOW_ACCUMULATE_AUTO && c.divides_batch);
    assert_true(c.per_device_train_batch_size == 24 && c.gradient_accumulation_steps == 1);
    config_free(&c);
    round_trip(path, COMPLETE, 1);
    write_text(open);
    assert_works(parse(path,
                       COMPLETE "--no_gradient_checkpointing --zero_optimization.zenflow.offload "
                                "--gradient_accumulation_steps 2",
                       1),
                 err);
    assert_true(c.gradient_checkpointing == false && c.zenflow.offload == true && !c.divides_batch);
    assert_int_equal(c.per_device_train_batch_size, 12);
    config_free(&c);
    /* where the device updates all channels it keeps their parameters */
    assert_works(parse(path, COMPLETE "--zero_optimization.zenflow.topk_ratio 1", 1), err);
    assert_true(c.offload_param == OFFLOAD_NONE);
    config_free(&c);
    assert_works(parse(NULL, COMPLETE "--train_batch_size 8 --per_device_train_batch_size 4", 1),
                 err);
    assert_true(!c.divides_batch && c.gradient_accumulation_steps == 2);
    config_free(&c);
}

static void writes_the_same_run(void **state)
{
    (void)state;
    round_trip(NULL, COMPLETE, 1);
    round_trip(NULL,
               COMPLETE "--learning_rate 0.12345678901234567 --adam_beta2 0.9999999 --seed 7 "
                        "--warmup_ratio 0.15 --lr_scheduler_type cosine --attn_pdrop 0 "
                        "--load_best_model_at_end --eval_steps 50 --do_predict --bf16 "
                        "--gradient_checkpointing true --use_cpu "
                        "--max_train_samples 10 --save_total_limit 2 --resume_from_checkpoint x",
               3);
    round_trip(FIXTURES "deepspeed.json", "", 2);
    round_trip(FIXTURES "huggingface_auto.json", COMPLETE "--warmup_steps 9", 2);
    write_text(
        "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"cos_min_ratio\": 0.1, "
        "\"warmup_num_steps\": \"auto\", \"total_num_steps\": 375}}}");
    round_trip(path, COMPLETE "--warmup_ratio 0.1 --num_train_epochs 3", 1);
    write_text("{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}");
    round_trip(path, COMPLETE, 1);
}

static void ready_configurations_parse(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool zenflow;
        int update_interval;
    } ready[] = {{"adamw", false, CONFIG_AUTO},
                 {"zenflow", true, CONFIG_KEEP_UP},
                 {"zenflow_auto", true, CONFIG_AUTO},
                 {"zenflow_offload_param", true, CONFIG_KEEP_UP},
                 {"zero_offload", false, CONFIG_AUTO}};
    for (size_t i = 0; i < sizeof ready / sizeof *ready; i++) {
        char *file = zf_format(CONFIGS "%s.json", ready[i].name);
        round_trip(file, COMPLETE, 2);
        assert_works(parse(file, COMPLETE, 1), err);
        assert_int_equal(c.zenflow.enabled, ready[i].zenflow);
        assert_int_equal(c.zenflow.update_interval, ready[i].update_interval);
        assert_string_equal(warnings, "");
        config_free(&c);
        free(file);
    }
    round_trip(CONFIGS "sample.json", "", 1);
    assert_works(parse(CONFIGS "sample.json", "", 1), err);
    assert_int_equal(c.zenflow.update_interval, CONFIG_KEEP_UP);
    config_free(&c);
    round_trip(CONFIGS "lm.json",
               "--train_file t --validation_file v --config_name gpt --tokenizer_name t "
               "--output_dir o",
               1);
}

static char printed[32768]; /* by config_print or as help */

static void shows_where_values_come_from(void **state)
{
    (void)state;
    assert_works(parse(FIXTURES "deepspeed.json", "--seed 3", 2), err);
    FILE *out = fmemopen(printed, sizeof printed, "w");
    config_print(&c, out);
    fclose(out);
    const char *const lines[][3] = {
        {"\nseed ", " = 3 ", "# --seed\n"},
        {"\nlearning_rate ", " = 0.00015 ", "deepspeed.json:7 (optimizer.params.lr)\n"},
        {"\nadam_beta1 ", " = 0.8 ", "deepspeed.json:8 (optimizer.params.betas)\n"},
        {"\ngradient_accumulation_steps ", " = 4 ", "# auto\n"},
        {"\nmax_seq_length ", " = 128 ", "# default\n"},
        {"\ntask_name ", " = \"stsb\" ", "deepspeed.json:45\n"},
        {"\ntrain_file ", " = null ", "# default\n"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *line = strstr(printed, lines[i][0]),
                   *at = line ? strstr(line, lines[i][1]) : NULL;
        const char *origin = at ? strstr(at, lines[i][2]) : NULL;
        assert_non_null(origin);
        assert_ptr_equal(strchr(line + 1, '\n'), origin + strlen(lines[i][2]) - 1);
    }
    config_free(&c);
}

/* What was worked out says so, and what was given and has stayed keeps its place. */
static void origins_are_true_after_resolving(void **state)
{
    (void)state;
    static const struct {
        const char *json, *options, *key, *value, *origin;
    } cases[] = {
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\"}, \"training_arguments\":\n"
         "{\"lr_scheduler_type\": \"linear\"}}",
         "", "lr_scheduler_type", "\"linear\"", ":2"},
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}", "", "lr_scheduler_type", "\"linear\"",
         "auto"},
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\":\n"
         "{\"warmup_num_steps\": \"auto\"}}}",
         "--warmup_steps 7", "warmup_steps", "7", "--warmup_steps"},
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\":\n"
         "{\"warmup_num_steps\": 9}}}",
         "", "warmup_steps", "9", "auto"},
        {"{}", "--warmup_ratio 0.1", "warmup_ratio", "0.0", "auto"},
        {"{}", "--warmup_ratio 0.1", "warmup_steps", "30", "auto"},
        {"{\"training_arguments\":\n{\"use_cpu\": true}}", "--device cpu", "use_cpu", "true", ":2"},
        {"{\"training_arguments\":\n{\"use_cpu\": true}}", "--device cuda", "use_cpu", "false",
         "auto"},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
         "--zero_optimization.zenflow.topk_ratio 0.2", "zero_optimization.zenflow.enabled", "true",
         "--zero_optimization.zenflow.topk_ratio"},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
         "--zero_optimization.zenflow.topk_ratio 0.2 --zero_optimization.zenflow.enabled false",
         "zero_optimization.zenflow.enabled", "false", "--zero_optimization.zenflow.enabled"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[512], start[128];
        snprintf(options, sizeof options, COMPLETE "%s", cases[i].options);
        assert_works(parse_text(cases[i].json, options, 1), err);
        assert_works(config_resolve_steps(&c, 800, &err), err);
        FILE *out = fmemopen(printed, sizeof printed, "w");
        config_print(&c, out);
        fclose(out);
        snprintf(start, sizeof start, "\n%s ", cases[i].key);
        char *line = strstr(printed, start);
        assert_non_null(line);
        line[1 + strcspn(line + 1, "\n")] = 0;
        const char *value = strstr(line, "= ") + 2, *origin = strstr(line, "# ");
        size_t n = strlen(cases[i].value), tail = strlen(cases[i].origin);
        bool ok = strncmp(value, cases[i].value, n) == 0 && value[n] == ' ' &&
                  strcmp(origin + strlen(origin) - tail, cases[i].origin) == 0;
        if (!ok)
            fail_msg("case %zu: %s", i, line + 1);
        config_free(&c);
    }
}

static void helps_with_every_key(void **state)
{
    (void)state;
    assert_works(parse(NULL, "--nonsense --help", 1), err);
    assert_int_equal(c.action, CONFIG_HELP);
    config_free(&c);
    assert_works(parse(NULL, "--version", 1), err);
    assert_int_equal(c.action, CONFIG_VERSION);
    config_free(&c);
    FILE *out = fmemopen(printed, sizeof printed, "w");
    struct manual *m = manual_of_train();
    manual_print_help(m, out);
    manual_free(m);
    fclose(out);
    assert_null(strstr(printed, "(null)"));
    for (int i = 0; i < config_table_rows; i++)
        if (config_table[i].name)
            assert_non_null(strstr(printed, config_option_name(&config_table[i])));
    size_t width;
    for (const char *line = printed; *line; line += width + (line[width] == '\n')) {
        width = strcspn(line, "\n");
        assert_in_range(width, 0, 100);
    }
}

/* The exit status: whether what is wrong stands on the command line. */
static void tells_usage_from_input(void **state)
{
    (void)state;
    static const struct {
        const char *file, *options;
        bool usage;
    } cases[] = {
        {NULL, "--nonsense 1", true},
        {NULL, "stray", true},
        {NULL, COMPLETE "--seed", true},
        {NULL, COMPLETE "--seed many", true},
        {NULL, COMPLETE "--fp16", true},
        {NULL, COMPLETE "--use_cpu --device cuda", true},
        {NULL, "--task_name sst2", true},
        {NULL, "--config /nowhere.json", false},
        {"{\"seed\": \"many\"}", COMPLETE, false},
        {"{\"nonsense\": 1}", COMPLETE, false},
        {"{\"fp16\": {\"enabled\": true}}", COMPLETE, false},
        {"{\"training_arguments\": {\"use_cpu\": true, \"device\": \"cuda\"}}", COMPLETE, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err = (struct zf_error){0};
        assert_false(cases[i].file ? parse_text(cases[i].file, cases[i].options, 1)
                                   : parse(NULL, cases[i].options, 1));
        if (err.usage != cases[i].usage)
            fail_msg("\"%s\" is%s taken for a fault of the command line", err.text,
                     err.usage ? "" : " not");
    }
}

static void reads_times(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"45s", 45},    {"0.5s", 0.5},      {"90m", 5400},   {"36h", 129600},
                {"2d", 172800}, {"01:30:00", 5400}, {"0:00:10", 10}, {"1-12:00:00", 129600}};
    static const char *const bad[] = {"",         "90",       "1:30",      "0s",      "-5m",
                                      "5 m",      "m",        "1h30m",     "1:60:00", "1:00:60",
                                      "1-2:00",   "inf",      "1e3s",      "nan",     "1:2:3:4",
                                      "00:00:00", "1:00:00x", "1-2-3:4:5", "."};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char *options = zf_format(COMPLETE "--max_runtime %s", good[i].text);
        assert_works(parse(NULL, options, 1), err);
        assert_true(c.max_seconds == good[i].seconds);
        config_free(&c);
        free(options);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *said =
            zf_format("--max_runtime is \"%s\", but it is a time above 0: a number with s, m, "
                      "h or d behind it, or [days-]hours:minutes:seconds",
                      bad[i]);
        char *option = zf_format("--max_runtime=%s", bad[i]), *name = zf_strdup("zf-train");
        char *argv[] = {name, option};
        assert_false(config_parse(&c, 2, argv, 1, &err));
        assert_string_equal(err.text, said);
        free(said);
        free(option);
        free(name);
    }
    assert_false(parse_text("{\"training_arguments\": {\"max_runtime\": 90}}", COMPLETE, 1));
    assert_says(
        err, ":1: training_arguments.max_runtime is 90, but it is a time above 0: a number with");
    assert_works(parse(NULL, COMPLETE, 1), err);
    assert_true(c.max_seconds == 0 && c.ddp_timeout == 300);
    config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(reads_deepspeed),
        cmocka_unit_test(reads_how_the_link_is_crossed),
        cmocka_unit_test(reads_zenflow),
        cmocka_unit_test(reads_auto),
        cmocka_unit_test(options_outrank_the_file),
        cmocka_unit_test(own_examples_put_the_files_task_aside),
        cmocka_unit_test(use_cpu_is_a_device),
        cmocka_unit_test(does_what_is_asked_for),
        cmocka_unit_test(batch_triple),
        cmocka_unit_test(resolves_steps),
        cmocka_unit_test(resolves_shares_of_steps),
        cmocka_unit_test(settles_what_is_best),
        cmocka_unit_test(settles_evaluation),
        cmocka_unit_test(chooses_the_rule),
        cmocka_unit_test(stage_3_divides_parameters),
        cmocka_unit_test(leaves_places_open),
        cmocka_unit_test(writes_the_same_run),
        cmocka_unit_test(ready_configurations_parse),
        cmocka_unit_test(shows_where_values_come_from),
        cmocka_unit_test(origins_are_true_after_resolving),
        cmocka_unit_test(helps_with_every_key),
        cmocka_unit_test(tells_usage_from_input),
        cmocka_unit_test(reads_times),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
