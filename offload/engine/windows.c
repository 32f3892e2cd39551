/* Windows: deferred gradients gather, a group closes, the host updates, the result arrives. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "data/simd.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALL_GROUPS UINT64_MAX
/* update_interval "auto" and "keep_up" begin with this. */
#define FIRST_AUTO_INTERVAL 4

/* A layer's matrices lie one after another, from at[layer] on, in elements of such a size. */
static void set_deferred(struct engine *e, char *memory, size_t *at, size_t size)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        m->deferred = memory + at[m->param->layer] * size;
        at[m->param->layer] += deferred_elements(m);
    }
}

/* Where a layer's deferred gradients are taken to: a place of its own, in which they wait for the
 * clipping factor; where they only wait for the link, layers share slots as their gradients do. */
static size_t deferred_place(const struct engine *e, int layer)
{
    return (size_t)(gathers_on_host(e, layer) ? streams_slot(e, layer)
                                              : e->table->n_layers + layer);
}

static void place_deferred(struct engine *e)
{
    const size_t n_layers = (size_t)e->table->n_layers, n_places = 2 * n_layers;
    const size_t size = dtype_size(exchange_dtype(e));
    size_t *begin = zf_calloc(n_places + 1, sizeof *begin), *at = zf_calloc(n_layers, sizeof *at);
    struct arena *a = &e->arena;
    for (int i = 0; i < e->n_matrices; i++)
        at[e->matrices[i].param->layer] += deferred_elements(&e->matrices[i]);
    for (size_t layer = 0; layer < n_layers; layer++) {
        size_t *most = &begin[deferred_place(e, (int)layer) + 1];
        *most = at[layer] > *most ? at[layer] : *most;
    }
    for (size_t place = 0; place < n_places; place++)
        begin[place + 1] += begin[place];
    char *memory = arena_take(a, &a->use.gradients, begin[n_places], size);
    for (size_t layer = 0; layer < n_layers; layer++)
        at[layer] = begin[deferred_place(e, (int)layer)];
    if (memory)
        set_deferred(e, memory, at, size);
    free(begin);
    free(at);
}

void windows_place(struct engine *e)
{
    struct arena *a = &e->arena;
    place_deferred(e);
    const size_t n = host_window_elements(e, false);
    if (n > 0)
        e->windows.memory = arena_take(a, &a->use.windows, n, sizeof(float));
    e->windows.scale = arena_take(a, &a->use.workspace, 1, sizeof *e->windows.scale);
}

void windows_create(struct engine *e)
{
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST)
        e->windows.staged_place = zf_calloc(e->n_channels, 1);
    host_work_create(e, &e->windows.accumulation);
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++) {
        host_work_create(e, &e->windows.groups[j].update);
        host_work_create(e, &e->windows.groups[j].commit);
    }
}

void windows_release(struct engine *e)
{
    free(e->windows.staged_place);
    host_work_release(e, &e->windows.accumulation);
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++) {
        host_work_release(e, &e->windows.groups[j].update);
        host_work_release(e, &e->windows.groups[j].commit);
    }
}

/* Deferred channels of all matrices, leaving ones among them. */
static struct channel_set all_channels(const struct engine *e)
{
    return (struct channel_set){
        .n_groups = e->windows.interval, .groups = ALL_GROUPS, .with_leaving = true};
}

/* ---- gathering ---- */

/* As the device's accumulate_rows, to the bit. */
ZF_SIMD
static void add_row(float *restrict sum, const void *restrict gradient, enum dtype dtype,
                    float factor, size_t n)
{
    const float *f32 = gradient;
    const uint16_t *bf16 = gradient;
    if (dtype == DTYPE_F32)
        for (size_t i = 0; i < n; i++)
            sum[i] = fmaf(factor, f32[i], sum[i]);
    else
        for (size_t i = 0; i < n; i++)
            sum[i] = fmaf(factor, bf16_to_f32(bf16[i]), sum[i]);
}

