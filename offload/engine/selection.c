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
/* Changes of places that go to the device together. */
#define CHANGES (1 << 17)
/* What the host updates of fewer is one thread's. */
#define PARALLEL_BYTES ((size_t)1 << 20)

/* ---- where channels stand ---- */

void selection_place(struct engine *e)
{
    struct arena *a = &e->arena;
    e->selection.place_device = arena_take(a, &a->use.workspace, e->n_channels, 1);
    e->selection.slot_device = arena_take(a, &a->use.workspace, e->n_channels, sizeof(int));
    e->selection.choice = arena_take(a, &a->use.workspace, e->n_channels, 1);
    const size_t changes = e->n_channels < CHANGES ? e->n_channels : CHANGES;
    e->selection.changes_capacity = (int)changes;
    e->selection.changes_device =
        arena_take(a, &a->use.workspace, changes, sizeof *e->selection.changes_device);
}

void selection_create(struct engine *e)
{
    e->selection.place = zf_calloc(e->n_channels, 1);
    e->selection.target = zf_calloc(e->n_channels, 1);
    e->selection.slot = zf_calloc(e->n_channels, sizeof *e->selection.slot);
    e->selection.choice_host = e->device->allocate_host(e->n_channels);
    e->selection.changes = e->device->allocate_host(sizeof *e->selection.changes *
                                                    (size_t)e->selection.changes_capacity);
    e->selection.changes_read = e->device->event_create();
    e->selection.newest.n_layers = e->table->n_layers;
    e->selection.newest.layers =
        zf_calloc((size_t)e->table->n_layers, sizeof *e->selection.newest.layers);
}

void selection_release(struct engine *e)
{
    struct selection *s = &e->selection;
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++) {
        free(s->news[j].channels);
        free(s->leaving[j].channels);
    }
    free(s->entering.channels);
    free(s->changed.channels);
    free(s->place);
    free(s->target);
    free(s->slot);
    free(s->newest.layers);
    if (!s->changes_read)
        return;
    e->device->release_host(s->choice_host);
    e->device->release_host(s->changes);
    e->device->event_destroy(s->changes_read);
}

static void add_channel(struct channel_list *l, int matrix, int row)
{
    if (l->n == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 64;
        l->channels = zf_realloc(l->channels, sizeof *l->channels * (size_t)l->capacity);
    }
    l->channels[l->n++] = (struct channel){matrix, row};
}

static size_t number_of(const struct engine *e, const struct channel *c)
{
    return e->matrices[c->matrix].first_channel + (size_t)c->row;
}

/* Of a channel of this rank's; else -1. */
static int owned_row(const struct matrix *m, const struct channel *c)
{
    return c->row >= m->owned.first && c->row < m->owned.last ? c->row - m->owned.first : -1;
}

