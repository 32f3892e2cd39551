/* Windows: deferred gradients gather, a group closes, the host updates, the result arrives. */
#include "offload/engine_internal.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "data/clock.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALL_GROUPS UINT64_MAX
/* "auto" keeps its interval while the rule's differs by no more than a fourth: a change costs a
 * step in which all windows close. */
#define INTERVAL_SLACK 4

/* The device's view of one matrix's deferred channels in a set of groups. */
static struct channel_set channels_of(const struct engine *e, const struct matrix *m,
                                      uint64_t groups, bool with_leaving)
{
    return (struct channel_set){.place =
                                    e->place_device + m->first_channel + (size_t)m->owned.first,
                                .n_rows = m->n_owned,
                                .shift = m->owned.first + m->index,
                                .n_groups = e->interval,
                                .groups = groups,
                                .with_leaving = with_leaving};
}

/* Owned channels of one group of a matrix, from `from` on. */
#define for_each_owned(row, e, m, group, from, last)                                               \
    for (int row = schedule_first_of_group((m)->index, (m)->owned.first + (from), group,           \
                                           (e)->interval) -                                        \
                   (m)->owned.first;                                                               \
         row < (last); row += (e)->interval)

/* What a group's deferred channels of one matrix are on the link. */
static size_t deferred_bytes(const struct engine *e, const struct matrix *m, int group,
                             bool with_leaving)
{
    size_t rows = 0;
    for_each_owned(row, e, m, group, 0, m->n_owned)
    {
        enum channel_place place = place_of(e, m, row);
        rows += place == CHANNEL_DEFERRED || (with_leaving && place == CHANNEL_LEAVING);
    }
    return rows * (size_t)m->cols * dtype_size(exchange_dtype(e));
}

static void wait_for_host(struct engine *e, uint64_t ticket, struct step_report *report)
{
    double start = clock_seconds();
    bool done = worker_pool_done(e->workers, ticket);
    worker_pool_wait(e->workers, ticket);
    double end = clock_seconds();
    if (done)
        return;
    report->stall_seconds += end - start;
    trace_span(e->config.trace, TRACE_DEVICE, 0, "stall", start, end);
}

/* ---- gathering ---- */

/* Adds staged gradients to one task's host windows. */
static void accumulate_chunk(void *argument, int chunk)
{
    struct engine *e = argument;
    const struct task *task = &e->tasks[chunk];
    struct matrix *m = &e->matrices[task->matrix];
    for (int row = task->first; row < task->last; row++) {
        size_t at = (size_t)row * (size_t)m->cols;
        if (place_of(e, m, row) == CHANNEL_IMPORTANT)
            continue;
        if (e->staged_fresh >> group_of(e, m, row) & 1)
            memset(m->window + at, 0, sizeof(float) * (size_t)m->cols);
        if (e->config.bf16)
            bf16_add(m->window + at, (const uint16_t *)m->staged + at, (size_t)m->cols);
        else
            for (int j = 0; j < m->cols; j++)
                m->window[at + (size_t)j] += ((const float *)m->staged)[at + (size_t)j];
    }
}

static void stage_gradients(struct engine *e, uint64_t fresh, struct step_report *report)
{
    struct device *d = e->device;
    double start = clock_seconds();
    e->staged_fresh = fresh;
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        struct channel_set set = channels_of(e, m, ALL_GROUPS, true);
        if (!m->selectable || m->n_owned == 0)
            continue;
        d->ops->send_rows(d->compute, m->staged, exchange_dtype(e), m->grad, &set, m->cols,
                          e->scale, 1);
        for (int g = 0; g < e->interval; g++)
            report->bytes_down += deferred_bytes(e, m, g, true);
    }
    d->stream_wait(d->compute);
    trace_span(e->config.trace, TRACE_LINK_DOWN, 0, "gradients", start, clock_seconds());
    struct worker_job job = {accumulate_chunk, e, e->n_tasks};
    e->accumulate_ticket = worker_pool_submit(e->workers, &job);
}

static void accumulate_on_device(struct engine *e, uint64_t fresh)
{
    struct device *d = e->device;
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        struct channel_set set = channels_of(e, m, ALL_GROUPS, true);
        if (m->selectable && m->n_owned > 0)
            d->ops->accumulate_rows(d->compute, m->window, m->grad, &set, fresh, m->cols, e->scale);
    }
}

