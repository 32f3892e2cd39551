/* Windows: deferred gradients gather, a group closes, the host updates, the result arrives. */
#include "offload/engine/internal.h"

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

/* Deferred channels of all matrices, in a set of groups. */
static struct channel_set channels_in(const struct engine *e, uint64_t groups, bool with_leaving)
{
    return (struct channel_set){
        .n_groups = e->interval, .groups = groups, .with_leaving = with_leaving};
}

/* Rows of one group, of the first n. */
#define for_each_in_group(row, groups, group, n)                                                   \
    for (int row = row_groups_next(groups, group, 0); row < (n);                                   \
         row = row_groups_next(groups, group, row + 1))

/* Channels of a matrix are what they weigh on the link. */
static size_t link_bytes(const struct engine *e, const struct matrix *m, int channels)
{
    return (size_t)channels * (size_t)m->cols * dtype_size(exchange_dtype(e));
}

/* ---- handing work to the host ---- */

static void hand_over(void *argument)
{
    struct host_work *work = argument;
    work->ticket = worker_pool_submit(work->workers, &work->job);
}

/* The workers get the job when the stream that brings what it works on has got here. */
static void submit(struct engine *e, struct host_work *work, void (*run)(void *, int),
                   size_t (*bytes)(void *, int), void *argument)
{
    struct device *d = e->device;
    work->workers = e->workers;
    work->job = (struct worker_job){run, argument, e->n_tasks, bytes};
    work->begun = true;
    work->step = trace_step(e->config.trace);
    d->stream_call(e->down, hand_over, work);
    d->event_record(work->handed_over, e->down);
}

void windows_wait(struct engine *e, const struct host_work *work, struct step_report *report)
{
    if (!work->begun)
        return;
    e->device->event_wait(work->handed_over);
    double start = clock_seconds();
    bool done = worker_pool_done(e->workers, work->ticket);
    worker_pool_wait(e->workers, work->ticket);
    double end = clock_seconds();
    if (done)
        return;
    report->stall_seconds += end - start;
    trace_span(e->config.trace, TRACE_HOST, 0, "stall", trace_step(e->config.trace), start, end);
}

/* What each worker did for a job that is done. */
static void trace_work(const struct engine *e, struct host_work *work, const char *name)
{
    double begin, end;
    if (!work->step)
        return;
    for (int w = 0; w < worker_pool_threads(e->workers); w++) {
        worker_pool_span(e->workers, work->ticket, w, &begin, &end);
        trace_span(e->config.trace, TRACE_WORKERS, w, name, work->step, begin, end);
    }
    work->step = 0;
}

/* ---- gathering ---- */

/* Adds staged gradients to one task's host windows. */
static void accumulate_chunk(void *argument, int chunk)
{
    struct engine *e = argument;
    const struct host_adam_task *task = &e->tasks[chunk];
    struct matrix *m = &e->matrices[task->matrix->part.index];
    const struct row_groups groups = owned_groups(e, m);
    size_t n = (size_t)m->cols;
    for (int row = task->first; row < task->last; row++) {
        size_t at = (size_t)row * n;
        if (place_of(e, m, row) == CHANNEL_IMPORTANT)
            continue;
        if (e->staged_fresh >> row_groups_group(&groups, row) & 1)
            memset(m->window + at, 0, sizeof(float) * n);
        if (e->config.bf16)
            bf16_add(m->window + at, (const uint16_t *)m->staged + at, e->staged_factor, n);
        else
            for (size_t j = at; j < at + n; j++)
                m->window[j] += e->staged_factor * ((const float *)m->staged)[j];
    }
}

/* What it reads and writes. */
static size_t accumulate_bytes(void *argument, int chunk)
{
    const struct engine *e = argument;
    const struct host_adam_task *task = &e->tasks[chunk];
    const struct matrix *m = &e->matrices[task->matrix->part.index];
    size_t bytes = 0;
    for (int row = task->first; row < task->last; row++)
        if (place_of(e, m, row) != CHANNEL_IMPORTANT)
            bytes += (size_t)m->cols * (2 * sizeof(float) + dtype_size(exchange_dtype(e)));
    return bytes;
}