void selection_count(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        memset(m->n_deferred, 0, sizeof m->n_deferred);
        memset(m->n_leaving, 0, sizeof m->n_leaving);
        memset(m->n_entering, 0, sizeof m->n_entering);
        if (!m->selectable)
            continue;
        const struct row_groups groups = owned_groups(e, m);
        for (int row = 0; row < m->n_owned; row++) {
            const int group = row_groups_group(&groups, row);
            m->n_deferred[group] += place_of(e, m, row) == CHANNEL_DEFERRED;
            m->n_leaving[group] += place_of(e, m, row) == CHANNEL_LEAVING;
            m->n_entering[group] += place_of(e, m, row) == CHANNEL_ENTERING;
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
    e->selection.changed.n = 0;
    selection_count(e);
}

/* Behind whatever may still read the places that change. The link's operators read those of their
 * own group alone, but for what is staged and what comes with its layer; and the passes have come
 * behind what arrived before this step. */
static void follow_readers(struct engine *e)
{
    if (e->selection.behind_arrivals || e->config.params_on_host)
        streams_follow(e, e->device->compute, e->streams.up);
    e->selection.behind_arrivals = false;
    if (e->config.accumulate == ENGINE_ACCUMULATE_HOST && !exchange_copies(e))
        streams_follow(e, e->device->compute, e->streams.down);
}

/* Some changes, as they are by now. */
static void tell_some(struct engine *e, const struct channel *changed, int n)
{
    struct device *d = e->device;
    struct selection *s = &e->selection;
    d->event_wait(s->changes_read);
    for (int i = 0; i < n; i++) {
        const struct channel *c = &changed[i];
        const struct matrix *m = &e->matrices[c->matrix];
        const size_t channel = number_of(e, c);
        const int row = owned_row(m, c);
        s->changes[i] = (struct channel_change){(int)channel, s->place[channel],
                                                row < 0 ? -1 : m->slot_of[row]};
    }
    d->copy(d->compute, s->changes_device, s->changes, sizeof *s->changes * (size_t)n);
    d->event_record(s->changes_read, d->compute);
    d->row_ops->change_places(d->compute, s->place_device, s->slot_device, s->changes_device, n);
}

void selection_tell(struct engine *e)
{
    struct selection *s = &e->selection;
    if (s->changed.n == 0)
        return;
    follow_readers(e);
    for (int first = 0; first < s->changed.n; first += s->changes_capacity) {
        const int left = s->changed.n - first;
        tell_some(e, s->changed.channels + first,
                  left < s->changes_capacity ? left : s->changes_capacity);
    }
    s->changed.n = 0;
}

/* A channel stands elsewhere now. Workers may be looking at those of a group in flight, which
 * enter: whether they are deferred does not change then. */
static void change_place(struct engine *e, const struct channel *c, enum channel_place place)
{
    __atomic_store_n(&e->selection.place[number_of(e, c)], (unsigned char)place, __ATOMIC_RELAXED);
    add_channel(&e->selection.changed, c->matrix, c->row);
}

static void forget_important(const struct engine *e, struct slots *s)
{
    s->n_important = 0;
    if (s->shared)
        memset(s->important_of, 0, sizeof *s->important_of * (size_t)e->ranks);
}

static void forget_lists(struct engine *e)
{
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        e->selection.news[j].n = e->selection.leaving[j].n = 0;
    e->selection.entering.n = e->selection.changed.n = 0;
    e->selection.entering_waits = false;
}

void selection_forget(struct engine *e)
{
    forget_lists(e);
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

/* Whether channels are chosen in this step; and whether only where the present choice is stale. */
static bool is_due(const struct engine *e)
{
    const int every = e->config.select_every;
    return !e->selection.selected || (every > 0 && e->step % every == 0);
}

/* Every group takes over a choice within a window's length, as far as there are slots; until then
 * there is no other. */
static bool may_choose(const struct engine *e)
{
    const struct engine_config *c = &e->config;
    const bool chooses =
        c->topk_ratio > 0 && c->topk_ratio < 1 && e->step >= c->full_warm_up_rounds;
    return chooses &&
           (!e->selection.selected || e->step - e->selection.chosen_in >= e->windows.interval);
}

/* The newest norms' choice, and what it says of them into the second summary. */
static void choose(struct engine *e, struct stream *s)
{
    struct device *d = e->device;
    d->copy(s, e->selection.choice, e->selection.place_device, e->n_channels);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        if (m->selectable)
            d->row_ops->select_rows(s, e->selection.choice + m->first_channel,
                                    e->norms.squared + m->first_channel, m->param->rows,
                                    schedule_important(e->config.topk_ratio, m->param->rows));
    }
    d->row_ops->summarise_norms(s, &e->norms.summary[1], e->norms.squared, e->selection.choice,
                                (int)e->n_channels, 0);
}

void selection_look(struct engine *e)
{
    struct device *d = e->device;
    struct stream *s = e->streams.reducing;
    const bool stale = e->config.reselect_when_stale && e->step % STALE_CHECK_STEPS == 0;
    e->selection.looks = may_choose(e) && (is_due(e) || stale);
    if (!e->selection.looks)
        return;
    choose(e, s);
    d->copy(s, e->selection.choice_host, e->selection.choice, e->n_channels);
    d->copy(s, &e->norms.summary_host[1], &e->norms.summary[1], sizeof *e->norms.summary);
}

/* The share of the squared norm that the important channels hold, or those of the choice. */
static double share_of(const struct norm_summary *s)
{
    return s->selectable > 0 ? s->important / s->selectable : 1;
}

void selection_list(struct engine *e)
{
    struct selection *s = &e->selection;
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        s->news[j].n = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        if (!m->selectable)
            continue;
        for (int row = 0; row < m->param->rows; row++) {
            const size_t c = m->first_channel + (size_t)row;
            if (channel_is_important(s->place[c]) != s->target[c])
                add_channel(&s->news[row_groups_group(&groups, row)], i, row);
        }
    }
    plan_host_loop(e->device->plan, e->n_channels);
}

