#include "cmd/train.h"

#include "cmd/checkpoint.h"
#include "cmd/evaluate.h"
#include "cmd/lr_schedule.h"
#include "cmd/monitor.h"
#include "cmd/progress.h"
#include "cmd/step.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct trainer {
    struct run *run;
    struct stepper stepper;
    struct train_state state;
    struct progress *progress;  /* rank 0, else NULL */
    struct monitor *monitor;    /* rank 0, else NULL */
    int *order;                 /* (n_sequences) the current epoch's order */
    int epoch;                  /* that `order` belongs to, -1: none yet */
    struct telemetry telemetry; /* since the last log entry */
    bool offloads;              /* some state lives on the host */
    json_t *last_evaluation;    /* and the step that it belongs to */
    int last_evaluation_step;
};

/* The examples of a step, as indices into the training set; how many into *n. */
static const int *examples_of_step(struct trainer *t, int step, int *n)
{
    const struct config *c = t->run->config;
    const struct dataset *d = &t->run->train;
    int epoch = step / c->steps_per_epoch, first = step % c->steps_per_epoch * c->train_batch_size;
    if (epoch != t->epoch)
        sampler_shuffle(t->order, d->n_sequences, (uint64_t)c->seed, epoch);
    t->epoch = epoch;
    *n =
        d->n_sequences - first < c->train_batch_size ? d->n_sequences - first : c->train_batch_size;
    return t->order + first;
}

static double epoch_of(const struct trainer *t)
{
    return (double)t->state.step / t->run->config->steps_per_epoch;
}

/* A log entry that begins with step and epoch; NULL on ranks that do not log. */
static json_t *new_entry(const struct trainer *t)
{
    if (!t->progress)
        return NULL;
    json_t *entry = json_object();
    json_object_set_new(entry, "step", json_integer(t->state.step));
    json_object_set_new(entry, "epoch", json_real(epoch_of(t)));
    return entry;
}

/* Only rank 0 logs, so its fault is nobody else's to wait for. */
static void write_entry(struct trainer *t, json_t *entry)
{
    struct zf_error err;
    if (!progress_log(t->progress, entry, &err))
        comm_abort(t->run->comm, &err);
}

static void log_step(struct trainer *t, float lr, const struct step_report *report)
{
    struct train_state *s = &t->state;
    const struct config *c = t->run->config;
    bool due = s->step % c->logging_steps == 0 || (c->logging_first_step && s->step == 1);
    if (!due || s->loss_steps == 0)
        return;
    json_t *entry = new_entry(t);
    if (entry) {
        double loss = s->loss_sum / s->loss_steps;
        json_object_set_new(entry, "loss", json_real(loss));
        json_object_set_new(entry, "grad_norm", json_real(report->grad_norm));
        json_object_set_new(entry, "learning_rate", json_real(lr));
        json_object_set_new(entry, "tokens_per_second",
                            json_real(progress_tokens_per_second(t->progress)));
        json_object_set_new(entry, "step_seconds",
                            json_real(t->telemetry.step_seconds / t->telemetry.steps));
        if (t->offloads)
            telemetry_describe(&t->telemetry, gpt_params(t->run->model)->n_parameters, entry);
        if (s->skipped_steps)
            json_object_set_new(entry, "skipped_steps", json_integer(s->skipped_steps));
        long samples = (long)s->step * c->train_batch_size;
        monitor_write(t->monitor, "Train/Samples/train_loss", samples, loss);
        monitor_write(t->monitor, "Train/Samples/lr", samples, lr);
        write_entry(t, entry);
    }
    s->loss_sum = 0;
    s->loss_steps = 0;
    t->telemetry = (struct telemetry){0};
}

