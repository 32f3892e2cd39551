/* The whole configuration of a run as one struct: a DeepSpeed JSON file, with one more block,
 * "training_arguments", for what DeepSpeed leaves to the script, and command-line options over it.
 *
 * Names, defaults and meanings are those of DeepSpeed's configuration, of Transformers'
 * TrainingArguments and of run_glue.py. The differences:
 *   - where none of do_train, do_eval and do_predict is asked for, do_train and do_eval are; and
 * seed may stand at the file's top;
 *   - where DeepSpeed and training_arguments have a name each for the same thing
 * (optimizer.params.lr and learning_rate), they set the same field, "auto" and absence mean the
 * same, and two different values are a fault. An option outranks the file, under either name. So an
 * optimizer block without lr takes learning_rate, not DeepSpeed's 0.001;
 *   - total_num_steps may be left out: it is then the run's;
 *   - where things live on the device may be "auto": the plan of memory (cmd/memory_plan.h) settles
 *     it;
 *   - --model_name_or_path given as an option puts the file's config_name and tokenizer_name aside,
 *     and --config_name the file's model_name_or_path; --train_file, --validation_file or
 *     --test_file with a .csv, .json or .jsonl file the file's GLUE task.
 *
 * Each key, with its default, range and help, is one row of the table in table.c. This room
 * checks that a configuration makes sense; whether there is such a device is for the run to say.
 * Paths are relative to the current directory. */
#ifndef ZF_CMD_CONFIG_CONFIG_H
#define ZF_CMD_CONFIG_CONFIG_H

#include "data/error.h"
#include "data/glue.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A number that is not given, or is "auto" until it is resolved. */
#define CONFIG_AUTO    (-1)
#define CONFIG_KEEP_UP (-2) /* of update_interval */

enum config_action {
    CONFIG_RUN,
    CONFIG_HELP,    /* --help */
    CONFIG_PRINT,   /* --print_config */
    CONFIG_VERSION, /* --version */
};

/* Transformers' lr_scheduler_type. */
enum lr_scheduler {
    LR_LINEAR,
    LR_COSINE,
    LR_CONSTANT,
    LR_CONSTANT_WITH_WARMUP,
};

/* DeepSpeed's scheduler.type. */
enum ds_scheduler {
    DS_SCHEDULER_NONE, /* lr_scheduler_type counts instead */
    DS_WARMUP_LR,
    DS_WARMUP_DECAY_LR,
    DS_WARMUP_COSINE_LR,
};

enum warmup_type { WARMUP_LOG, WARMUP_LINEAR };

enum config_strategy {
    STRATEGY_NO,
    STRATEGY_STEPS,
    STRATEGY_EPOCH,
    STRATEGY_BEST, /* save_strategy alone: whenever an evaluation is the best so far */
};

enum config_device { CONFIG_DEVICE_AUTO, CONFIG_DEVICE_CPU, CONFIG_DEVICE_CUDA };

enum optimizer_type { OPTIMIZER_ADAMW, OPTIMIZER_ADAM };

enum offload_device { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_AUTO };

/* DeepSpeed's scheduler block. Counts only where type is not DS_SCHEDULER_NONE, and is then
 * complete after config_resolve_steps. */
struct scheduler_config {
    enum ds_scheduler type;
    enum warmup_type warmup_type;
    double warmup_min_lr, warmup_max_lr;    /* WarmupLR, WarmupDecayLR */
    double warmup_min_ratio, cos_min_ratio; /* WarmupCosineLR, as shares of learning_rate */
    int warmup_num_steps;                   /* at least 1 */
    int total_num_steps;                    /* WarmupDecayLR, WarmupCosineLR */
};

enum zenflow_strategy { ZENFLOW_SELECT_AUTO, ZENFLOW_SELECT_STEP, ZENFLOW_SELECT_EPOCH };
enum zenflow_accumulate {
    ZENFLOW_ACCUMULATE_AUTO,
    ZENFLOW_ACCUMULATE_DEVICE,
    ZENFLOW_ACCUMULATE_HOST
};

enum zenflow_deferred { ZENFLOW_ONE_STEP, ZENFLOW_ALL_STEPS };