static void add_part(struct choice_part *sum, const struct choice_part *part)
{
    sum->chosen += part->chosen;
    sum->kept += part->kept;
    sum->norm_chosen += part->norm_chosen;
    sum->norm += part->norm;
}

/* The device waits meanwhile: no branches, so that it is short. */
static struct choice_part describe_matrix(const struct engine *e, const struct matrix *m)
{
    const unsigned char *choice = e->selection.choice_host + m->first_channel;
    const unsigned char *before = e->selection.target + m->first_channel;
    const float *norms = e->norms.squared_host + m->first_channel;
    int chosen = 0, kept = 0;
    double norm_chosen = 0, norm = 0;
#pragma omp simd reduction(+ : chosen, kept, norm_chosen, norm)
    for (int row = 0; row < m->param->rows; row++) {
        const int is_chosen = choice[row] != CHANNEL_DEFERRED;
        chosen += is_chosen;
        kept += is_chosen & before[row];
        norm_chosen += is_chosen * (double)norms[row];
        norm += norms[row];
    }
    return (struct choice_part){chosen, kept, norm_chosen, norm};
}

/* The choice beside the one before, which is the host's `target` still. */
static void describe_choice(struct engine *e)
{
    struct engine_choice *newest = &e->selection.newest;
    newest->first = !e->selection.selected;
    newest->all = (struct choice_part){0};
    memset(newest->layers, 0, sizeof *newest->layers * (size_t)newest->n_layers);
    for (int i = 0; i < e->n_matrices; i++) {
        if (!e->matrices[i].selectable)
            continue;
        const struct choice_part part = describe_matrix(e, &e->matrices[i]);
        add_part(&newest->layers[e->matrices[i].param->layer], &part);
        add_part(&newest->all, &part);
    }
    plan_host_loop(e->device->plan, e->n_channels / 2); /* as measured, beside loops that branch */
}

/* The host's `target` is the choice. */
static void take_choice(struct engine *e)
{
    for (size_t c = 0; c < e->n_channels; c++)
        e->selection.target[c] = e->selection.choice_host[c] != CHANNEL_DEFERRED;
    e->selection.chosen_in = e->step;
    selection_list(e);
}

bool selection_choose(struct engine *e, struct step_report *report)
{
    const bool first = !e->selection.selected;
    const struct norm_summary *s = e->norms.summary_host;
    report->important_share = share_of(s);
    if (!e->selection.looks)
        return false;
    if (!is_due(e) && report->important_share >= STALE_PART * share_of(s + 1))
        return false;
    describe_choice(e);
    report->selected = true;
    report->choice = &e->selection.newest;
    take_choice(e);
    if (first)
        report->important_share = share_of(s + 1);
    return first;
}

/* ---- taking it over ---- */

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

void selection_fit(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        if (!m->selectable)
            continue;
        for (int row = 0; row < m->param->rows; row++) {
            unsigned char *place = &e->selection.place[m->first_channel + (size_t)row];
            struct group *g = &e->windows.groups[row_groups_group(&groups, row)];
            if (!channel_is_important(*place))
                continue;
            if (has_room(e, m, row)) {
                count_important(e, m, row, 1);
                continue;
            }
            const bool leaves = *place == CHANNEL_IMPORTANT && g->in_flight;
            *place = leaves ? CHANNEL_LEAVING : CHANNEL_DEFERRED;
        }
    }
}

