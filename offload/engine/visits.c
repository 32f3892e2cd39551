/* Where important channels' state rests on the host (offload_important), it visits the device for
 * its update alone: many channels at a time, of as many matrices as there are, in berths that take
 * turns. While one visit's channels are updated the next one's come up, the last one's go down, and
 * the host's threads fill and empty the pinned memory of others; the host waits for a berth alone.
 * A berth lies on the device as it does in pinned memory, masters first, then m, then v, so that
 * each way is one copy. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/clock.h"

#include <assert.h>
#include <stdlib.h>

/* Of each of the three arrays of a berth, at most; and of all channels that may visit, berths
 * together have room for no more than one in so many. */
#define BERTH_BYTES ((size_t)4 << 20)
#define BERTHS_PART 4
/* Fewer elements are one thread's. */
#define PARALLEL_ELEMENTS ((size_t)64 << 10)

/* Of a channel, in each array: rows begin where the widest loads want them. */
static size_t row_elements(const struct matrix *m)
{
    return ((size_t)m->cols + 3) / 4 * 4;
}

/* ---- memory ---- */

void visits_place(struct engine *e)
{
    struct visits *v = &e->visits;
    struct arena *a = &e->arena;
    size_t all = 0, widest = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const int chosen = schedule_important(e->config.topk_ratio, m->param->rows);
        if (!state_visits(e, m) || chosen == 0)
            continue;
        all += row_elements(m) * (size_t)(chosen < m->n_owned ? chosen : m->n_owned);
        widest = row_elements(m) > widest ? row_elements(m) : widest;
    }
    const size_t most = BERTH_BYTES / sizeof(float), part = all / (BERTHS_PART * VISIT_BERTHS);
    v->berth = (part < most ? part : most) / 4 * 4;
    v->berth = v->berth > widest ? v->berth : widest;
    if (v->berth == 0)
        return;
    float *memory = arena_take(a, &a->use.important, VISIT_BERTHS * 3 * v->berth, sizeof(float));
    if (is_measuring(e))
        return;
    v->arrays = (struct state_arrays){memory, memory + v->berth, memory + 2 * v->berth};
    v->pinned = e->device->allocate_host_later(VISIT_BERTHS * 3 * v->berth * sizeof(float));
    for (int i = 0; i < VISIT_BERTHS; i++)
        v->left[i] = e->device->event_create();
}

void visits_release(struct engine *e)
{
    struct visits *v = &e->visits;
    free(v->list);
    if (!v->pinned)
        return;
    e->device->release_host(v->pinned);
    for (int i = 0; i < VISIT_BERTHS; i++)
        e->device->event_destroy(v->left[i]);
}

/* ---- the list ---- */

void visits_begin(struct engine *e)
{
    e->visits.n = 0;
}

uint32_t visits_add(struct engine *e, const struct matrix *m, int update)
{
    struct visits *v = &e->visits;
    if (v->n == 0 || v->list[v->n - 1].used + row_elements(m) > v->berth) {
        if (v->n == v->capacity) {
            v->capacity = v->capacity ? 2 * v->capacity : 16;
            v->list = zf_realloc(v->list, sizeof *v->list * (size_t)v->capacity);
        }
        v->list[v->n] = (struct visit){.first = v->n > 0 ? update : 0};
        v->n++;
    }
    struct visit *last = &v->list[v->n - 1];
    const size_t at = (size_t)((v->n - 1) % VISIT_BERTHS) * 3 * v->berth + last->used;
    last->used += row_elements(m);
    last->elements += (size_t)m->cols;
    assert(at <= UINT32_MAX);
    return (uint32_t)at;
}

/* Of a visit's updates, the one behind the last. */
int visits_end(const struct engine *e, int visit)
{
    return visit + 1 < e->visits.n ? e->visits.list[visit + 1].first : e->list.n;
}

/* ---- visiting ---- */

static float *pinned_berth(const struct engine *e, int visit)
{
    return e->visits.pinned + (size_t)(visit % VISIT_BERTHS) * 3 * e->visits.berth;
}

static float *device_berth(const struct engine *e, int visit)
{
    return e->visits.arrays.master + (size_t)(visit % VISIT_BERTHS) * 3 * e->visits.berth;
}

static size_t state_bytes(const struct engine *e, int visit)
{
    return 3 * sizeof(float) * e->visits.list[visit].elements;
}

/* From its first master to its last v. */
static size_t copied_bytes(const struct engine *e, int visit)
{
    return sizeof(float) * (2 * e->visits.berth + e->visits.list[visit].used);
}

static void copy_rows(struct engine *e, int visit, bool to_host)
{
    const struct visits *v = &e->visits;
    const int first = v->list[visit].first, end = visits_end(e, visit);
    float *pinned = e->visits.pinned;
    if (e->device->plan) {
        plan_host_copies(e->device->plan, state_bytes(e, visit));
        return;
    }
#pragma omp parallel for schedule(static) if (v->list[visit].elements > PARALLEL_ELEMENTS)
    for (int i = first; i < end; i++) {
        const struct channel_update *u = &e->list.host[i];
        const struct matrix *m = &e->matrices[u->matrix];
        if (!state_visits(e, m))
            continue;
        if (to_host)
            state_write_row(e, m, u->row, pinned + u->visit, v->berth);
        else
            state_read_row(e, m, u->row, pinned + u->visit, v->berth);
    }
}

/* Between the host's arrays and pinned memory, by the host's own threads. */
static void copy_on_host(struct engine *e, int visit, bool to_host)
{
    const double start = clock_seconds();
    copy_rows(e, visit, to_host);
    e->visits.copying_seconds += clock_seconds() - start;
}

static void land(struct engine *e, int visit)
{
    e->device->event_wait(e->visits.left[visit % VISIT_BERTHS]);
    copy_on_host(e, visit, true);
}

void visits_come(struct engine *e, int visit, struct step_report *report)
{
    struct device *d = e->device;
    struct stream *s = e->streams.carrying;
    if (visit >= VISIT_BERTHS)
        land(e, visit - VISIT_BERTHS);
    copy_on_host(e, visit, false);
    trace_begin(e->config.trace, TRACE_STATE, "state, to the device");
    d->copy(s, device_berth(e, visit), pinned_berth(e, visit), copied_bytes(e, visit));
    trace_end(e->config.trace, TRACE_STATE, state_bytes(e, visit));
    streams_follow(e, d->compute, s);
    report->bytes_moved += state_bytes(e, visit);
}

void visits_leave(struct engine *e, int visit, struct step_report *report)
{
    struct device *d = e->device;
    struct stream *s = e->streams.down;
    streams_follow(e, s, d->compute);
    trace_begin(e->config.trace, TRACE_LINK_DOWN, "state, to the host");
    d->copy(s, pinned_berth(e, visit), device_berth(e, visit), copied_bytes(e, visit));
    trace_end(e->config.trace, TRACE_LINK_DOWN, state_bytes(e, visit));
    d->event_record(e->visits.left[visit % VISIT_BERTHS], s);
    report->bytes_moved += state_bytes(e, visit);
}

void visits_land(struct engine *e)
{
    const int n = e->visits.n;
    for (int visit = n > VISIT_BERTHS ? n - VISIT_BERTHS : 0; visit < n; visit++)
        land(e, visit);
}
