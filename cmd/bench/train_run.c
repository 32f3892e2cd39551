#include "cmd/bench/train_run.h"

#include "cmd/bench/device.h"
#include "cmd/config/engine_settings.h"
#include "cmd/live.h"
#include "cmd/memory_need.h"
#include "cmd/step.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/median.h"
#include "data/rng.h"

#include <stdlib.h>

#define SEED 1 /* of weights and dropout */

/* Methods. */

static const struct {
    const char *name, *title;
} kinds[TRAIN_N_KINDS] = {
    [TRAIN_RESIDENT] = {"resident", "AdamW, resident"},
    [TRAIN_OFFLOAD] = {"offload", "ZeRO-Offload"},
    [TRAIN_BURST] = {"burst", "ZenFlow, burst"},
    [TRAIN_STAGGERED] = {"staggered", "ZenFlow, staggered"},
    [TRAIN_AUTO] = {"auto", "ZenFlow, auto"},
    [TRAIN_KEEP_UP] = {"keep_up", "ZenFlow, keep_up"},
};

const char *train_kind_name(enum train_kind kind)
{
    return kinds[kind].name;
}

struct config train_config(enum train_kind kind, const struct config *c)
{
    struct config own = *c;
    own.offload_optimizer = kind == TRAIN_RESIDENT ? OFFLOAD_NONE : OFFLOAD_CPU;
    own.zenflow.enabled = kind >= TRAIN_BURST;
    own.zenflow.stagger = kind != TRAIN_BURST;
    if (kind == TRAIN_RESIDENT)
        own.offload_param = OFFLOAD_NONE;
    if (kind == TRAIN_AUTO)
        own.zenflow.update_interval = CONFIG_AUTO;
    if (kind == TRAIN_KEEP_UP)
        own.zenflow.update_interval = CONFIG_KEEP_UP;
    return own;
}

struct train_method train_method_make(enum train_kind kind, const struct config *c)
{
    const struct config own = train_config(kind, c);
    return (struct train_method){kinds[kind].title, engine_settings(&own, NULL),
                                 engine_value_slots(&own)};
}

/* Data. */

static int outputs(const struct train_job *job)
{
    return job->config.head == GPT_HEAD_LM ? 0 : job->config.num_labels;
}