void selection_resume(struct engine *e)
{
    struct selection *s = &e->selection;
    struct step_report ignored = {0};
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        const struct row_groups groups = all_groups(e, m);
        if (!m->selectable)
            continue;
        for (int row = 0; row < m->param->rows; row++) {
            const struct channel c = {i, row};
            const unsigned char place = s->place[number_of(e, &c)];
            if (place == CHANNEL_LEAVING)
                add_channel(&s->leaving[row_groups_group(&groups, row)], i, row);
            if (place != CHANNEL_ENTERING)
                continue;
            add_channel(&s->entering, i, row);
            if (owned_row(m, &c) >= 0)
                carry_up(e, m, owned_row(m, &c), &ignored);
        }
    }
    for (int j = 0; j < e->windows.interval; j++)
        e->windows.groups[j].has_leaving = s->leaving[j].n > 0;
    selection_list(e);
}

/* Channels of a group that left before are like all others. */
static void settle(struct engine *e, struct group *g)
{
    struct channel_list *l = &e->selection.leaving[g->index];
    host_wait(e, &g->commit); /* it reads places, and masters are whole behind it */
    for (int i = 0; i < l->n; i++) {
        struct matrix *m = &e->matrices[l->channels[i].matrix];
        change_place(e, &l->channels[i], CHANNEL_DEFERRED);
        if (owned_row(m, &l->channels[i]) < 0)
            continue;
        m->n_leaving[g->index]--;
        m->n_deferred[g->index]++;
    }
    l->n = 0;
    g->has_leaving = false;
}

void selection_settle(struct engine *e)
{
    for (int j = 0; j < e->windows.interval; j++)
        settle(e, &e->windows.groups[j]);
}

/* A channel leaves: its slot is free, once its state is on its way. */
static void leave(struct engine *e, struct group *g, const struct channel *c,
                  struct step_report *report)
{
    struct matrix *m = &e->matrices[c->matrix];
    const int row = owned_row(m, c);
    count_important(e, m, c->row, -1);
    add_channel(&e->selection.leaving[g->index], c->matrix, c->row);
    g->has_leaving = true;
    if (row >= 0) {
        carry_down(e, m, row, report);
        state_free_slot(e, m, row);
        m->n_leaving[g->index]++;
    }
    change_place(e, c, CHANNEL_LEAVING);
}

/* A channel enters: it has a slot. */
static void enter(struct engine *e, const struct group *g, const struct channel *c, bool at_once,
                  struct step_report *report)
{
    struct matrix *m = &e->matrices[c->matrix];
    const int row = owned_row(m, c);
    count_important(e, m, c->row, 1);
    add_channel(&e->selection.entering, c->matrix, c->row);
    if (row >= 0) {
        state_take_slot(e, m, row);
        carry_up(e, m, row, report);
    }
    if (at_once)
        return;
    change_place(e, c, CHANNEL_ENTERING);
    e->selection.entering_waits = true;
    if (row >= 0) {
        m->n_deferred[g->index]--;
        m->n_entering[g->index]++;
    }
}

/* Of a group's news, all that are to leave do, and then, in their order, as many of those that are
 * to enter as there are slots for; the others stay news until the group closes next. */
static void take_over(struct engine *e, struct group *g, bool at_once, struct step_report *report)
{
    struct selection *s = &e->selection;
    struct channel_list *news = &s->news[g->index];
    int n = 0;
    for (int i = 0; i < news->n; i++) {
        const struct channel c = news->channels[i];
        if (s->place[number_of(e, &c)] == CHANNEL_IMPORTANT)
            leave(e, g, &c, report);
        else
            news->channels[n++] = c;
    }
    news->n = n;
    n = 0;
    for (int i = 0; i < news->n; i++) {
        const struct channel c = news->channels[i];
        if (has_room(e, &e->matrices[c.matrix], c.row))
            enter(e, g, &c, at_once, report);
        else
            news->channels[n++] = c;
    }
    news->n = n;
}

void selection_adopt(struct engine *e, struct group *g, bool at_once, struct step_report *report)
{
    const int n = e->selection.news[g->index].n + e->selection.leaving[g->index].n;
    if (!e->host.workers || g->open_steps == 0 || n == 0)
        return;
    e->selection.behind_arrivals |= g->arrived == e->step;
    settle(e, g);
    take_over(e, g, at_once, report);
    plan_host_loop(e->device->plan, (size_t)(4 * n));
}

