/* update_interval "auto" and "keep_up". */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "data/median.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The interval stays while the rule's differs by no more than a fourth: a change costs a step in
 * which all windows close. */
#define INTERVAL_SLACK 4
/* Updates that must have arrived before they say how long one takes. */
#define SEEN_UPDATES 4

void interval_create(struct engine *e)
{
    e->observed.important_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
    e->observed.deferred_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
    for (int i = 0; i < N_MARKS; i++)
        e->observed.marks[i] = e->device->event_create_timed();
}

void interval_release(struct engine *e)
{
    free(e->observed.important_norm);
    free(e->observed.deferred_norm);
    for (int i = 0; i < N_MARKS; i++)
        if (e->observed.marks[i])
            e->device->event_destroy(e->observed.marks[i]);
}

void interval_forget(struct engine *e)
{
    e->observed.timing = (struct timing){.ends = BACKWARD_ENDS};
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

/* ---- what host and link need, by the clock ---- */

static bool measures(const struct engine *e)
{
    return e->config.update_interval == 0 && e->host.workers && e->observed.least_interval == 0;
}

/* Workers' time for the sums of gradients that are theirs, since the engine was created. */
static double summing_seconds(const struct engine *e)
{
    return 1e-9 * (double)e->windows.accumulation.nanoseconds;
}

static void mark(struct engine *e, int what)
{
    if (measures(e))
        e->device->event_record(e->observed.marks[what], e->device->compute);
}

/* The mark that is not this step's end, but the last one's. */
static int other_end(const struct timing *t)
{
    return BACKWARD_ENDS + BACKWARD_ENDS_TOO - t->ends;
}

void interval_begin_step(struct engine *e)
{
    struct timing *t = &e->observed.timing;
    t->began = t->last > 0 ? t->last : clock_seconds();
    t->passes = 0;
    t->ends = other_end(t);
    if (t->steps == 0)
        t->summed_before = summing_seconds(e);
    mark(e, FORWARD_BEGINS);
}

void interval_begin_backward(struct engine *e)
{
    e->observed.timing.passes++;
    mark(e, BACKWARD_BEGINS);
}

void interval_end_backward(struct engine *e)
{
    mark(e, e->observed.timing.ends);
}

void interval_interrupt(struct engine *e)
{
    e->observed.timing.last = 0;
}

static bool is_warming_up(const struct engine *e)
{
    return e->step < e->config.full_warm_up_rounds;
}

/* An update that was under way when a checkpoint was written has been done by another run. */
void interval_note_arrival(struct engine *e, const struct group *g)
{
    struct timing *t = &e->observed.timing;
    if (!g->update.begun || is_warming_up(e))
        return;
    t->updates++;
    t->update_seconds += 1e-9 * (double)g->update.nanoseconds;
}

static double elapsed(const struct engine *e, int from, int to)
{
    return e->device->event_elapsed(e->observed.marks[from], e->observed.marks[to]);
}

/* By itself a forward pass may have waited for what comes up, so a backward pass tells of it as
 * well. What was before it may have waited for the host: it counts for no more than the pass. */
static double room_seconds(const struct engine *e, bool interrupted)
{
    const struct timing *t = &e->observed.timing;
    e->device->event_wait(e->observed.marks[t->ends]); /* with the norm, but for its own stream */
    double forward = elapsed(e, BACKWARD_BEGINS, t->ends) / (e->config.recomputes ? 3 : 2);
    if (t->passes == 1)
        forward = fmin(forward, elapsed(e, FORWARD_BEGINS, BACKWARD_BEGINS));
    return forward + (interrupted ? 0 : fmin(forward, elapsed(e, other_end(t), FORWARD_BEGINS)));
}

static void time_step(struct engine *e)
{
    struct timing *t = &e->observed.timing;
    const int i = t->steps++ % TIMED_STEPS;
    const bool interrupted = t->last == 0;
    t->last = clock_seconds();
    t->seconds[i] = t->last - t->began - stall_seconds(e);
    t->rooms[i] = t->passes > 0 ? room_seconds(e, interrupted) : t->seconds[i] / 3;
}

/* Whether it is known, or can be said, which windows are too short. */
static bool is_timed(const struct engine *e)
{
    const struct timing *t = &e->observed.timing;
    return e->observed.least_interval > 0 || e->config.step_seconds > 0 ||
           (t->steps >= TIMED_STEPS && t->updates >= SEEN_UPDATES);
}

static struct engine_pace measured_pace(struct engine *e)
{
    const struct timing *t = &e->observed.timing;
    const int threads = worker_pool_threads(e->host.workers);
    /* The median: a run's first steps load kernels and choose algorithms. */
    return (struct engine_pace){
        .step = median_of(t->seconds, TIMED_STEPS),
        .room = median_of(t->rooms, TIMED_STEPS),
        .host = t->update_seconds / threads / t->updates * e->windows.interval,
        .sums = (summing_seconds(e) - t->summed_before) / threads / t->steps,
        .link = exchange_seconds(e)};
}

/* The shortest window with which the host and the link keep up, on the slowest rank. */
static int least_interval(struct engine *e, struct engine_pace *pace)
{
    const struct engine_config *c = &e->config;
    *pace = c->step_seconds > 0 ? (struct engine_pace){.step = c->step_seconds,
                                                       .room = c->step_seconds,
                                                       .host = c->host_seconds}
                                : measured_pace(e);
    const int longest = ENGINE_MAX_INTERVAL;
    const int host = schedule_least_interval(pace->host, pace->sums, pace->step, longest);
    const int link = schedule_least_interval(pace->link, 0, pace->room, longest);
    return (int)comm_max(e->comm, host > link ? host : link);
}

/* ---- the rules ---- */

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

/* DeepSpeed's rule, which chooses again and again. */
static void choose_when_due(struct engine *e, struct step_report *report)
{
    note_norms(e);
    int seen = e->observed.steps;
    if (seen < e->config.apply_lag || (!is_due(e) && seen < ENGINE_MAX_INTERVAL) ||
        (e->config.auto_keeps_up && !is_timed(e)))
        return;
    if (e->observed.least_interval == 0)
        e->observed.least_interval = e->config.auto_keeps_up ? least_interval(e, &report->pace) : 1;
    observe_anew(e);
    int chosen = seen > e->observed.least_interval ? seen : e->observed.least_interval;
    if (abs(chosen - e->windows.interval) * INTERVAL_SLACK > e->windows.interval)
        begin_windows(e, chosen, report);
}

/* Once: what noise would make of a later choice is not worth the bits that it would cost. */
static void choose_once(struct engine *e, struct step_report *report)
{
    if (e->observed.least_interval > 0 || !is_timed(e))
        return;
    e->observed.least_interval = least_interval(e, &report->pace);
    const int lag = e->config.apply_lag, least = e->observed.least_interval;
    const int chosen = lag > least ? lag : least;
    if (chosen != e->windows.interval)
        begin_windows(e, chosen, report);
}

void interval_choose(struct engine *e, struct step_report *report)
{
    if (e->config.update_interval != 0 || !e->host.workers || is_warming_up(e))
        return;
    if (e->observed.least_interval == 0)
        time_step(e);
    if (e->config.interval_rule == ENGINE_INTERVAL_KEEP_UP)
        choose_once(e, report);
    else if (e->selection.selected) /* its norms are of important channels and others */
        choose_when_due(e, report);
}
