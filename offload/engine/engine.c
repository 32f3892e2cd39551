/* Creation, and the order of a step. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "offload/host/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED_IN_A_ROW_LIMIT 10
/* update_interval "auto" begins with this. */
#define FIRST_AUTO_INTERVAL 4
#define MEMORY_ALIGNMENT    ((size_t)256) /* of device memory */

/* ---- creation ---- */

static size_t elements(const struct matrix *m)
{
    return (size_t)m->n_owned * (size_t)m->cols;
}

static void describe_matrices(struct engine *e)
{
    e->n_matrices = e->table->n_params;
    e->matrices = zf_calloc((size_t)e->n_matrices, sizeof *e->matrices);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        const struct param *p = &e->table->params[i];
        m->param = p;
        m->index = i;
        m->selectable = p->kind == PARAM_MATRIX && e->config.topk_ratio < 1;
        m->owned = schedule_owned(i, p->rows, e->ranks, e->rank);
        m->n_owned = m->owned.last - m->owned.first;
        m->cols = p->cols;
        m->first_channel = e->n_channels;
        e->n_channels += (size_t)p->rows;
        assert(i == 0 || p->layer >= p[-1].layer);
        size_t first = p->offset + (size_t)m->owned.first * (size_t)p->cols;
        if (!e->measuring) {
            m->values = (char *)e->params + first * dtype_size(e->dtype);
            m->grad = e->grads + first;
        }
        e->host_elements += m->selectable ? elements(m) : 0;
        e->defers |= m->selectable;
    }
}

void *engine_device_memory(struct engine *e, size_t *use, size_t bytes)
{
    *use += (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
    return e->measuring || bytes == 0 ? NULL : e->device->allocate(bytes);
}

/* With several ranks a rank's share of the gradient is reduced into a place of its own. */
static void place_owned_gradients(struct engine *e)
{
    size_t n = 0;
    if (e->ranks == 1)
        return;
    for (int i = 0; i < e->n_matrices; i++)
        n += elements(&e->matrices[i]);
    e->owned_grads = engine_device_memory(e, &e->use.gradients, sizeof(float) * n);
    n = 0;
    for (int i = 0; i < e->n_matrices && !e->measuring; i++) {
        e->matrices[i].grad = e->owned_grads + n;
        n += elements(&e->matrices[i]);
    }
}

/* All device memory of the engine. */
static void place_device_memory(struct engine *e)
{
    size_t n = e->n_channels;
    place_owned_gradients(e);
    ranks_place(e);
    state_place(e);
    table_place(e);
    if (e->config.accumulate == ENGINE_ACCUMULATE_DEVICE)
        e->windows = engine_device_memory(e, &e->use.windows, sizeof(float) * e->host_elements);
    e->place_device = engine_device_memory(e, &e->use.workspace, n);
    e->choice = engine_device_memory(e, &e->use.workspace, n);
    e->norms = engine_device_memory(e, &e->use.workspace, sizeof(float) * n);
    e->summary = engine_device_memory(e, &e->use.workspace, 2 * sizeof *e->summary);
    e->scale = engine_device_memory(e, &e->use.workspace, sizeof *e->scale);
}

/* Each channel of each matrix has a count of updates; the host's state and exchange buffer exist
 * where channels may be deferred. */
static void place_host_state(struct engine *e)
{
    bool on_host = e->config.accumulate == ENGINE_ACCUMULATE_HOST;
    size_t n = e->host_elements, exchange = dtype_size(exchange_dtype(e)), at = 0, row = 0;
    float *state = e->host_state, *windows = on_host ? state + 3 * n : e->windows;
    e->updates = zf_calloc(e->n_channels, sizeof *e->updates);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        m->host = (struct host_adam_matrix){.rows = (size_t)m->n_owned,
                                            .cols = (size_t)m->cols,
                                            .exchange_dtype = exchange_dtype(e),
                                            .updates = e->updates + row,
                                            .place = e->place + m->first_channel + m->owned.first,
                                            .part = {i, m->owned.first, m->param->rows, m->cols},
                                            .decays = m->param->decay};
        row += (size_t)m->n_owned;
        if (!m->selectable)
            continue;
        m->host.master = state + at;
        m->host.m = state + n + at;
        m->host.v = state + 2 * n + at;
        m->host.exchange = (char *)e->exchange + at * exchange;
        m->staged = on_host ? (char *)e->exchange + (n + at) * exchange : NULL;
        m->window = windows + at;
        m->host.window = on_host ? m->window : NULL;
        at += elements(m);
    }
}

