#include "cmd/evaluate.h"

#include "cmd/live.h"
#include "cmd/run_data.h"
#include "cmd/stop.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/file.h"
#include "offload/comm/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_METRICS 3 /* of a task */

/* The label with the greatest logit, or the score itself. */
static float answer(const float *logits, int n_labels)
{
    int best = 0;
    if (n_labels == 1)
        return logits[0];
    for (int i = 1; i < n_labels; i++)
        if (logits[i] > logits[best])
            best = i;
    return (float)best;
}

struct outcome {
    double loss;        /* the items' mean; until all are there, their sum */
    double items;       /* that have a loss */
    double bad_logits;  /* how many are not finite */
    float *predictions; /* (n_sequences), NULL for language modelling */
    float *losses; /* (n_sequences), of the right labels; NULL where there are none to choose */
};

/* How surprised a model of these logits is by the label: -log softmax. */
static float label_loss(const float *logits, int n_labels, int label)
{
    double greatest = logits[0], sum = 0;
    for (int i = 1; i < n_labels; i++)
        greatest = logits[i] > greatest ? logits[i] : greatest;
    for (int i = 0; i < n_labels; i++)
        sum += exp(logits[i] - greatest);
    return (float)(greatest + log(sum) - logits[label]);
}

/* Whether the run ends here, on all ranks. */
static bool must_stop(struct run *run)
{
    run->stopped = run->stoppable && comm_max(run->comm, stop_asked()) > 0;
    return run->stopped;
}

/* A batch of a split, from this sequence on: adds to what there is of the others'. logits: room for
 * those of a batch */
static void visit_batch(struct run *run, const struct dataset *set, int first, float *logits,
                        struct outcome *o)
{
    const int n_labels = run->task->n_labels, most = run->config->per_device_eval_batch_size;
    const int count = set->n_sequences - first < most ? set->n_sequences - first : most;
    batch_fill(run->batches, set, run->eval_order + first, count, first, n_labels);
    o->loss += gpt_evaluate(run->model, run->batches, n_labels ? logits : NULL);
    o->items += run->batches->n_items;
    if (n_labels == 0)
        return;
    for (int i = 0; i < count * n_labels; i++)
        o->bad_logits += !isfinite(logits[i]);
    for (int i = 0; i < count; i++) {
        const float *row = logits + (size_t)i * (size_t)n_labels;
        o->predictions[first + i] = answer(row, n_labels);
        if (o->losses && set->label[first + i] >= 0)
            o->losses[first + i] = label_loss(row, n_labels, (int)set->label[first + i]);
    }
}

/* Each rank takes every size-th batch, and in the last round perhaps none; predictions meet in one
 * sum, where all others are zero. */
static struct outcome visit(struct run *run, const struct eval_split *split, const char *name)
{
    const int n_labels = run->task->n_labels, n = split->set.n_sequences;
    const int step = run->config->per_device_eval_batch_size, size = comm_size(run->comm);
    struct outcome o = {
        .predictions = n_labels ? zf_calloc((size_t)n, sizeof(float)) : NULL,
        .losses = n_labels > 1 ? zf_calloc((size_t)n, sizeof(float)) : NULL,
    };
    float *logits = zf_malloc(sizeof(float) * (size_t)step * (size_t)n_labels);
    trace_begin(run->trace, TRACE_HOST, name);
    trace_begin(run->trace, TRACE_DEVICE, name);
    live_stage(strcmp(name, "predict") == 0 ? "predicting" : "evaluating", n);
    place_work(true);
    for (int begin = 0; begin < n && !must_stop(run); begin += step * size) {
        const int first = begin + comm_rank(run->comm) * step;
        if (first < n)
            visit_batch(run, &split->set, first, logits, &o);
        else
            gpt_pass_by(run->model);
        place_pass();
        live_stage_done(begin + step * size < n ? begin + step * size : n);
    }
    live_stage_end();
    trace_end(run->trace, TRACE_DEVICE, 0);
    free(logits);
    comm_all_reduce_f64(run->comm, &o.loss, 1);
    comm_all_reduce_f64(run->comm, &o.items, 1);
    o.loss = o.items > 0 ? o.loss / o.items : 0;
    comm_all_reduce_f64(run->comm, &o.bad_logits, 1);
    if (o.predictions)
        comm_all_reduce_f32(run->comm, o.predictions, (size_t)n);
    if (o.losses)
        comm_all_reduce_f32(run->comm, o.losses, (size_t)n);
    place_work(false);
    trace_end(run->trace, TRACE_HOST, 0);
    return o;
}

static void free_outcome(struct outcome *o)
{
    free(o->predictions);
    free(o->losses);
}

/* The same answer on every rank; where it is false, and where the run has stopped, *o holds nothing
 * that counts. */
static bool run_split(struct run *run, const struct eval_split *split, const char *name,
                      struct outcome *o, struct zf_error *err)
{
    *o = visit(run, split, name);
    bool text = run->task->n_labels == 0;
    if (run->stopped || (isfinite(text ? exp(o->loss) : o->loss) && o->bad_logits == 0))
        return true;
    free_outcome(o);
    return zf_fail(err, "%s has no results: what the model gives for it is not finite",
                   glue_split_name(run->task, split->split));
}

static void add_number(json_t *results, const char *name, const char *suffix, double value)
{
    char *key = zf_format("eval_%s%s", name, suffix);
    json_object_set_new(results, key, json_real(value));
    free(key);
}

