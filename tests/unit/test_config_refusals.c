/* cmd/config: what is refused, with which sentence. */
#include "tests/unit/config_testing.h"

/* text: of the file, which is "FILE" in `sentence`; NULL: none. */
struct refusal {
    const char *text, *options, *sentence;
};

static void refuse(const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct refusal *r = &cases[i];
        bool ok = r->text ? parse_text(r->text, r->options, 2) : parse(NULL, r->options, 2);
        if (ok)
            ok = config_resolve_steps(&c, 8, &err);
        bool starts = strncmp(r->sentence, "FILE", 4) == 0;
        char *sentence = zf_format("%s%s", starts ? path : "", r->sentence + (starts ? 4 : 0));
        if (ok)
            fail_msg("not refused: %s", sentence);
        assert_string_equal(err.text, sentence);
        free(sentence);
        config_free(&c);
    }
}

#define REFUSE(cases) refuse(cases, sizeof cases / sizeof *cases)

static void refuses_unknown_keys(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\n\"optimiser\": {}}", COMPLETE,
         "FILE:2: optimiser is not a known key (did you mean optimizer?)"},
        {"{\"training_arguments\": {\n\n\"lerning_rate\": 1}}", COMPLETE,
         "FILE:3: training_arguments.lerning_rate is not a known key (did you mean "
         "training_arguments.learning_rate?)"},
        {"{\"learning_rate\": 1}", COMPLETE,
         "FILE:1: learning_rate is not a known key (did you mean "
         "training_arguments.learning_rate?)"},
        {"{\"zenflow\": {}}", COMPLETE,
         "FILE:1: zenflow is not a known key (did you mean zero_optimization.zenflow?)"},
        {ZENFLOW("\n\"topk\": 1"), COMPLETE,
         "FILE:3: zero_optimization.zenflow.topk is not a known key (did you mean "
         "zero_optimization.zenflow.topk_ratio?)"},
        {"{\"xyzzy\": 1}", COMPLETE, "FILE:1: xyzzy is not a known key"},
        {NULL, "--topk_ratio 3",
         "--topk_ratio is not an option (did you mean --zero_optimization.zenflow.topk_ratio?)"},
        {NULL, "--learning-rat 3",
         "--learning_rat is not an option (did you mean --learning_rate?)"},
        {NULL, "--epochs 3", "--epochs is not an option (did you mean --num_train_epochs?)"},
        {NULL, "my.json", "my.json is not an option (did you mean --config my.json?)"},
        {NULL, "my.csv", "my.csv is not an option (did you mean --train_file my.csv?)"},
        {NULL, "-x", "-x is not an option"},
    };
    REFUSE(cases);
}