static bool allocate_host_state(struct engine *e, struct zf_error *err)
{
    size_t n = e->host_elements;
    bool on_host = e->config.accumulate == ENGINE_ACCUMULATE_HOST;
    if (n > 0) {
        e->host_state_bytes = sizeof(float) * n * (on_host ? 4 : 3);
        e->exchange_bytes = dtype_size(exchange_dtype(e)) * n * (on_host ? 2 : 1);
        e->host_state = e->device->plan ? e->device->allocate_host(e->host_state_bytes)
                                        : host_memory_allocate(e->host_state_bytes, err);
        if (!e->host_state)
            return false;
        e->exchange = e->device->allocate_host(e->exchange_bytes);
    }
    place_host_state(e);
    return true;
}

static void make_tasks(struct engine *e)
{
    for (int pass = 0; pass < 2; pass++) {
        e->n_tasks = 0;
        for (int i = 0; i < e->n_matrices; i++)
            if (e->matrices[i].selectable)
                e->n_tasks +=
                    host_adam_cut(&e->matrices[i].host, pass == 1 ? e->tasks + e->n_tasks : NULL);
        if (pass == 0)
            e->tasks = zf_malloc(sizeof *e->tasks * (size_t)(e->n_tasks + 1));
    }
}

/* The fp32 masters are the parameters as they were loaded, which a device that the host cannot look
 * into has put into the exchange buffer; each page is first touched by the worker that will update
 * it. */
static void initialise_chunk(void *argument, int chunk)
{
    struct engine *e = argument;
    const struct host_adam_task *task = &e->tasks[chunk];
    const struct matrix *m = &e->matrices[task->matrix->part.index];
    size_t at = (size_t)task->first * (size_t)m->cols;
    size_t n = (size_t)(task->last - task->first) * (size_t)m->cols;
    if (e->device->unified)
        memcpy(m->host.master + at, (const float *)m->values + at, sizeof(float) * n);
    else
        for (size_t i = at; i < at + n; i++)
            m->host.master[i] = bf16_to_f32(((const uint16_t *)m->host.exchange)[i]);
    memset(m->host.m + at, 0, sizeof(float) * n);
    memset(m->host.v + at, 0, sizeof(float) * n);
    memset((char *)m->host.exchange + at * dtype_size(exchange_dtype(e)), 0,
           n * dtype_size(exchange_dtype(e)));
}

static void download_parameters(struct engine *e)
{
    struct device *d = e->device;
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (m->selectable && m->n_owned > 0)
            d->copy(d->compute, m->host.exchange, m->values, sizeof(uint16_t) * elements(m));
    }
    d->stream_wait(d->compute);
}

static void start_workers(struct engine *e)
{
    const struct engine_config *c = &e->config;
    struct worker_config w = {.local_rank = comm_core_rank(e->comm),
                              .local_size = comm_core_size(e->comm),
                              .reserved_share = (float)c->reserved_cores,
                              .delay_seconds = c->worker_delay_seconds,
                              .delay_seed = c->worker_delay_seed,
                              .plan = e->device->plan};
    if (!e->defers)
        return;
    e->workers = worker_pool_create(&w);
    if (e->device->plan)
        return;
    if (!e->device->unified)
        download_parameters(e);
    struct worker_job job = {.run = initialise_chunk, .argument = e, .n_chunks = e->n_tasks};
    worker_pool_wait(e->workers, worker_pool_submit(e->workers, &job));
}

/* bf16 on a device that computes in fp32: parameters are rounded; masters were taken before. */
static void round_parameters(struct engine *e)
{
    float *values = e->params;
    bool rounds = e->config.bf16 && e->dtype == DTYPE_F32 && !e->device->plan;
    assert(!rounds || e->device->unified);
    for (size_t i = 0; rounds && i < e->table->n_elements; i++)
        values[i] = bf16_to_f32(bf16_from_f32(values[i]));
}