/* Remembers the best evaluation, for load_best_model_at_end. */
static void note_best(struct trainer *t, const json_t *results)
{
    const struct config *c = t->run->config;
    struct train_state *s = &t->state;
    if (!c->load_best_model_at_end)
        return;
    char *key = zf_format("eval_%s", c->metric_for_best_model);
    double value = json_number_value(json_object_get(results, key));
    free(key);
    if (s->best_step == 0 ||
        (c->greater_is_better ? value > s->best_metric : value < s->best_metric)) {
        s->best_metric = value;
        s->best_step = s->step;
    }
}

static void evaluate_now(struct trainer *t)
{
    struct run *run = t->run;
    json_t *results = json_object();
    engine_settle(run->engine);
    for (int i = 0; i < run->n_dev; i++)
        evaluate_split(run, &run->dev[i], results);
    note_best(t, results);
    json_t *entry = new_entry(t);
    if (entry) {
        json_object_update(entry, results);
        write_entry(t, entry);
    }
    json_decref(t->last_evaluation);
    t->last_evaluation = results;
    t->last_evaluation_step = t->state.step;
}

/* Whether something that happens every so many steps, or at each epoch's end, happens now. */
static bool is_due(const struct config *c, enum config_strategy strategy, int every, int step)
{
    return (strategy == STRATEGY_STEPS && step % every == 0) ||
           (strategy == STRATEGY_EPOCH && step % c->steps_per_epoch == 0);
}

static bool train_step(struct trainer *t, struct zf_error *err)
{
    struct train_state *s = &t->state;
    const struct config *c = t->run->config;
    struct step_result done;
    float lr = lr_at_step(c, s->step);
    double start = clock_seconds();
    int n;
    const int *examples = examples_of_step(t, s->step, &n);
    if (!step_run(&t->stepper, examples, n, s->step, lr, &done, err))
        return false;
    telemetry_add(&t->telemetry, &done.report, clock_seconds() - start);
    s->step++;
    if (done.report.skipped) {
        s->skipped_steps++;
        log_warn("step %d: the gradient is not finite; the step is skipped", s->step);
    } else {
        s->loss_sum += done.loss;
        s->total_loss_sum += done.loss;
        s->loss_steps++;
    }
    if (t->progress)
        progress_step(t->progress, s->step, epoch_of(t), done.loss, lr,
                      t->offloads ? telemetry_stall(&t->telemetry) : -1, done.tokens);
    log_step(t, lr, &done.report);
    if (t->run->n_dev && is_due(c, c->eval_strategy, c->eval_steps, s->step))
        evaluate_now(t);
    if (!is_due(c, c->save_strategy, c->save_steps, s->step))
        return true;
    engine_settle(t->run->engine);
    return checkpoint_save(t->run, s, err);
}

/* As run_glue.py: an output_dir that holds checkpoints is gone on with, unless it may be
 * overwritten. */
static bool resume(struct trainer *t, struct zf_error *err)
{
    const struct config *c = t->run->config;
    const char *from = c->resume_from_checkpoint;
    char *last = checkpoint_find_last(c->output_dir);
    bool ok = true;
    if (from && strcmp(from, "latest") == 0 && !last)
        ok = zf_fail(err, "resume_from_checkpoint: %s holds no checkpoint", c->output_dir);
    else if (from && strcmp(from, "latest") != 0)
        ok = checkpoint_load(t->run, from, &t->state, err);
    else if (last && (from || !c->overwrite_output_dir)) {
        log_info("resuming from %s (--overwrite_output_dir starts anew)", last);
        ok = checkpoint_load(t->run, last, &t->state, err);
    }
    free(last);
    return ok;
}

static bool open_reports(struct trainer *t, struct zf_error *err)
{
    const struct config *c = t->run->config;
    bool ok = true;
    if (comm_rank(t->run->comm) == 0) {
        t->progress = progress_create(c->output_dir, t->state.step, c->total_steps,
                                      !c->disable_tqdm && isatty(STDERR_FILENO), err);
        ok = t->progress && monitor_create(&t->monitor, &c->csv_monitor, err);
    }
    return comm_all_ok(t->run->comm, ok, err);
}