/* Whether a channel's gradient has been staged. */
static bool is_staged(const struct engine *e, const struct matrix *m, int row)
{
    const size_t channel = m->first_channel + (size_t)(m->owned.first + row);
    return !channel_has_slot(e->windows.staged_place[channel]);
}

/* Adds staged gradients to one chunk's host windows. */
static void accumulate_chunk(void *argument, int chunk)
{
    const struct layer_work *work = argument;
    const struct engine *e = work->engine;
    const struct host_adam_chunk *c = &host_chunks(e, work->layer)[chunk];
    const struct matrix *m = &e->matrices[c->matrix->part.index];
    const struct row_groups groups = owned_groups(e, m);
    size_t n = (size_t)m->cols;
    for (int row = c->first; row < c->last; row++) {
        size_t at = (size_t)row * n;
        if (!is_staged(e, m, row))
            continue;
        if (e->windows.staged_fresh >> row_groups_group(&groups, row) & 1)
            memset(m->window + at, 0, sizeof(float) * n);
        add_row(m->window + at, (const char *)m->staged + at * dtype_size(exchange_dtype(e)),
                exchange_dtype(e), e->windows.staged_factor, n);
    }
}

/* What it reads and writes. */
static size_t accumulate_bytes(void *argument, int chunk)
{
    const struct layer_work *work = argument;
    const struct engine *e = work->engine;
    const struct host_adam_chunk *c = &host_chunks(e, work->layer)[chunk];
    const struct matrix *m = &e->matrices[c->matrix->part.index];
    size_t bytes = 0;
    for (int row = c->first; row < c->last; row++)
        if (is_staged(e, m, row))
            bytes += (size_t)m->cols * (2 * sizeof(float) + dtype_size(exchange_dtype(e)));
    return bytes;
}

void windows_make_room(struct engine *e, int layer)
{
    if (gathers_on_host(e, layer))
        e->device->event_order(e->streams.reducing, e->streams.sent[streams_slot(e, layer)]);
}

/* What crosses of a layer's gradients: all of them as they were taken, or without copies those of
 * deferred channels. */
static size_t stage_bytes(const struct engine *e, int layer)
{
    size_t deferred = 0, all = 0;
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        for (int g = 0; g < e->windows.interval; g++)
            deferred += (size_t)(m->n_deferred[g] + m->n_leaving[g]) * (size_t)m->cols;
        all += m->selectable ? owned_elements(m) : 0;
    }
    return (exchange_copies(e) ? all : deferred) * dtype_size(exchange_dtype(e));
}

/* A layer's gradients lie in the staging memory as they do on the device. */
static void copy_staged(struct engine *e, int layer)
{
    const struct matrix *first = NULL;
    size_t n = 0;
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        n += deferred_elements(m);
        if (!first && m->selectable)
            first = m;
    }
    e->device->copy(e->streams.down, first->staged, first->deferred,
                    n * dtype_size(exchange_dtype(e)));
}

void windows_stage(struct engine *e, int layer)
{
    if (!e->host.workers || !gathers_on_host(e, layer))
        return;
    const size_t bytes = stage_bytes(e, layer);
    if (bytes == 0)
        return;
    if (!e->windows.staging_gradients)
        host_hold(e, &e->windows.accumulation); /* the staging memory is about to change */
    e->windows.staging_gradients = true;
    e->windows.staged_bytes += bytes;
    const struct channel_set set = all_channels(e);
    streams_follow(e, e->streams.down, e->streams.reducing);
    trace_begin(e->config.trace, TRACE_LINK_DOWN, "gradients");
    if (exchange_copies(e))
        copy_staged(e, layer);
    else
        e->device->row_ops->stage_rows(e->streams.down, &e->batches.layers[layer],
                                       exchange_dtype(e), &set);
    trace_end(e->config.trace, TRACE_LINK_DOWN, bytes);
    e->device->event_record(e->streams.sent[streams_slot(e, layer)], e->streams.down);
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
    if (!e->host.workers || e->batches.gathering.n == 0)
        return;
    streams_follow(e, d->compute,
                   e->streams.down); /* a window that is being sent does not begin anew */
    const struct channel_set set = all_channels(e);
    d->row_ops->accumulate_rows(d->compute, &e->batches.gathering, exchange_dtype(e), &set,
                                fresh_groups(e), &e->norms.summary->factor);
}