/* Vectors, and every channel where topk_ratio is 1, stay on the device. */
static void place_resident_channels(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (m->selectable)
            continue;
        memset(e->place + m->first_channel, CHANNEL_RESIDENT, (size_t)m->param->rows);
        memset(e->target + m->first_channel, 1, (size_t)m->param->rows);
        state_initialise(e, m);
    }
    channels_publish(e);
}

void engine_forget(struct engine *e)
{
    struct stream *streams[] = {e->reducing, e->down, e->up, e->device->compute};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        e->device->stream_wait(streams[i]);
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        e->groups[j] = (struct group){.update = {.handed_over = e->groups[j].update.handed_over}};
    e->accumulation.begun = false;
    e->timing = (struct timing){0};
    state_forget(e);
    windows_begin(e, 1, 0, 0);
    place_resident_channels(e);
}

/* Streams and events, and what the host keeps of each step. */
static void place_streams(struct engine *e)
{
    struct device *d = e->device;
    size_t layers = (size_t)e->table->n_layers;
    e->reducing = d->stream_create();
    e->down = d->stream_create();
    e->up = d->stream_create();
    e->mark = d->event_create();
    e->norm_known = d->event_create();
    e->accumulation.handed_over = d->event_create();
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        e->groups[j].update.handed_over = d->event_create();
    e->arriving = zf_calloc(layers, sizeof *e->arriving);
    e->arrived = zf_calloc(layers, sizeof *e->arrived);
    for (size_t l = 0; l < layers; l++)
        e->arrived[l] = d->event_create();
    e->summary_host = d->allocate_host(sizeof *e->summary_host);
    if (e->config.update_interval == 0)
        e->norms_host = d->allocate_host(sizeof(float) * e->n_channels);
}

static void release_streams(struct engine *e)
{
    struct device *d = e->device;
    struct stream *streams[] = {e->reducing, e->down, e->up};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        d->stream_wait(streams[i]);
        d->stream_destroy(streams[i]);
    }
    d->event_destroy(e->mark);
    d->event_destroy(e->norm_known);
    d->event_destroy(e->accumulation.handed_over);
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        d->event_destroy(e->groups[j].update.handed_over);
    for (int l = 0; l < e->table->n_layers; l++)
        d->event_destroy(e->arrived[l]);
    free(e->arriving);
    free(e->arrived);
    d->release_host(e->summary_host);
    if (e->norms_host)
        d->release_host(e->norms_host);
}

void engine_measure(const struct engine_config *config, const struct param_table *table,
                    enum dtype dtype, int rank, int ranks, struct memory_use *use)
{
    struct engine e = {.config = *config, .measuring = true, .use = *use, .dtype = dtype};
    e.table = table;
    e.rank = rank;
    e.ranks = ranks;
    describe_matrices(&e);
    place_device_memory(&e);
    *use = e.use;
    for (int i = 0; i < e.n_matrices; i++) {
        free(e.matrices[i].slots.row);
        free(e.matrices[i].slot_of);
    }
    free(e.matrices);
}

