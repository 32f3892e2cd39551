/* The host's part of the engine's memory, its workers, and what they are given. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "model/device/numa.h"
#include "offload/host/cores.h"
#include "offload/host/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

/* Of an element: the master, be it an fp32 parameter or a bf16 one and a remainder; m and v. */
#define HOST_STATE_BYTES (3 * sizeof(float))
/* Pinned memory that parameters come down through at the start, where the device has them alone. */
#define DOWNLOAD_BYTES ((size_t)16 << 20)

/* Where the arrays of all matrices begin, in the order of the table. */
struct host_arrays {
    float *m, *v, *windows;
    char *parameters;    /* of exchange_dtype */
    int16_t *remainders; /* NULL where parameters are fp32 */
};

size_t host_window_elements(const struct engine *e, bool on_host)
{
    size_t n = 0;
    for (int i = 0; i < e->n_matrices && !updates_from_staged(e); i++) {
        const struct matrix *m = &e->matrices[i];
        if (m->selectable && gathers_on_host(e, m->param->layer) == on_host)
            n += owned_elements(m);
    }
    return n;
}

static struct host_arrays arrays_of(const struct engine *e)
{
    const size_t n = e->host.elements, bytes = n * dtype_size(exchange_dtype(e));
    const size_t windows = host_window_elements(e, true);
    float *floats = (float *)e->host.state;
    struct host_arrays a = {.m = floats, .v = floats + n};
    a.windows = windows > 0 ? floats + 2 * n : NULL;
    char *behind = (char *)(floats + 2 * n + windows);
    a.parameters = e->host.pinned ? e->host.pinned : behind;
    behind += e->host.pinned ? 0 : bytes;
    a.remainders = e->config.bf16 ? (int16_t *)behind : NULL;
    return a;
}

/* A matrix's part of them, from an element on. */
static void place_matrix(struct engine *e, struct matrix *m, const struct host_arrays *a, size_t at)
{
    const size_t bytes = at * dtype_size(exchange_dtype(e));
    m->host.parameters = a->parameters + bytes;
    m->host.remainders = a->remainders ? a->remainders + at : NULL;
    m->host.m = a->m + at;
    m->host.v = a->v + at;
}

/* Its window, in the host's memory or the device's, of which so much is taken already. */
static void place_window(struct engine *e, struct matrix *m, const struct host_arrays *a,
                         size_t taken[2])
{
    const bool on_host = gathers_on_host(e, m->param->layer);
    float *windows = on_host ? a->windows : e->windows.memory;
    m->window = windows ? windows + taken[on_host] : NULL;
    m->host.window = on_host ? m->window : NULL;
    taken[on_host] += owned_elements(m);
}

/* Each channel of each matrix has a count of updates; the host's state exists where channels may be
 * deferred. */
static void place_host_state(struct engine *e)
{
    const struct host_arrays arrays = arrays_of(e);
    size_t at = 0, row = 0, staged = 0, windows[2] = {0};
    e->host.updates = zf_calloc(e->n_channels, sizeof *e->host.updates);
    if (notes_norms(e))
        e->host.norms = zf_calloc(2 * e->n_channels, sizeof *e->host.norms);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        m->host = (struct host_adam_matrix){.rows = (size_t)m->n_owned,
                                            .cols = (size_t)m->cols,
                                            .dtype = exchange_dtype(e),
                                            .updates = e->host.updates + row,
                                            .place = e->selection.place + m->first_channel +
                                                     m->owned.first,
                                            .part = {i, m->owned.first, m->param->rows, m->cols},
                                            .decays = m->param->decay};
        if (e->host.norms) {
            m->window_norms = e->host.norms + row;
            m->closing_norms = e->host.norms + e->n_channels + row;
            m->host.norms = m->closing_norms;
        }
        row += (size_t)m->n_owned;
        if (!m->selectable)
            continue;
        place_matrix(e, m, &arrays, at);
        place_window(e, m, &arrays, windows);
        at += owned_elements(m);
        if (!gathers_on_host(e, m->param->layer))
            continue;
        if (e->host.staged)
            m->staged = (char *)e->host.staged + staged * dtype_size(exchange_dtype(e));
        m->host.staged = updates_from_staged(e) ? m->staged : NULL;
        staged += deferred_elements(m);
    }
}