/* Gradients are in the host's windows up to a layer, and in those of the embeddings at least. */
static void await_windows(struct engine *e, int layer)
{
    while (layer > 0 && !gathers_on_host(e, layer))
        layer--;
    host_wait_layer(e, &e->windows.accumulation, layer);
}

/* The means of all channels that enter are on the host. What stream `down` and each worker do is in
 * the order of layers. */
static void await_means(struct engine *e)
{
    int last[ENGINE_MAX_INTERVAL];
    memset(last, -1, sizeof last);
    for (int i = 0; i < e->selection.entering.n; i++) {
        const struct channel *c = &e->selection.entering.channels[i];
        const struct matrix *m = &e->matrices[c->matrix];
        const struct row_groups groups = all_groups(e, m);
        int *layer = &last[row_groups_group(&groups, c->row)];
        if (owned_row(m, c) >= 0 && m->param->layer > *layer)
            *layer = m->param->layer;
    }
    for (int j = 0; j < e->windows.interval; j++) {
        if (last[j] < 0)
            continue;
        e->device->event_wait(e->windows.groups[j].update.layers[last[j]].handed_over);
        await_windows(e, last[j]);
    }
}

static void update_entering(const struct engine *e, const struct channel *c)
{
    const struct matrix *m = &e->matrices[c->matrix];
    const struct row_groups groups = all_groups(e, m);
    const struct group *g = &e->windows.groups[row_groups_group(&groups, c->row)];
    if (owned_row(m, c) >= 0)
        host_adam_run_row(&g->update.layers[m->param->layer].update, &m->host, owned_row(m, c));
}

/* Of a row that host AdamW updates. */
static size_t updated_bytes(const struct engine *e, const struct channel *c)
{
    const struct matrix *m = &e->matrices[c->matrix];
    return owned_row(m, c) < 0 ? 0 : (size_t)m->cols * (6 * sizeof(float) + 4);
}

void selection_update(struct engine *e)
{
    const struct channel_list *l = &e->selection.entering;
    size_t bytes = 0;
    if (!e->selection.entering_waits)
        return;
    await_means(e);
    for (int i = 0; i < l->n; i++)
        bytes += updated_bytes(e, &l->channels[i]);
    if (e->device->plan)
        plan_host_copies(e->device->plan, bytes / 2);
#pragma omp parallel for schedule(static) if (bytes > PARALLEL_BYTES)
    for (int i = 0; i < l->n; i++)
        if (!e->device->plan)
            update_entering(e, &l->channels[i]);
    e->selection.entering_waits = false;
}

/* Those whose state only visits need to be up to date on the host. */
static void await_visitors(struct engine *e)
{
    const struct channel_list *l = &e->selection.entering;
    if (!e->config.offload_important)
        return;
    for (int i = 0; i < l->n; i++) {
        const struct channel *c = &l->channels[i];
        const struct matrix *m = &e->matrices[c->matrix];
        const struct row_groups groups = all_groups(e, m);
        const struct group *g = &e->windows.groups[row_groups_group(&groups, c->row)];
        host_wait_layer(e, &g->commit, m->param->layer);
    }
}

void selection_carry(struct engine *e)
{
    carry_land(e);
    selection_update(e);
    carry_bring(e);
    await_visitors(e);
}

void selection_enter(struct engine *e)
{
    struct channel_list *l = &e->selection.entering;
    for (int i = 0; i < l->n; i++) {
        const struct channel *c = &l->channels[i];
        struct matrix *m = &e->matrices[c->matrix];
        const struct row_groups groups = all_groups(e, m);
        const int group = row_groups_group(&groups, c->row);
        const bool held = e->selection.place[number_of(e, c)] == CHANNEL_DEFERRED;
        if (owned_row(m, c) >= 0) {
            (held ? m->n_deferred : m->n_entering)[group]--;
            state_commit_row(e, m, owned_row(m, c)); /* no job does it from now on */
        }
        e->selection.behind_arrivals |= held; /* its parameter is one of what arrives */
        change_place(e, c, CHANNEL_IMPORTANT);
    }
    plan_host_loop(e->device->plan, (size_t)l->n);
    l->n = 0;
}