struct engine *engine_create(const struct engine_config *config, struct device *device,
                             struct comm *comm, const struct param_table *table, void *params,
                             float *grads, struct zf_error *err)
{
    int longest = config->update_interval ? config->update_interval : ENGINE_MAX_INTERVAL;
    if (config->apply_lag > longest || longest > ENGINE_MAX_INTERVAL) {
        zf_fail(
            err,
            "zero_optimization.zenflow: update_interval is %d and apply_lag %d, but windows have "
            "at most %d steps, and a host update must be visible before the next one begins",
            config->update_interval, config->apply_lag, ENGINE_MAX_INTERVAL);
        return NULL;
    }
    struct engine *e = zf_calloc(1, sizeof *e);
    e->config = *config;
    e->device = device;
    e->dtype = device->dtype;
    e->comm = comm;
    e->rank = comm_rank(comm);
    e->ranks = comm_size(comm);
    e->table = table;
    e->params = params;
    e->grads = grads;
    assert(config->bf16 || device->dtype == DTYPE_F32);
    describe_matrices(e);
    place_streams(e);
    place_device_memory(e);
    e->place = zf_calloc(e->n_channels, 1);
    e->target = zf_calloc(e->n_channels, 1);
    e->updated = zf_calloc(e->n_channels, 1);
    e->important_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
    e->deferred_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
    e->shared_offset = zf_calloc((size_t)e->ranks + 1, sizeof *e->shared_offset);
    if (e->ranks > 1)
        e->shared_rows_host = zf_malloc(sizeof(int) * e->n_channels);
    if (!allocate_host_state(e, err)) {
        engine_destroy(e);
        return NULL;
    }
    make_tasks(e);
    table_fill(e);
    start_workers(e);
    trace_set_lanes(config->trace, e->down, e->up,
                    e->workers ? worker_pool_threads(e->workers) : 0);
    engine_forget(e);
    round_parameters(e);
    return e;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    e->device->stream_wait(e->device->compute);
    release_streams(e);
    worker_pool_destroy(e->workers);
    state_release(e);
    table_release(e);
    if (e->host_state && e->device->plan)
        e->device->release_host(e->host_state);
    else
        host_memory_free(e->host_state, e->host_state_bytes);
    if (e->exchange)
        e->device->release_host(e->exchange);
    void *device_arrays[] = {e->owned_grads, e->shared, e->shared_rows, e->windows, e->place_device,
                             e->choice,      e->norms,  e->summary,     e->scale};
    for (size_t i = 0; i < sizeof device_arrays / sizeof *device_arrays; i++)
        if (device_arrays[i])
            e->device->release(device_arrays[i]);
    free(e->tasks);
    free(e->updates);
    free(e->shared_offset);
    free(e->shared_rows_host);
    free(e->place);
    free(e->target);
    free(e->updated);
    free(e->important_norm);
    free(e->deferred_norm);
    free(e->matrices);
    free(e);
}

struct engine_memory engine_memory(const struct engine *e)
{
    size_t counts = e->n_channels * sizeof *e->updates;
    return (struct engine_memory){.host = e->host_state_bytes + e->exchange_bytes + counts,
                                  .device = memory_total(&e->use),
                                  .host_elements = e->host_elements};
}

/* ---- a step ---- */

void engine_follow(struct engine *e, struct stream *stream, struct stream *other)
{
    e->device->event_record(e->mark, other);
    e->device->event_order(stream, e->mark);
}

void engine_begin_step(struct engine *e, float lr)
{
    e->lr = lr;
}

void engine_before_layer(struct engine *e, int layer)
{
    if (e->arriving[layer])
        e->device->event_order(e->device->compute, e->arrived[layer]);
    e->arriving[layer] = false;
}

void engine_before_backward(struct engine *e)
{
    trace_end(e->config.trace, TRACE_DEVICE, 0); /* the forward pass */
    trace_begin(e->config.trace, TRACE_DEVICE, "backward");
}

void engine_settle(struct engine *e)
{
    for (int layer = 0; layer < e->table->n_layers; layer++)
        engine_before_layer(e, layer);
}

static void reduce_layer(struct engine *e, int layer)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct param *p = m->param;
        for (int r = 0; r < e->ranks && p->layer == layer; r++) {
            struct range owned = schedule_owned(i, p->rows, e->ranks, r);
            comm_device_reduce(e->comm, e->reducing,
                               e->grads + p->offset + (size_t)owned.first * (size_t)p->cols,
                               m->grad, (size_t)(owned.last - owned.first) * (size_t)p->cols, r);
        }
    }
    comm_device_reduce_begin(e->comm);
}

/* A layer's gradient is on its owner: its norms, and where the host gathers gradients, its way
 * down. */
static void measure_layer(struct engine *e, int layer)
{
    e->device->row_ops->row_norms_squared(e->reducing, &e->layers[layer]);
    windows_stage(e, layer);
}

void engine_layer_gradients_ready(struct engine *e, int layer)
{
    engine_follow(e, e->reducing, e->device->compute);
    if (e->ranks == 1)
        measure_layer(e, layer);
    else
        reduce_layer(e, layer);
}

/* Squared norms of all channels, on all ranks, and what they say; the host learns it when
 * norm_known has passed. */