/* Cuts each layer's matrices; NULL: only counts. */
static void cut_layers(struct engine *e, struct host_adam_chunk *chunks)
{
    int n = 0, i = 0;
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        e->host.first_chunk[layer] = n;
        for (; i < e->n_matrices && e->matrices[i].param->layer == layer; i++)
            if (e->matrices[i].selectable)
                n += host_adam_cut(&e->matrices[i].host, chunks ? chunks + n : NULL);
    }
    e->host.first_chunk[e->table->n_layers] = n;
}

static void make_chunks(struct engine *e)
{
    const size_t n_layers = (size_t)e->table->n_layers;
    e->host.first_chunk = zf_malloc(sizeof *e->host.first_chunk * (n_layers + 1));
    cut_layers(e, NULL);
    e->host.chunks =
        zf_malloc(sizeof *e->host.chunks * ((size_t)e->host.first_chunk[n_layers] + 1));
    cut_layers(e, e->host.chunks);
}

const struct host_adam_chunk *host_chunks(const struct engine *e, int layer)
{
    return e->host.chunks + e->host.first_chunk[layer];
}

static size_t window_bytes(const struct engine *e)
{
    return host_window_elements(e, true) * sizeof(float);
}

static size_t pinned_bytes(const struct engine *e)
{
    return e->config.params_on_host ? e->host.elements * dtype_size(exchange_dtype(e)) : 0;
}

/* Of ordinary memory: without parameters that layers come from. */
static size_t state_bytes(const struct engine *e)
{
    return HOST_STATE_BYTES * e->host.elements + window_bytes(e) - pinned_bytes(e);
}

/* Of gradients that the host gathers. */
static size_t staged_bytes(const struct engine *e)
{
    size_t n = 0;
    for (int i = 0; i < e->n_matrices; i++)
        if (gathers_on_host(e, e->matrices[i].param->layer))
            n += deferred_elements(&e->matrices[i]);
    return n * dtype_size(exchange_dtype(e));
}

struct engine_host_use host_held(const struct engine *e)
{
    if (e->config.evaluates)
        return (struct engine_host_use){.parameters = pinned_bytes(e)};
    const size_t norms = notes_norms(e) ? 2 * e->n_channels * sizeof *e->host.norms : 0;
    const size_t counts = e->n_channels * sizeof *e->host.updates + norms;
    return (struct engine_host_use){.optimizer = state_bytes(e) - window_bytes(e) + counts,
                                    .parameters = pinned_bytes(e),
                                    .windows = window_bytes(e),
                                    .staged = staged_bytes(e)};
}

static bool allocate(struct engine *e, struct zf_error *err)
{
    struct host *h = &e->host;
    struct device *d = e->device;
    if (h->elements == 0)
        return true;
    h->state_bytes = state_bytes(e);
    h->state =
        d->plan ? d->allocate_host(h->state_bytes) : host_memory_allocate(h->state_bytes, err);
    if (!h->state)
        return false;
    if (pinned_bytes(e) > 0)
        h->pinned = allocate_crossed(e, pinned_bytes(e));
    if (staged_bytes(e) > 0)
        h->staged = allocate_crossed(e, staged_bytes(e));
    return true;
}

/* Where nothing is trained the host has no more than these. */
static void place_parameters(struct engine *e)
{
    size_t at = 0;
    if (pinned_bytes(e) > 0)
        e->host.pinned = allocate_crossed(e, pinned_bytes(e));
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (!m->selectable)
            continue;
        m->host = (struct host_adam_matrix){.rows = (size_t)m->n_owned,
                                            .cols = (size_t)m->cols,
                                            .dtype = exchange_dtype(e),
                                            .parameters = (char *)e->host.pinned + at};
        at += owned_elements(m) * dtype_size(exchange_dtype(e));
    }
}

bool host_create(struct engine *e, struct zf_error *err)
{
    if (e->config.evaluates) {
        place_parameters(e);
        return true;
    }
    if (!allocate(e, err))
        return false;
    place_host_state(e);
    make_chunks(e);
    return true;
}

void host_release(struct engine *e)
{
    struct host *h = &e->host;
    worker_pool_destroy(h->workers);
    free(h->start);
    if (h->state && e->device->plan)
        e->device->release_host(h->state);
    else
        host_memory_free(h->state, h->state_bytes);
    if (h->staged)
        e->device->release_host(h->staged);
    if (h->pinned)
        e->device->release_host(h->pinned);
    free(h->chunks);
    free(h->first_chunk);
    free(h->updates);
    free(h->norms);
}

