/* update_interval "auto" and "keep_up". */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The interval stays while the rule's differs by no more than a fourth: a change costs a step in
 * which all windows close. */
#define INTERVAL_SLACK 4

void interval_create(struct engine *e)
{
    e->observed.important_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
    e->observed.deferred_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
}

void interval_release(struct engine *e)
{
    free(e->observed.important_norm);
    free(e->observed.deferred_norm);
}

/* Mean norms of important and of deferred channels. A channel without gradient, such as a token
 * that does not occur, counts on neither side. */
static void note_norms(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        double sum[2] = {0, 0};
        int count[2] = {0, 0}, rows = m->selectable ? m->param->rows : 0;
        for (size_t c = m->first_channel; c < m->first_channel + (size_t)rows; c++) {
            int side = channel_is_important(e->selection.place[c]);
            sum[side] += sqrt(e->norms.squared_host[c]);
            count[side] += e->norms.squared_host[c] > 0;
        }
        e->observed.deferred_norm[i] += count[0] ? sum[0] / count[0] : 0;
        e->observed.important_norm[i] += count[1] ? sum[1] / count[1] : 0;
    }
    e->observed.steps++;
    plan_host_loop(e->device->plan, 3 * e->n_channels); /* a root and two sums for each */
}

/* Whether it is known, or can be said, which windows are too short. */
static bool is_timed(const struct engine *e)
{
    return e->observed.least_interval > 0 || e->config.step_seconds > 0 || pace_is_known(e);
}

/* The shortest window with which the host and the link keep up on this rank. */
static int least_interval(const struct engine_pace *p)
{
    const int longest = ENGINE_MAX_INTERVAL;
    const int host = schedule_least_interval(p->host, p->host_each, p->step, longest);
    const int link = schedule_least_interval(p->link, 0, p->room, longest);
    return host > link ? host : link;
}

/* On the slowest rank, which tells the others. */
static void measure(struct engine *e, struct step_report *report)
{
    const struct engine_config *c = &e->config;
    struct engine_pace pace = {
        .step = c->step_seconds, .room = c->step_seconds, .host = c->host_seconds};
    if (c->step_seconds == 0)
        pace = pace_measure(e);
    const int rank = comm_rank(e->comm);
    const int slowest = (int)comm_max(e->comm, least_interval(&pace) * e->ranks + rank) % e->ranks;
    comm_broadcast(e->comm, &pace, sizeof pace, slowest);
    report->pace = pace;
    report->least_interval = e->observed.least_interval = least_interval(&pace);
}

static void observe_anew(struct engine *e)
{
    memset(e->observed.important_norm, 0, sizeof(double) * (size_t)e->n_matrices);
    memset(e->observed.deferred_norm, 0, sizeof(double) * (size_t)e->n_matrices);
    e->observed.steps = 0;
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
        due += e->observed.deferred_norm[i] >= e->observed.important_norm[i] / e->observed.steps;
    }
    return due >= e->config.auto_ratio * all;
}

static void begin_windows(struct engine *e, int interval, struct step_report *report)
{
    windows_flush(e, report);
    windows_begin(e, interval, e->config.apply_lag, e->step + 1);
}

/* DeepSpeed's rule, which chooses again and again; what it asks for before anything can be said
 * against it is left out. */
static void choose_when_due(struct engine *e, struct step_report *report)
{
    note_norms(e);
    const int seen = e->observed.steps, present = e->windows.interval;
    if (seen < e->config.apply_lag || (!is_due(e) && seen < ENGINE_MAX_INTERVAL))
        return;
    observe_anew(e);
    if (e->config.auto_keeps_up && !is_timed(e))
        return;
    if (e->config.auto_keeps_up && e->observed.least_interval == 0)
        measure(e, report);
    report->chose_interval = true;
    const int least = e->observed.least_interval, chosen = seen > least ? seen : least;
    if (present < least || abs(chosen - present) * INTERVAL_SLACK > present)
        begin_windows(e, chosen, report);
}

/* Once: what noise would make of a later choice is not worth the bits that it would cost. */
static void choose_once(struct engine *e, struct step_report *report)
{
    if (e->observed.least_interval > 0 || !is_timed(e))
        return;
    measure(e, report);
    report->chose_interval = true;
    const int lag = e->config.apply_lag, least = e->observed.least_interval;
    const int chosen = lag > least ? lag : least;
    if (chosen != e->windows.interval)
        begin_windows(e, chosen, report);
}

void interval_choose(struct engine *e, struct step_report *report)
{
    if (e->config.update_interval != 0 || !e->host.workers ||
        e->step < e->config.full_warm_up_rounds)
        return;
    pace_end_step(e);
    if (e->config.interval_rule == ENGINE_INTERVAL_KEEP_UP)
        choose_once(e, report);
    else if (e->selection.selected) /* its norms are of important channels and others */
        choose_when_due(e, report);
}
