/* Who is important: the choice, and how groups take it over. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A fresh choice is looked for as often as this (steps) where stale choices are replaced, and made
 * where the chosen channels hold less than this part of what a fresh choice would hold. */
#define STALE_CHECK_STEPS 16
#define STALE_PART        0.5

/* ---- where channels stand ---- */

void selection_place(struct engine *e)
{
    struct arena *a = &e->arena;
    e->selection.place_device = arena_take(a, &a->use.workspace, e->n_channels, 1);
    e->selection.slot_device = arena_take(a, &a->use.workspace, e->n_channels, sizeof(int));
    e->selection.choice = arena_take(a, &a->use.workspace, e->n_channels, 1);
}

void selection_create(struct engine *e)
{
    e->selection.place = zf_calloc(e->n_channels, 1);
    e->selection.target = zf_calloc(e->n_channels, 1);
    e->selection.enters = zf_calloc(e->n_channels, 1);
    e->selection.slot = zf_calloc(e->n_channels, sizeof *e->selection.slot);
}

void selection_release(struct engine *e)
{
    free(e->selection.place);
    free(e->selection.target);
    free(e->selection.enters);
    free(e->selection.slot);
}

void selection_count(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        memset(m->n_deferred, 0, sizeof m->n_deferred);
        memset(m->n_leaving, 0, sizeof m->n_leaving);
        if (!m->selectable)
            continue;
        const struct row_groups groups = owned_groups(e, m);
        for (int row = 0; row < m->n_owned; row++) {
            const int group = row_groups_group(&groups, row);
            m->n_deferred[group] += place_of(e, m, row) == CHANNEL_DEFERRED;
            m->n_leaving[group] += place_of(e, m, row) == CHANNEL_LEAVING;
        }
    }
    plan_host_group_loop(e->device->plan, e->n_channels, e->ranks);
}

void selection_publish(struct engine *e)
{
    struct device *d = e->device;
    streams_follow(e, d->compute, e->streams.reducing);
    streams_follow(e, d->compute, e->streams.down);
    streams_follow(e, d->compute, e->streams.up);
    d->copy(d->compute, e->selection.place_device, e->selection.place, e->n_channels);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        memcpy(e->selection.slot + m->first_channel + m->owned.first, m->slot_of,
               sizeof(int) * (size_t)m->n_owned);
    }
    d->copy(d->compute, e->selection.slot_device, e->selection.slot, sizeof(int) * e->n_channels);
    streams_follow(e, e->streams.up, d->compute);
    selection_count(e);
}

static void forget_important(const struct engine *e, struct slots *s)
{
    s->n_important = 0;
    if (s->shared)
        memset(s->important_of, 0, sizeof *s->important_of * (size_t)e->ranks);
}

void selection_forget(struct engine *e)
{
    for (int i = 0; i < e->moves.n_slots; i++)
        forget_important(e, &e->moves.slots[i]);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        const size_t n = (size_t)m->param->rows;
        const bool resident = !m->selectable;
        memset(e->selection.place + m->first_channel,
               resident ? CHANNEL_RESIDENT : CHANNEL_DEFERRED, n);
        memset(e->selection.target + m->first_channel, resident, n);
        if (resident)
            state_initialise(e, m);
    }
    selection_publish(e);
}

/* ---- the choice ---- */

/* The newest norms' choice into e->selection.choice, and what it says of them into the second
 * summary. */
static void choose(struct engine *e)
{
    struct device *d = e->device;
    d->copy(d->compute, e->selection.choice, e->selection.place_device, e->n_channels);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        if (m->selectable)
            d->row_ops->select_rows(d->compute, e->selection.choice + m->first_channel,
                                    e->norms.squared + m->first_channel, m->param->rows,
                                    schedule_important(e->config.topk_ratio, m->param->rows));
    }
}

static double share_of(const struct norm_summary *s)
{
    return s->selectable > 0 ? s->important / s->selectable : 1;
}

/* The share of the squared norm that e->selection.choice holds. */
static double share_of_choice(struct engine *e)
{
    struct device *d = e->device;
    struct norm_summary s;
    d->row_ops->summarise_norms(d->compute, &e->norms.summary[1], e->norms.squared,
                                e->selection.choice, (int)e->n_channels, 0);
    d->copy(d->compute, &s, &e->norms.summary[1], sizeof s);
    d->stream_wait(d->compute);
    return share_of(&s);
}

static bool chooses(const struct engine *e)
{
    return e->config.topk_ratio > 0 && e->config.topk_ratio < 1 &&
           e->step >= e->config.full_warm_up_rounds;
}