void windows_accumulate(struct engine *e, float factor, struct step_report *report)
{
    uint64_t fresh = 0;
    if (!e->workers)
        return;
    if (e->accumulate_ticket) /* the staging buffer and the groups' counts are about to change */
        wait_for_host(e, e->accumulate_ticket, report);
    for (int j = 0; j < e->interval; j++) {
        struct group *g = &e->groups[j];
        if (g->open_steps++ == 0) {
            g->oldest = e->step;
            fresh |= (uint64_t)1 << j;
        }
    }
    e->device->copy(e->device->compute, e->scale, &factor, sizeof factor);
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST)
        stage_gradients(e, fresh, report);
    else
        accumulate_on_device(e, fresh);
}

/* ---- closing ---- */

static float deferred_lr(const struct engine *e, const struct group *g)
{
    double scale = e->config.deferred_lr_scale;
    return e->lr * (float)(scale == ENGINE_LR_SQRT ? sqrt(g->open_steps) : scale);
}

/* One channel's place in the exchange buffer = its row of `source` (n_owned, cols) / divisor. */
static void fill_exchange(const struct matrix *m, int row, const float *source, float divisor)
{
    size_t at = (size_t)row * (size_t)m->cols;
    for (size_t i = at; i < at + (size_t)m->cols; i++) {
        float value = source[i] / divisor;
        if (m->host.exchange_dtype == DTYPE_BF16)
            ((uint16_t *)m->host.exchange)[i] = bf16_from_f32(value);
        else
            ((float *)m->host.exchange)[i] = value;
    }
}

/* AdamW on one task's channels of a group: the host's work for one closing. */
static void update_chunk(void *argument, int chunk)
{
    const struct group *g = argument;
    const struct engine *e = g->engine;
    const struct task *task = &e->tasks[chunk];
    const struct matrix *m = &e->matrices[task->matrix];
    struct adamw rule = engine_rule(e, m, g->lr);
    for_each_owned(row, e, m, g->index, task->first, task->last)
    {
        if (place_of(e, m, row) != CHANNEL_DEFERRED)
            continue;
        if (e->config.accumulate == ENGINE_ACCUMULATE_HOST)
            fill_exchange(m, row, m->window, (float)g->closing_steps);
        host_adam_update(host_adam_best_path(), &m->host, (size_t)row, (size_t)row + 1, &rule, 1);
    }
}

/* Whether any channel of the group, on any rank, is to change sides. */
static bool has_changes(const struct engine *e, const struct group *g)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        int rows = m->selectable ? m->param->rows : 0;
        for (int r = schedule_first_of_group(m->index, 0, g->index, e->interval); r < rows;
             r += e->interval) {
            size_t c = m->first_channel + (size_t)r;
            if (e->place[c] != e->target[c])
                return true;
        }
    }
    return false;
}

/* Channels that enter have their closing window's mean as one update, now and on the device. */
static void update_entering(struct engine *e, struct matrix *m, const struct group *g,
                            const int *rows, struct step_report *report)
{
    const float *gradient = m->window;
    size_t bytes = sizeof(float) * (size_t)m->cols;
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST) {
        /* This step's gradient has been sent already: its place takes the windows. */
        for (int slot = 0; slot < m->slots.n; slot++)
            if (rows[slot] >= 0) {
                size_t at = (size_t)rows[slot] * (size_t)m->cols;
                e->device->copy(e->device->compute, m->grad + at, m->window + at, bytes);
                report->bytes_up += bytes;
            }
        gradient = m->grad;
    }
    channels_update(e, m, rows, gradient, deferred_lr(e, g), 1.0f / (float)g->open_steps, report);
}

/* Owned channels of one matrix and group change sides. */
static void take_over(struct engine *e, struct matrix *m, const struct group *g,
                      struct step_report *report)
{
    int entering = 0;
    for_each_owned(row, e, m, g->index, 0, m->n_owned)
    {
        size_t c = m->first_channel + (size_t)(m->owned.first + row);
        if (e->place[c] == CHANNEL_IMPORTANT && !e->target[c])
            channels_to_host(e, m, row, report);
    }
    for_each_owned(row, e, m, g->index, 0, m->n_owned)
    {
        size_t c = m->first_channel + (size_t)(m->owned.first + row);
        if (e->target[c] && e->place[c] == CHANNEL_DEFERRED) {
            channels_to_device(e, m, row, report);
            entering++;
        }
    }
    if (entering == 0)
        return;
    int *rows = zf_malloc(sizeof(int) * (size_t)m->slots.n);
    for (int slot = 0; slot < m->slots.n; slot++) {
        int row = m->slots.row_host[slot];
        bool enters = row >= 0 && place_of(e, m, row) == CHANNEL_DEFERRED;
        rows[slot] = enters ? row : -1;
    }
    update_entering(e, m, g, rows, report);
    free(rows);
}

