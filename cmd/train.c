#include "cmd/train.h"

#include "cmd/checkpoint.h"
#include "cmd/evaluate.h"
#include "cmd/lr_schedule.h"
#include "cmd/monitor.h"
#include "cmd/progress.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct trainer {
    struct run *run;
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

/* The examples of one step, as indices into the training set. */
struct step_examples {
    const int *index;
    int count;
    long items, tokens;
};

static struct step_examples examples_of_step(struct trainer *t, int step)
{
    const struct config *c = t->run->config;
    const struct dataset *d = &t->run->train;
    int epoch = step / c->steps_per_epoch, first = step % c->steps_per_epoch * c->train_batch_size;
    if (epoch != t->epoch)
        sampler_shuffle(t->order, d->n_sequences, (uint64_t)c->seed, epoch);
    t->epoch = epoch;
    struct step_examples e = {.index = t->order + first, .count = d->n_sequences - first};
    if (e.count > c->train_batch_size)
        e.count = c->train_batch_size;
    for (int i = 0; i < e.count; i++)
        e.tokens += (long)(d->start[e.index[i] + 1] - d->start[e.index[i]]);
    e.items = t->run->task->n_labels ? e.count : e.tokens - e.count;
    return e;
}

static void before_layer(void *context, int layer)
{
    engine_before_layer(context, layer);
}

static void before_backward(void *context)
{
    engine_before_backward(context);
}

static void gradients_ready(void *context, int layer)
{
    engine_layer_gradients_ready(context, layer);
}

/* Puts forward and backward of a whole step on this rank's device. */
static void run_micro_batches(struct trainer *t, const struct step_examples *examples, int step)
{
    struct run *run = t->run;
    const struct config *c = run->config;
    const struct gpt_hooks hooks = {.context = run->engine,
                                    .before_layer = before_layer,
                                    .before_backward = before_backward,
                                    .gradients_ready = gradients_ready};
    for (int m = 0; m < c->gradient_accumulation_steps; m++) {
        struct slice s = sampler_slice(examples->count, c->per_device_train_batch_size,
                                       comm_size(run->comm), comm_rank(run->comm), m);
        batch_fill(&run->batch, &run->train, examples->index + s.first, s.count, s.first,
                   run->task->n_labels);
        trace_begin(run->trace, TRACE_DEVICE, "forward");
        gpt_train(run->model, &run->batch, 1.0f / (float)examples->items, (uint32_t)c->seed,
                  (uint32_t)step, m == c->gradient_accumulation_steps - 1, &hooks);
        trace_end(run->trace, TRACE_DEVICE, 0);
    }
}

/* The step's mean loss over all ranks. The host waits for the device here. */
static double take_loss(const struct trainer *t, const struct step_examples *examples)
{
    double loss = gpt_take_loss(t->run->model);
    comm_all_reduce_f64(t->run->comm, &loss, 1);
    return loss / (double)examples->items;
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
    struct run *run = t->run;
    struct train_state *s = &t->state;
    const struct config *c = run->config;
    struct step_report report;
    float lr = lr_at_step(c, s->step);
    double start = clock_seconds();
    struct step_examples examples = examples_of_step(t, s->step);
    trace_begin_step(run->trace, s->step + 1);
    engine_begin_step(run->engine, lr);
    run_micro_batches(t, &examples, s->step);
    trace_begin(run->trace, TRACE_DEVICE, "update");
    if (!engine_end_step(run->engine, &report, err))
        return false;
    trace_end(run->trace, TRACE_DEVICE, 0);
    double loss = take_loss(t, &examples);
    trace_end_step(run->trace);
    telemetry_add(&t->telemetry, &report, clock_seconds() - start);
    s->step++;
    if (report.skipped) {
        s->skipped_steps++;
        log_warn("step %d: the gradient is not finite; the step is skipped", s->step);
    } else {
        s->loss_sum += loss;
        s->total_loss_sum += loss;
        s->loss_steps++;
    }
    if (t->progress)
        progress_step(t->progress, s->step, epoch_of(t), loss, lr,
                      t->offloads ? telemetry_stall(&t->telemetry) : -1, examples.tokens);
    log_step(t, lr, &report);
    if (run->n_dev && is_due(c, c->eval_strategy, c->eval_steps, s->step))
        evaluate_now(t);
    if (!is_due(c, c->save_strategy, c->save_steps, s->step))
        return true;
    engine_settle(run->engine);
    trace_begin(run->trace, TRACE_HOST, "save");
    bool ok = checkpoint_save(run, s, err);
    trace_end(run->trace, TRACE_HOST, 0);
    return ok;
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

bool train(struct run *run, json_t *results, struct zf_error *err)
{
    struct trainer t = {.run = run,
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
        trace_begin(run->trace, TRACE_HOST, "finish");
        engine_finish(run->engine);
        trace_end(run->trace, TRACE_HOST, 0);
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