/* The host's `target` is e->selection.choice. */
static void take_choice(struct engine *e)
{
    struct device *d = e->device;
    d->copy(d->compute, e->selection.target, e->selection.choice, e->n_channels);
    d->stream_wait(d->compute);
    for (size_t c = 0; c < e->n_channels; c++)
        e->selection.target[c] = e->selection.target[c] != CHANNEL_DEFERRED;
    e->selection.to_adopt = UINT64_MAX;
    e->selection.chosen_in = e->step;
}

/* Every group takes over a choice within a window's length, as far as there are slots; until then
 * there is no other. */
static bool may_choose_again(const struct engine *e)
{
    return e->step - e->selection.chosen_in >= e->windows.interval;
}

bool selection_choose(struct engine *e, struct step_report *report)
{
    int every = e->config.select_every;
    bool first = !e->selection.selected;
    report->important_share = share_of(e->norms.summary_host);
    if (!chooses(e) || (!first && !may_choose_again(e)))
        return false;
    bool due = first || (every > 0 && e->step % every == 0);
    bool looks = e->config.reselect_when_stale && e->step % STALE_CHECK_STEPS == 0;
    if (!due && !looks)
        return false;
    choose(e);
    if (!due && report->important_share >= STALE_PART * share_of_choice(e))
        return false;
    report->selected = true;
    take_choice(e);
    if (first)
        report->important_share = share_of_choice(e);
    return first;
}

/* ---- taking it over ---- */

/* Whether any channel of the group, on any rank, is to change sides. */
static bool has_changes(const struct engine *e, const struct group *g)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        for_each_in_group(r, &groups, g->index, m->selectable ? m->param->rows : 0)
        {
            size_t c = m->first_channel + (size_t)r;
            if (e->selection.place[c] != e->selection.target[c])
                return true;
        }
    }
    plan_host_group_loop(e->device->plan, e->n_channels, e->windows.interval);
    return false;
}

static bool leaves(const struct engine *e, size_t channel)
{
    return e->selection.place[channel] == CHANNEL_IMPORTANT && !e->selection.target[channel];
}

static bool is_to_enter(const struct engine *e, size_t channel)
{
    return e->selection.place[channel] != CHANNEL_IMPORTANT && e->selection.target[channel];
}

/* A channel becomes important, or is important no more: by so many, wherever it is owned. */
static void count_important(struct engine *e, const struct matrix *m, int row, int by)
{
    m->slots->n_important += by;
    m->slots->important_of[schedule_owner(m->index, m->param->rows, e->ranks, row)] += by;
}

static bool has_room(const struct engine *e, const struct matrix *m, int row)
{
    const struct slots *s = m->slots;
    const int owner = schedule_owner(m->index, m->param->rows, e->ranks, row);
    return s->n_important < s->n_chosen && s->important_of[owner] < s->capacity_of[owner];
}

/* Who of a group changes sides, on any rank: all that are to leave, and then, in their order, as
 * many of those that are to enter as there are slots for; the others look again when the group
 * closes next. Returns how many change. */
static int decide(struct engine *e, const struct group *g)
{
    int n = 0;
    for (int entering = 0; entering < 2; entering++)
        for (int i = 0; i < e->n_matrices; i++) {
            const struct matrix *m = &e->matrices[i];
            const struct row_groups groups = all_groups(e, m);
            for_each_in_group(r, &groups, g->index, m->selectable ? m->param->rows : 0)
            {
                const size_t c = m->first_channel + (size_t)r;
                if (entering && is_to_enter(e, c)) {
                    e->selection.enters[c] = has_room(e, m, r);
                    count_important(e, m, r, e->selection.enters[c]);
                    n += e->selection.enters[c];
                    if (!e->selection.enters[c])
                        e->selection.to_adopt |= (uint64_t)1 << g->index;
                } else if (!entering && leaves(e, c)) {
                    count_important(e, m, r, -1);
                    n++;
                }
            }
        }
    plan_host_group_loop(e->device->plan, 2 * e->n_channels, e->windows.interval);
    return n;
}

void selection_fit(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        for (int row = 0; m->selectable && row < m->param->rows; row++) {
            unsigned char *place = &e->selection.place[m->first_channel + (size_t)row];
            struct group *g = &e->windows.groups[row_groups_group(&groups, row)];
            if (*place != CHANNEL_IMPORTANT)
                continue;
            if (has_room(e, m, row)) {
                count_important(e, m, row, 1);
                continue;
            }
            *place = g->in_flight ? CHANNEL_LEAVING : CHANNEL_DEFERRED;
            g->has_leaving |= g->in_flight;
        }
    }
}

