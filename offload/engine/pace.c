/* How long a step takes, and how long host and link need for their part of it, by the clock. */
#include "offload/engine/internal.h"

#include "data/clock.h"
#include "data/median.h"

#include <math.h>

/* Updates that must have arrived before they say how long one takes. */
#define SEEN_UPDATES 4

void pace_create(struct engine *e)
{
    for (int i = 0; i < N_MARKS; i++)
        e->observed.marks[i] = e->device->event_create_timed();
}

void pace_release(struct engine *e)
{
    for (int i = 0; i < N_MARKS; i++)
        if (e->observed.marks[i])
            e->device->event_destroy(e->observed.marks[i]);
}

void pace_forget(struct engine *e)
{
    e->observed.timing = (struct timing){.ends = BACKWARD_ENDS};
}

static bool measures(const struct engine *e)
{
    const struct engine_config *c = &e->config;
    return c->update_interval == 0 && e->host.workers && e->observed.least_interval == 0 &&
           e->step >= c->full_warm_up_rounds &&
           (c->interval_rule == ENGINE_INTERVAL_KEEP_UP || c->auto_keeps_up);
}

/* What workers have been given to do behind updates is done, and is in their times. */
static void settle_work(struct engine *e)
{
    host_wait(e, &e->windows.accumulation);
    for (int j = 0; j < e->windows.interval; j++)
        host_wait(e, &e->windows.groups[j].commit);
}

/* Seconds since the engine was created: of what the host does in each step, however long windows
 * are; and of workers' commits, summed over workers. */
static double each_seconds(const struct engine *e)
{
    const double summing = 1e-9 * (double)e->windows.accumulation.nanoseconds;
    return summing / worker_pool_threads(e->host.workers) + e->visits.copying_seconds;
}

static double commit_seconds(const struct engine *e)
{
    double seconds = 0;
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        seconds += 1e-9 * (double)e->windows.groups[j].commit.nanoseconds;
    return seconds;
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

void pace_begin_step(struct engine *e)
{
    struct timing *t = &e->observed.timing;
    t->began = t->last > 0 ? t->last : clock_seconds();
    t->passes = 0;
    t->ends = other_end(t);
    if (measures(e) && t->steps == 0) {
        settle_work(e);
        t->each_seconds = each_seconds(e);
        t->commit_seconds = commit_seconds(e);
    }
    mark(e, FORWARD_BEGINS);
}

void pace_begin_backward(struct engine *e)
{
    e->observed.timing.passes++;
    mark(e, BACKWARD_BEGINS);
}

void pace_end_backward(struct engine *e)
{
    mark(e, e->observed.timing.ends);
}

void pace_interrupt(struct engine *e)
{
    e->observed.timing.last = 0;
}

/* An update that was under way when a checkpoint was written has been done by another run, but for
 * its commit. */
void pace_note_arrival(struct engine *e, const struct group *g)
{
    struct timing *t = &e->observed.timing;
    if (e->step < e->config.full_warm_up_rounds)
        return;
    t->arrivals++;
    if (!g->update.begun)
        return;
    t->updates++;
    t->update_seconds += 1e-9 * (double)g->update.nanoseconds;
}

static double elapsed(const struct engine *e, int from, int to)
{
    return e->device->event_elapsed(e->observed.marks[from], e->observed.marks[to]);
}

/* By itself a forward pass may have waited for what comes up, so a backward pass tells of it as
 * well. What was before it may have waited for the host: it counts for no more than the pass, and
 * not at all where state visits the device in it, which is waited for before anything comes. */
static double room_seconds(const struct engine *e, bool interrupted)
{
    const struct timing *t = &e->observed.timing;
    e->device->event_wait(e->observed.marks[t->ends]); /* with the norm, but for its own stream */
    double forward = elapsed(e, BACKWARD_BEGINS, t->ends) / (e->config.recomputes ? 3 : 2);
    if (t->passes == 1)
        forward = fmin(forward, elapsed(e, FORWARD_BEGINS, BACKWARD_BEGINS));
    if (interrupted || e->visits.n > 0)
        return forward;
    return forward + fmin(forward, elapsed(e, other_end(t), FORWARD_BEGINS));
}

void pace_end_step(struct engine *e)
{
    struct timing *t = &e->observed.timing;
    if (!measures(e))
        return;
    const int i = t->steps++ % TIMED_STEPS;
    const bool interrupted = t->last == 0;
    t->last = clock_seconds();
    t->seconds[i] = t->last - t->began - stall_seconds(e);
    t->rooms[i] = t->passes > 0 ? room_seconds(e, interrupted) : t->seconds[i] / 3;
}

bool pace_is_known(const struct engine *e)
{
    const struct timing *t = &e->observed.timing;
    return t->steps >= TIMED_STEPS && t->updates >= SEEN_UPDATES;
}

struct engine_pace pace_measure(struct engine *e)
{
    const struct timing *t = &e->observed.timing;
    const int threads = worker_pool_threads(e->host.workers);
    settle_work(e);
    const double commits = commit_seconds(e) - t->commit_seconds;
    const double group = t->update_seconds / t->updates + commits / t->arrivals;
    /* The median: a run's first steps load kernels and choose algorithms. */
    return (struct engine_pace){.step = median_of(t->seconds, TIMED_STEPS),
                                .room = median_of(t->rooms, TIMED_STEPS),
                                .host = group / threads * e->windows.interval,
                                .host_each = (each_seconds(e) - t->each_seconds) / t->steps,
                                .link = exchange_seconds(e)};
}