/* The group takes over the newest choice. Its previous host update has arrived. */
static void adopt_choice(struct engine *e, struct group *g, struct step_report *report)
{
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST) /* it reads flags and windows */
        wait_for_host(e, e->accumulate_ticket, report);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (!m->selectable)
            continue;
        take_over(e, m, g, report);
        for (int r = schedule_first_of_group(m->index, 0, g->index, e->interval);
             r < m->param->rows; r += e->interval) {
            size_t c = m->first_channel + (size_t)r;
            bool was = e->place[c] == CHANNEL_IMPORTANT, will = e->target[c];
            e->updated[c] |= will && !was;
            e->place[c] = will ? CHANNEL_IMPORTANT : was ? CHANNEL_LEAVING : CHANNEL_DEFERRED;
            g->has_leaving |= was && !will;
        }
    }
    e->device->copy(e->device->compute, e->place_device, e->place, e->n_channels);
}

static void send_means(struct engine *e, const struct group *g, struct step_report *report)
{
    struct device *d = e->device;
    const float one = 1;
    double start = clock_seconds();
    d->copy(d->compute, e->scale, &one, sizeof one);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        struct channel_set set = channels_of(e, m, (uint64_t)1 << g->index, false);
        if (!m->selectable || m->n_owned == 0)
            continue;
        d->ops->send_rows(d->compute, m->host.exchange, exchange_dtype(e), m->window, &set, m->cols,
                          e->scale, (float)g->open_steps);
        report->bytes_down += deferred_bytes(e, m, g->index, false);
    }
    d->stream_wait(d->compute);
    trace_span(e->config.trace, TRACE_LINK_DOWN, 0, "window", start, clock_seconds());
}

void windows_close(struct engine *e, struct group *g, struct step_report *report)
{
    if (!e->workers || g->open_steps == 0)
        return;
    assert(!g->in_flight);
    if (has_changes(e, g))
        adopt_choice(e, g, report);
    if (e->config.accumulate == ENGINE_ACCUMULATE_DEVICE)
        send_means(e, g, report);
    g->lr = deferred_lr(e, g);
    g->closing_steps = g->open_steps;
    g->open_steps = 0;
    g->in_flight = true;
    g->due = e->step + e->lag;
    g->oldest_in_flight = g->oldest;
    struct worker_job job = {update_chunk, g, e->n_tasks};
    g->ticket = worker_pool_submit(e->workers, &job);
}

/* ---- arriving ---- */

/* Channels that left with the closing whose update has arrived are now like all others. */
static void settle_leaving(struct engine *e, struct group *g, struct step_report *report)
{
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST) /* it reads places */
        wait_for_host(e, e->accumulate_ticket, report);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        for (int r = schedule_first_of_group(m->index, 0, g->index, e->interval);
             m->selectable && r < m->param->rows; r += e->interval) {
            unsigned char *place = &e->place[m->first_channel + (size_t)r];
            if (*place == CHANNEL_LEAVING)
                *place = CHANNEL_DEFERRED;
        }
    }
    e->device->copy(e->device->compute, e->place_device, e->place, e->n_channels);
    g->has_leaving = false;
}

/* What each worker did for a group's update. */
static void trace_workers(const struct engine *e, const struct group *g)
{
    double begin, end;
    if (!e->config.trace || !g->ticket)
        return;
    for (int w = 0; w < worker_pool_threads(e->workers); w++) {
        worker_pool_span(e->workers, g->ticket, w, &begin, &end);
        trace_span(e->config.trace, TRACE_WORKERS, w, "AdamW", begin, end);
    }
}

static void arrive(struct engine *e, struct group *g, struct step_report *report)
{
    struct device *d = e->device;
    wait_for_host(e, g->ticket, report);
    trace_workers(e, g);
    double start = clock_seconds();
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        struct channel_set set = channels_of(e, m, (uint64_t)1 << g->index, false);
        if (!m->selectable)
            continue;
        if (m->n_owned > 0) {
            d->ops->receive_rows(d->compute, m->values, m->host.exchange, exchange_dtype(e), &set,
                                 m->cols);
            report->bytes_up += deferred_bytes(e, m, g->index, false);
        }
        for (int r = schedule_first_of_group(m->index, 0, g->index, e->interval);
             r < m->param->rows; r += e->interval)
            e->updated[m->first_channel + (size_t)r] = 1;
    }
    trace_span(e->config.trace, TRACE_LINK_UP, 0, "parameters", start, clock_seconds());
    int staleness = e->step - g->oldest_in_flight;
    assert(staleness <= e->interval - 1 + e->lag);
    report->staleness = staleness > report->staleness ? staleness : report->staleness;
    g->in_flight = false;
    if (g->has_leaving)
        settle_leaving(e, g, report);
}