/* This step's gradients are in their windows, of which some begin with them. */
static void note_norms(struct engine *e, uint64_t fresh, float factor)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = owned_groups(e, m);
        const float *squared = e->norms.squared_host + m->first_channel + m->owned.first;
        if (!m->selectable)
            continue;
        for (int row = 0, end; row < m->n_owned; row = end) {
            const bool begins = fresh >> row_groups_group(&groups, row) & 1;
            end = row_groups_end(&groups, row);
            end = end < m->n_owned ? end : m->n_owned;
            for (int r = row; r < end; r++)
                m->window_norms[r] =
                    fmaf(factor * factor, squared[r], begins ? 0 : m->window_norms[r]);
        }
    }
    plan_host_loop(e->device->plan, e->n_channels / (size_t)e->ranks);
}

/* The step before this one has been added to the windows. By now it mostly has: where layers share
 * slots, some of this step's gradients could not be taken before that. */
static void end_accumulation(struct engine *e)
{
    host_wait(e, &e->windows.accumulation);
    host_trace(e, &e->windows.accumulation, "accumulate");
}

void windows_count_step(struct engine *e, float factor, struct step_report *report)
{
    end_accumulation(e);
    e->windows.staged_fresh = fresh_groups(e);
    e->windows.staged_factor = factor;
    if (notes_norms(e))
        note_norms(e, e->windows.staged_fresh, factor);
    for (int j = 0; j < e->windows.interval; j++) {
        struct group *g = &e->windows.groups[j];
        if (g->open_steps++ == 0)
            g->oldest = e->step;
    }
    if (e->windows.staging_gradients) {
        memcpy(e->windows.staged_place, e->selection.place, e->n_channels);
        struct host_work *work = &e->windows.accumulation;
        if (!updates_from_staged(e))
            for (int layer = 0; layer < e->table->n_layers; layer++)
                if (gathers_on_host(e, layer))
                    host_submit(e, work, layer, e->streams.down, accumulate_chunk, accumulate_bytes,
                                &work->layers[layer]);
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
    double scale = e->config.all_steps ? g->open_steps : e->config.deferred_lr_scale;
    return e->lr * (float)(scale == ENGINE_LR_SQRT ? sqrt(g->open_steps) : scale);
}

/* What the host's updates read of the group's windows beside their means. */
static void close_norms(const struct engine *e, const struct group *g)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = owned_groups(e, m);
        if (!m->selectable)
            continue;
        for_each_in_group (row, &groups, g->index, m->n_owned)
            m->closing_norms[row] = m->window_norms[row] / (float)g->closing_steps;
    }
    plan_host_group_loop(e->device->plan, e->n_channels / (size_t)e->ranks, e->windows.interval);
}

static void send_means(struct engine *e, const struct group *g, int layer,
                       struct step_report *report)
{
    const size_t bytes = exchange_bytes(e, g, layer, true);
    if (bytes == 0)
        return;
    trace_begin(e->config.trace, TRACE_LINK_DOWN, "window");
    exchange_send(e, g, layer);
    trace_end(e->config.trace, TRACE_LINK_DOWN, bytes);
    report->bytes_down += bytes;
}

