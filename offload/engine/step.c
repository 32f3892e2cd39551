/* The order of a step. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <stdlib.h>

void norms_place(struct engine *e)
{
    struct arena *a = &e->arena;
    e->norms.squared = arena_take(a, &a->use.workspace, e->n_channels, sizeof(float));
    e->norms.summary = arena_take(a, &a->use.workspace, 2, sizeof *e->norms.summary);
}

void norms_create(struct engine *e)
{
    e->norms.reducing = -1;
    e->norms.gradients = zf_calloc((size_t)e->n_matrices, sizeof *e->norms.gradients);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        e->norms.gradients[i] =
            sharing_divide(e, m, e->grads + m->param->gradient_offset, sizeof *e->grads);
    }
    e->norms.summary_host = e->device->allocate_host(2 * sizeof *e->norms.summary_host);
    if (e->defers)
        e->norms.squared_host = e->device->allocate_host(sizeof(float) * e->n_channels);
}

void norms_release(struct engine *e)
{
    free(e->norms.gradients);
    if (e->norms.summary_host)
        e->device->release_host(e->norms.summary_host);
    if (e->norms.squared_host)
        e->device->release_host(e->norms.squared_host);
}

/* ---- forward and backward ---- */

void engine_begin_step(struct engine *e, float lr)
{
    host_await_start(e);
    e->lr = lr;
    pace_begin_step(e);
    e->norms.before = comm_device_sums(e->comm);
    if (e->ranks == 1)
        return;
    /* Each rank writes its own channels' norms; they are summed over ranks. */
    streams_follow(e, e->streams.reducing, e->device->compute);
    e->device->zero(e->streams.reducing, e->norms.squared, sizeof(float) * e->n_channels);
}

void engine_before_backward(struct engine *e)
{
    pace_begin_backward(e);
    trace_end(e->config.trace, TRACE_DEVICE, 0); /* the forward pass */
    trace_begin(e->config.trace, TRACE_DEVICE, "backward");
}

/* Each rank's part goes to its owner, in place. */
static void reduce_layer(struct engine *e, int layer)
{
    const int first = e->batches.first_of_layer[layer], last = e->batches.first_of_layer[layer + 1];
    streams_follow(e, e->streams.summing, e->device->compute);
    comm_device_reduce(e->comm, e->streams.summing, e->norms.gradients + first, last - first);
    e->norms.reducing = layer;
}

/* A layer's gradient is on its owner, who takes it out of its slot: to where it waits for the
 * clipping factor, or for the link. */
static void take_layer(struct engine *e, int layer)
{
    windows_make_room(e, layer);
    e->device->row_ops->take_rows(e->streams.reducing, &e->batches.layers[layer],
                                  exchange_dtype(e));
    e->device->event_record(e->streams.taken[streams_slot(e, layer)], e->streams.reducing);
    windows_stage(e, layer);
}

/* Waits, on the stream, for the layer that is on its way to its owners. */
static void take_reduced(struct engine *e)
{
    if (e->norms.reducing < 0)
        return;
    comm_device_finish(e->comm, e->streams.summing);
    streams_follow(e, e->streams.reducing, e->streams.summing);
    take_layer(e, e->norms.reducing);
    e->norms.reducing = -1;
}

void engine_before_gradients(struct engine *e, int layer)
{
    if (e->norms.reducing >= 0 &&
        streams_slot(e, e->norms.reducing) == streams_slot(e, layer)) /* there is a single slot */
        take_reduced(e);
    stall_order(e, e->streams.taken[streams_slot(e, layer)]);
}

/* With several ranks a layer is taken when the next one is ready: in between the host, where it is
 * the host that sums, lets the device go on. */
void engine_layer_gradients_ready(struct engine *e, int layer)
{
    take_reduced(e);
    if (e->ranks > 1) {
        reduce_layer(e, layer);
        return;
    }
    streams_follow(e, e->streams.reducing, e->device->compute);
    take_layer(e, layer);
}

/* ---- the end of a step ---- */

/* Whether the host needs each channel's norm in this step, and not only what it is told of all. */
static bool host_needs_norms(const struct engine *e)
{
    const bool gathers =
        e->config.update_interval == 0 && e->config.interval_rule == ENGINE_INTERVAL_DEEPSPEED;
    return e->defers && (gathers || notes_norms(e) || e->selection.looks);
}

/* Norms meet on all ranks: on the collectives' own stream, which goes first. */
static void sum_norms(struct engine *e)
{
    if (e->ranks == 1)
        return;
    streams_follow(e, e->streams.summing, e->streams.reducing);
    comm_device_all_reduce(e->comm, e->streams.summing, e->norms.squared, e->n_channels);
    streams_follow(e, e->streams.reducing, e->streams.summing);
}

/* Squared norms of all channels, on all ranks, and what they say; the host learns it when
 * norm_known has passed. */