#define ZENFLOW_LR_SQRT (-1.0) /* deferred_lr_scale: the square root of the window's length */

/* zero_optimization.zenflow. */
struct zenflow_config {
    bool enabled;      /* the block is there, or "enabled" says so */
    double topk_ratio; /* share of each matrix's channels that are updated every step, 0 to 1 */
    enum zenflow_strategy select_strategy;
    int select_interval; /* steps or epochs; CONFIG_AUTO with ZENFLOW_SELECT_AUTO alone */
    int update_interval; /* steps in a window; chosen while training: CONFIG_AUTO, CONFIG_KEEP_UP */
    bool overlap_step;   /* host updates run beside the device's next steps */
    int offload;         /* true: the important channels' state stays on the host between steps */
    double auto_ratio;   /* share of matrices that must be due before an "auto" window closes */
    int full_warm_up_rounds;       /* steps at the start that update every channel */
    double pt_reserved_cores_perc; /* share of cores kept from the host workers */
    bool stagger;                  /* one group's window closes each step */
    int apply_lag;                 /* steps until a host update is visible; 0 without overlap */
    enum zenflow_accumulate accumulate;
    int device_windows; /* blocks whose windows are not on the host with the others; CONFIG_AUTO */
    enum zenflow_deferred deferred_update; /* what a host update stands for, of its window */
    double deferred_lr_scale;              /* of host updates, or ZENFLOW_LR_SQRT */
};

/* Whether windows get the least length that host and link keep up with: "auto" compares what is
 * deferred with what is important, and with topk_ratio 0 nothing is. */
bool zenflow_keeps_up(const struct zenflow_config *z);

/* DeepSpeed's csv_monitor and tensorboard blocks. */
struct monitor_config {
    bool enabled;
    char *output_path; /* NULL: output_dir */
    char *job_name;    /* a folder within it */
};

struct config_origin;
struct manual;

struct config {
    enum config_action action;
    int n_ranks;
    struct config_origin *origins; /* where each value came from, by row of the table */

    /* model and data; strings are NULL where not given */
    char *model_name_or_path; /* a folder with a trained model ... */
    char *config_name;    /* ... or, for random initialisation, a preset or config.json's folder */
    char *tokenizer_name; /* a folder; model_name_or_path where not given */
    bool ignore_mismatched_sizes; /* a score head for other labels is replaced by a new one */
    char *task_name;              /* as in task->name */
    const struct glue_task *task; /* NULL where task_name is not given: own examples */
    char *data_dir, *train_file, *validation_file, *test_file;
    char *text_column, *text_pair_column, *label_column; /* of own examples */
    bool do_regression;
    int validation_split_percentage;
    char *output_dir;
    bool overwrite_output_dir;
    int max_seq_length;
    int max_train_samples, max_eval_samples, max_predict_samples; /* CONFIG_AUTO: all */
    double embd_pdrop, attn_pdrop, resid_pdrop;                   /* CONFIG_AUTO: the model's own */

    /* what to do */
    bool do_train, do_eval, do_predict;
    char *resume_from_checkpoint; /* a checkpoint's folder, or "latest" */
    int seed;
    enum config_device device;
    bool use_cpu;    /* device is then CONFIG_DEVICE_CPU */
    int ddp_timeout; /* seconds in which ranks give a sign of life; 0: for ever */
    int num_threads; /* 0: as many as there are cores for this rank */
    bool bf16;       /* a run on a GPU sets it */
    char *plan;      /* nothing is trained: steps are simulated on this machine */
    int plan_ranks;  /* with so many ranks */

    /* batches:
     * train_batch_size = per_device_train_batch_size * gradient_accumulation_steps * ranks */
    int train_batch_size, per_device_train_batch_size, gradient_accumulation_steps;
    int per_device_eval_batch_size;
    bool divides_batch;         /* train_batch_size is given, and neither of the next two: a smaller
                           micro-batch is as good */
    int gradient_checkpointing; /* true: backward computes each block's activations again */

    /* optimizer */
    enum optimizer_type optimizer_type;
    bool adam_w_mode; /* decoupled weight decay: AdamW, or Adam unless it says false */
    double learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon;
    double max_grad_norm; /* greatest global norm; 0: no clipping */

