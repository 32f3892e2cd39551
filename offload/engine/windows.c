/* Windows: deferred gradients gather, a group closes, the host updates, the result arrives. */
#include "offload/engine/internal.h"

#include "data/bf16.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define ALL_GROUPS UINT64_MAX

void windows_place(struct engine *e)
{
    struct arena *a = &e->arena;
    if (e->config.accumulate == ENGINE_ACCUMULATE_DEVICE)
        e->windows.memory = arena_take(a, &a->use.windows, e->host.elements, sizeof(float));
    e->windows.scale = arena_take(a, &a->use.workspace, 1, sizeof *e->windows.scale);
}

void windows_create(struct engine *e)
{
    e->windows.accumulation.handed_over = e->device->event_create();
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        e->windows.groups[j].update.handed_over = e->device->event_create();
}

void windows_release(struct engine *e)
{
    e->device->event_destroy(e->windows.accumulation.handed_over);
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        e->device->event_destroy(e->windows.groups[j].update.handed_over);
}

/* Deferred channels of all matrices, in a set of groups. */
static struct channel_set channels_in(const struct engine *e, uint64_t groups, bool with_leaving)
{
    return (struct channel_set){
        .n_groups = e->windows.interval, .groups = groups, .with_leaving = with_leaving};
}

/* Channels of a matrix are what they weigh on the link. */
static size_t link_bytes(const struct engine *e, const struct matrix *m, int channels)
{
    return (size_t)channels * (size_t)m->cols * dtype_size(exchange_dtype(e));
}

/* ---- gathering ---- */

/* Adds staged gradients to one chunk's host windows. */
static void accumulate_chunk(void *argument, int chunk)
{
    struct engine *e = argument;
    const struct host_adam_chunk *c = &e->host.chunks[chunk];
    struct matrix *m = &e->matrices[c->matrix->part.index];
    const struct row_groups groups = owned_groups(e, m);
    size_t n = (size_t)m->cols;
    for (int row = c->first; row < c->last; row++) {
        size_t at = (size_t)row * n;
        if (place_of(e, m, row) == CHANNEL_IMPORTANT)
            continue;
        if (e->windows.staged_fresh >> row_groups_group(&groups, row) & 1)
            memset(m->window + at, 0, sizeof(float) * n);
        if (e->config.bf16)
            bf16_add(m->window + at, (const uint16_t *)m->staged + at, e->windows.staged_factor, n);
        else
            for (size_t j = at; j < at + n; j++)
                m->window[j] += e->windows.staged_factor * ((const float *)m->staged)[j];
    }
}

/* What it reads and writes. */
static size_t accumulate_bytes(void *argument, int chunk)
{
    const struct engine *e = argument;
    const struct host_adam_chunk *c = &e->host.chunks[chunk];
    const struct matrix *m = &e->matrices[c->matrix->part.index];
    size_t bytes = 0;
    for (int row = c->first; row < c->last; row++)
        if (place_of(e, m, row) != CHANNEL_IMPORTANT)
            bytes += (size_t)m->cols * (2 * sizeof(float) + dtype_size(exchange_dtype(e)));
    return bytes;
}

void windows_stage(struct engine *e, int layer)
{
    size_t bytes = 0;
    if (!e->host.workers || e->config.accumulate != ENGINE_ACCUMULATE_HOST)
        return;
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++)
        for (int g = 0; g < e->windows.interval; g++)
            bytes += link_bytes(e, &e->matrices[i],
                                e->matrices[i].deferred[g] + e->matrices[i].leaving[g]);
    if (bytes == 0)
        return;
    if (!e->windows.staging_gradients) { /* the staging memory is about to change */
        host_wait(e, &e->windows.accumulation);
        host_trace(e, &e->windows.accumulation, "accumulate");
    }
    e->windows.staging_gradients = true;
    e->windows.staged_bytes += bytes;
    const struct channel_set set = channels_in(e, ALL_GROUPS, true);
    streams_follow(e, e->streams.down, e->streams.reducing);
    trace_begin(e->config.trace, TRACE_LINK_DOWN, "gradients");
    e->device->row_ops->send_rows(e->streams.down, &e->batches.layers[layer], ROWS_GRADIENT,
                                  exchange_dtype(e), &set, 1);
    trace_end(e->config.trace, TRACE_LINK_DOWN, bytes);
}