void windows_stage(struct engine *e, int layer)
{
    struct step_report waited = {0};
    size_t bytes = 0;
    if (!e->workers || e->config.accumulate != ENGINE_ACCUMULATE_HOST)
        return;
    for (int i = e->first_of_layer[layer]; i < e->first_of_layer[layer + 1]; i++)
        for (int g = 0; g < e->interval; g++)
            bytes += link_bytes(e, &e->matrices[i],
                                e->matrices[i].deferred[g] + e->matrices[i].leaving[g]);
    if (bytes == 0)
        return;
    if (!e->staging_gradients) { /* the staging memory is about to change */
        windows_wait(e, &e->accumulation, &waited);
        trace_work(e, &e->accumulation, "accumulate");
    }
    e->staging_gradients = true;
    e->stall_seconds += waited.stall_seconds;
    e->staged_bytes += bytes;
    const struct channel_set set = channels_in(e, ALL_GROUPS, true);
    engine_follow(e, e->down, e->reducing);
    trace_begin(e->config.trace, TRACE_LINK_DOWN, "gradients");
    e->device->row_ops->send_rows(e->down, &e->layers[layer], ROWS_GRADIENT, exchange_dtype(e),
                                  &set, 1);
    trace_end(e->config.trace, TRACE_LINK_DOWN, bytes);
}

/* The groups whose windows begin with this step's gradient. */
static uint64_t fresh_groups(const struct engine *e)
{
    uint64_t fresh = 0;
    for (int j = 0; j < e->interval; j++)
        fresh |= (uint64_t)(e->groups[j].open_steps == 0) << j;
    return fresh;
}

void windows_accumulate_on_device(struct engine *e)
{
    struct device *d = e->device;
    if (!e->workers || e->config.accumulate == ENGINE_ACCUMULATE_HOST)
        return;
    engine_follow(e, d->compute, e->down); /* a window that is being sent does not begin anew */
    const struct channel_set set = channels_in(e, ALL_GROUPS, true);
    d->row_ops->accumulate_rows(d->compute, &e->all, &set, fresh_groups(e), &e->summary->factor);
}

void windows_count_step(struct engine *e, float factor, struct step_report *report)
{
    e->staged_fresh = fresh_groups(e);
    e->staged_factor = factor;
    for (int j = 0; j < e->interval; j++) {
        struct group *g = &e->groups[j];
        if (g->open_steps++ == 0)
            g->oldest = e->step;
    }
    if (e->staging_gradients) {
        submit(e, &e->accumulation, accumulate_chunk, accumulate_bytes, e);
        report->bytes_down += e->staged_bytes;
    }
}

/* ---- closing ---- */

static float deferred_lr(const struct engine *e, const struct group *g)
{
    double scale = e->config.deferred_lr_scale;
    return e->lr * (float)(scale == ENGINE_LR_SQRT ? sqrt(g->open_steps) : scale);
}

/* Whether any channel of the group, on any rank, is to change sides. */
static bool has_changes(struct engine *e, const struct group *g)
{
    bool looked = !(e->to_adopt >> g->index & 1);
    e->to_adopt &= ~((uint64_t)1 << g->index);
    for (int i = 0; !looked && i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        for_each_in_group(r, &groups, g->index, m->selectable ? m->param->rows : 0)
        {
            size_t c = m->first_channel + (size_t)r;
            if (e->place[c] != e->target[c])
                return true;
        }
    }
    return false;
}

/* Owned channels of one matrix and group that stand in one place and are, or are not, in the newest
 * choice. Returns how many; rows: (n_owned) */
static int find_channels(const struct engine *e, const struct matrix *m, const struct group *g,
                         enum channel_place place, bool chosen, int *rows)
{
    int n = 0;
    const struct row_groups groups = owned_groups(e, m);
    for_each_in_group(row, &groups, g->index, m->n_owned)
    {
        size_t c = m->first_channel + (size_t)(m->owned.first + row);
        if (e->place[c] == place && e->target[c] == chosen)
            rows[n++] = row;
    }
    return n;
}

/* Channels of a group that enter: their state comes to the device, and they come to the list. */
static void let_enter(struct engine *e, const struct group *g, int *rows,
                      struct step_report *report)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        int n = m->selectable ? find_channels(e, m, g, CHANNEL_DEFERRED, true, rows) : 0;
        if (n == 0)
            continue;
        state_to_device(e, m, rows, n, report);
        for (int k = 0; k < n; k++)
            table_list_add(e, m, rows[k]);
        if (e->config.accumulate == ENGINE_ACCUMULATE_DEVICE)
            continue;
        /* This step's gradient has been sent already: its place takes the windows. */
        size_t bytes = sizeof(float) * (size_t)n * (size_t)m->cols;
        trace_begin(e->config.trace, TRACE_STATE, "windows, to the device");
        state_upload_rows(e, m, m->grad, m->window, rows, n);
        trace_end(e->config.trace, TRACE_STATE, bytes);
        report->bytes_up += bytes;
    }
}

