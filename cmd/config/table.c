#include "cmd/config/table.h"

#include <float.h>
#include <limits.h>

#define ABOVE_0 DBL_MIN
#define BELOW_1 (1 - DBL_EPSILON / 2)
#define NO_END  DBL_MAX

#define FIELD(field)  offsetof(struct config, field)
#define HEADING(text) .type = CONFIG_HEADING, .help = text

/* A key of training_arguments, whose field has its name. */
#define ARG(key)                   .name = CONFIG_ARGUMENTS #key, .offset = FIELD(key)
#define ARG_BOOL(key, value, text) ARG(key), .type = CONFIG_BOOL, .standard = value, .help = text
#define ARG_TRUTH(key, value, text)                                                                \
    ARG(key), .type = CONFIG_TRUTH, .standard = value, .word = "auto", .help = text
#define ARG_INT(key, value, low, text)                                                             \
    ARG(key), .type = CONFIG_INT, .standard = value, .min = low, .max = INT_MAX, .help = text
#define ARG_REAL(key, value, low, high, text)                                                      \
    ARG(key), .type = CONFIG_REAL, .standard = value, .min = low, .max = high, .help = text
#define ARG_STEPS(key, value, low, text)                                                           \
    ARG(key), .type = CONFIG_STEPS, .standard = value, .min = low, .max = INT_MAX, .help = text
#define ARG_TEXT(key, text)         ARG(key), .type = CONFIG_STRING, .help = text
#define ARG_NAMES(key, value, text) ARG(key), .type = CONFIG_NAMES, .standard = value, .help = text
#define ARG_CHOICE(key, list, value, text)                                                         \
    ARG(key), .type = CONFIG_CHOICE, .choices = list, .standard = value, .help = text

/* A key of DeepSpeed's. */
#define DS_BOOL(path, field, value, text)                                                          \
    .name = path, .offset = FIELD(field), .type = CONFIG_BOOL, .standard = value, .help = text
#define DS_TRUTH(path, field, value, text)                                                         \
    .name = path, .offset = FIELD(field), .type = CONFIG_TRUTH, .standard = value, .word = "auto", \
    .help = text
#define DS_NUMBER(kind, path, field, value, low, high, text)                                       \
    .name = path, .offset = FIELD(field), .type = kind, .standard = value, .min = low,             \
    .max = high, .help = text
#define DS_NUMBER_OR(other, kind, path, field, value, low, high, text)                             \
    .name = path, .offset = FIELD(field), .type = kind, .standard = value, .min = low,             \
    .max = high, .word = other, .help = text
#define DS_TEXT(path, field, value, text)                                                          \
    .name = path, .offset = FIELD(field), .type = CONFIG_STRING, .standard = value, .help = text
#define DS_CHOICE(path, field, list, value, text)                                                  \
    .name = path, .offset = FIELD(field), .type = CONFIG_CHOICE, .choices = list,                  \
    .standard = value, .help = text

/* A second name. */
#define SAME(path, key) .name = path, .type = CONFIG_SAME, .same_as = CONFIG_ARGUMENTS key

#define ZERO  "zero_optimization."
#define ZENF  ZERO "zenflow."
#define SCHED "scheduler.params."

