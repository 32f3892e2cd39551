#include "cmd/evaluate.h"

#include "data/alloc.h"
#include "data/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    double loss_sum, n_items;
    float *predictions; /* (n_sequences), NULL for language modelling */
};

/* Each rank takes every size-th batch; predictions meet in one sum, where all others are zero. */
static struct outcome run_split(struct run *run, const struct eval_split *split, const char *name)
{
    const struct dataset *set = &split->set;
    int n_labels = run->task->n_labels, n = set->n_sequences;
    int step = run->config->per_device_eval_batch_size;
    struct outcome o = {.predictions = n_labels ? zf_calloc((size_t)n, sizeof(float)) : NULL};
    float *logits = zf_malloc(sizeof(float) * (size_t)step * GLUE_MAX_LABELS);
    trace_begin(run->trace, TRACE_HOST, name);
    trace_begin(run->trace, TRACE_DEVICE, name);
    for (int first = comm_rank(run->comm) * step; first < n; first += step * comm_size(run->comm)) {
        int count = n - first < step ? n - first : step;
        batch_fill(&run->batch, set, run->eval_order + first, count, first, n_labels);
        o.loss_sum += gpt_evaluate(run->model, &run->batch, n_labels ? logits : NULL);
        o.n_items += run->batch.n_items;
        for (int i = 0; n_labels && i < count; i++)
            o.predictions[first + i] = answer(logits + (size_t)i * (size_t)n_labels, n_labels);
    }
    trace_end(run->trace, TRACE_DEVICE, 0);
    free(logits);
    comm_all_reduce_f64(run->comm, &o.loss_sum, 1);
    comm_all_reduce_f64(run->comm, &o.n_items, 1);
    if (o.predictions)
        comm_all_reduce_f32(run->comm, o.predictions, (size_t)n);
    trace_end(run->trace, TRACE_HOST, 0);
    return o;
}

static void add_number(json_t *results, const char *name, const char *suffix, double value)
{
    char *key = zf_format("eval_%s%s", name, suffix);
    json_object_set_new(results, key, json_real(value));
    free(key);
}

void evaluate_split(struct run *run, const struct eval_split *split, json_t *results)
{
    const char *suffix = split->split == GLUE_DEV_MISMATCHED ? "_mm" : "";
    double start = clock_seconds();
    struct outcome o = run_split(run, split, "evaluate");
    double loss = o.n_items > 0 ? o.loss_sum / o.n_items : 0;
    add_number(results, "loss", suffix, loss);
    if (run->task->n_labels == 0)
        add_number(results, "perplexity", suffix, exp(loss));
    for (int i = 0; i < 3 && run->task->metrics[i] != METRIC_NONE; i++) {
        enum metric metric = run->task->metrics[i];
        add_number(results, metric_name(metric), suffix,
                   metric_compute(metric, o.predictions, split->set.label, split->set.n_sequences));
    }
    char *key = zf_format("eval_samples%s", suffix);
    json_object_set_new(results, key, json_integer(split->set.n_sequences));
    free(key);
    add_number(results, "runtime", suffix, clock_seconds() - start);
    free(o.predictions);
}

bool predict_split(struct run *run, const struct eval_split *split, struct zf_error *err)
{
    struct outcome o = run_split(run, split, "predict");
    bool ok = comm_rank(run->comm) != 0 ||
              glue_write_submission(run->task, split->split, &split->data, o.predictions,
                                    run->config->output_dir, err);
    free(o.predictions);
    return comm_all_ok(run->comm, ok, err);
}
