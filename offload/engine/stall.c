/* Stalls: the device has nothing to run because it waits for the host.
 *
 * Two timed events on the compute stream, one behind the other, stand around what may be such a
 * wait. The first passes when all that the stream was given is done; the second not before the wait
 * is over. So what lies between is the time in which the stream had nothing to run: none, if it had
 * work throughout; on the CPU device, which works as it is called, all of the wait.
 *
 * Where the main thread waits, that is the stall. Where the device does, for what is behind stream
 * `down`, which waits for the workers, it is the part in which `down` did: the rest is the link. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/clock.h"

#include <math.h>
#include <stdlib.h>

void stall_create(struct engine *e)
{
    e->stalls.held = e->device->event_create_timed();
    e->stalls.released = e->device->event_create_timed();
}

void stall_release(struct engine *e)
{
    struct stalls *s = &e->stalls;
    for (int i = 0; i < s->capacity; i++) {
        e->device->event_destroy(s->idle[i].begin);
        e->device->event_destroy(s->idle[i].end);
    }
    free(s->idle);
    if (s->held)
        e->device->event_destroy(s->held);
    if (s->released)
        e->device->event_destroy(s->released);
}

/* The next stretch, whose events are not in use. */
static struct idle *next_idle(struct engine *e)
{
    struct stalls *s = &e->stalls;
    if (s->n == s->capacity) {
        s->idle = zf_realloc(s->idle, sizeof *s->idle * (size_t)++s->capacity);
        s->idle[s->n] = (struct idle){.begin = e->device->event_create_timed(),
                                      .end = e->device->event_create_timed()};
    }
    return &s->idle[s->n];
}

void stall_begin(struct engine *e)
{
    e->device->event_record(next_idle(e)->begin, e->device->compute);
}

void stall_end(struct engine *e)
{
    struct idle *idle = next_idle(e);
    if (!e->device->event_passed(idle->begin)) /* it had work throughout */
        return;
    e->device->event_record(idle->end, e->device->compute);
    idle->seen = clock_seconds();
    idle->held = false;
    e->stalls.n++;
}

/* ---- stream `down` waits for the workers ---- */

static void await_workers(void *argument)
{
    const struct layer_work *work = argument;
    worker_pool_wait(work->engine->host.workers, work->ticket);
}

/* A call of its own: on a plan's clock the one that waits returns at once. */
static void note_release(void *argument)
{
    struct engine *e = argument;
    e->stalls.released_at = clock_seconds();
}

void stall_hold(struct engine *e, struct layer_work *work)
{
    struct device *d = e->device;
    stall_begin(e);
    d->event_record(e->stalls.held, e->streams.down);
    d->stream_call(e->streams.down, await_workers, work);
    if (e->config.trace)
        d->stream_call(e->streams.down, note_release, e);
    d->event_record(e->stalls.released, e->streams.down);
    stall_end(e); /* the CPU device has made the call by now */
    e->stalls.holds = true;
}

void stall_order(struct engine *e, struct event *event)
{
    struct device *d = e->device;
    if (!e->stalls.holds) {
        d->event_order(d->compute, event);
        return;
    }
    struct idle *idle = next_idle(e);
    d->event_record(idle->begin, d->compute);
    d->event_order(d->compute, event);
    d->event_record(idle->end, d->compute);
    idle->held = true;
    e->stalls.n++;
}

/* ---- reckoning ---- */

/* The part of a stretch in which `down` waited for the workers, and when by the host's clock that
 * was over. Both of its events have passed. */
static double held_seconds(const struct engine *e, const struct idle *idle, double *over)
{
    const struct stalls *s = &e->stalls;
    const struct device *d = e->device;
    if (!d->event_passed(s->held))
        return 0;
    const double from = fmax(0, d->event_elapsed(idle->begin, s->held));
    double to = d->event_elapsed(idle->begin, idle->end);
    *over = clock_seconds();
    if (d->event_passed(s->released)) {
        const double released = d->event_elapsed(idle->begin, s->released);
        *over = s->released_at - fmax(0, released - to);
        to = fmin(to, released);
    }
    return fmax(0, to - from);
}

/* For the timeline, whose spans do not overlap, though the clock of the device may go faster. */
static void tell(struct engine *e, double begin, double end)
{
    struct stalls *s = &e->stalls;
    begin = fmax(begin, s->told);
    if (end > begin)
        trace_span(e->config.trace, TRACE_HOST, 0, "stall", trace_step(e->config.trace), begin,
                   end);
    s->told = fmax(end, s->told);
}

static void reckon(struct engine *e, const struct idle *idle)
{
    const struct device *d = e->device;
    double seconds, over = idle->seen;
    if (!d->event_passed(idle->end))
        d->event_wait(idle->end);
    seconds = idle->held ? held_seconds(e, idle, &over) : d->event_elapsed(idle->begin, idle->end);
    if (seconds <= 0)
        return;
    e->stalls.seconds += seconds;
    tell(e, over - seconds, over);
}

double stall_seconds(struct engine *e)
{
    struct stalls *s = &e->stalls;
    for (int i = 0; i < s->n; i++)
        reckon(e, &s->idle[i]);
    s->n = 0;
    return s->seconds;
}

double stall_take(struct engine *e)
{
    const double seconds = stall_seconds(e);
    e->stalls.seconds = 0;
    e->stalls.holds = false;
    return seconds;
}