const struct config_key config_table[] = {
    {HEADING("Model and data")},
    {ARG_TEXT(model_name_or_path,
              "folder of the model to fine-tune: config.json, model.safetensors "
              "and its tokenizer")},
    {ARG_TEXT(config_name, "instead of a model, random initialisation: a preset's name (gpt, gpt2, "
                           "...), whose vocabulary is the tokenizer's, or a folder with "
                           "config.json")},
    {ARG_TEXT(tokenizer_name, "folder of the tokenizer; default: the model's")},
    {ARG_BOOL(ignore_mismatched_sizes, "false",
              "a model's score head for other labels is replaced by a new one")},
    {ARG_TEXT(task_name, "cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, or lm for language "
                         "modelling; none: examples of your own, from train_file")},
    {ARG_TEXT(data_dir,
              "folder of the task's GLUE files, or the one that holds the tasks' folders")},
    {ARG_TEXT(train_file,
              "training data: for a GLUE task in place of data_dir's, in its layout; for lm "
              "texts or conversations: a file, a folder, a pattern, or several with "
              "commas between; without a task .csv, .tsv, .jsonl or .json")},
    {ARG_TEXT(validation_file, "evaluation data, the same; default, but for GLUE: a share of "
                               "train_file")},
    {ARG_TEXT(test_file, "data to predict, the same; may lack labels")},
    {ARG(validation_split_percentage), .type = CONFIG_INT, .standard = "5", .min = 1, .max = 50,
     .help = "the share of train_file that is evaluated where there is no validation_file"},
    {ARG_TEXT(text_column,
              "own examples: the column of the text; default: sentence1 and sentence2, "
              "sentence, or the first one or two beside the label")},
    {ARG_TEXT(text_pair_column, "own examples: the column of a second text")},
    {ARG_TEXT(label_column, "own examples: the column of the label; default: label")},
    {SAME(CONFIG_ARGUMENTS "label_column_name", "label_column")},
    {ARG_BOOL(do_regression, NULL,
              "own examples: labels are scores; default: where they are "
              "numbers, and not whole ones alone")},
    {ARG_INT(max_seq_length, "128", 1, "longest sequence in tokens; longer ones are cut")},
    {ARG_INT(max_train_samples, NULL, 1, "use only the first N training examples")},
    {ARG_INT(max_eval_samples, NULL, 1, "use only the first N evaluation examples")},
    {ARG_INT(max_predict_samples, NULL, 1, "use only the first N examples to predict")},
    {ARG_REAL(embd_pdrop, NULL, 0, BELOW_1, "dropout after the embeddings; default: the model's")},
    {ARG_REAL(attn_pdrop, NULL, 0, BELOW_1, "dropout of attention; default: the model's")},
    {ARG_REAL(resid_pdrop, NULL, 0, BELOW_1, "dropout before residual sums; default: the model's")},

    {HEADING("What to do")},
    {ARG_BOOL(do_train, "true", "train; where do_eval or do_predict is given without it: false")},
    {ARG_BOOL(do_eval, "true",
              "evaluate on the dev split at the end; where do_train or do_predict is given without "
              "it: false, but with eval_strategy")},
    {ARG_BOOL(do_predict, "false",
              "predict the test split, in GLUE's submission format, or predict_results.txt")},
    {ARG_TEXT(output_dir, "folder for the model, results, log and checkpoints")},
    {ARG_BOOL(overwrite_output_dir, "false", "replace what output_dir holds")},
    {ARG_TEXT(resume_from_checkpoint, "a checkpoint's folder, or latest (or true) for the last one "
                                      "in output_dir"),
     .word = "latest"},
    {ARG_INT(seed, "42", 0, "seed of initialisation, shuffling and dropout")},
    {SAME("seed", "seed")},
    {ARG_CHOICE(device, "auto|cpu|cuda", "auto", "what computes; auto: a GPU if there is one")},
    {ARG_BOOL(use_cpu, "false", "the same as device cpu")},
    {SAME(CONFIG_ARGUMENTS "no_cuda", "use_cpu")},
    {ARG_INT(ddp_timeout, "300", 0,
             "seconds after which a rank that is silent, or all that stand still, end the run; 0: "
             "never")},
    {ARG(num_threads), .type = CONFIG_INT, .standard = "0", .max = 4096,
     .help = "threads of each rank; 0: its share of the cores"},
    {ARG_BOOL(bf16, "false", "parameters in bf16, with fp32 masters; always so on a GPU")},
    {SAME("bf16.enabled", "bf16")},
    {ARG_TEXT(plan, "train nothing: simulate steps on this machine (a file, or a name in "
                    "configs/machines) and tell their memory, time and traffic")},
    {ARG_INT(plan_ranks, "1", 1, "ranks of a plan")},

    {HEADING("Batches")},
    {DS_NUMBER_OR("auto", CONFIG_INT, "train_batch_size", train_batch_size, NULL, 1, INT_MAX,
                  "examples in an optimizer step: the product of the next two and the ranks; where "
                  "neither of them is given, a GPU's memory decides how large micro-batches are")},
    {ARG_INT(per_device_train_batch_size, "8", 1, "examples in a rank's micro-batch")},
    {SAME("train_micro_batch_size_per_gpu", "per_device_train_batch_size")},
    {ARG_INT(gradient_accumulation_steps, "1", 1, "micro-batches in an optimizer step")},
    {SAME("gradient_accumulation_steps", "gradient_accumulation_steps")},
    {ARG_INT(per_device_eval_batch_size, "8", 1, "examples in a rank's batch of evaluation")},
    {ARG_TRUTH(gradient_checkpointing, "false",
               "keep less of forward and compute it again in backward: less memory, the same "
               "result; auto: where a GPU needs it")},
    {SAME(CONFIG_ARGUMENTS "activation_checkpointing", "gradient_checkpointing")},

    {HEADING("Optimizer")},
    {DS_CHOICE("optimizer.type", optimizer_type, "AdamW|Adam", "AdamW",
               "the only two, in any case")},
    {DS_BOOL("optimizer.params.adam_w_mode", adam_w_mode, "true",
             "false, with Adam: weight decay is added to the gradient")},
    {ARG_REAL(learning_rate, "5e-5", 0, NO_END, "peak learning rate")},
    {SAME("optimizer.params.lr", "learning_rate")},
    {ARG_REAL(weight_decay, "0", 0, NO_END, "weight decay, on all but biases and norms")},
    {SAME("optimizer.params.weight_decay", "weight_decay")},
    {ARG_REAL(adam_beta1, "0.9", 0, BELOW_1, "decay of the first moment")},
    {ARG_REAL(adam_beta2, "0.999", 0, BELOW_1, "decay of the second moment")},
    {.name = "optimizer.params.betas",
     .type = CONFIG_PAIR,
     .same_as = CONFIG_ARGUMENTS "adam_beta1",
     .expected = "two numbers in brackets, each from 0 to below 1"},
    {ARG_REAL(adam_epsilon, "1e-8", 0, NO_END, "added to the second moment's root")},
    {SAME("optimizer.params.eps", "adam_epsilon")},
    {ARG_REAL(max_grad_norm, "1.0", 0, NO_END, "greatest norm of the gradient; 0: no clipping")},
    {SAME("gradient_clipping", "max_grad_norm")},

    {HEADING("Length and learning rate")},
    {ARG_REAL(num_train_epochs, "3.0", ABOVE_0, NO_END, "passes over the data; may be a fraction")},
    {ARG_INT(max_steps, "-1", -1, "optimizer steps, in place of num_train_epochs; -1: not given"),
     .expected = "a whole number of steps, or -1 for as many as num_train_epochs has"},
    {ARG_TEXT(max_runtime, "stop after so long as on SIGTERM, with a checkpoint: 45s, 90m, 36h, 2d "
                           "or [days-]hours:minutes:seconds"),
     .expected = "a time above 0: a number with s, m, h or d behind it, or "
                 "[days-]hours:minutes:seconds"},
    {ARG_CHOICE(lr_scheduler_type, "linear|cosine|constant|constant_with_warmup", "linear",
                "how the learning rate goes after warm-up")},
    {ARG_REAL(warmup_ratio, "0", 0, 1, "share of all steps that warm up linearly")},
    {ARG_STEPS(warmup_steps, "0", 0,
               "steps that warm up, in place of warmup_ratio if above 0; below 1: their share")},
    {DS_CHOICE("scheduler.type", scheduler.type, "none|WarmupLR|WarmupDecayLR|WarmupCosineLR",
               "none", "DeepSpeed's schedulers, in place of lr_scheduler_type")},
    {DS_CHOICE(SCHED "warmup_type", scheduler.warmup_type, "log|linear", "log",
               "how the rate rises")},
    {DS_NUMBER_OR("auto", CONFIG_INT, SCHED "warmup_num_steps", scheduler.warmup_num_steps, "1000",
                  1, INT_MAX, "steps that warm up; auto: warmup_steps or warmup_ratio")},
    {DS_NUMBER_OR("auto", CONFIG_INT, SCHED "total_num_steps", scheduler.total_num_steps, NULL, 1,
                  INT_MAX, "steps until the rate is down; auto: the run's")},
    {DS_NUMBER_OR("auto", CONFIG_REAL, SCHED "warmup_min_lr", scheduler.warmup_min_lr, "0", 0,
                  NO_END, "WarmupLR, WarmupDecayLR: the first rate")},
    {DS_NUMBER_OR(
        "auto", CONFIG_REAL, SCHED "warmup_max_lr", scheduler.warmup_max_lr, "0.001", 0, NO_END,
        "WarmupLR, WarmupDecayLR: the peak; auto, and WarmupLR's default: learning_rate")},
    {DS_NUMBER(CONFIG_REAL, SCHED "warmup_min_ratio", scheduler.warmup_min_ratio, "0", 0, 1,
               "WarmupCosineLR: the first rate as a share of learning_rate")},
    {DS_NUMBER(CONFIG_REAL, SCHED "cos_min_ratio", scheduler.cos_min_ratio, "0.0001", 0, 1,
               "WarmupCosineLR: the last rate as a share of learning_rate")},

    {HEADING("Reports, evaluation while training, checkpoints")},
    {ARG_STEPS(
        logging_steps, "500", ABOVE_0,
        "steps between lines of the log; below 1, here and in the next two: a share of all")},
    {SAME("steps_per_print", "logging_steps")},
    {ARG_CHOICE(logging_strategy, "no|steps|epoch", "steps", "when to write a line of the log")},
    {ARG_BOOL(logging_first_step, "false", "log the first step too")},
    {ARG_BOOL(disable_tqdm, "false",
              "no live line on a terminal (NO_COLOR in the environment: no colours)")},
    {ARG_TEXT(trace, "file for a timeline of device, link and host workers, for ui.perfetto.dev")},
    {ARG_CHOICE(eval_strategy, "no|steps|epoch", "no",
                "evaluate while training; steps where eval_steps is given")},
    {SAME(CONFIG_ARGUMENTS "evaluation_strategy", "eval_strategy")},
    {ARG_STEPS(eval_steps, NULL, ABOVE_0, "steps between evaluations; default: logging_steps")},
    {ARG_REAL(eval_delay, "0", 0, NO_END,
              "steps, or epochs with eval_strategy epoch, before the first evaluation")},
    {ARG_CHOICE(save_strategy, "no|steps|epoch|best", "steps",
                "when to write a checkpoint; best: when an evaluation is the best so far")},
    {ARG_STEPS(save_steps, "500", ABOVE_0, "steps between checkpoints")},
    {ARG_INT(save_total_limit, NULL, 1, "keep the last N checkpoints; default: all")},
    {ARG_BOOL(load_best_model_at_end, "false", "end with the checkpoint that evaluated best")},
    {ARG_TEXT(metric_for_best_model, "what is best: loss (default) or a metric of the task")},
    {ARG_BOOL(greater_is_better, NULL, "default: unless the metric is a loss, perplexity or mse")},
    {ARG_INT(early_stopping_patience, NULL, 1,
             "end training when so many evaluations, one after the other, were no better")},
    {ARG_REAL(early_stopping_threshold, "0", 0, NO_END,
              "what early stopping calls better is better by more than this")},
    {ARG_BOOL(html_report, "true",
              "output_dir/report.html: curves, memory, mistakes and configuration as one page, "
              "written while training too; zf-bench report puts several runs on one")},
    {ARG_NAMES(report_to, "none",
               "tensorboard, or all, which is that alone: event files in logging_dir")},
    {ARG_TEXT(logging_dir, "folder of TensorBoard's event files; default: TENSORBOARD_LOGGING_DIR, "
                           "or a new one in output_dir/runs")},
    {DS_BOOL("tensorboard.enabled", tensorboard.enabled, "false",
             "DeepSpeed's monitor: loss and learning rate of each step, and evaluations, as event "
             "files")},
    {DS_TEXT("tensorboard.output_path", tensorboard.output_path, NULL,
             "their folder; default: output_dir")},
    {DS_TEXT("tensorboard.job_name", tensorboard.job_name, "DeepSpeedJobName",
             "the folder in it that this run makes")},
    {DS_BOOL("csv_monitor.enabled", csv_monitor.enabled, "false",
             "the same as CSV files, one for each name")},
    {DS_TEXT("csv_monitor.output_path", csv_monitor.output_path, NULL,
             "their folder; default: output_dir")},
    {DS_TEXT("csv_monitor.job_name", csv_monitor.job_name, "DeepSpeedJobName",
             "the folder in it that this run makes")},

    {HEADING("Where optimizer state lives")},
    {.name = ZERO "stage",
     .offset = FIELD(zero_stage),
     .type = CONFIG_INT,
     .standard = "0",
     .max = 3,
     .expected = "from 0 to 3",
     .help = "0 to 2 all divide gradients and optimizer state over the ranks; 3 parameters too"},
    {DS_CHOICE(ZERO "offload_optimizer.device", offload_optimizer, "none|cpu", "none",
               "cpu: optimizer state in host memory, updated there")},
    {DS_BOOL(ZERO "offload_optimizer.zero_copy", zero_copy, "false",
             "a GPU's kernels cross the link themselves, in place of its copy engines")},
    {DS_CHOICE(ZERO "offload_param.device", offload_param, "none|cpu|auto", "none",
               "cpu: blocks' parameters too, with stage 3; they come when they are needed; auto: "
               "where they do not fit on a GPU")},
    {DS_NUMBER_OR("auto", CONFIG_INT, ZERO "stage3_prefetch_bucket_size", prefetch, "auto", 0,
                  INT_MAX,
                  "0: they come no earlier than they are needed; else as soon as there is room")},
    {DS_NUMBER_OR(
        "auto", CONFIG_INT, ZERO "offload_param.buffer_count", param_buffers, "auto", 1, INT_MAX,
        "blocks that a device then has room for; in stage 3 of several ranks too; auto: as "
        "many as fit")},
    {DS_BOOL(ZENF "enabled", zenflow.enabled, "false", "true also where the block has any key")},
    {DS_NUMBER(CONFIG_REAL, ZENF "topk_ratio", zenflow.topk_ratio, "0.1", 0, 1,
               "share of each matrix's channels that the device updates in every step")},
    {DS_CHOICE(
        ZENF "select_strategy", zenflow.select_strategy, "auto|step|epoch", "auto",
        "when important channels are chosen again; auto: every epoch, or earlier if needed")},
    {DS_NUMBER_OR("auto", CONFIG_INT, ZENF "select_interval", zenflow.select_interval, "auto", 1,
                  INT_MAX, "steps or epochs between choices, with step and epoch")},
    {DS_NUMBER_OR(
        "auto|keep_up", CONFIG_INT, ZENF "update_interval", zenflow.update_interval, "auto", 1,
        INT_MAX,
        "steps that the host's update of the other channels covers; keep_up: the least "
        "with which host and link keep up, measured in the first steps; auto: DeepSpeed's "
        "rule, but no less")},
    {DS_BOOL(ZENF "overlap_step", zenflow.overlap_step, "false",
             "the host updates while the device goes on")},
    {DS_TRUTH(ZENF "offload", zenflow.offload, "false",
              "the important channels' state stays on the host between steps; auto: where it does "
              "not fit on a GPU")},
    {DS_NUMBER(CONFIG_REAL, ZENF "auto_ratio", zenflow.auto_ratio, "0.99", 0, 1,
               "share of matrices that must be due before an automatic update")},
    {DS_NUMBER(CONFIG_INT, ZENF "full_warm_up_rounds", zenflow.full_warm_up_rounds, "0", 0, INT_MAX,
               "steps at the start that update every channel")},
    {DS_NUMBER(CONFIG_REAL, ZENF "pt_reserved_cores_perc", zenflow.pt_reserved_cores_perc, "0.5", 0,
               1, "share of the rank's cores that the host's workers leave alone")},
    {DS_BOOL(ZENF "stagger", zenflow.stagger, "true",
             "close one group's window each step, not all at once")},
    {DS_NUMBER(CONFIG_INT, ZENF "apply_lag", zenflow.apply_lag, "1", 0, INT_MAX,
               "steps until an update of the host is visible; 0 without overlap_step")},
    {DS_CHOICE(ZENF "accumulate", zenflow.accumulate, "auto|device|host", "auto",
               "where deferred gradients are summed; auto: on the device if they fit")},
    {DS_NUMBER_OR(
        "auto", CONFIG_INT, ZENF "device_windows", zenflow.device_windows, "auto", 0, INT_MAX,
        "with accumulate host: blocks whose sums are on the device all the same; auto: as "
        "many as fit where accumulate is auto, else none")},
    {DS_CHOICE(ZENF "deferred_update", zenflow.deferred_update, "one_step|all_steps", "one_step",
               "what a deferred update stands for: one AdamW step with the mean gradient, or all "
               "steps that it covers")},
    {DS_NUMBER_OR("sqrt", CONFIG_REAL, ZENF "deferred_lr_scale", zenflow.deferred_lr_scale, "1.0",
                  ABOVE_0, NO_END,
                  "learning rate of deferred updates as a multiple; sqrt: of the steps covered")},
};
const int config_table_rows = sizeof config_table / sizeof *config_table;