static void refuses_bad_values(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {ZENFLOW("\n\"topk_ratio\": 5"), COMPLETE,
         "FILE:3: zero_optimization.zenflow.topk_ratio is 5, but it is a fraction from 0 to 1 (did "
         "you mean 0.05?)"},
        {"{\"training_arguments\": {\"learning_rate\": \"1e-4\"}}", COMPLETE,
         "FILE:1: training_arguments.learning_rate is \"1e-4\", but it is a number of at least 0 "
         "(did you mean 0.0001, without quotes?)"},
        {"{\"optimizer\": {\"type\": \"SGD\"}}", COMPLETE,
         "FILE:1: optimizer.type is \"SGD\", but it is one of \"AdamW\" or \"Adam\""},
        {"{\n\"bf16\": true}", COMPLETE,
         "FILE:2: bf16 is true, but it is a block of keys in braces, such as {\"enabled\": true}"},
        {NULL, "--max_steps -5",
         "--max_steps is -5, but it is a whole number of steps, or -1 for as many as "
         "num_train_epochs has"},
        {"{\"optimizer\": 3}", COMPLETE,
         "FILE:1: optimizer is 3, but it is a block of keys in braces"},
        {"{\"optimizer\": {\"params\": {\"betas\": 0.9}}}", COMPLETE,
         "FILE:1: optimizer.params.betas is 0.9, but it is two numbers in brackets, each from 0 to "
         "below 1"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1]}}}", COMPLETE,
         "FILE:1: optimizer.params.betas is 1, but it is a fraction from 0 to below 1"},
        {"{\"zero_optimization\": {\"stage\": 4}}", COMPLETE,
         "FILE:1: zero_optimization.stage is 4, but it is from 0 to 3"},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}}}", COMPLETE,
         "FILE:1: zero_optimization.offload_optimizer.device is \"nvme\", but it is one of "
         "\"none\" "
         "or \"cpu\""},
        {"{\"training_arguments\": {\"do_eval\": \"yes\"}}", COMPLETE,
         "FILE:1: training_arguments.do_eval is \"yes\", but it is true or false (did you mean "
         "true, "
         "without quotes?)"},
        {"{\"training_arguments\": {\"data_dir\": 7}}", COMPLETE,
         "FILE:1: training_arguments.data_dir is 7, but it is a string"},
        {NULL, "--do_predict maybe", "--do_predict is \"maybe\", but it is true or false"},
        {NULL, "--learning_rate", "--learning_rate needs a value: a number of at least 0"},
        {NULL, "--learning_rate --do_train",
         "--learning_rate needs a value: a number of at least 0"},
        {NULL, "--config", "--config needs a value: a file"},
        {NULL, COMPLETE " --plan=", "--plan is \"\", but it is a string that is not empty"},
        {NULL, COMPLETE " --resume_from_checkpoint=",
         "--resume_from_checkpoint is \"\", but it is a string, or \"latest\""},
        {NULL, "--task_name lm --train_file a.csv --text_column body",
         "--text_column is \"body\", but task lm reads the column \"text\""},
        {NULL, "--config /nonexistent.json",
         "/nonexistent.json: cannot be read: No such file or directory"},
        {NULL, "--learning_rate nan",
         "--learning_rate is \"nan\", but it is a number of at least 0"},
        {NULL, "--max_seq_length 12.5",
         "--max_seq_length is 12.5, but it is a whole number of at least 1"},
        {NULL, "--max_steps 3000000000",
         "--max_steps is 3000000000, but it is a whole number of steps, or -1 for as many as "
         "num_train_epochs has"},
        {NULL, "--seed=-1", "--seed is -1, but it is a whole number of at least 0"},
        {NULL, "--num_train_epochs 0", "--num_train_epochs is 0, but it is a number above 0"},
        {NULL, "--embd_pdrop 10",
         "--embd_pdrop is 10, but it is a fraction from 0 to below 1 (did you mean 0.1?)"},
        {NULL, "--eval_strategy step",
         "--eval_strategy is \"step\", but it is one of \"no\", \"steps\" or \"epoch\" (did you "
         "mean "
         "\"steps\"?)"},
        {NULL, "--task_name colla",
         "--task_name is \"colla\", but it is one of \"cola\", \"sst2\", \"mrpc\", \"stsb\", "
         "\"qqp\", \"mnli\", \"qnli\", \"rte\", \"wnli\" or \"lm\" (did you mean \"cola\"?)"},
        {NULL, "--zero_optimization.zenflow.deferred_lr_scale squart",
         "--zero_optimization.zenflow.deferred_lr_scale is \"squart\", but it is a number above 0, "
         "or \"sqrt\""},
    };
    REFUSE(cases);
}