void selection_hold(struct engine *e)
{
    selection_update(e);
    for (int j = 0; j < e->windows.interval; j++)
        if (e->windows.groups[j].in_flight)
            host_wait(e, &e->windows.groups[j].update); /* it would take them for its own */
    const struct channel_list *l = &e->selection.entering;
    for (int i = 0; i < l->n; i++) {
        const struct channel *c = &l->channels[i];
        struct matrix *m = &e->matrices[c->matrix];
        const struct row_groups groups = all_groups(e, m);
        const int group = row_groups_group(&groups, c->row);
        if (e->selection.place[number_of(e, c)] == CHANNEL_DEFERRED)
            continue;
        change_place(e, c, CHANNEL_DEFERRED);
        if (owned_row(m, c) < 0)
            continue;
        m->n_entering[group]--;
        m->n_deferred[group]++;
    }
}

/* ---- the first choice ---- */

/* Owned channels of one matrix and group become important: their windows, which the host has, go to
 * where this step's gradients were, which have been used already. rows: (n) */
static void bring_windows(struct engine *e, int matrix, const int *rows, int n,
                          struct step_report *report)
{
    const struct matrix *m = &e->matrices[matrix];
    if (n == 0 || !gathers_on_host(e, m->param->layer))
        return;
    state_upload_windows(e, m, rows, n);
    report->bytes_up += sizeof(float) * (size_t)n * (size_t)m->cols;
}

/* A channel of the first choice gets its slot, and its state is to come. */
static void enter_first(struct engine *e, const struct channel *c, struct step_report *report)
{
    struct matrix *m = &e->matrices[c->matrix];
    const int row = owned_row(m, c);
    count_important(e, m, c->row, 1);
    e->selection.place[number_of(e, c)] = CHANNEL_IMPORTANT;
    sharing_note(e, number_of(e, c));
    if (row < 0)
        return;
    state_take_slot(e, m, row);
    carry_up(e, m, row, report);
    table_list_add(e, m, row);
}

/* All of a group's news for which there is room. These have their window, which is this step's
 * gradient, as one update, now and on the device. */
static void adopt_first(struct engine *e, struct group *g, int *rows, struct step_report *report)
{
    struct channel_list *news = &e->selection.news[g->index];
    int n = 0, left = 0, matrix = 0;
    table_list_begin(e);
    for (int i = 0; i < news->n; i++) {
        const struct channel c = news->channels[i];
        const struct matrix *m = &e->matrices[c.matrix];
        if (!has_room(e, m, c.row)) {
            news->channels[left++] = c;
            continue;
        }
        if (c.matrix != matrix) {
            bring_windows(e, matrix, rows, n, report);
            n = 0;
        }
        matrix = c.matrix;
        enter_first(e, &c, report);
        if (owned_row(m, &c) >= 0)
            rows[n++] = owned_row(m, &c);
    }
    bring_windows(e, matrix, rows, n, report);
    news->n = left;
    table_list_end(e);
    streams_follow(e, e->streams.carrying, e->device->compute);
    carry_bring(e);
    channels_update(e, ROWS_WINDOW, e->lr, e->windows.scale, report);
    channels_count_updates(e);
}

void selection_adopt_first(struct engine *e, struct step_report *report)
{
    const float share = 1;
    int *rows = zf_malloc(sizeof(int) * e->n_channels);
    host_wait(e, &e->windows.accumulation); /* it reads places and windows */
    e->device->copy(e->device->compute, e->windows.scale, &share, sizeof share);
    for (int j = 0; j < e->windows.interval; j++) {
        assert(e->windows.groups[j].open_steps == 1);
        host_wait(e, &e->windows.groups[j].commit); /* masters are whole behind it */
        adopt_first(e, &e->windows.groups[j], rows, report);
    }
    free(rows);
    selection_publish(e);
    e->selection.selected = true;
}
