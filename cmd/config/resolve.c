/* What follows from the values given: the batch triple, schedules, defaults that depend on others,
 * and the refusal of what contradicts itself or is missing. */
#include "cmd/config/table.h"
#include "data/alloc.h"
#include "data/log.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum config_level level_of(const struct config *c, const char *name)
{
    return config_origin_of(c, name)->level;
}

static void replace(char **string, const char *text)
{
    char *copy = text ? zf_strdup(text) : NULL;
    free(*string);
    *string = copy;
}

static bool fail_task(const struct config *c, struct zf_error *err)
{
    char names[256] = "", expected[512], hint[256];
    const struct glue_task *task;
    for (int i = 0; (task = glue_task_at(i)); i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? "|" : "", task->name);
    }
    struct config_key choice = {.type = CONFIG_CHOICE, .choices = names};
    json_t *value = json_string(c->task_name);
    config_expected(&choice, expected, sizeof expected);
    config_suggest_value(&choice, value, hint, sizeof hint);
    json_decref(value);
    return config_clash(c, "task_name", err, "it is %s%s", expected, hint);
}

/* Puts one key aside for another, which was given later. */
static void drop(struct config *c, const char *name, char **string)
{
    replace(string, NULL);
    config_mark_auto(c, name);
}

/* Whether the option names a file that can be none of GLUE's, whose files are TSV. */
static bool is_option_of_own(const struct config *c, const char *name, const char *path)
{
    static const char *const endings[] = {".csv", ".json", ".jsonl"};
    const char *dot = path ? strrchr(path, '.') : NULL;
    if (!dot || level_of(c, name) != LEVEL_OPTION)
        return false;
    for (int i = 0; i < 3; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

/* A file's GLUE task, as the ready configurations have one, is put aside for own examples. */
static void drop_task(struct config *c)
{
    const bool own = is_option_of_own(c, "train_file", c->train_file) ||
                     is_option_of_own(c, "validation_file", c->validation_file) ||
                     is_option_of_own(c, "test_file", c->test_file);
    if (c->task_name && own && level_of(c, "task_name") == LEVEL_FILE &&
        strcasecmp(c->task_name, "lm") != 0)
        drop(c, "task_name", &c->task_name);
}

/* What is said of a person's own examples has no meaning where the task says it. */
static bool check_columns(const struct config *c, struct zf_error *err)
{
    static const char *const keys[] = {"text_column", "text_pair_column", "label_column"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!config_is_given(c, keys[i]))
            continue;
        if (c->task->n_labels == 0)
            return config_clash(c, keys[i], err, "task lm reads the column \"text\"");
        config_warn_idle(c, keys[i], "task %s's files have their own columns", c->task->name);
    }
    return true;
}

static bool resolve_task(struct config *c, struct zf_error *err)
{
    struct zf_error unknown;
    drop_task(c);
    if (!c->task_name)
        return true;
    c->task = glue_find_task(c->task_name, &unknown);
    if (!c->task)
        return fail_task(c, err);
    replace(&c->task_name, c->task->name);
    if (c->task->n_labels == 0 && c->do_predict)
        return config_clash(c, "do_predict", err, "task lm has no predictions to make");
    return check_columns(c, err);
}

static bool resolve_model(struct config *c, struct zf_error *err)
{
    enum config_level model = level_of(c, "model_name_or_path");
    enum config_level shape = level_of(c, "config_name");
    if (c->model_name_or_path && c->config_name) {
        if (model == shape)
            return config_clash(c, "config_name", err,
                                "model_name_or_path is given too: name a trained model, or a shape "
                                "for random initialisation");
        if (model > shape)
            drop(c, "config_name", &c->config_name);
        else
            drop(c, "model_name_or_path", &c->model_name_or_path);
    }
    if (c->model_name_or_path && level_of(c, "tokenizer_name") < model)
        drop(c, "tokenizer_name", &c->tokenizer_name);
    if (!c->tokenizer_name && c->model_name_or_path) {
        replace(&c->tokenizer_name, c->model_name_or_path);
        config_mark_auto(c, "tokenizer_name");
    }
    return true;
}

/* train_batch_size = micro-batch * accumulation * ranks: what is not given follows from the rest,
 * as in DeepSpeed; with train_batch_size alone, accumulation keeps its default. */
static bool resolve_batches(struct config *c, struct zf_error *err)
{
    bool micro_given = config_is_given(c, "per_device_train_batch_size");
    bool steps_given = config_is_given(c, "gradient_accumulation_steps");
    long long ranks = c->n_ranks, total = c->train_batch_size;
    long long micro = c->per_device_train_batch_size, steps = c->gradient_accumulation_steps;
    if (total == CONFIG_AUTO) {
        if (micro * steps > INT_MAX / ranks)
            return config_clash(
                c, "per_device_train_batch_size", err,
                "with %lld accumulation steps and %lld ranks a step would have more "
                "than %d examples",
                steps, ranks, INT_MAX);
        c->train_batch_size = (int)(micro * steps * ranks);
        config_mark_auto(c, "train_batch_size");
        return true;
    }
    c->divides_batch = !micro_given && !steps_given;
    if (!micro_given) {
        micro = total / (steps * ranks) > 0 ? total / (steps * ranks) : 1;
        config_mark_auto(c, "per_device_train_batch_size");
    } else if (!steps_given) {
        steps = total / (micro * ranks) > 0 ? total / (micro * ranks) : 1;
        config_mark_auto(c, "gradient_accumulation_steps");
    }
    c->per_device_train_batch_size = (int)micro;
    c->gradient_accumulation_steps = (int)steps;
    if ((double)micro * (double)steps * (double)ranks != (double)total)
        return config_clash(c, "train_batch_size", err,
                            "it is per_device_train_batch_size x gradient_accumulation_steps x "
                            "ranks, and %lld x %lld x %lld "
                            "is %.0f",
                            micro, steps, ranks, (double)micro * (double)steps * (double)ranks);
    return true;
}

static bool resolve_optimizer(struct config *c, struct zf_error *err)
{
    if (c->optimizer_type == OPTIMIZER_ADAMW && !c->adam_w_mode)
        return config_clash(
            c, "optimizer.params.adam_w_mode", err,
            "optimizer.type is \"AdamW\", which decouples weight decay: use \"Adam\"");
    if (c->offload_optimizer == OFFLOAD_CPU && c->zero_stage == 0)
        return config_clash(c, "zero_optimization.offload_optimizer.device", err,
                            "offloading needs zero_optimization.stage 1, 2 or 3, and it is 0");
    return true;
}

/* Whether the device updates every channel, and so keeps all parameters. */
static bool updates_all(const struct config *c)
{
    return c->zenflow.enabled && c->zenflow.topk_ratio == 1;
}

bool config_can_offload_parameters(const struct config *c)
{
    return !c->do_train || (c->offload_optimizer == OFFLOAD_CPU && !updates_all(c));
}

/* Where parameters live. */
static bool resolve_parameters(struct config *c, struct zf_error *err)
{
    const char *device = "zero_optimization.offload_param.device";
    if (c->offload_param != OFFLOAD_NONE && c->zero_stage != 3)
        return config_clash(c, device, err, "parameters are offloaded in stage 3, and it is %d",
                            c->zero_stage);
    if (c->offload_param == OFFLOAD_AUTO && !config_can_offload_parameters(c)) {
        c->offload_param = OFFLOAD_NONE;
        config_mark_auto(c, device);
    }
    const bool offloads = c->offload_param == OFFLOAD_CPU;
    if (offloads && c->do_train && c->offload_optimizer != OFFLOAD_CPU)
        return config_clash(c, device, err,
                            "where parameters live on the host, so does the optimizer's state: "
                            "offload_optimizer.device must be \"cpu\" too");
    if (offloads && c->do_train && updates_all(c))
        return config_clash(c, device, err,
                            "with topk_ratio 1 the device updates all of them, and keeps them");
    if (c->zero_stage == 3 && c->n_ranks == 1 && c->offload_param == OFFLOAD_NONE)
        log_warn("zero_optimization.stage 3 divides parameters over ranks: with one rank, and "
                 "offload_param.device \"none\", it is stage 2");
    return true;
}

#define SCHED "scheduler.params."

static const struct {
    enum lr_scheduler equivalent;
    const char *means, *lacks;
} scheduler_types[] = {
    [DS_SCHEDULER_NONE] = {.lacks = "is not given: WarmupLR, WarmupDecayLR or WarmupCosineLR"},
    [DS_WARMUP_LR] = {LR_CONSTANT_WITH_WARMUP, "\"WarmupLR\", which is constant_with_warmup",
                      "\"WarmupLR\" has no such key"},
    [DS_WARMUP_DECAY_LR] = {LR_LINEAR, "\"WarmupDecayLR\", which is linear",
                            "\"WarmupDecayLR\" has no such key"},
    [DS_WARMUP_COSINE_LR] = {LR_COSINE, "\"WarmupCosineLR\", which is cosine",
                             "\"WarmupCosineLR\" has no such key"},
};

static const char *const scheduler_params[] = {
    SCHED "warmup_type",   SCHED "warmup_num_steps", SCHED "total_num_steps", SCHED "warmup_min_lr",
    SCHED "warmup_max_lr", SCHED "warmup_min_ratio", SCHED "cos_min_ratio",
};
static const int n_scheduler_params = sizeof scheduler_params / sizeof *scheduler_params;

bool config_scheduler_takes(enum ds_scheduler type, const char *param)
{
    bool is_rate = strstr(param, "_lr"), is_ratio = strstr(param, "_ratio");
    if (type == DS_SCHEDULER_NONE)
        return false;
    if (type == DS_WARMUP_LR && strcmp(param, SCHED "total_num_steps") == 0)
        return false;
    return type == DS_WARMUP_COSINE_LR ? !is_rate : !is_ratio;
}

static bool refuse_misplaced(const struct config *c, struct zf_error *err)
{
    for (int i = 0; i < n_scheduler_params; i++)
        if (config_is_given(c, scheduler_params[i]) &&
            !config_scheduler_takes(c->scheduler.type, scheduler_params[i]))
            return config_clash(c, scheduler_params[i], err, "scheduler.type %s",
                                scheduler_types[c->scheduler.type].lacks);
    return true;
}

/* Whether scheduler.type or lr_scheduler_type decides; the other is made to agree. */
static bool choose_scheduler(struct config *c, struct zf_error *err)
{
    enum config_level theirs = level_of(c, "scheduler.type");
    enum config_level ours = level_of(c, "lr_scheduler_type");
    if (c->scheduler.type == DS_SCHEDULER_NONE)
        return theirs >= LEVEL_FILE || refuse_misplaced(c, err);
    if (ours > theirs) {
        c->scheduler.type = DS_SCHEDULER_NONE;
        config_mark_auto(c, "scheduler.type");
        return true;
    }
    if (ours == theirs && c->lr_scheduler_type != scheduler_types[c->scheduler.type].equivalent)
        return config_clash(c, "lr_scheduler_type", err, "scheduler.type is %s",
                            scheduler_types[c->scheduler.type].means);
    if (ours < LEVEL_FILE || c->lr_scheduler_type != scheduler_types[c->scheduler.type].equivalent)
        config_mark_auto(c, "lr_scheduler_type");
    c->lr_scheduler_type = scheduler_types[c->scheduler.type].equivalent;
    return refuse_misplaced(c, err);
}

/* What a key of the scheduler block and its partner in training_arguments amount to: true where the
 * partner decides. *clash is set where both were given beside each other. */
static bool partner_decides(const struct config *c, const char *name, const char *partner,
                            bool is_auto, bool *clash)
{
    enum config_level theirs = level_of(c, name), ours = level_of(c, partner);
    const struct config_origin *origin = config_origin_of(c, partner);
    bool second_name = ours == LEVEL_FILE && origin->by->same_as; /* optimizer.params.lr */
    *clash = !is_auto && ours >= LEVEL_FILE && ours == theirs && !second_name;
    return is_auto || (ours > theirs && !second_name);
}

static bool resolve_peak(struct config *c, struct zf_error *err)
{
    const char *name = SCHED "warmup_max_lr";
    bool clash;
    bool is_auto = c->scheduler.warmup_max_lr == CONFIG_AUTO ||
                   (c->scheduler.type == DS_WARMUP_LR && !config_is_given(c, name));
    bool follows = partner_decides(c, name, "learning_rate", is_auto, &clash);
    if (clash && c->scheduler.warmup_max_lr != c->learning_rate)
        return config_clash(c, name, err, "learning_rate is %g: give one of them, or \"auto\"",
                            c->learning_rate);
    if (follows) {
        c->scheduler.warmup_max_lr = c->learning_rate;
        config_mark_auto(c, name);
    } else if (!config_is_given(c, name)) {
        log_warn("%s is not given, and DeepSpeed's WarmupDecayLR then warms up to %g, whatever the "
                 "optimizer's lr is (\"auto\" takes that)",
                 name, c->scheduler.warmup_max_lr);
    }
    if (c->scheduler.warmup_min_lr == CONFIG_AUTO) {
        c->scheduler.warmup_min_lr = 0;
        config_mark_auto(c, SCHED "warmup_min_lr");
    }
    return true;
}

static bool resolve_scheduler(struct config *c, struct zf_error *err)
{
    static const char *const partners[] = {"warmup_steps", "warmup_ratio"};
    const char *name = SCHED "warmup_num_steps";
    bool clash, follows = false;
    if (!choose_scheduler(c, err))
        return false;
    if (c->scheduler.type == DS_SCHEDULER_NONE)
        return true;
    bool is_auto = c->scheduler.warmup_num_steps == CONFIG_AUTO;
    for (int i = 0; i < 2; i++) {
        follows |= partner_decides(c, name, partners[i], is_auto, &clash);
        if (clash && (i == 1 || c->scheduler.warmup_num_steps != c->warmup_steps))
            return config_clash(c, name, err, "%s is given too: give one of them, or \"auto\"",
                                partners[i]);
    }
    if (follows) {
        c->scheduler.warmup_num_steps = CONFIG_AUTO; /* until the run's length is known */
        config_mark_auto(c, name);
    }
    return c->scheduler.type == DS_WARMUP_COSINE_LR || resolve_peak(c, err);
}

static bool resolve_device(struct config *c, struct zf_error *err)
{
    enum config_level device = level_of(c, "device"), use_cpu = level_of(c, "use_cpu");
    if (!c->use_cpu)
        return true;
    if (c->device == CONFIG_DEVICE_CUDA && device == use_cpu)
        return config_clash(c, "use_cpu", err, "device is \"cuda\"");
    if (device > use_cpu) {
        if (c->device != CONFIG_DEVICE_CPU)
            config_mark_auto(c, "use_cpu");
        c->use_cpu = c->device == CONFIG_DEVICE_CPU;
    } else if (c->device != CONFIG_DEVICE_CPU) {
        c->device = CONFIG_DEVICE_CPU;
        config_mark_auto(c, "device");
    }
    return true;
}

/* Transformers' rule, where it is asked for at least one of the three: the others are false, but
 * that eval_strategy asks for evaluation too. */
static void resolve_actions(struct config *c)
{
    struct {
        const char *name;
        bool *value, otherwise;
    } actions[] = {{"do_train", &c->do_train, false},
                   {"do_eval", &c->do_eval, c->eval_strategy != STRATEGY_NO},
                   {"do_predict", &c->do_predict, false}};
    bool asked = false;
    for (int i = 0; i < 3; i++)
        asked |= config_is_given(c, actions[i].name) && *actions[i].value;
    if (!asked)
        return;
    for (int i = 0; i < 3; i++)
        if (!config_is_given(c, actions[i].name) && *actions[i].value != actions[i].otherwise) {
            *actions[i].value = actions[i].otherwise;
            config_mark_auto(c, actions[i].name);
        }
}

static bool resolve_evaluation(struct config *c, struct zf_error *err)
{
    if (c->eval_steps != CONFIG_AUTO && !config_is_given(c, "eval_strategy")) {
        c->eval_strategy = STRATEGY_STEPS;
        config_mark_auto(c, "eval_strategy");
    }
    resolve_actions(c);
    if (!c->do_eval && c->eval_strategy != STRATEGY_NO) {
        if (level_of(c, "do_eval") <= level_of(c, "eval_strategy"))
            return config_clash(c, "do_eval", err, "eval_strategy asks for evaluation");
        c->eval_strategy = STRATEGY_NO;
        config_mark_auto(c, "eval_strategy");
    }
    if (c->eval_strategy == STRATEGY_STEPS && c->eval_steps == CONFIG_AUTO) {
        c->eval_steps = c->logging_steps;
        config_mark_auto(c, "eval_steps");
    }
    return true;
}

/* Who asks for an evaluation to be found the best: a key's name, or NULL. */
static const char *seeker_of_best(const struct config *c)
{
    return c->load_best_model_at_end           ? "load_best_model_at_end"
           : c->save_strategy == STRATEGY_BEST ? "save_strategy"
           : c->early_stopping_patience > 0    ? "early_stopping_patience"
                                               : NULL;
}

/* The checkpoint to end with must have been evaluated. Shares of all steps are looked at when their
 * number is known. */
static bool check_best(const struct config *c, struct zf_error *err)
{
    if (c->eval_strategy == STRATEGY_NO || c->save_strategy != c->eval_strategy)
        return config_clash(c, "load_best_model_at_end", err,
                            "it needs eval_strategy and save_strategy to be both \"steps\" or both "
                            "\"epoch\", or save_strategy \"best\" with either");
    if (c->save_strategy == STRATEGY_STEPS && c->save_steps >= 1 && c->eval_steps >= 1 &&
        fmod(c->save_steps, c->eval_steps) != 0)
        return config_clash(c, "load_best_model_at_end", err,
                            "it needs save_steps (%g) to be a multiple of eval_steps (%g)",
                            c->save_steps, c->eval_steps);
    return true;
}

/* What is measured, and which way is better. */
static void resolve_metric(struct config *c)
{
    if (!c->metric_for_best_model) {
        replace(&c->metric_for_best_model, "loss");
        config_mark_auto(c, "metric_for_best_model");
    } else if (strncmp(c->metric_for_best_model, "eval_", 5) == 0) {
        replace(&c->metric_for_best_model, c->metric_for_best_model + 5);
    }
    if (!config_is_given(c, "greater_is_better")) {
        c->greater_is_better = !strstr(c->metric_for_best_model, "loss") &&
                               !strstr(c->metric_for_best_model, "perplexity") &&
                               !strstr(c->metric_for_best_model, "mse");
        config_mark_auto(c, "greater_is_better");
    }
}

static bool resolve_best(struct config *c, struct zf_error *err)
{
    const char *seeker = seeker_of_best(c);
    if (c->early_stopping_threshold > 0 && c->early_stopping_patience < 1)
        return config_clash(c, "early_stopping_threshold", err,
                            "early_stopping_patience, which it belongs to, is not given");
    if (!seeker && !c->metric_for_best_model)
        return true;
    resolve_metric(c);
    if (!seeker || !c->do_train)
        return true;
    if (c->load_best_model_at_end && c->save_strategy != STRATEGY_BEST && !check_best(c, err))
        return false;
    if (c->eval_strategy == STRATEGY_NO)
        return config_clash(c, seeker, err,
                            "nothing is evaluated while training: it needs eval_strategy "
                            "\"steps\" or \"epoch\"");
    if (c->early_stopping_patience > 0 && !c->load_best_model_at_end)
        log_warn("early_stopping_patience without load_best_model_at_end: the run leaves the model "
                 "of its last step, not the best one");
    return true;
}

static bool is_own(const struct config *c)
{
    return !c->task && (c->train_file || c->validation_file || c->test_file);
}

/* "90m", or Slurm's "1-12:00:00"; in seconds, 0: it is neither. */
static double read_time(const char *text)
{
    static const struct {
        char unit;
        double seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    unsigned days = 0, hours, minutes, seconds;
    int end = 0;
    size_t digits = strspn(text, "0123456789.");
    char *after;
    double number = strtod(text, &after);
    if (digits > 0 && after == text + digits)
        for (int i = 0; i < 4; i++)
            if (*after == units[i].unit && !after[1])
                return number * units[i].seconds;
    if (strspn(text, "0123456789-:") != strlen(text))
        return 0;
    if (sscanf(text, "%6u-%2u:%2u:%2u%n", &days, &hours, &minutes, &seconds, &end) < 4) {
        days = 0;
        end = 0;
        if (sscanf(text, "%6u:%2u:%2u%n", &hours, &minutes, &seconds, &end) < 3)
            return 0;
    }
    return text[end] || minutes > 59 || seconds > 59
               ? 0
               : 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds;
}

static bool resolve_runtime(struct config *c, struct zf_error *err)
{
    char expected[512];
    if (!c->max_runtime)
        return true;
    c->max_seconds = read_time(c->max_runtime);
    return c->max_seconds > 0 || config_clash(c, "max_runtime", err, "it is %s",
                                              config_expected(config_find_option("max_runtime"),
                                                              expected, sizeof expected));
}

/* The data of one split: where they come from, or a fault that says what to give. */
static bool need_data(const struct config *c, const char *what, bool wanted, const char *file,
                      const char *file_key, struct zf_error *err)
{
    bool lm = c->task && c->task->n_labels == 0;
    if (!wanted || file || (c->data_dir && c->task && !lm))
        return true;
    if (lm)
        return zf_fail_usage(err, "%s is not given: %s on task lm needs a text file", file_key,
                             what);
    if (is_own(c))
        return zf_fail_usage(err, "%s is not given: %s needs a file of examples", file_key, what);
    return zf_fail_usage(
        err,
        "data_dir is not given: %s on task %s needs the folder of its GLUE files, or "
        "%s",
        what, c->task->name, file_key);
}

static bool check_complete(struct config *c, struct zf_error *err)
{
    if (!c->do_train && !c->do_eval && !c->do_predict)
        return config_clash(c, "do_train", err,
                            "do_eval and do_predict are false too: there is nothing to do");
    if (!c->task && !is_own(c))
        return zf_fail_usage(
            err, "task_name is not given: a GLUE task, or lm; or train_file, for examples "
                 "of your own");
    if (!c->model_name_or_path && !c->config_name)
        return zf_fail_usage(
            err, "model_name_or_path is not given: the folder of a model, or config_name "
                 "for random initialisation");
    if (!c->tokenizer_name)
        return config_clash(c, "config_name", err,
                            "tokenizer_name is not given: the folder of its "
                            "tokenizer");
    if (!c->output_dir && !c->plan && (c->do_train || c->do_predict))
        return zf_fail_usage(err, "output_dir is not given: the folder for what this run makes");
    bool found = need_data(c, "training", c->do_train, c->train_file, "train_file", err) &&
                 need_data(c, "prediction", c->do_predict, c->test_file, "test_file", err);
    if (!found)
        return false;
    bool held_out = (is_own(c) || c->task->n_labels == 0) && c->do_train; /* of train_file */
    if (held_out ||
        need_data(c, "evaluation", c->do_eval, c->validation_file, "validation_file", err))
        return true;
    if (config_is_given(c, "do_eval") || c->eval_strategy != STRATEGY_NO || !c->do_train)
        return false;
    c->do_eval = false; /* true was only the default */
    config_mark_auto(c, "do_eval");
    return true;
}

/* A folder within output_path, and nowhere else. */
static bool check_monitor(const struct config *c, const struct monitor_config *monitor,
                          const char *key, struct zf_error *err)
{
    const char *name = monitor->job_name;
    bool within = name && *name != '/';
    for (const char *part = name; within && part; part = strchr(part, '/'), part += part != NULL)
        within = strncmp(part, "..", 2) != 0 || (part[2] && part[2] != '/');
    return within || config_clash(c, key, err, "it is the name of a folder within %.*s.output_path",
                                  (int)strcspn(key, "."), key);
}

/* "none", "all", which is all that there is, or names. */
static bool resolve_reports(struct config *c, struct zf_error *err)
{
    const char *name = c->report_to ? c->report_to : "none";
    c->reports_to_tensorboard = strcmp(name, "all") == 0;
    if (c->reports_to_tensorboard || strcmp(name, "none") == 0)
        return true;
    for (; *name; name += strspn(name, ", ")) {
        const size_t n = strcspn(name, ", ");
        if (n == 5 && strncmp(name, "wandb", n) == 0)
            return config_clash(c, "report_to", err, "%s", CONFIG_NO_WANDB);
        if (n != 11 || strncmp(name, "tensorboard", n) != 0)
            return config_clash(c, "report_to", err, "%s", CONFIG_REPORTS);
        c->reports_to_tensorboard = true;
        name += n;
    }
    return true;
}

static bool check_plan(const struct config *c, struct zf_error *err)
{
    return c->plan || c->plan_ranks == 1 ||
           config_clash(c, "plan_ranks", err,
                        "plan, which names the machine to simulate, is not given: ranks of a run "
                        "are mpirun's");
}

bool config_resolve(struct config *c, struct zf_error *err)
{
    const bool ok =
        check_plan(c, err) && check_monitor(c, &c->csv_monitor, "csv_monitor.job_name", err) &&
        check_monitor(c, &c->tensorboard, "tensorboard.job_name", err) && resolve_reports(c, err) &&
        resolve_task(c, err) && resolve_model(c, err) && resolve_batches(c, err) &&
        resolve_device(c, err) && resolve_optimizer(c, err) && resolve_scheduler(c, err) &&
        resolve_evaluation(c, err) && resolve_best(c, err) && zenflow_config_resolve(c, err) &&
        resolve_parameters(c, err) && resolve_runtime(c, err) &&
        (c->action != CONFIG_RUN || check_complete(c, err));
    if (ok)
        config_warn_of_idle(c);
    return ok;
}

static void warn_of_no_warm_up(const struct config *c)
{
    if (c->warmup_steps > 0 && c->lr_scheduler_type == LR_CONSTANT)
        log_warn(
            "there are %g steps of warm-up (warmup_steps, warmup_ratio), but lr_scheduler_type "
            "\"constant\" has none: \"constant_with_warmup\" has",
            c->warmup_steps);
}

static void resolve_scheduler_steps(struct config *c)
{
    struct scheduler_config *s = &c->scheduler;
    if (s->type == DS_SCHEDULER_NONE)
        return;
    if (s->warmup_num_steps == CONFIG_AUTO)
        s->warmup_num_steps = c->warmup_steps > 0 ? (int)c->warmup_steps : 1;
    if (c->warmup_steps != s->warmup_num_steps)
        config_mark_auto(c, "warmup_steps");
    c->warmup_steps = s->warmup_num_steps;
    if (s->type == DS_WARMUP_LR)
        return;
    if (s->total_num_steps == CONFIG_AUTO) {
        s->total_num_steps = c->total_steps;
        config_mark_auto(c, SCHED "total_num_steps");
    } else if (s->total_num_steps != c->total_steps) {
        log_warn("scheduler.params.total_num_steps is %d, but the run has %d steps",
                 s->total_num_steps, c->total_steps);
    }
}

/* Numbers of steps that are given as shares of all, as Transformers 5 rounds them. */
static bool resolve_shares(struct config *c, struct zf_error *err)
{
    const struct {
        const char *name;
        double *steps;
    } shares[] = {{"warmup_steps", &c->warmup_steps},
                  {"logging_steps", &c->logging_steps},
                  {"eval_steps", &c->eval_steps},
                  {"save_steps", &c->save_steps}};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        if (*shares[i].steps > 0 && *shares[i].steps < 1) {
            *shares[i].steps = ceil(c->total_steps * *shares[i].steps);
            config_mark_auto(c, shares[i].name);
        }
    if (!c->load_best_model_at_end || c->save_strategy != STRATEGY_STEPS ||
        fmod(c->save_steps, c->eval_steps) == 0)
        return true;
    return config_clash(c, "load_best_model_at_end", err,
                        "it needs save_steps to be a multiple of eval_steps, and of %d steps they "
                        "are %g and %g",
                        c->total_steps, c->save_steps, c->eval_steps);
}

bool config_resolve_steps(struct config *c, int train_examples, struct zf_error *err)
{
    if (train_examples < 1)
        return zf_fail(err, "there are no training examples");
    long long batch = c->train_batch_size;
    c->steps_per_epoch = (int)((train_examples + batch - 1) / batch);
    double steps = c->max_steps > 0 ? c->max_steps : ceil(c->num_train_epochs * c->steps_per_epoch);
    if (steps > INT_MAX)
        return config_clash(c, "num_train_epochs", err, "of %d steps each, that is more than %d",
                            c->steps_per_epoch, INT_MAX);
    c->total_steps = (int)steps;
    if (!resolve_shares(c, err))
        return false;
    if (c->warmup_steps == 0 && c->warmup_ratio > 0) {
        c->warmup_steps = ceil(c->warmup_ratio * c->total_steps);
        config_mark_auto(c, "warmup_steps");
    }
    if (c->warmup_ratio > 0)
        config_mark_auto(c, "warmup_ratio");
    c->warmup_ratio = 0; /* counted into warmup_steps */
    resolve_scheduler_steps(c);
    warn_of_no_warm_up(c);
    return zenflow_config_check_epoch(c, err);
}