static void refuses_what_is_not_here(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\"fp16\": {\"enabled\": true}}", COMPLETE,
         "FILE:1: fp16 is {\"enabled\":true}, but half precision here is bf16: use bf16"},
        {"{\"zero_optimization\": {\"cpu_offload_param\": true}}", COMPLETE,
         "FILE:1: zero_optimization.cpu_offload_param is true, but use "
         "zero_optimization.offload_param.device"},
        {"{\"optimizer\": {\"params\": {\"bias_correction\": false}}}", COMPLETE,
         "FILE:1: optimizer.params.bias_correction is false, but AdamW here corrects its moments' "
         "bias"},
        {"{\"gradient_allreduce_op\": \"sum\"}", COMPLETE,
         "FILE:1: gradient_allreduce_op is \"sum\", but gradients are averaged over the ranks"},
        {NULL, COMPLETE "--fp16", "--fp16 is true, but half precision here is bf16: use bf16"},
        {NULL, COMPLETE "--optim adafactor",
         "--optim is \"adafactor\", but the optimizer is AdamW, which is \"adamw_torch\""},
        {NULL, COMPLETE "--optim adamw_bnb_8bit",
         "--optim is \"adamw_bnb_8bit\", but the optimizer is AdamW, which is \"adamw_torch\""},
        {NULL, COMPLETE "--data_seed 0",
         "--data_seed is 0, but the order of the examples follows seed"},
        {NULL, COMPLETE "--no_save_safetensors",
         "--save_safetensors is false, but weights are written as safetensors"},
        {"{\"dataloader_drop_last\": true}", COMPLETE,
         "FILE:1: dataloader_drop_last is true, but every example is used"},
        {NULL, COMPLETE "--label_smoothing_factor 0.1",
         "--label_smoothing_factor is 0.1, but that is not available here"},
    };
    REFUSE(cases);
}

