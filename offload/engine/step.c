/* The order of a step. */
#include "offload/engine/internal.h"

#define SKIPPED_IN_A_ROW_LIMIT 10
/* update_interval "auto" begins with this. */
#define FIRST_AUTO_INTERVAL 4

void norms_place(struct engine *e)
{
    struct arena *a = &e->arena;
    e->norms.squared = arena_take(a, &a->use.workspace, e->n_channels, sizeof(float));
    e->norms.summary = arena_take(a, &a->use.workspace, 2, sizeof *e->norms.summary);
}

void norms_create(struct engine *e)
{
    e->norms.summary_host = e->device->allocate_host(sizeof *e->norms.summary_host);
    if (e->config.update_interval == 0)
        e->norms.squared_host = e->device->allocate_host(sizeof(float) * e->n_channels);
}

void norms_release(struct engine *e)
{
    e->device->release_host(e->norms.summary_host);
    if (e->norms.squared_host)
        e->device->release_host(e->norms.squared_host);
}

/* ---- forward and backward ---- */

void engine_begin_step(struct engine *e, float lr)
{
    e->lr = lr;
}

void engine_before_backward(struct engine *e)
{
    trace_end(e->config.trace, TRACE_DEVICE, 0); /* the forward pass */
    trace_begin(e->config.trace, TRACE_DEVICE, "backward");
}

static void reduce_layer(struct engine *e, int layer)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct param *p = m->param;
        for (int r = 0; r < e->ranks && p->layer == layer; r++) {
            struct range owned = schedule_owned(i, p->rows, e->ranks, r);
            comm_device_reduce(e->comm, e->streams.reducing,
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
    e->device->row_ops->row_norms_squared(e->streams.reducing, &e->batches.layers[layer]);
    windows_stage(e, layer);
}

void engine_layer_gradients_ready(struct engine *e, int layer)
{
    streams_follow(e, e->streams.reducing, e->device->compute);
    if (e->ranks == 1)
        measure_layer(e, layer);
    else
        reduce_layer(e, layer);
}

/* ---- the end of a step ---- */

/* Squared norms of all channels, on all ranks, and what they say; the host learns it when
 * norm_known has passed. */
static void measure_step(struct engine *e)
{
    struct device *d = e->device;
    if (e->ranks > 1) {
        comm_device_finish(e->comm, e->streams.reducing);
        d->zero(e->streams.reducing, e->norms.squared, sizeof(float) * e->n_channels);
        for (int layer = e->table->n_layers - 1; layer >= 0; layer--)
            measure_layer(e, layer);
        comm_device_all_reduce(e->comm, e->streams.reducing, e->norms.squared, e->n_channels);
    }
    d->row_ops->summarise_norms(e->streams.reducing, e->norms.summary, e->norms.squared,
                                e->selection.place_device, (int)e->n_channels,
                                e->config.gradient_clipping);
    streams_follow(e, e->device->compute, e->streams.reducing);
    d->copy(e->streams.reducing, e->norms.summary_host, e->norms.summary, sizeof *e->norms.summary);
    if (e->norms.squared_host)
        d->copy(e->streams.reducing, e->norms.squared_host, e->norms.squared,
                sizeof(float) * e->n_channels);
    d->event_record(e->streams.norm_known, e->streams.reducing);
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
    plan_host_loop(e->device->plan, (size_t)e->list.n + (e->ranks > 1 ? e->n_channels : 0));
    if (e->ranks > 1)
        for (size_t c = 0; c < e->n_channels; c++)
            if (e->selection.place[c] == CHANNEL_IMPORTANT ||
                e->selection.place[c] == CHANNEL_RESIDENT)
                sharing_note(e, c);
    if (e->host.workers)
        windows_count_step(e, e->norms.summary_host->factor, report);
}

/* Once the host knows that the step counts. */
static void update(struct engine *e, bool first_choice, struct step_report *report)
{
    e->skipped_in_a_row = 0;
    selection_choose(e, report);
    if (first_choice)
        use_gradient(e, report);
    count_step(e, report);
    windows_arrive(e, false, report);
    for (int j = 0; j < e->windows.interval; j++)
        if (schedule_closes(j, e->step - e->windows.began, e->windows.interval, e->config.stagger))
            windows_close(e, &e->windows.groups[j], report);
    windows_arrive(e, false, report);
    interval_choose(e, report);
    sharing_exchange(e);
    e->step++;
}

/* Clears the gradients for the next step, once they have gone where they are to go. */
static void clear_gradients(struct engine *e)
{
    struct device *d = e->device;
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST)
        streams_follow(e, d->compute, e->streams.down);
    d->zero(d->compute, e->grads, e->table->n_elements * sizeof(float));
    windows_end_staging(e);
}

static void report_host_time(struct engine *e, struct step_report *report)
{
    report->stall_seconds = host_take_stall(e);
    if (!e->host.workers)
        return;
    double busy = worker_pool_busy_seconds(e->host.workers);
    report->host_seconds = busy - e->host.seconds_before;
    e->host.seconds_before = busy;
}

bool engine_end_step(struct engine *e, struct step_report *report, struct zf_error *err)
{
    *report = (struct step_report){0};
    measure_step(e);
    leave_warm_up(e);
    bool first_choice = selection_is_first(e);
    if (!first_choice)
        use_gradient(e, report);
    e->device->event_wait(e->streams.norm_known);
    report->grad_norm = e->norms.summary_host->norm;
    report->skipped = e->norms.summary_host->factor == 0;
    if (report->skipped)
        e->skipped_in_a_row++;
    else
        update(e, first_choice, report);
    clear_gradients(e);
    report->update_interval = e->windows.interval;
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
    sharing_exchange(e);
    engine_settle(e);
}