/* ---- workers ---- */

/* A page of new memory is zero, and lies near the thread that first writes to it. */
static void touch(void *memory, size_t bytes)
{
    const size_t page = 4096; /* where pages are larger, one is touched more than once */
    for (size_t at = 0; at < bytes; at += page)
        ((volatile char *)memory)[at] = 0;
}

/* A run of zeros. */
static void clear(const struct engine *e, const struct matrix *m, const struct host_adam_state *s)
{
    const size_t bytes = s->n * dtype_size(m->host.dtype);
    if (e->host.pinned)
        memset(s->parameters, 0, bytes); /* the allocator's, so not always new */
    else
        touch(s->parameters, bytes);
    if (s->remainders)
        touch(s->remainders, s->n * sizeof *s->remainders);
    touch(s->m, s->n * sizeof *s->m);
    touch(s->v, s->n * sizeof *s->v);
}

/* Each page is first touched by the worker that will update it. Masters are the parameters as they
 * were loaded, where the host can look into the device; else zero, until they come. */
static void initialise_chunk(void *argument, int chunk)
{
    const struct layer_work *work = argument;
    const struct engine *e = work->engine;
    const struct host_adam_chunk *c = &host_chunks(e, work->layer)[chunk];
    const struct matrix *m = &e->matrices[c->matrix->part.index];
    const size_t first = (size_t)c->first * (size_t)m->cols;
    const size_t last = (size_t)c->last * (size_t)m->cols;
    for (size_t at = first; at < last;) {
        const struct host_adam_state s = host_adam_state(&m->host, at, last - at);
        clear(e, m, &s);
        at += s.n;
    }
    if (e->device->unified && !e->config.values_follow)
        host_adam_write_masters(&m->host, first, last - first, NULL,
                                (const float *)m->values + first);
}

/* A device's parameters become the host's, through so many bytes of pinned memory at a time. */
static void download_parameters(struct engine *e)
{
    struct device *d = e->device;
    char *pinned = d->allocate_host(DOWNLOAD_BYTES);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const size_t size = dtype_size(m->host.dtype), most = DOWNLOAD_BYTES / size;
        const size_t all = m->selectable ? owned_elements(m) : 0;
        for (size_t at = 0, n; at < all; at += n) {
            n = all - at < most ? all - at : most;
            d->copy(d->compute, pinned, (const char *)m->values + at * size, n * size);
            d->stream_wait(d->compute);
            host_adam_write_parameters(&m->host, at, n, pinned);
        }
    }
    d->release_host(pinned);
}

static int count_chunks(const struct engine *e, int layer)
{
    return e->host.first_chunk[layer + 1] - e->host.first_chunk[layer];
}

/* Workers run near the GPU, if each rank has one and cores near it: else ranks would not agree on
 * whose cores are whose. */
static void place_workers(struct engine *e, struct worker_config *w)
{
    const char *address = e->device->address;
    const int node = address ? numa_node_of_pci("", address) : -1;
    int *cpus, n = cpu_cores_list(&cpus);
    const bool near = numa_keep_cpus("", node, cpus, n) > 0;
    const bool all_near = comm_max(e->comm, !near) == 0;
    free(cpus);
    w->near = all_near ? address : NULL;
    comm_core_peers(e->comm, all_near ? node : -1, &w->local_rank, &w->local_size);
}

void host_start(struct engine *e)
{
    const struct engine_config *c = &e->config;
    struct worker_config w = {.reserved_share = (float)c->reserved_cores,
                              .delay_seconds = c->worker_delay_seconds,
                              .delay_seed = c->worker_delay_seed,
                              .plan = e->device->plan};
    if (!e->defers)
        return;
    place_workers(e, &w);
    e->host.workers = worker_pool_create(&w);
    if (e->device->plan)
        return;
    e->host.start = zf_calloc((size_t)e->table->n_layers, sizeof *e->host.start);
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        struct layer_work *work = &e->host.start[layer];
        *work = (struct layer_work){.engine = e, .layer = layer};
        work->job = (struct worker_job){.run = initialise_chunk,
                                        .argument = work,
                                        .n_chunks = count_chunks(e, layer),
                                        .begin = (unsigned)layer};
        if (work->job.n_chunks > 0)
            work->ticket = worker_pool_submit(e->host.workers, &work->job);
    }
    if (c->values_follow) /* until a layer's come its pages have time */
        return;
    host_await_start(e);
    if (!e->device->unified)
        download_parameters(e);
}