static void measure_step(struct engine *e)
{
    struct device *d = e->device;
    d->event_record(e->streams.read, d->compute);
    pace_end_backward(e);
    take_reduced(e);
    sum_norms(e);
    d->row_ops->summarise_norms(e->streams.reducing, e->norms.summary, e->norms.squared,
                                e->selection.place_device, (int)e->n_channels,
                                e->config.gradient_clipping);
    d->event_record(e->streams.mark, e->streams.reducing);
    stall_order(e, e->streams.mark);
    d->copy(e->streams.reducing, e->norms.summary_host, e->norms.summary, sizeof *e->norms.summary);
    selection_look(e);
    if (host_needs_norms(e))
        d->copy(e->streams.reducing, e->norms.squared_host, e->norms.squared,
                sizeof(float) * e->n_channels);
    d->event_record(e->streams.norm_known, e->streams.reducing);
}

/* After the warm-up, windows of the configured length begin. */
static void leave_warm_up(struct engine *e)
{
    if (e->step == e->config.full_warm_up_rounds)
        windows_begin_configured(e);
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
    plan_host_loop(e->device->plan, (size_t)e->list.n + (sharing_is_needed(e) ? e->n_channels : 0));
    if (sharing_is_needed(e))
        for (size_t c = 0; c < e->n_channels; c++)
            if (channel_has_slot(e->selection.place[c]))
                sharing_note(e, c);
    if (e->host.workers)
        windows_count_step(e, e->norms.summary_host->factor, report);
}

static bool closes(const struct engine *e, int group)
{
    const struct windows *w = &e->windows;
    return schedule_closes(group, e->step - w->began, w->interval, e->config.stagger);
}

/* Windows close, and their groups take over the newest choice. */
static void close_windows(struct engine *e, struct step_report *report)
{
    for (int j = 0; j < e->windows.interval; j++)
        if (closes(e, j))
            selection_adopt(e, &e->windows.groups[j], e->windows.lag == 0, report);
    selection_tell(e);
    for (int j = 0; j < e->windows.interval; j++)
        if (closes(e, j))
            windows_close(e, &e->windows.groups[j], report);
    carry_start(e);
}

/* What is due at once arrives, and so do channels that wait for it. */
static void arrive_at_once(struct engine *e, struct step_report *report)
{
    windows_arrive(e, false, report);
    if (e->windows.lag > 0)
        return;
    selection_carry(e);
    selection_enter(e);
    selection_tell(e);
}

/* Once the host knows that the step counts. */
static void update(struct engine *e, struct step_report *report)
{
    e->skipped_in_a_row = 0;
    selection_enter(e);
    const bool first_choice = selection_choose(e, report);
    windows_arrive(e, false, report); /* first: forward waits for what it commits */
    count_step(e, report);
    if (first_choice)
        selection_adopt_first(e, report);
    close_windows(e, report);
    arrive_at_once(e, report);
    interval_choose(e, report);
    sharing_exchange(e);
    parameters_forget(e);
    e->step++;
}

static void report_host_time(struct engine *e, struct step_report *report)
{
    report->stall_seconds = stall_take(e);
    if (!e->host.workers)
        return;
    double busy = worker_pool_busy_seconds(e->host.workers);
    report->host_seconds = busy - e->host.seconds_before;
    e->host.seconds_before = busy;
}

static void report_sums(const struct engine *e, struct step_report *report)
{
    const struct comm_sums now = comm_device_sums(e->comm);
    report->bytes_norms = now.to_all - e->norms.before.to_all;
    report->bytes_gradients = now.to_owners - e->norms.before.to_owners;
}

bool engine_end_step(struct engine *e, struct step_report *report, struct zf_error *err)
{
    *report = (struct step_report){0};
    measure_step(e);
    leave_warm_up(e);
    selection_carry(e);
    use_gradient(e, report);
    e->device->event_wait(e->streams.norm_known);
    report->grad_norm = e->norms.summary_host->norm;
    report->skipped = e->norms.summary_host->factor == 0;
    if (report->skipped) {
        e->skipped_in_a_row++;
        pace_interrupt(e);
    } else {
        update(e, report);
    }
    windows_end_staging(e);
    sharing_report(e, report);
    parameters_report(e, report);
    report_sums(e, report);
    report->update_interval = e->windows.interval;
    report_host_time(e, report);
    return e->skipped_in_a_row < ENGINE_SKIPPED_LIMIT ||
           zf_fail(err,
                   "the gradient was not finite in %d steps in a row, the last with a learning "
                   "rate of %g: a smaller learning rate or gradient_clipping may help",
                   e->skipped_in_a_row, e->lr);
}

int engine_steps(const struct engine *e)
{
    return e->step;
}

int engine_update_interval(const struct engine *e)
{
    return e->windows.interval;
}

void engine_finish(struct engine *e)
{
    struct step_report ignored = {0};
    windows_flush(e, &ignored);
    sharing_exchange(e);
    parameters_forget(e);
    engine_settle(e);
}