/* The cube of a uniform number: the first ids are met far more often than the last. */
static int draw_token(uint64_t seed, size_t i, int vocab)
{
    struct philox counter = {{(uint32_t)i, (uint32_t)(i >> 32), 0, 0}};
    counter = philox4x32(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    double u = (double)philox_uniform(counter.v[0]);
    return (int)(u * u * u * vocab);
}

/* Of all ranks. */
static int step_sequences(const struct train_job *job)
{
    return job->micro_batches * job->n_seqs * comm_size(job->comm);
}

/* The warm-up of "keep_up". */
static int choosing_steps(const struct train_job *job)
{
    const int behind_lag = job->apply_lag + 5;
    const int least = behind_lag > TRAIN_CHOICE_STEPS ? behind_lag : TRAIN_CHOICE_STEPS;
    return job->warm_up > least ? job->warm_up : least;
}

void train_data_make(struct train_job *job, const int *length, int n_lengths, uint64_t seed)
{
    struct dataset *d = &job->data;
    const int steps = job->steps + choosing_steps(job);
    *d = (struct dataset){.n_sequences = steps * step_sequences(job) + job->n_seqs};
    d->start = zf_calloc((size_t)d->n_sequences + 1, sizeof *d->start);
    for (int i = 0; i < d->n_sequences; i++) {
        int n = length[i % n_lengths];
        d->start[i + 1] = d->start[i] + (size_t)n;
        d->max_length = n > d->max_length ? n : d->max_length;
    }
    d->tokens = zf_malloc(d->start[d->n_sequences] * sizeof *d->tokens);
    for (size_t i = 0; i < d->start[d->n_sequences]; i++)
        d->tokens[i] = draw_token(seed, i, job->config.vocab_size);
    if (!outputs(job))
        return;
    d->label = zf_malloc((size_t)d->n_sequences * sizeof *d->label);
    for (int i = 0; i < d->n_sequences; i++)
        d->label[i] = (float)(d->tokens[d->start[i + 1] - 1] % outputs(job));
}

/* Arithmetic. */

double train_flops(const struct gpt_config *c, const int *length, int n)
{
    const struct heads heads = gpt_heads(c);
    const double C = c->n_embd, blocks = c->n_layer, width = heads.n_head * heads.head_dim;
    const double before = C * heads_row(&heads); /* the attention */
    const double after = C * width + (c->parts.swiglu ? 3 : 2) * C * c->n_inner;
    bool lm = c->head == GPT_HEAD_LM;
    double tokens = 0, pairs = 0;
    for (int i = 0; i < n; i++) {
        tokens += length[i];
        pairs += length[i] * (length[i] + 1.0) / 2;
    }
    double last = lm ? tokens : n; /* rows that the last block has after its attention */
    double head = lm ? C * c->vocab_size * tokens : C * c->num_labels * n;
    double weights = blocks * before * tokens + after * ((blocks - 1) * tokens + last) + head;
    return 6 * weights + 12 * width * blocks * pairs;
}

static int *lengths_of_step(const struct train_job *job, int step, int *n)
{
    const struct dataset *d = &job->data;
    *n = step_sequences(job);
    int first = step * *n;
    int *length = zf_malloc((size_t)*n * sizeof *length);
    for (int i = 0; i < *n; i++)
        length[i] = (int)(d->start[first + i + 1] - d->start[first + i]);
    return length;
}

/* Means over the counted steps. */
static void count_work(const struct train_job *job, struct train_result *r)
{
    for (int step = job->warm_up; step < job->warm_up + job->steps; step++) {
        int n, *length = lengths_of_step(job, step, &n);
        r->flops += train_flops(&job->config, length, n) / job->steps;
        for (int i = 0; i < n; i++)
            r->tokens += (double)length[i] / job->steps;
        free(length);
    }
}

/* Steps. */

struct trainer {
    const struct train_job *job;
    struct gpt *model;
    struct engine *engine;
    struct gpt_size size;
    struct batch *batches; /* (size.micro_batches) */
    int *index;            /* (n_sequences) their own numbers */
};

static struct gpt_size size_of(const struct train_job *job, const struct train_method *method)
{
    struct gpt_size size = {.max_tokens = job->n_seqs * job->data.max_length,
                            .max_seqs = job->n_seqs,
                            .ranks = comm_size(job->comm),
                            .value_slots = method->value_slots,
                            .mode = job->recompute ? GPT_TRAIN_RECOMPUTE : GPT_TRAIN};
    gpt_size_for_step(job->device, &job->config, &size, job->micro_batches);
    return size;
}

static bool run_step(struct trainer *t, int step, struct step_report *report, struct zf_error *err)
{
    const struct train_job *job = t->job;
    const struct stepper stepper = {
        .model = t->model,
        .engine = t->engine,
        .comm = job->comm,
        .trace = job->trace,
        .set = &job->data,
        .batches = t->batches,
        .n_labels = outputs(job),
        .micro_batch = job->n_seqs,
        .micro_batches = job->micro_batches,
        .together = t->size.micro_batches,
        .seed = SEED,
    };
    struct step_result result;
    int n = step_sequences(job);
    bool ok =
        step_run(&stepper, t->index + (size_t)step * (size_t)n, n, step, job->lr, &result, err);
    *report = result.report;
    return ok;
}

static void add_report(struct train_result *r, const struct step_report *report, int steps)
{
    r->stall += report->stall_seconds; /* a sum, until the end */
    r->down += (double)report->bytes_down / steps;
    r->up += (double)report->bytes_up / steps;
    r->moved += (double)report->bytes_moved / steps;
    r->gathered += (double)report->bytes_gathered / steps;
    r->interval = report->update_interval;
}

/* A step's time is from the end of the one before to its own, as the host sees them. */
static bool run_steps(struct trainer *t, struct train_result *r, struct zf_error *err)
{
    const struct train_job *job = t->job;
    struct device *device = job->device;
    struct step_report report;
    double begin = clock_seconds();
    for (int step = 0; step < job->warm_up; step++) {
        if (!run_step(t, step, &report, err))
            return false;
        r->first = step == 0 ? clock_seconds() - begin : r->first;
        live_stage_done(step + 1);
    }
    device->stream_wait(device->compute);
    if (r->planned)
        plan_report_restart(r->planned);
    begin = clock_seconds();
    double last = begin;
    for (int i = 0; i < job->steps; i++) {
        if (!run_step(t, job->warm_up + i, &report, err))
            return false;
        if (i == job->steps - 1 && !r->planned) /* a plan's last step is like the others */
            device->stream_wait(device->compute);
        if (r->planned)
            plan_report_step(r->planned, &report);
        double now = clock_seconds();
        r->seconds[i] = now - last;
        r->worst = r->seconds[i] > r->worst ? r->seconds[i] : r->worst;
        last = now;
        add_report(r, &report, job->steps);
        live_stage_done(job->warm_up + i + 1);
    }
    r->first = job->warm_up == 0 ? r->seconds[0] : r->first;
    r->median = median_of(r->seconds, job->steps);
    r->mean = (last - begin) / job->steps;
    r->stall /= last - begin;
    return true;
}

/* On the micro-batch behind those of all steps. */
static double evaluate(struct trainer *t)
{
    const struct train_job *job = t->job;
    engine_settle(t->engine);
    int first = (job->warm_up + job->steps) * step_sequences(job);
    batch_fill(t->batches, &job->data, t->index + first, job->n_seqs, 0, outputs(job));
    return gpt_evaluate(t->model, t->batches, NULL) / t->batches->n_items;
}

static bool create_trainer(struct trainer *t, const struct train_method *method,
                           struct train_result *r, struct zf_error *err)
{
    const struct train_job *job = t->job;
    const double begin = clock_seconds();
    struct engine_config engine = method->engine;
    engine.trace = job->trace;
    engine.values_follow = true;
    t->size = size_of(job, method);
    t->model = gpt_create(job->device, &job->config, &t->size);
    t->batches = batches_create(t->size.micro_batches, t->size.max_tokens, t->size.max_seqs);
    t->index = zf_malloc((size_t)job->data.n_sequences * sizeof *t->index);
    for (int i = 0; i < job->data.n_sequences; i++)
        t->index[i] = i;
    t->engine = engine_create(&engine, job->device, job->comm, gpt_params(t->model),
                              gpt_param_data(t->model), gpt_grad_data(t->model), err);
    if (!t->engine)
        return false;
    step_connect(t->model, t->engine);
    const double created = clock_seconds();
    if (!job->device->plan)
        gpt_init_weights(t->model, SEED);
    r->created = created - begin;
    r->filled = clock_seconds() - created;
    return true;
}

static void destroy_trainer(struct trainer *t)
{
    engine_destroy(t->engine);
    gpt_destroy(t->model);
    batches_free(t->batches, t->size.micro_batches);
    free(t->index);
}

static void measure_memory(const struct train_job *job, const struct train_method *method,
                           struct train_result *r)
{
    const struct memory_job memory = {job->device, job->comm, &job->config, job->data.max_length};
    const struct gpt_size size = size_of(job, method);
    r->use = memory_need_held(&memory, &size, &method->engine);
    r->needed = memory_total(&r->use);
    r->free = job->device->free_bytes();
    r->fits = r->needed <= r->free;
}

/* The job, so that its windows are chosen before steps count. */
static struct train_job warmed_up(const struct train_job *job, const struct engine_config *engine)
{
    struct train_job own = *job;
    if (engine->update_interval == 0 && engine->interval_rule == ENGINE_INTERVAL_KEEP_UP)
        own.warm_up = choosing_steps(job);
    return own;
}

bool train_measure(const struct train_job *asked, const struct train_method *method,
                   struct train_result *result, struct zf_error *err)
{
    const struct train_job own = warmed_up(asked, &method->engine), *job = &own;
    struct trainer t = {.job = job};
    *result = (struct train_result){.name = method->name};
    result->seconds = zf_calloc((size_t)job->steps, sizeof *result->seconds);
    count_work(job, result);
    comm_attach(job->comm, job->device);
    measure_memory(job, method, result);
    if (!result->fits && !job->device->plan)
        return true;
    if (job->device->plan)
        result->planned = plan_report_create(job->device);
    live_stage(method->name, job->warm_up + job->steps);
    bool ok = create_trainer(&t, method, result, err);
    if (ok) {
        result->loss_before = evaluate(&t);
        ok = run_steps(&t, result, err);
    }
    if (ok) {
        result->loss_after = evaluate(&t);
        result->memory = engine_memory(t.engine);
        engine_finish(t.engine);
    }
    destroy_trainer(&t);
    live_stage_end();
    return ok;
}

void train_result_free(struct train_result *result)
{
    free(result->seconds);
    plan_report_destroy(result->planned);
}