void host_await_start_of(struct engine *e, int layer)
{
    if (e->host.start && e->host.start[layer].ticket > 0)
        worker_pool_wait(e->host.workers, e->host.start[layer].ticket);
}

void host_await_start(struct engine *e)
{
    if (!e->host.start)
        return;
    for (int layer = 0; layer < e->table->n_layers; layer++)
        host_await_start_of(e, layer);
    free(e->host.start);
    e->host.start = NULL;
    e->host.seconds_before = worker_pool_busy_seconds(e->host.workers); /* no step's */
}

void host_work_create(struct engine *e, struct host_work *work)
{
    const size_t n_layers = (size_t)e->table->n_layers;
    *work = (struct host_work){.layers = zf_calloc(n_layers, sizeof *work->layers)};
    for (size_t layer = 0; layer < n_layers; layer++)
        work->layers[layer] = (struct layer_work){
            .engine = e, .layer = (int)layer, .handed_over = e->device->event_create()};
}

void host_work_release(struct engine *e, struct host_work *work)
{
    if (!work->layers)
        return;
    for (int layer = 0; layer < e->table->n_layers; layer++)
        e->device->event_destroy(work->layers[layer].handed_over);
    free(work->layers);
}

static void hand_over(void *argument)
{
    struct layer_work *work = argument;
    work->ticket = worker_pool_submit(work->engine->host.workers, &work->job);
}

void host_submit(struct engine *e, struct host_work *work, int layer, struct stream *behind,
                 void (*run)(void *, int), size_t (*bytes)(void *, int), void *argument)
{
    struct device *d = e->device;
    struct layer_work *part = &work->layers[layer];
    part->job = (struct worker_job){.run = run,
                                    .argument = argument,
                                    .n_chunks = count_chunks(e, layer),
                                    .bytes = bytes,
                                    .begin = (unsigned)layer,
                                    .nanoseconds = &work->nanoseconds};
    work->begun = true;
    work->step = trace_step(e->config.trace);
    if (part->job.n_chunks == 0)
        return;
    if (!behind) {
        hand_over(part);
        return;
    }
    d->stream_call(behind, hand_over, part);
    d->event_record(part->handed_over, behind);
}

/* Whether a layer's job is done, or there is none. */
static bool is_done(const struct engine *e, const struct host_work *work, int layer)
{
    const struct layer_work *part = &work->layers[layer];
    return !work->begun || part->job.n_chunks == 0 ||
           (e->device->event_passed(part->handed_over) &&
            worker_pool_done(e->host.workers, part->ticket));
}

void host_wait_layer(struct engine *e, const struct host_work *work, int layer)
{
    const struct layer_work *part = &work->layers[layer];
    if (is_done(e, work, layer))
        return;
    e->device->event_wait(part->handed_over);
    stall_begin(e);
    worker_pool_wait(e->host.workers, part->ticket);
    stall_end(e);
}

void host_wait(struct engine *e, const struct host_work *work)
{
    for (int layer = 0; layer < e->table->n_layers; layer++)
        host_wait_layer(e, work, layer);
}

/* Each worker does jobs in the order of layers: the last one's end is that of all. */
void host_hold(struct engine *e, const struct host_work *work)
{
    int last = e->table->n_layers - 1;
    while (last > 0 && work->layers[last].job.n_chunks == 0)
        last--;
    if (!is_done(e, work, last))
        stall_hold(e, &work->layers[last]);
}

void host_trace(const struct engine *e, struct host_work *work, const char *name)
{
    double begin, end;
    if (!work->step)
        return;
    for (int layer = 0; layer < e->table->n_layers; layer++)
        for (int w = 0; w < worker_pool_threads(e->host.workers); w++)
            if (work->layers[layer].job.n_chunks > 0 &&
                worker_pool_span(e->host.workers, work->layers[layer].ticket, w, &begin, &end))
                trace_span(e->config.trace, TRACE_WORKERS, w, name, work->step, begin, end);
    work->step = 0;
}
