/* Channels: their AdamW updates on the device, and the choice of the important ones. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A fresh choice is looked for as often as this (steps) where stale choices are replaced, and made
 * where the chosen channels hold less than this part of what a fresh choice would hold. */
#define STALE_CHECK_STEPS 16
#define STALE_PART        0.5

/* ---- where they stand ---- */

void channels_count(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        memset(m->deferred, 0, sizeof m->deferred);
        memset(m->leaving, 0, sizeof m->leaving);
        const struct row_groups groups = owned_groups(e, m);
        for (int row = 0; m->selectable && row < m->n_owned; row++) {
            const int group = row_groups_group(&groups, row);
            m->deferred[group] += place_of(e, m, row) == CHANNEL_DEFERRED;
            m->leaving[group] += place_of(e, m, row) == CHANNEL_LEAVING;
        }
    }
}

void channels_publish(struct engine *e)
{
    struct device *d = e->device;
    engine_follow(e, d->compute, e->reducing);
    engine_follow(e, d->compute, e->down);
    engine_follow(e, d->compute, e->up);
    d->copy(d->compute, e->place_device, e->place, e->n_channels);
    channels_count(e);
}

/* ---- updates ---- */

struct adamw engine_rule(const struct engine *e, float lr)
{
    const struct engine_config *c = &e->config;
    return (struct adamw){.lr = lr,
                          .beta1 = c->beta1,
                          .beta2 = c->beta2,
                          .eps = c->eps,
                          .weight_decay = c->weight_decay,
                          .l2 = !c->adam_w_mode};
}

void channels_update(struct engine *e, enum row_source source, float lr, const float *factor,
                     struct step_report *report)
{
    struct device *d = e->device;
    const struct update_list *l = &e->list;
    const struct adamw rule = engine_rule(e, lr);
    /* Matrices whose state only visits the device share the memory for it. */
    const int step = e->config.offload_important ? 1 : e->n_matrices;
    for (int i = 0; i < e->n_matrices; i += step) {
        struct matrix *m = &e->matrices[i];
        const int first = l->first[i], n = l->first[i + step] - first;
        if (n == 0)
            continue;
        state_visit(e, m, l->host + first, n, true, report);
        d->row_ops->adamw_rows(d->compute, &e->all, l->device + first, n, source, &rule, factor,
                               e->config.bf16);
        state_visit(e, m, l->host + first, n, false, report);
    }
}

void channels_count_updates(struct engine *e)
{
    const struct update_list *l = &e->list;
    for (int i = 0; i < l->n; i++)
        e->matrices[l->host[i].matrix].host.updates[l->host[i].row]++;
}

/* The list holds all channels that have slots. */
static void list_important(struct engine *e)
{
    table_list_begin(e);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct slots *s = &e->matrices[i].slots;
        for (int slot = 0; slot < s->n; slot++)
            if (s->row[slot] >= 0)
                table_list_add(e, &e->matrices[i], s->row[slot]);
    }
    table_list_end(e);
    e->list.important = true;
}

void channels_update_important(struct engine *e, struct step_report *report)
{
    if (!e->list.important)
        list_important(e);
    channels_update(e, ROWS_GRADIENT, e->lr, &e->summary->factor, report);
}

/* ---- the choice ---- */

/* The newest norms' choice into e->choice, and what it says of them into the second summary. */
static void choose(struct engine *e)
{
    struct device *d = e->device;
    d->copy(d->compute, e->choice, e->place_device, e->n_channels);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        if (m->selectable)
            d->row_ops->select_rows(d->compute, e->choice + m->first_channel,
                                    e->norms + m->first_channel, m->param->rows,
                                    schedule_important(e->config.topk_ratio, m->param->rows));
    }
}

static double share_of(const struct norm_summary *s)
{
    return s->selectable > 0 ? s->important / s->selectable : 1;
}

/* The share of the squared norm that e->choice holds. */
static double share_of_choice(struct engine *e)
{
    struct device *d = e->device;
    struct norm_summary s;
    d->row_ops->summarise_norms(d->compute, &e->summary[1], e->norms, e->choice, (int)e->n_channels,
                                0);
    d->copy(d->compute, &s, &e->summary[1], sizeof s);
    d->stream_wait(d->compute);
    return share_of(&s);
}

static bool chooses(const struct engine *e)
{
    return e->config.topk_ratio > 0 && e->config.topk_ratio < 1 &&
           e->step >= e->config.full_warm_up_rounds;
}

bool channels_choose_first(const struct engine *e)
{
    return chooses(e) && !e->selected;
}

/* The host's `target` is e->choice. */
static void take_choice(struct engine *e)
{
    struct device *d = e->device;
    d->copy(d->compute, e->target, e->choice, e->n_channels);
    d->stream_wait(d->compute);
    for (size_t c = 0; c < e->n_channels; c++)
        e->target[c] = e->target[c] != CHANNEL_DEFERRED;
    e->to_adopt = UINT64_MAX;
    e->chosen_in = e->step;
}

/* The first choice counts at once: no window is open and no update in flight. */
static void adopt_first_choice(struct engine *e, struct step_report *report)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        unsigned char *place = e->place + m->first_channel;
        int n = 0, *rows = zf_malloc(sizeof(int) * (size_t)(m->n_owned + 1));
        for (int row = 0; m->selectable && row < m->n_owned; row++)
            if (e->target[m->first_channel + (size_t)(m->owned.first + row)])
                rows[n++] = row;
        if (n > 0)
            state_to_device(e, m, rows, n, report);
        if (m->selectable)
            memcpy(place, e->target + m->first_channel, (size_t)m->param->rows);
        free(rows);
    }
    e->selected = true;
    e->to_adopt = 0;
    channels_publish(e);
}

/* Every group takes over a choice within a window's length; until then there is no other, so that
 * the important channels are of two choices at most. */
static bool may_choose_again(const struct engine *e)
{
    return e->step - e->chosen_in >= e->interval;
}

void channels_select(struct engine *e, struct step_report *report)
{
    int every = e->config.select_every;
    bool first = channels_choose_first(e);
    report->important_share = share_of(e->summary_host);
    if (!chooses(e) || (!first && !may_choose_again(e)))
        return;
    bool due = first || (every > 0 && e->step % every == 0);
    bool looks = e->config.reselect_when_stale && e->step % STALE_CHECK_STEPS == 0;
    if (!due && !looks)
        return;
    choose(e);
    if (!due && report->important_share >= STALE_PART * share_of_choice(e))
        return;
    report->selected = true;
    take_choice(e);
    if (!first)
        return;
    report->important_share = share_of_choice(e);
    adopt_first_choice(e, report);
}