static void refuses_contradictions(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 3}", COMPLETE,
         "FILE:1: train_batch_size is 32, but it is per_device_train_batch_size x "
         "gradient_accumulation_steps x ranks, and 5 x 3 x 2 is 30"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4,\n"
         "\"gradient_accumulation_steps\": 8}",
         COMPLETE,
         "FILE:1: train_batch_size is 32, but it is per_device_train_batch_size x "
         "gradient_accumulation_steps x ranks, and 4 x 8 x 2 is 64"},
        {"{\"train_batch_size\": 1}", COMPLETE,
         "FILE:1: train_batch_size is 1, but it is per_device_train_batch_size x "
         "gradient_accumulation_steps x ranks, and 1 x 1 x 2 is 2"},
        {NULL, COMPLETE "--train_micro_batch_size_per_gpu 2000000000",
         "--train_micro_batch_size_per_gpu is 2000000000, but with 1 accumulation steps and 2 "
         "ranks "
         "a step would have more than 2147483647 examples"},
        {NULL, COMPLETE "--plan_ranks 4",
         "--plan_ranks is 4, but plan, which names the machine to simulate, is not given: ranks of "
         "a run are mpirun's"},
        {"{\"optimizer\": {\"params\": {\"adam_w_mode\": false}}}", COMPLETE,
         "FILE:1: optimizer.params.adam_w_mode is false, but optimizer.type is \"AdamW\", which "
         "decouples weight decay: use \"Adam\""},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}}", COMPLETE,
         "FILE:1: zero_optimization.offload_optimizer.device is \"cpu\", but offloading needs "
         "zero_optimization.stage 1, 2 or 3, and it is 0"},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"cpu\", but parameters are offloaded "
         "in stage 3, and it is 2"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"cpu\", but where parameters live on "
         "the host, so does the optimizer's state: offload_optimizer.device must be \"cpu\" too"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"},"
         " \"offload_param\": {\"device\": \"cpu\"}, \"zenflow\": {\"topk_ratio\": 1}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"cpu\", but with topk_ratio 1 the "
         "device updates all of them, and keeps them"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"nvme\", but it is one of "
         "\"none\", \"cpu\" or \"auto\""},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"auto\"}}}",
         COMPLETE,
         "FILE:1: zero_optimization.offload_param.device is \"auto\", but parameters are offloaded "
         "in stage 3, and it is 2"},
        {"{\"zero_optimization\": {\"zenflow\": {\"offload\": \"host\"}}}", COMPLETE,
         "FILE:1: zero_optimization.zenflow.offload is \"host\", but it is true or false, or "
         "\"auto\""},
        {"{\"scheduler\": {\"params\": {\"warmup_max_lr\": 1}}}", COMPLETE,
         "FILE:1: scheduler.params.warmup_max_lr is 1.0, but scheduler.type is not given: "
         "WarmupLR, "
         "WarmupDecayLR or WarmupCosineLR"},
        {"{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_max_lr\": 1}}}",
         COMPLETE,
         "FILE:1: scheduler.params.warmup_max_lr is 1.0, but scheduler.type \"WarmupCosineLR\" has "
         "no such key"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\"},\n"
         "\"training_arguments\": {\"lr_scheduler_type\": \"cosine\"}}",
         COMPLETE,
         "FILE:2: training_arguments.lr_scheduler_type is \"cosine\", but scheduler.type is "
         "\"WarmupLR\", which is constant_with_warmup"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.25}},\n"
         "\"training_arguments\": {\"learning_rate\": 0.5}}",
         COMPLETE,
         "FILE:1: scheduler.params.warmup_max_lr is 0.25, but learning_rate is 0.5: give one of "
         "them, or \"auto\""},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}},\n"
         "\"training_arguments\": {\"warmup_steps\": 6}}",
         COMPLETE,
         "FILE:1: scheduler.params.warmup_num_steps is 5, but warmup_steps is given too: give one "
         "of them, or \"auto\""},
        {NULL, COMPLETE "--use_cpu --device cuda", "--use_cpu is true, but device is \"cuda\""},
        {NULL, COMPLETE "--config_name gpt",
         "--config_name is \"gpt\", but model_name_or_path is given too: name a trained model, or "
         "a "
         "shape for random initialisation"},
        {NULL, COMPLETE "--load_best_model_at_end",
         "--load_best_model_at_end is true, but it needs eval_strategy and save_strategy to be "
         "both \"steps\" or both \"epoch\", or save_strategy \"best\" with either"},
        {NULL, COMPLETE "--early_stopping_threshold 0.1",
         "--early_stopping_threshold is 0.1, but early_stopping_patience, which it belongs to, is "
         "not given"},
        {NULL, COMPLETE "--load_best_model_at_end --eval_steps 3",
         "--load_best_model_at_end is true, but it needs save_steps (500) to be a multiple of "
         "eval_steps (3)"},
        {NULL, COMPLETE "--no_do_eval --eval_strategy epoch",
         "--do_eval is false, but eval_strategy asks for evaluation"},
        {NULL, COMPLETE "--no_do_eval --no_do_train",
         "--do_train is false, but do_eval and do_predict are false too: there is nothing to do"},
        {NULL, COMPLETE "--task_name lm --do_predict",
         "--do_predict is true, but task lm has no predictions to make"},
    };
    REFUSE(cases);
    assert_false(parse_text("{\"training_arguments\": {\"learning_rate\": 0.25},\n"
                            "\"optimizer\": {\"params\": {\"lr\": 0.5}}}",
                            COMPLETE, 1));
    assert_says(err, ":2: optimizer.params.lr is 0.5, but /tmp/");
    assert_says(err, ":1: training_arguments.learning_rate, which means the same, is 0.25");
    assert_false(parse_text("{\"training_arguments\": {\"adam_beta1\": 0.25},\n"
                            "\"optimizer\": {\"params\": {\"betas\": [0.5, 0.9]}}}",
                            COMPLETE, 1));
    assert_says(err, ":2: optimizer.params.betas is 0.5, but /tmp/");
}