static bool load_best(struct trainer *t, struct zf_error *err)
{
    const struct config *c = t->run->config;
    struct train_state ignored;
    if (!c->load_best_model_at_end || !t->state.best_step || t->state.best_step == t->state.step)
        return true;
    char *path = zf_format("%s/checkpoint-%d", c->output_dir, t->state.best_step);
    log_info("loading the best model, of step %d: %s %g", t->state.best_step,
             c->metric_for_best_model, t->state.best_metric);
    bool ok = checkpoint_load(t->run, path, &ignored, err);
    free(path);
    t->last_evaluation_step = -1;
    return ok;
}

static void add_results(const struct trainer *t, int first_step, double runtime, json_t *results)
{
    const struct train_state *s = &t->state;
    int steps = s->step - first_step, counted = s->step - s->skipped_steps;
    double samples = (double)t->run->train.n_sequences * steps / t->run->config->steps_per_epoch;
    json_object_set_new(results, "epoch", json_real(epoch_of(t)));
    json_object_set_new(results, "global_step", json_integer(s->step));
    json_object_set_new(results, "train_loss",
                        json_real(counted ? s->total_loss_sum / counted : 0));
    json_object_set_new(results, "train_runtime", json_real(runtime));
    json_object_set_new(results, "train_samples", json_integer(t->run->train.n_sequences));
    if (runtime > 0) {
        json_object_set_new(results, "train_samples_per_second", json_real(samples / runtime));
        json_object_set_new(results, "train_steps_per_second", json_real(steps / runtime));
    }
}

static struct stepper stepper_of(struct run *run)
{
    const struct config *c = run->config;
    return (struct stepper){.model = run->model,
                            .engine = run->engine,
                            .comm = run->comm,
                            .trace = run->trace,
                            .set = &run->train,
                            .batch = &run->batch,
                            .n_labels = run->task->n_labels,
                            .micro_batch = c->per_device_train_batch_size,
                            .micro_batches = c->gradient_accumulation_steps,
                            .seed = (uint32_t)c->seed};
}

bool train_plan(struct run *run, int warm_up, int steps, struct plan_report *report,
                struct zf_error *err)
{
    struct trainer t = {.run = run, .stepper = stepper_of(run), .epoch = -1};
    bool ok = true;
    t.order = zf_malloc(sizeof(int) * (size_t)run->train.n_sequences);
    for (int step = 0; ok && step < warm_up + steps; step++) {
        struct step_result done;
        int n;
        const int *examples = examples_of_step(&t, step, &n);
        ok = step_run(&t.stepper, examples, n, step, lr_at_step(run->config, 0), &done, err);
        if (step + 1 == warm_up)
            plan_report_restart(report);
        else if (ok && step >= warm_up)
            plan_report_step(report, &done.report);
    }
    free(t.order);
    return ok;
}

bool train(struct run *run, json_t *results, struct zf_error *err)
{
    struct trainer t = {.run = run,
                        .stepper = stepper_of(run),
                        .epoch = -1,
                        .last_evaluation_step = -1,
                        .offloads = engine_memory(run->engine).host_elements > 0};
    t.order = zf_malloc(sizeof(int) * (size_t)run->train.n_sequences);
    bool ok = resume(&t, err) && open_reports(&t, err);
    int first_step = t.state.step;
    double start = clock_seconds();
    while (ok && t.state.step < run->config->total_steps)
        ok = train_step(&t, err);
    if (ok) {
        engine_finish(run->engine);
        add_results(&t, first_step, clock_seconds() - start, results);
        ok = load_best(&t, err);
    }
    if (ok && run->n_dev) {
        if (t.last_evaluation_step != t.state.step)
            evaluate_now(&t);
        json_object_update(results, t.last_evaluation);
    }
    monitor_destroy(t.monitor);
    progress_destroy(t.progress);
    json_decref(t.last_evaluation);
    free(t.order);
    return ok;
}