static void measure_step(struct engine *e)
{
    struct device *d = e->device;
    if (e->ranks > 1) {
        comm_device_finish(e->comm, e->reducing);
        d->zero(e->reducing, e->norms, sizeof(float) * e->n_channels);
        for (int layer = e->table->n_layers - 1; layer >= 0; layer--)
            measure_layer(e, layer);
        comm_device_all_reduce(e->comm, e->reducing, e->norms, e->n_channels);
    }
    d->row_ops->summarise_norms(e->reducing, e->summary, e->norms, e->place_device,
                                (int)e->n_channels, e->config.gradient_clipping);
    engine_follow(e, e->device->compute, e->reducing);
    d->copy(e->reducing, e->summary_host, e->summary, sizeof *e->summary);
    if (e->norms_host)
        d->copy(e->reducing, e->norms_host, e->norms, sizeof(float) * e->n_channels);
    d->event_record(e->norm_known, e->reducing);
}

/* After the warm-up, windows of the configured length begin. */
static void leave_warm_up(struct engine *e)
{
    int first =
        e->config.apply_lag > FIRST_AUTO_INTERVAL ? e->config.apply_lag : FIRST_AUTO_INTERVAL;
    int interval = e->config.update_interval ? e->config.update_interval : first;
    if (e->step == e->config.full_warm_up_rounds)
        windows_begin(e, interval, e->config.apply_lag, e->step);
}

/* ---- the end of a step ---- */

/* What is done on the device with this step's gradient; it reads the clipping factor there, so the
 * host need not know it yet. */
static void use_gradient(struct engine *e, struct step_report *report)
{
    channels_update_important(e, report);
    windows_accumulate_on_device(e);
}

static void count_step(struct engine *e, struct step_report *report)
{
    channels_count_updates(e);
    for (size_t c = 0; c < e->n_channels && e->ranks > 1; c++)
        e->updated[c] |= e->place[c] == CHANNEL_IMPORTANT || e->place[c] == CHANNEL_RESIDENT;
    if (e->workers)
        windows_count_step(e, e->summary_host->factor, report);
}

/* Once the host knows that the step counts. */
static void update(struct engine *e, bool first_choice, struct step_report *report)
{
    e->skipped_in_a_row = 0;
    channels_select(e, report);
    if (first_choice)
        use_gradient(e, report);
    count_step(e, report);
    windows_arrive(e, false, report);
    for (int j = 0; j < e->interval; j++)
        if (schedule_closes(j, e->step - e->windows_began, e->interval, e->config.stagger))
            windows_close(e, &e->groups[j], report);
    windows_arrive(e, false, report);
    windows_choose_interval(e, report);
    ranks_share_parameters(e);
    e->step++;
}

/* Clears the gradients for the next step, once they have gone where they are to go. */
static void clear_gradients(struct engine *e)
{
    struct device *d = e->device;
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST)
        engine_follow(e, d->compute, e->down);
    d->zero(d->compute, e->grads, e->table->n_elements * sizeof(float));
    e->staging_gradients = false;
    e->staged_bytes = 0;
}

static void report_host_time(struct engine *e, struct step_report *report)
{
    report->stall_seconds += e->stall_seconds;
    e->stall_seconds = 0;
    if (!e->workers)
        return;
    double busy = worker_pool_busy_seconds(e->workers);
    report->host_seconds = busy - e->host_seconds_before;
    e->host_seconds_before = busy;
}

bool engine_end_step(struct engine *e, struct step_report *report, struct zf_error *err)
{
    *report = (struct step_report){0};
    measure_step(e);
    leave_warm_up(e);
    bool first_choice = channels_choose_first(e);
    if (!first_choice)
        use_gradient(e, report);
    e->device->event_wait(e->norm_known);
    report->grad_norm = e->summary_host->norm;
    report->skipped = e->summary_host->factor == 0;
    if (report->skipped)
        e->skipped_in_a_row++;
    else
        update(e, first_choice, report);
    clear_gradients(e);
    report->update_interval = e->interval;
    report_host_time(e, report);
    return e->skipped_in_a_row < SKIPPED_IN_A_ROW_LIMIT ||
           zf_fail(err,
                   "the gradient was not finite in %d steps in a row, the last with a learning "
                   "rate of %g: a smaller learning rate or gradient_clipping may help",
                   e->skipped_in_a_row, e->lr);
}

int engine_steps(const struct engine *e)
{
    return e->step;
}

void engine_finish(struct engine *e)
{
    struct step_report ignored = {0};
    windows_flush(e, &ignored);
    ranks_share_parameters(e);
    engine_settle(e);
}