/* The groups whose windows begin with this step's gradient. */
static uint64_t fresh_groups(const struct engine *e)
{
    uint64_t fresh = 0;
    for (int j = 0; j < e->windows.interval; j++)
        fresh |= (uint64_t)(e->windows.groups[j].open_steps == 0) << j;
    return fresh;
}

void windows_accumulate_on_device(struct engine *e)
{
    struct device *d = e->device;
    if (!e->host.workers || e->config.accumulate == ENGINE_ACCUMULATE_HOST)
        return;
    streams_follow(e, d->compute,
                   e->streams.down); /* a window that is being sent does not begin anew */
    const struct channel_set set = channels_in(e, ALL_GROUPS, true);
    d->row_ops->accumulate_rows(d->compute, &e->batches.all, &set, fresh_groups(e),
                                &e->norms.summary->factor);
}

void windows_count_step(struct engine *e, float factor, struct step_report *report)
{
    e->windows.staged_fresh = fresh_groups(e);
    e->windows.staged_factor = factor;
    for (int j = 0; j < e->windows.interval; j++) {
        struct group *g = &e->windows.groups[j];
        if (g->open_steps++ == 0)
            g->oldest = e->step;
    }
    if (e->windows.staging_gradients) {
        host_submit(e, &e->windows.accumulation, accumulate_chunk, accumulate_bytes, e);
        report->bytes_down += e->windows.staged_bytes;
    }
}

void windows_end_staging(struct engine *e)
{
    e->windows.staging_gradients = false;
    e->windows.staged_bytes = 0;
}

/* ---- closing ---- */

static float deferred_lr(const struct engine *e, const struct group *g)
{
    double scale = e->config.deferred_lr_scale;
    return e->lr * (float)(scale == ENGINE_LR_SQRT ? sqrt(g->open_steps) : scale);
}

static void send_means(struct engine *e, struct group *g, struct step_report *report)
{
    struct device *d = e->device;
    size_t bytes = 0;
    for (int i = 0; i < e->n_matrices; i++)
        bytes += link_bytes(e, &e->matrices[i], e->matrices[i].deferred[g->index]);
    streams_follow(e, e->streams.down, d->compute);
    trace_begin(e->config.trace, TRACE_LINK_DOWN, "window");
    const struct channel_set set = channels_in(e, (uint64_t)1 << g->index, false);
    d->row_ops->send_rows(e->streams.down, &e->batches.all, ROWS_WINDOW, exchange_dtype(e), &set,
                          (float)g->open_steps);
    trace_end(e->config.trace, TRACE_LINK_DOWN, bytes);
    report->bytes_down += bytes;
}

void windows_close(struct engine *e, struct group *g, struct step_report *report)
{
    if (!e->host.workers || g->open_steps == 0)
        return;
    assert(!g->in_flight);
    const float lr = deferred_lr(e, g);
    selection_adopt(e, g, lr, report);
    streams_follow(e, e->streams.down,
                   e->streams.up); /* the group's last update has left the exchange buffer */
    if (e->config.accumulate == ENGINE_ACCUMULATE_DEVICE)
        send_means(e, g, report);
    g->closing_steps = g->open_steps;
    g->job = (struct host_adam_job){.chunks = e->host.chunks,
                                    .group = g->index,
                                    .n_groups = e->windows.interval,
                                    .rule = channels_rule(e, lr),
                                    .window_steps = (float)g->closing_steps,
                                    .path = host_adam_best_path()};
    g->open_steps = 0;
    g->in_flight = true;
    g->due = e->step + e->windows.lag;
    g->oldest_in_flight = g->oldest;
    host_submit(e, &g->update, host_adam_run, host_adam_bytes, &g->job);
}