void windows_arrive(struct engine *e, bool all, struct step_report *report)
{
    for (int j = 0; j < e->interval; j++) {
        struct group *g = &e->groups[j];
        if (g->in_flight && (all || g->due <= e->step))
            arrive(e, g, report);
    }
}

void windows_flush(struct engine *e, struct step_report *report)
{
    windows_arrive(e, true, report);
    for (int j = 0; j < e->interval; j++)
        windows_close(e, &e->groups[j], report);
    windows_arrive(e, true, report);
}

void windows_begin(struct engine *e, int interval, int lag, int first_step)
{
    for (int j = 0; j < interval; j++) {
        assert(e->groups[j].open_steps == 0 && !e->groups[j].in_flight);
        e->groups[j].engine = e;
        e->groups[j].index = j;
    }
    e->interval = interval;
    e->lag = lag;
    e->windows_began = first_step;
}

/* ---- update_interval "auto" ---- */

/* Mean norms of important and of deferred channels. A channel without gradient, such as a token
 * that does not occur, counts on neither side. */
static void note_norms(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        double sum[2] = {0, 0};
        int count[2] = {0, 0}, rows = m->selectable ? m->param->rows : 0;
        for (size_t c = m->first_channel; c < m->first_channel + (size_t)rows; c++) {
            int side = e->place[c] == CHANNEL_IMPORTANT;
            sum[side] += sqrt(e->norms[c]);
            count[side] += e->norms[c] > 0;
        }
        e->deferred_norm[i] += count[0] ? sum[0] / count[0] : 0;
        e->important_norm[i] += count[1] ? sum[1] / count[1] : 0;
    }
    e->observed_steps++;
}

/* The shortest window with which the host keeps up, on the slowest rank: what it needs for all its
 * channels once, over what a step takes without waiting. */
static int least_interval(struct engine *e)
{
    double now = clock_seconds(), busy = worker_pool_busy_seconds(e->workers);
    double threads = worker_pool_threads(e->workers);
    double step = (now - e->observed_since - e->observed_stall) / e->observed_steps;
    double host = (busy - e->observed_busy) / threads / e->observed_steps * e->interval;
    double lag = e->lag > 1 ? e->lag : 1;
    double least = comm_max(e->comm, step > 0 ? host / step / lag : 1);
    return least < ENGINE_MAX_INTERVAL ? (int)ceil(least) : ENGINE_MAX_INTERVAL;
}

static void observe_anew(struct engine *e)
{
    memset(e->important_norm, 0, sizeof(double) * (size_t)e->n_matrices);
    memset(e->deferred_norm, 0, sizeof(double) * (size_t)e->n_matrices);
    e->observed_steps = 0;
    e->observed_stall = 0;
    e->observed_since = clock_seconds();
    e->observed_busy = worker_pool_busy_seconds(e->workers);
}

/* Whether deferred gradients have gathered as much, in auto_ratio of the matrices, as an important
 * channel has in one step (DeepSpeed's rule). */
static bool is_due(const struct engine *e)
{
    int due = 0, all = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        if (!e->matrices[i].selectable)
            continue;
        all++;
        due += e->deferred_norm[i] >= e->important_norm[i] / e->observed_steps;
    }
    return due >= e->config.auto_ratio * all;
}

void windows_choose_interval(struct engine *e, struct step_report *report)
{
    if (e->config.update_interval != 0 || !e->workers || !e->selected)
        return;
    if (e->observed_steps == 0)
        observe_anew(e);
    note_norms(e);
    e->observed_stall += report->stall_seconds;
    int seen = e->observed_steps;
    if (seen < e->config.apply_lag || (!is_due(e) && seen < ENGINE_MAX_INTERVAL))
        return;
    if (e->least_interval == 0)
        e->least_interval = e->config.auto_keeps_up ? least_interval(e) : 1;
    observe_anew(e);
    int chosen = seen > e->least_interval ? seen : e->least_interval;
    if (abs(chosen - e->interval) * INTERVAL_SLACK <= e->interval)
        return;
    windows_flush(e, report);
    windows_begin(e, chosen, e->config.apply_lag, e->step + 1);
}

void windows_restore_exchange(struct engine *e)
{
    for (int j = 0; j < e->interval; j++)
        for (int i = 0; e->groups[j].in_flight && i < e->n_matrices; i++) {
            struct matrix *m = &e->matrices[i];
            if (!m->selectable)
                continue;
            for_each_owned(row, e, m, j, 0, m->n_owned) if (place_of(e, m, row) == CHANNEL_DEFERRED)
                fill_exchange(m, row, m->host.master, 1); /* as host AdamW writes it */
        }
}