/* Owned channels of a group change sides: first those that leave, then those that enter. These have
 * their closing window's mean as one update, now and on the device. */
static void take_over(struct engine *e, const struct group *g, struct step_report *report)
{
    const bool on_device = e->config.accumulate == ENGINE_ACCUMULATE_DEVICE;
    float share = 1.0f / (float)g->open_steps;
    int *rows = zf_malloc(sizeof(int) * e->n_channels);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        int n = m->selectable ? find_channels(e, m, g, CHANNEL_IMPORTANT, false, rows) : 0;
        if (n > 0)
            state_to_host(e, m, rows, n, report);
    }
    state_land(e);
    e->device->copy(e->device->compute, e->scale, &share, sizeof share);
    table_list_begin(e);
    let_enter(e, g, rows, report);
    table_list_end(e);
    channels_update(e, on_device ? ROWS_WINDOW : ROWS_GRADIENT, deferred_lr(e, g), e->scale,
                    report);
    channels_count_updates(e);
    free(rows);
}

/* The group takes over the newest choice. Its previous host update has arrived. */
static void adopt_choice(struct engine *e, struct group *g, struct step_report *report)
{
    windows_wait(e, &e->accumulation, report); /* it reads places and windows */
    engine_follow(e, e->device->compute, e->up);
    engine_follow(e, e->device->compute, e->down);
    take_over(e, g, report);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        for_each_in_group(r, &groups, g->index, m->selectable ? m->param->rows : 0)
        {
            size_t c = m->first_channel + (size_t)r;
            bool was = e->place[c] == CHANNEL_IMPORTANT, will = e->target[c];
            e->updated[c] |= will && !was;
            e->place[c] = will ? CHANNEL_IMPORTANT : was ? CHANNEL_LEAVING : CHANNEL_DEFERRED;
            g->has_leaving |= was && !will;
        }
    }
    channels_publish(e);
}

static void send_means(struct engine *e, struct group *g, struct step_report *report)
{
    struct device *d = e->device;
    size_t bytes = 0;
    for (int i = 0; i < e->n_matrices; i++)
        bytes += link_bytes(e, &e->matrices[i], e->matrices[i].deferred[g->index]);
    engine_follow(e, e->down, d->compute);
    trace_begin(e->config.trace, TRACE_LINK_DOWN, "window");
    const struct channel_set set = channels_in(e, (uint64_t)1 << g->index, false);
    d->row_ops->send_rows(e->down, &e->all, ROWS_WINDOW, exchange_dtype(e), &set,
                          (float)g->open_steps);
    trace_end(e->config.trace, TRACE_LINK_DOWN, bytes);
    report->bytes_down += bytes;
}

void windows_close(struct engine *e, struct group *g, struct step_report *report)
{
    if (!e->workers || g->open_steps == 0)
        return;
    assert(!g->in_flight);
    if (has_changes(e, g))
        adopt_choice(e, g, report);
    engine_follow(e, e->down, e->up); /* the group's last update has left the exchange buffer */
    if (e->config.accumulate == ENGINE_ACCUMULATE_DEVICE)
        send_means(e, g, report);
    g->closing_steps = g->open_steps;
    g->job = (struct host_adam_job){.tasks = e->tasks,
                                    .group = g->index,
                                    .n_groups = e->interval,
                                    .rule = engine_rule(e, deferred_lr(e, g)),
                                    .window_steps = (float)g->closing_steps,
                                    .path = host_adam_best_path()};
    g->open_steps = 0;
    g->in_flight = true;
    g->due = e->step + e->lag;
    g->oldest_in_flight = g->oldest;
    submit(e, &g->update, host_adam_run, host_adam_bytes, &g->job);
}

/* ---- arriving ---- */