/* ---- arriving ---- */

/* One group's channels of a layer get what the host has made of them. */
static void receive(struct engine *e, int layer, const struct group *g, struct step_report *report)
{
    const struct channel_set set = channels_in(e, (uint64_t)1 << g->index, false);
    size_t bytes = 0;
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        bytes += link_bytes(e, m, m->deferred[g->index]);
        for_each_in_group(r, &groups, g->index, e->ranks > 1 && m->selectable ? m->param->rows : 0)
            sharing_note(e, m->first_channel + (size_t)r);
    }
    if (bytes > 0)
        e->device->row_ops->receive_rows(e->streams.up, &e->batches.layers[layer],
                                         exchange_dtype(e), &set);
    report->bytes_up += bytes;
}

static void arrive(struct engine *e, struct group *g, struct step_report *report)
{
    host_wait(e, &g->update);
    host_trace(e, &g->update, "AdamW");
    streams_follow(e, e->streams.up,
                   e->device->compute); /* which reads the parameters as they were */
    size_t before = report->bytes_up;
    trace_begin(e->config.trace, TRACE_LINK_UP, "parameters");
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        receive(e, layer, g, report);
        streams_bring(e, layer, e->streams.up);
    }
    trace_end(e->config.trace, TRACE_LINK_UP, report->bytes_up - before);
    plan_host_group_loop(e->device->plan, e->ranks > 1 ? e->n_channels : 0, e->windows.interval);
    int staleness = e->step - g->oldest_in_flight;
    assert(staleness <= e->windows.interval - 1 + e->windows.lag);
    report->staleness = staleness > report->staleness ? staleness : report->staleness;
    g->in_flight = false;
    if (g->has_leaving)
        selection_settle(e, g);
}

void windows_arrive(struct engine *e, bool all, struct step_report *report)
{
    for (int j = 0; j < e->windows.interval; j++) {
        struct group *g = &e->windows.groups[j];
        if (g->in_flight && (all || g->due <= e->step))
            arrive(e, g, report);
    }
}

void windows_wait(struct engine *e)
{
    host_wait(e, &e->windows.accumulation);
    for (int j = 0; j < e->windows.interval; j++)
        if (e->windows.groups[j].in_flight)
            host_wait(e, &e->windows.groups[j].update);
    host_take_stall(e);
}

void windows_flush(struct engine *e, struct step_report *report)
{
    windows_arrive(e, true, report);
    for (int j = 0; j < e->windows.interval; j++)
        windows_close(e, &e->windows.groups[j], report);
    windows_arrive(e, true, report);
}

void windows_begin(struct engine *e, int interval, int lag, int first_step)
{
    for (int j = 0; j < interval; j++) {
        assert(e->windows.groups[j].open_steps == 0 && !e->windows.groups[j].in_flight);
        e->windows.groups[j].engine = e;
        e->windows.groups[j].index = j;
    }
    e->windows.interval = interval;
    e->windows.lag = lag;
    e->windows.began = first_step;
    selection_count(e);
}

void windows_forget(struct engine *e)
{
    struct windows *w = &e->windows;
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        w->groups[j] = (struct group){.update = {.handed_over = w->groups[j].update.handed_over}};
    w->accumulation.begun = false;
    windows_begin(e, 1, 0, 0);
}

void windows_restore_exchange(struct engine *e)
{
    for (int j = 0; j < e->windows.interval; j++) {
        if (!e->windows.groups[j].in_flight)
            continue;
        for (int i = 0; i < e->n_matrices; i++) {
            struct matrix *m = &e->matrices[i];
            const struct row_groups groups = owned_groups(e, m);
            for_each_in_group(row, &groups, j, m->selectable ? m->n_owned : 0)
                /* as host AdamW writes it */
                host_adam_put(&m->host, (size_t)row, (size_t)row + 1, m->host.master, 1);
        }
    }
}