    /* length and learning rate; scheduler.type outranks lr_scheduler_type */
    double num_train_epochs;
    int max_steps; /* outranks num_train_epochs where it is above 0 */
    enum lr_scheduler lr_scheduler_type;
    double warmup_ratio;
    double warmup_steps; /* after config_resolve_steps with warmup_ratio counted in */
    struct scheduler_config scheduler;
    int steps_per_epoch, total_steps; /* set by config_resolve_steps */
    char *max_runtime;                /* as it was given, or NULL, */
    double max_seconds;               /* and in seconds; 0: no limit */

    /* reports, evaluation while training, checkpoints; what is below 1 is a share of all steps, and
     * like warmup_steps a whole number after config_resolve_steps */
    double logging_steps, eval_steps, save_steps;
    bool logging_first_step, disable_tqdm;
    enum config_strategy logging_strategy, eval_strategy, save_strategy;
    double eval_delay;    /* steps or epochs before the first evaluation, as eval_strategy says */
    int save_total_limit; /* CONFIG_AUTO: keep all */
    char *trace;          /* a file for a timeline in Chrome's trace format */
    bool load_best_model_at_end;
    char
        *metric_for_best_model; /* "loss", "accuracy", ...; set where some evaluation is to be found
                                    the best, for load_best_model_at_end, save_strategy "best" or
                                    early stopping */
    bool greater_is_better;
    int early_stopping_patience; /* evaluations; CONFIG_AUTO: the run goes to its end */
    double early_stopping_threshold;
    char *report_to;             /* as it was given: names with commas between */
    bool reports_to_tensorboard; /* and what follows from it */
    char *logging_dir;           /* then the folder of event files, or NULL */
    bool html_report;            /* output_dir/report.html */
    struct monitor_config csv_monitor, tensorboard;

    /* where optimizer state lives */
    int zero_stage;
    enum offload_device offload_optimizer, offload_param; /* the first is never "auto" */
    bool zero_copy;
    int prefetch, param_buffers;
    struct zenflow_config zenflow;
};

/* Fills c from the arguments and the file that --config names. n_ranks: of the whole run. Fails,
 * with a sentence that names file and line or option, on a value that is unknown, of a wrong type,
 * out of range, or against another; with CONFIG_RUN also on what a run cannot do without. Keys
 * without meaning here are accepted with one warning each. After a fault c is empty; either way
 * config_free is allowed. */
bool config_parse(struct config *c, int argc, char **argv, int n_ranks, struct zf_error *err);
void config_free(struct config *c);

/* Whether blocks' parameters may live on the host, but that it takes stage 3. */
bool config_can_offload_parameters(const struct config *c);

/* Every key's own default, an "auto" left as it is; for who has no file and no options. config_free
 * releases it. */
void config_defaults(struct config *c, int n_ranks);

/* Once the number of training examples (after max_train_samples) is known: steps_per_epoch,
 * total_steps, warmup_steps and the "auto"s of the scheduler. */
bool config_resolve_steps(struct config *c, int train_examples, struct zf_error *err);

/* Every option, by group, with its default. */
void config_add_options(struct manual *m);

/* The effective configuration, one line a key: "key = value  # where it came from", which is
 * "default", "FILE:LINE", "--option" or "auto"; with the name used there, if it was another. Values
 * are written as in JSON. */
void config_print(const struct config *c, FILE *out);
/* The same for programs: [{"heading", "keys": [[name, value, origin], ...]}, ...], all of them
 * texts. The caller releases it. */
json_t *config_describe(const struct config *c);

/* The effective configuration as a file that --config accepts and that gives the same run on the
 * same number of ranks: a DeepSpeed JSON with training_arguments, every value once, under its
 * DeepSpeed name if it has one, and no "auto" but those that are settled while training. To be
 * called after config_resolve_steps, where the run trains. */
bool config_write(const struct config *c, const char *path, struct zf_error *err);
/* What it writes. The caller releases it. */
json_t *config_json(const struct config *c);
/* One value, as it is written there; NULL: "auto". The caller releases it. */
json_t *config_option_value(const struct config *c, const char *option);

#endif