/* Whether run_glue.py adds the mean of the task's metrics, of which GLUE has several. */
static bool has_combined_score(const struct run *run)
{
    return !run_has_own_data(run) && run->task->metrics[0] != METRIC_NONE &&
           run->task->metrics[1] != METRIC_NONE;
}

static void add_metrics(const struct run *run, const struct eval_split *split,
                        const float *predictions, const char *suffix, json_t *results)
{
    const enum metric *metrics = run->task->metrics;
    double sum = 0;
    int n = 0;
    for (; n < MAX_METRICS && metrics[n] != METRIC_NONE; n++) {
        const double value =
            metric_compute(metrics[n], predictions, split->set.label, split->set.n_sequences);
        add_number(results, metric_name(metrics[n]), suffix, value);
        sum += value;
    }
    if (has_combined_score(run))
        add_number(results, "combined_score", suffix, sum / n);
}

/* How long it took, as Transformers says it: a step is a batch of all ranks. */
static void add_speed(const struct run *run, int samples, double seconds, const char *suffix,
                      json_t *results)
{
    const double batch = (double)run->config->per_device_eval_batch_size * comm_size(run->comm);
    char *key = zf_format("eval_samples%s", suffix);
    json_object_set_new(results, key, json_integer(samples));
    free(key);
    add_number(results, "runtime", suffix, seconds);
    if (seconds > 0) {
        add_number(results, "samples_per_second", suffix, samples / seconds);
        add_number(results, "steps_per_second", suffix, ceil(samples / batch) / seconds);
    }
}

bool evaluate_split(struct run *run, struct eval_split *split, json_t *results,
                    struct zf_error *err)
{
    const char *suffix = split->split == GLUE_DEV_MISMATCHED ? "_mm" : "";
    double start = clock_seconds();
    struct outcome o;
    if (!run_split(run, split, "evaluate", &o, err))
        return false;
    if (run->stopped) {
        free_outcome(&o);
        return true;
    }
    add_number(results, "loss", suffix, o.loss);
    if (run->task->n_labels == 0)
        add_number(results, "perplexity", suffix, exp(o.loss));
    add_metrics(run, split, o.predictions, suffix, results);
    add_speed(run, split->set.n_sequences, clock_seconds() - start, suffix, results);
    free(split->answers);
    free(split->losses);
    split->answers = o.predictions;
    split->losses = o.losses;
    return true;
}

bool evaluate_has_metric(const struct run *run, const char *name, struct zf_error *err)
{
    const struct glue_task *task = run->task;
    const char *names[3 + MAX_METRICS] = {"loss", task->n_labels == 0 ? "perplexity" : NULL};
    char all[256] = "";
    int n = task->n_labels == 0 ? 2 : 1;
    for (int i = 0; i < MAX_METRICS && task->metrics[i] != METRIC_NONE; i++)
        names[n++] = metric_name(task->metrics[i]);
    if (has_combined_score(run))
        names[n++] = "combined_score";
    for (int split = 0; split < run->n_dev; split++)
        for (int i = 0; i < n; i++) {
            size_t end = strlen(all);
            snprintf(all + end, sizeof all - end, "%s%s%s", end ? ", " : "", names[i],
                     split ? "_mm" : "");
            if (strcmp(all + end + (end ? 2 : 0), name) == 0)
                return true;
        }
    return zf_fail(err, "evaluation on %s gives %s", task->title, all);
}

/* run_glue.py's file, without the task where there is none. */
static char *results_path(const struct run *run, const struct eval_split *split)
{
    const char *directory = run->config->output_dir;
    if (run_has_own_data(run))
        return zf_format("%s/predict_results.txt", directory);
    return zf_format("%s/predict_results_%s%s.txt", directory, run->task->name,
                     split->split == GLUE_TEST_MISMATCHED ? "-mm" : "");
}

static bool is_free(const char *path, struct zf_error *err)
{
    return !file_exists(path) ||
           zf_fail(err,
                   "%s: it is there already: choose another output_dir, or give "
                   "--overwrite_output_dir to replace it",
                   path);
}

bool predict_check_output(const struct run *run, const struct eval_split *split,
                          struct zf_error *err)
{
    char *path = results_path(run, split);
    bool ok = is_free(path, err);
    free(path);
    if (!ok || run_has_own_data(run))
        return ok;
    path = glue_submission_path(run->task, split->split, run->config->output_dir);
    ok = is_free(path, err);
    free(path);
    return ok;
}

static bool write_predictions(const struct run *run, const struct eval_split *split,
                              const float *predictions, struct zf_error *err)
{
    const char *directory = run->config->output_dir;
    char *path = results_path(run, split);
    stop_hold();
    bool ok = file_make_directory(directory, err) &&
              own_write_predictions(path, predictions, split->set.n_sequences,
                                    run->task->n_labels > 1 ? run->task->names : NULL, err) &&
              (run_has_own_data(run) || glue_write_submission(run->task, split->split, &split->data,
                                                              predictions, directory, err));
    free(path);
    return ok;
}

bool predict_split(struct run *run, const struct eval_split *split, struct zf_error *err)
{
    struct outcome o;
    if (!run_split(run, split, "predict", &o, err))
        return false;
    bool ok = run->stopped || comm_rank(run->comm) != 0 ||
              write_predictions(run, split, o.predictions, err);
    free_outcome(&o);
    return comm_all_ok(run->comm, ok, err);
}