/* A layer's means go down, and as soon as they are there its update begins. */
static void update_layer(struct engine *e, struct group *g, int layer, float lr,
                         struct step_report *report)
{
    struct layer_work *work = &g->update.layers[layer];
    exchange_reuse(e, g, layer);
    if (!gathers_on_host(e, layer))
        send_means(e, g, layer, report);
    work->update = (struct host_adam_job){.chunks = host_chunks(e, layer),
                                          .group = g->index,
                                          .n_groups = e->windows.interval,
                                          .exchange = exchange_layer(e, g, layer),
                                          .rule = channels_rule(e, lr),
                                          .window_steps = (float)g->closing_steps,
                                          .all_steps = notes_norms(e),
                                          .factor = e->windows.staged_factor,
                                          .commits_later = streams_layer(e, layer),
                                          .path = host_adam_best_path()};
    host_submit(e, &g->update, layer, e->streams.down, host_adam_run, host_adam_bytes,
                &work->update);
}

void windows_close(struct engine *e, struct group *g, struct step_report *report)
{
    if (!e->host.workers || g->open_steps == 0)
        return;
    assert(!g->in_flight);
    const float lr = deferred_lr(e, g);
    exchange_take_region(e, g);
    streams_follow(e, e->streams.down, e->device->compute);
    g->closing_steps = g->open_steps;
    g->update.nanoseconds = 0;
    if (notes_norms(e))
        close_norms(e, g);
    for (int layer = 0; layer < e->table->n_layers; layer++)
        update_layer(e, g, layer, lr, report);
    g->open_steps = 0;
    g->in_flight = true;
    g->due = e->step + e->windows.lag;
    g->oldest_in_flight = g->oldest;
}

/* ---- arriving ---- */

/* One group's channels of a layer get what the host has made of them. */
static void receive(struct engine *e, int layer, const struct group *g, struct step_report *report)
{
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        if (!m->selectable || !sharing_is_needed(e))
            continue;
        for_each_in_group (row, &groups, g->index, m->param->rows)
            sharing_note(e, m->first_channel + (size_t)row);
    }
    const size_t bytes = exchange_bytes(e, g, layer, false);
    if (bytes > 0)
        exchange_receive(e, g, layer);
    report->bytes_up += bytes;
}

/* What streams comes with its layer: its updated parameters become those of the host. The workers
 * get that at once and not behind what is going down: its update is done, and this step's passes,
 * which read the others, are over. */
static void commit(struct engine *e, struct group *g, int layer)
{
    struct layer_work *work = &g->commit.layers[layer];
    work->update = (struct host_adam_job){.chunks = host_chunks(e, layer),
                                          .group = g->index,
                                          .n_groups = e->windows.interval,
                                          .exchange = exchange_layer(e, g, layer)};
    host_submit(e, &g->commit, layer, NULL, host_adam_run_commit, host_adam_commit_bytes,
                &work->update);
}

void windows_wait_commits(struct engine *e, int layer)
{
    for (int j = 0; j < e->windows.interval; j++)
        host_wait_layer(e, &e->windows.groups[j].commit, layer);
}

static void arrive(struct engine *e, struct group *g, struct step_report *report)
{
    e->device->event_order(e->streams.up, e->streams.read);
    size_t before = report->bytes_up;
    trace_begin(e->config.trace, TRACE_LINK_UP, "parameters");
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        host_wait_layer(e, &g->update, layer);
        if (streams_layer(e, layer)) {
            commit(e, g, layer);
            continue;
        }
        receive(e, layer, g, report);
        streams_bring(e, layer, e->streams.up);
    }
    trace_end(e->config.trace, TRACE_LINK_UP, report->bytes_up - before);
    host_trace(e, &g->update, "AdamW");
    pace_note_arrival(e, g);
    plan_host_group_loop(e->device->plan, sharing_is_needed(e) ? e->n_channels : 0,
                         e->windows.interval);
    int staleness = e->step - g->oldest_in_flight;
    assert(staleness <= e->windows.interval - 1 + e->windows.lag);
    report->staleness = staleness > report->staleness ? staleness : report->staleness;
    g->in_flight = false;
    g->arrived = e->step;
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
    host_await_start(e);
    carry_land(e);
    selection_update(e);
    host_wait(e, &e->windows.accumulation);
    for (int j = 0; j < e->windows.interval; j++) {
        host_wait(e, &e->windows.groups[j].commit);
        if (e->windows.groups[j].in_flight)
            host_wait(e, &e->windows.groups[j].update);
    }
    stall_take(e);
}