static void refuses_what_zenflow_cannot_do(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"{\"zero_optimization\": {\"zenflow\": {}}}", COMPLETE,
         "zero_optimization.stage is 0 by default, but ZenFlow needs stage 1, 2 or 3"},
        {"{\"zero_optimization\": {\"stage\": 1, \"zenflow\": {}}}", COMPLETE,
         "zero_optimization.offload_optimizer.device is \"none\" by default, but ZenFlow needs "
         "\"cpu\": that is where it keeps what it defers"},
        {ZENFLOW("\"select_interval\": 4"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.select_interval is 4, but select_strategy \"auto\" "
         "selects every epoch and would overwrite it: use select_strategy \"step\" or \"epoch\""},
        {ZENFLOW("\"select_strategy\": \"epoch\""), COMPLETE,
         "zero_optimization.zenflow.select_interval is \"auto\" by default, but with a "
         "select_strategy other than \"auto\" it must be a number"},
        {ZENFLOW("\"select_strategy\": \"step\", \"select_interval\": 2, \"update_interval\": 4"),
         COMPLETE,
         "FILE:2: zero_optimization.zenflow.select_interval is 2, but it must be at least "
         "update_interval, which is 4"},
        {ZENFLOW("\"select_strategy\": \"epoch\", \"select_interval\": 2, \"update_interval\": 4"),
         COMPLETE,
         "FILE:2: zero_optimization.zenflow.select_interval is 2, but that is 2 steps, and it must "
         "be at least update_interval, which is 4"},
        {ZENFLOW("\"update_interval\": 0"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.update_interval is 0, but it is a whole number of at "
         "least 1, or \"auto\", or \"keep_up\""},
        {ZENFLOW("\"apply_lag\": 1"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.apply_lag is 1, but without overlap_step the step "
         "waits "
         "for the host: it must be 0"},
        {ZENFLOW("\"deferred_update\": \"all_steps\", \"deferred_lr_scale\": \"sqrt\""), COMPLETE,
         "FILE:2: zero_optimization.zenflow.deferred_lr_scale is \"sqrt\", but deferred_update "
         "\"all_steps\" has the learning rates of the steps that it stands for: it must be 1"},
        {ZENFLOW("\"deferred_update\": \"all_steps\""),
         COMPLETE "--optimizer.type Adam --optimizer.params.adam_w_mode false",
         "FILE:2: zero_optimization.zenflow.deferred_update is \"all_steps\", but it needs "
         "adam_w_mode: with L2 regularisation the decay is part of the gradient, whose squares "
         "it does not count"},
        {ZENFLOW("\"deferred_update\": \"all_step\""), COMPLETE,
         "FILE:2: zero_optimization.zenflow.deferred_update is \"all_step\", but it is one of "
         "\"one_step\" or \"all_steps\" (did you mean \"all_steps\"?)"},
        {ZENFLOW("\"steps_per_epoch\": 9"), COMPLETE,
         "FILE:2: zero_optimization.zenflow.steps_per_epoch is 9, but the run counts them itself"},
    };
    REFUSE(cases);
}

static void refuses_incomplete_runs(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {NULL, "",
         "task_name is not given: a GLUE task, or lm; or train_file, for examples of your own"},
        {NULL, "--task_name cola",
         "model_name_or_path is not given: the folder of a model, or config_name for random "
         "initialisation"},
        {NULL, "--task_name cola --config_name gpt",
         "--config_name is \"gpt\", but tokenizer_name is not given: the folder of its tokenizer"},
        {NULL, "--task_name cola --model_name_or_path m",
         "output_dir is not given: the folder for what this run makes"},
        {NULL, "--task_name CoLA --model_name_or_path m --output_dir o",
         "data_dir is not given: training on task cola needs the folder of its GLUE files, or "
         "train_file"},
        {NULL, "--task_name lm --model_name_or_path m --output_dir o --data_dir d",
         "train_file is not given: training on task lm needs a text file"},
        {NULL, "--task_name lm --model_name_or_path m --output_dir o --no_do_train --do_eval",
         "validation_file is not given: evaluation on task lm needs a text file"},
    };
    REFUSE(cases);
    assert_works(parse(NULL, "--print_config", 1), err); /* shows what there is */
    assert_int_equal(c.action, CONFIG_PRINT);
    config_free(&c);
}

/* Stage 3 of several ranks divides parameters, wherever they live; of one it is stage 2, unless
 * they live on the host. */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_unknown_keys),           cmocka_unit_test(refuses_bad_values),
        cmocka_unit_test(refuses_what_is_not_here),       cmocka_unit_test(refuses_contradictions),
        cmocka_unit_test(refuses_what_zenflow_cannot_do), cmocka_unit_test(refuses_incomplete_runs),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