/* Owned channels of one matrix and group that enter, or that leave. Returns how many;
 * rows: (n_owned) */
static int find_channels(const struct engine *e, const struct matrix *m, const struct group *g,
                         bool entering, int *rows)
{
    int n = 0;
    const struct row_groups groups = owned_groups(e, m);
    for_each_in_group(row, &groups, g->index, m->selectable ? m->n_owned : 0)
    {
        size_t c = m->first_channel + (size_t)(m->owned.first + row);
        if (entering ? e->selection.enters[c] : leaves(e, c))
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
        int n = find_channels(e, m, g, true, rows);
        if (n == 0)
            continue;
        state_to_device(e, m, rows, n, report);
        for (int k = 0; k < n; k++)
            table_list_add(e, m, rows[k]);
        if (e->config.accumulate == ENGINE_ACCUMULATE_DEVICE)
            continue;
        /* This step's gradients have been used already: their place takes the windows. */
        size_t bytes = sizeof(float) * (size_t)n * (size_t)m->cols;
        trace_begin(e->config.trace, TRACE_STATE, "windows, to the device");
        state_upload_windows(e, m, rows, n);
        trace_end(e->config.trace, TRACE_STATE, bytes);
        report->bytes_up += bytes;
    }
}

/* Owned channels of a group change sides: first those that leave, then those that enter. These have
 * their closing window's mean as one update, now and on the device. */
static void change_sides(struct engine *e, const struct group *g, float lr,
                         struct step_report *report)
{
    const bool on_device = e->config.accumulate == ENGINE_ACCUMULATE_DEVICE;
    float share = 1.0f / (float)g->open_steps;
    int *rows = zf_malloc(sizeof(int) * e->n_channels);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        int n = find_channels(e, m, g, false, rows);
        if (n > 0)
            state_to_host(e, m, rows, n, report);
    }
    state_land(e);
    e->device->copy(e->device->compute, e->windows.scale, &share, sizeof share);
    table_list_begin(e);
    let_enter(e, g, rows, report);
    table_list_end(e);
    channels_update(e, on_device ? ROWS_WINDOW : ROWS_GRADIENT, lr, e->windows.scale, report);
    channels_count_updates(e);
    free(rows);
}

/* Channels of a group have changed sides. */
static void settle_places(struct engine *e, struct group *g)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        for_each_in_group(r, &groups, g->index, m->selectable ? m->param->rows : 0)
        {
            const size_t c = m->first_channel + (size_t)r;
            if (leaves(e, c)) {
                e->selection.place[c] = CHANNEL_LEAVING;
                g->has_leaving = true;
            } else if (e->selection.enters[c]) {
                e->selection.place[c] = CHANNEL_IMPORTANT;
                e->selection.enters[c] = false;
                sharing_note(e, c);
            }
        }
    }
}

void selection_adopt(struct engine *e, struct group *g, float lr, struct step_report *report)
{
    const uint64_t bit = (uint64_t)1 << g->index;
    bool is_news = e->selection.to_adopt & bit;
    e->selection.to_adopt &= ~bit;
    if (!is_news || !has_changes(e, g) || decide(e, g) == 0)
        return;
    plan_host_group_loop(e->device->plan, 2 * e->n_channels, e->windows.interval);
    host_wait(e, &e->windows.accumulation); /* it reads places and windows */
    host_wait(e, &g->commit);               /* it reads places, and masters are whole behind it */
    streams_follow(e, e->device->compute, e->streams.up);
    streams_follow(e, e->device->compute, e->streams.down);
    change_sides(e, g, lr, report);
    settle_places(e, g);
    selection_publish(e);
}

void selection_adopt_first(struct engine *e, struct step_report *report)
{
    for (int j = 0; j < e->windows.interval; j++) {
        assert(e->windows.groups[j].open_steps == 1);
        selection_adopt(e, &e->windows.groups[j], e->lr, report);
    }
    e->selection.selected = true;
}

void selection_settle(struct engine *e, struct group *g)
{
    host_wait(e, &e->windows.accumulation); /* it reads places */
    host_wait(e, &g->commit);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        for_each_in_group(r, &groups, g->index, m->selectable ? m->param->rows : 0)
        {
            unsigned char *place = &e->selection.place[m->first_channel + (size_t)r];
            if (*place == CHANNEL_LEAVING)
                *place = CHANNEL_DEFERRED;
        }
    }
    g->has_leaving = false;
    plan_host_group_loop(e->device->plan, e->n_channels, e->windows.interval);
    selection_publish(e);
}