/* Channels that left with the closing whose update has arrived are now like all others. */
static void settle_leaving(struct engine *e, struct group *g, struct step_report *report)
{
    windows_wait(e, &e->accumulation, report); /* it reads places */
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        for_each_in_group(r, &groups, g->index, m->selectable ? m->param->rows : 0)
        {
            unsigned char *place = &e->place[m->first_channel + (size_t)r];
            if (*place == CHANNEL_LEAVING)
                *place = CHANNEL_DEFERRED;
        }
    }
    g->has_leaving = false;
    channels_publish(e);
}

/* One group's channels of a layer get what the host has made of them. */
static void receive(struct engine *e, int layer, const struct group *g, struct step_report *report)
{
    const struct channel_set set = channels_in(e, (uint64_t)1 << g->index, false);
    size_t bytes = 0;
    for (int i = e->first_of_layer[layer]; i < e->first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        bytes += link_bytes(e, m, m->deferred[g->index]);
        for_each_in_group(r, &groups, g->index, e->ranks > 1 && m->selectable ? m->param->rows : 0)
            e->updated[m->first_channel + (size_t)r] = 1;
    }
    if (bytes > 0)
        e->device->row_ops->receive_rows(e->up, &e->layers[layer], exchange_dtype(e), &set);
    report->bytes_up += bytes;
}

static void arrive(struct engine *e, struct group *g, struct step_report *report)
{
    struct device *d = e->device;
    windows_wait(e, &g->update, report);
    trace_work(e, &g->update, "AdamW");
    engine_follow(e, e->up, d->compute); /* which reads the parameters as they were */
    size_t before = report->bytes_up;
    trace_begin(e->config.trace, TRACE_LINK_UP, "parameters");
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        receive(e, layer, g, report);
        d->event_record(e->arrived[layer], e->up);
        e->arriving[layer] = true;
    }
    trace_end(e->config.trace, TRACE_LINK_UP, report->bytes_up - before);
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
    channels_count(e);
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
            sum[side] += sqrt(e->norms_host[c]);
            count[side] += e->norms_host[c] > 0;
        }
        e->deferred_norm[i] += count[0] ? sum[0] / count[0] : 0;
        e->important_norm[i] += count[1] ? sum[1] / count[1] : 0;
    }
    e->observed_steps++;
}

/* A step is over: the first that is seen only starts the clock. */
static void time_step(struct engine *e, const struct step_report *report)
{
    struct timing *t = &e->timing;
    if (t->since > 0) {
        t->steps++;
        t->stall += report->stall_seconds + e->stall_seconds;
        return;
    }
    t->since = clock_seconds();
    t->busy = worker_pool_busy_seconds(e->workers);
}

/* Whether it is known, or can be said, which windows are too short for the host. */
static bool is_timed(const struct engine *e)
{
    return e->least_interval > 0 || e->timing.steps > 0 || e->config.step_seconds > 0 ||
           !e->config.auto_keeps_up;
}

/* The shortest window with which the host keeps up, on the slowest rank. */
static int least_interval(struct engine *e)
{
    const struct timing *t = &e->timing;
    double step = e->config.step_seconds, host = e->config.host_seconds;
    if (!e->config.auto_keeps_up)
        return 1;
    if (step <= 0) {
        double busy = worker_pool_busy_seconds(e->workers) - t->busy;
        step = (clock_seconds() - t->since - t->stall) / t->steps;
        host = busy / worker_pool_threads(e->workers) / t->steps * e->interval;
    }
    return (int)comm_max(e->comm, schedule_least_interval(host, step, ENGINE_MAX_INTERVAL));
}

static void observe_anew(struct engine *e)
{
    memset(e->important_norm, 0, sizeof(double) * (size_t)e->n_matrices);
    memset(e->deferred_norm, 0, sizeof(double) * (size_t)e->n_matrices);
    e->observed_steps = 0;
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
    note_norms(e);
    time_step(e, report);
    int seen = e->observed_steps;
    if (seen < e->config.apply_lag || (!is_due(e) && seen < ENGINE_MAX_INTERVAL) || !is_timed(e))
        return;
    if (e->least_interval == 0)
        e->least_interval = least_interval(e);
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
            const struct row_groups groups = owned_groups(e, m);
            for_each_in_group(row, &groups, j, m->selectable ? m->n_owned : 0)
                host_adam_put(&m->host, (size_t)row, (size_t)row + 1, m->host.master,
                              1); /* as host AdamW writes it */
        }
}