/* There may be fewer regions than groups that close at once. */
static void free_region(struct engine *e, struct step_report *report)
{
    struct group *holder = exchange_next_holder(e);
    if (holder && holder->in_flight)
        arrive(e, holder, report);
}

/* What is in flight arrives, and channels enter that wait for it. */
static void arrive_all(struct engine *e, struct step_report *report)
{
    e->device->event_record(e->streams.read, e->device->compute);
    windows_arrive(e, true, report);
    selection_carry(e);
    selection_enter(e);
    streams_follow(e, e->device->compute, e->streams.up);
    selection_tell(e);
}

void windows_flush(struct engine *e, struct step_report *report)
{
    selection_hold(e);
    selection_tell(e);
    arrive_all(e, report);
    for (int j = 0; j < e->windows.interval; j++) {
        struct group *g = &e->windows.groups[j];
        free_region(e, report);
        streams_follow(e, e->device->compute, e->streams.up);
        selection_adopt(e, g, true, report);
        selection_tell(e);
        windows_close(e, g, report);
    }
    carry_start(e);
    arrive_all(e, report);
    selection_settle(e);
    selection_tell(e);
}

void windows_begin(struct engine *e, int interval, int lag, int first_step)
{
    for (int j = 0; j < e->windows.interval; j++)
        host_wait(e, &e->windows.groups[j].commit); /* it reads the exchange as it is */
    for (int j = 0; j < interval; j++) {
        assert(e->windows.groups[j].open_steps == 0 && !e->windows.groups[j].in_flight);
        e->windows.groups[j].engine = e;
        e->windows.groups[j].index = j;
    }
    e->windows.interval = interval;
    e->windows.lag = lag;
    e->windows.began = first_step;
    selection_list(e); /* they are other groups */
    exchange_lay_out(e);
    table_update(e);
    selection_count(e);
}

void windows_begin_configured(struct engine *e)
{
    const int lag = e->config.apply_lag;
    const int first = lag > FIRST_AUTO_INTERVAL ? lag : FIRST_AUTO_INTERVAL;
    windows_begin(e, e->config.update_interval ? e->config.update_interval : first, lag, e->step);
}

struct group windows_anew(const struct group *g)
{
    return (struct group){.update = {.layers = g->update.layers},
                          .commit = {.layers = g->commit.layers},
                          .arrived = -1};
}

void windows_forget(struct engine *e)
{
    struct windows *w = &e->windows;
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        w->groups[j] = windows_anew(&w->groups[j]);
    w->accumulation.begun = false;
    if (e->config.full_warm_up_rounds > 0)
        windows_begin(e, 1, 0, 0);
    else
        windows_begin_configured(e);
}

/* What a committed update has left of a deferred row. */
static void restore_row(const struct engine *e, const struct matrix *m, int row)
{
    const size_t cols = m->host.cols;
    if (channel_closes(m->host.place[row]))
        host_adam_read_parameters(&m->host, (size_t)row * cols, cols, exchange_row(e, m, row));
}

void windows_restore_exchange(struct engine *e)
{
    for (int j = 0; j < e->windows.interval; j++) {
        if (!e->windows.groups[j].in_flight)
            continue;
        for (int i = 0; i < e->n_matrices; i++) {
            const struct matrix *m = &e->matrices[i];
            const struct row_groups groups = owned_groups(e, m);
            if (!m->selectable || m->streams)
                continue;
            for_each_in_group (row, &groups, j, m->n_owned)
                restore_row(e, m, row);
        }
    }
}
