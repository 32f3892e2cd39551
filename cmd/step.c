#include "cmd/step.h"

#include "cmd/stop.h"
#include "offload/comm/place.h"
#include "offload/trace.h"

static void before_layer(void *context, int layer)
{
    place_pass();
    engine_before_layer(context, layer);
}

static void after_layer(void *context, int layer)
{
    engine_after_layer(context, layer);
}

static void before_backward(void *context)
{
    place_at("backward");
    engine_before_backward(context);
}

static void gradients_needed(void *context, int layer)
{
    engine_before_gradients(context, layer);
}

static void gradients_ready(void *context, int layer)
{
    place_pass();
    engine_layer_gradients_ready(context, layer);
}

static void take_values(void *context, size_t offset, const float *values, size_t n)
{
    engine_take_values(context, offset, values, n);
}

void step_connect(struct gpt *model, struct engine *engine)
{
    const struct gpt_hooks hooks = {
        .context = engine,
        .before_layer = before_layer,
        .after_layer = after_layer,
        .before_backward = before_backward,
        .gradients_needed = gradients_needed,
        .gradients_ready = gradients_ready,
    };
    gpt_set_hooks(model, &hooks);
    gpt_offer_values(model, take_values, engine);
}

static long count_tokens(const struct dataset *d, const int *index, int n)
{
    long tokens = 0;
    for (int i = 0; i < n; i++)
        tokens += (long)(d->start[index[i] + 1] - d->start[index[i]]);
    return tokens;
}

/* What the loss of a step averages over. */
static long count_items(const struct stepper *s, const int *index, int n)
{
    long items = 0;
    if (s->n_labels)
        return n;
    for (int i = 0; i < n; i++)
        items += dataset_targets(s->set, index[i]);
    return items;
}

/* This rank's micro-batch m of a step. */
static void fill_micro_batch(const struct stepper *s, int m, struct batch *batch, const int *index,
                             int n)
{
    struct slice slice =
        sampler_slice(n, s->micro_batch, comm_size(s->comm), comm_rank(s->comm), m);
    batch_fill(batch, s->set, index + slice.first, slice.count, slice.first, s->n_labels);
}

/* Puts forward and backward of the whole step on this rank's device. items: what the loss averages
 * over */
static void run_micro_batches(const struct stepper *s, const int *index, int n, int step,
                              long items)
{
    for (int first = 0, last; first < s->micro_batches; first = last) {
        last = first + s->together < s->micro_batches ? first + s->together : s->micro_batches;
        const struct gpt_step part = {.scale = 1.0f / (float)items,
                                      .seed = s->seed,
                                      .step = (uint32_t)step,
                                      .continues = first > 0,
                                      .to_continue = last < s->micro_batches};
        for (int m = first; m < last; m++)
            fill_micro_batch(s, m, &s->batches[m - first], index, n);
        trace_begin(s->trace, TRACE_DEVICE, "forward"); /* before_backward goes on from it */
        place_at("forward");
        gpt_train(s->model, s->batches, last - first, &part);
        trace_end(s->trace, TRACE_DEVICE, 0);
    }
}

static bool run_step(const struct stepper *s, const int *index, int n, int step, float lr,
                     struct step_result *result, struct zf_error *err)
{
    result->tokens = count_tokens(s->set, index, n);
    const long items = count_items(s, index, n);
    trace_begin_step(s->trace, step + 1);
    engine_begin_step(s->engine, lr);
    run_micro_batches(s, index, n, step, items);
    /* The loss is asked for last: until then nothing keeps the host from queueing. */
    trace_begin(s->trace, TRACE_DEVICE, "update");
    place_at("update");
    if (!engine_end_step(s->engine, &result->report, err))
        return false;
    trace_end(s->trace, TRACE_DEVICE, 0);
    double sums[] = {gpt_take_loss(s->model), stop_asked()};
    comm_all_reduce_f64(s->comm, sums, 2); /* so ranks agree on the step after which they stop */
    result->loss = sums[0] / (double)items;
    result->stop = sums[1] > 0;
    trace_end_step(s->trace);
    return true;
}

bool step_run(const struct stepper *s, const int *index, int n, int step, float lr,
              struct step_result *result, struct zf_error *err)
{
    place_work(true);
    bool ok = run_step(s, index, n, step, lr, result, err);
    place_work(false);
    return ok;
}
