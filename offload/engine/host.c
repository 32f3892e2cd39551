/* The host's part of the engine's memory, its workers, and what they are given. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "offload/host/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

/* Of an element: the master, be it an fp32 parameter or a bf16 one and a remainder; m and v. */
#define HOST_STATE_BYTES (3 * sizeof(float))

/* Where the arrays of all matrices begin, in the order of the table. */
struct host_arrays {
    float *m, *v, *windows;
    char *parameters;    /* of exchange_dtype */
    int16_t *remainders; /* NULL where parameters are fp32 */
    char *exchange, *staged;
};

static struct host_arrays arrays_of(const struct engine *e)
{
    const size_t n = e->host.elements, bytes = n * dtype_size(exchange_dtype(e));
    const bool on_host = e->config.accumulate == ENGINE_ACCUMULATE_HOST;
    float *floats = (float *)e->host.state;
    struct host_arrays a = {.m = floats, .v = floats + n, .exchange = e->host.exchange};
    a.windows = on_host ? floats + 2 * n : e->windows.memory;
    a.parameters = (char *)(floats + (on_host ? 3 : 2) * n);
    a.remainders = e->config.bf16 ? (int16_t *)(a.parameters + bytes) : NULL;
    a.staged = on_host ? a.exchange + bytes : NULL;
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
    m->host.exchange = a->exchange + bytes;
    m->staged = a->staged ? a->staged + bytes : NULL;
    m->window = a->windows + at;
    m->host.window = a->staged ? m->window : NULL;
}

/* Each channel of each matrix has a count of updates; the host's state and exchange buffer exist
 * where channels may be deferred. */
static void place_host_state(struct engine *e)
{
    const struct host_arrays arrays = arrays_of(e);
    size_t at = 0, row = 0;
    e->host.updates = zf_calloc(e->n_channels, sizeof *e->host.updates);
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
        row += (size_t)m->n_owned;
        if (!m->selectable)
            continue;
        place_matrix(e, m, &arrays, at);
        at += owned_elements(m);
    }
}

static void make_chunks(struct engine *e)
{
    for (int pass = 0; pass < 2; pass++) {
        e->host.n_chunks = 0;
        for (int i = 0; i < e->n_matrices; i++)
            if (e->matrices[i].selectable)
                e->host.n_chunks += host_adam_cut(
                    &e->matrices[i].host, pass == 1 ? e->host.chunks + e->host.n_chunks : NULL);
        if (pass == 0)
            e->host.chunks = zf_malloc(sizeof *e->host.chunks * (size_t)(e->host.n_chunks + 1));
    }
}

bool host_create(struct engine *e, struct zf_error *err)
{
    size_t n = e->host.elements;
    bool on_host = e->config.accumulate == ENGINE_ACCUMULATE_HOST;
    if (n > 0) {
        e->host.state_bytes = (HOST_STATE_BYTES + (on_host ? sizeof(float) : 0)) * n;
        e->host.exchange_bytes = dtype_size(exchange_dtype(e)) * n * (on_host ? 2 : 1);
        e->host.state = e->device->plan ? e->device->allocate_host(e->host.state_bytes)
                                        : host_memory_allocate(e->host.state_bytes, err);
        if (!e->host.state)
            return false;
        e->host.exchange = e->device->allocate_host(e->host.exchange_bytes);
    }
    place_host_state(e);
    make_chunks(e);
    return true;
}

void host_release(struct engine *e)
{
    struct host *h = &e->host;
    worker_pool_destroy(h->workers);
    if (h->state && e->device->plan)
        e->device->release_host(h->state);
    else
        host_memory_free(h->state, h->state_bytes);
    if (h->exchange)
        e->device->release_host(h->exchange);
    free(h->chunks);
    free(h->updates);
}

/* ---- workers ---- */

/* The masters of elements [first, first + n) are the parameters as they were loaded, which a device
 * that the host cannot look into has put into the exchange buffer; zero where they follow. */
static void initialise_masters(struct engine *e, const struct matrix *m, size_t first, size_t n)
{
    const size_t size = dtype_size(m->host.dtype);
    char *parameters = (char *)m->host.parameters + first * size;
    if (e->device->unified && !e->config.values_follow) {
        host_adam_write_masters(&m->host, first, n, (const float *)m->values + first);
        return;
    }
    if (e->config.values_follow)
        memset(parameters, 0, n * size);
    else
        memcpy(parameters, (char *)m->host.exchange + first * size, n * size);
    if (m->host.remainders)
        memset(m->host.remainders + first, 0, n * sizeof *m->host.remainders);
}

/* Each page is first touched by the worker that will update it. */
static void initialise_chunk(void *argument, int chunk)
{
    struct engine *e = argument;
    const struct host_adam_chunk *c = &e->host.chunks[chunk];
    const struct matrix *m = &e->matrices[c->matrix->part.index];
    const size_t at = (size_t)c->first * (size_t)m->cols, size = dtype_size(m->host.dtype);
    const size_t n = (size_t)(c->last - c->first) * (size_t)m->cols;
    initialise_masters(e, m, at, n);
    memset(m->host.m + at, 0, sizeof(float) * n);
    memset(m->host.v + at, 0, sizeof(float) * n);
    memset((char *)m->host.exchange + at * size, 0, n * size);
}

static void download_parameters(struct engine *e)
{
    struct device *d = e->device;
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (m->selectable && m->n_owned > 0)
            d->copy(d->compute, m->host.exchange, m->values, sizeof(uint16_t) * owned_elements(m));
    }
    d->stream_wait(d->compute);
}

void host_start(struct engine *e)
{
    const struct engine_config *c = &e->config;
    struct worker_config w = {.local_rank = comm_core_rank(e->comm),
                              .local_size = comm_core_size(e->comm),
                              .reserved_share = (float)c->reserved_cores,
                              .delay_seconds = c->worker_delay_seconds,
                              .delay_seed = c->worker_delay_seed,
                              .plan = e->device->plan};
    if (!e->defers)
        return;
    e->host.workers = worker_pool_create(&w);
    if (e->device->plan)
        return;
    if (!e->device->unified && !c->values_follow)
        download_parameters(e);
    struct worker_job job = {.run = initialise_chunk, .argument = e, .n_chunks = e->host.n_chunks};
    worker_pool_wait(e->host.workers, worker_pool_submit(e->host.workers, &job));
}

static void hand_over(void *argument)
{
    struct host_work *work = argument;
    work->ticket = worker_pool_submit(work->workers, &work->job);
}

void host_submit(struct engine *e, struct host_work *work, void (*run)(void *, int),
                 size_t (*bytes)(void *, int), void *argument)
{
    struct device *d = e->device;
    work->workers = e->host.workers;
    work->job = (struct worker_job){run, argument, e->host.n_chunks, bytes};
    work->begun = true;
    work->step = trace_step(e->config.trace);
    d->stream_call(e->streams.down, hand_over, work);
    d->event_record(work->handed_over, e->streams.down);
}

void host_wait(struct engine *e, const struct host_work *work)
{
    if (!work->begun)
        return;
    e->device->event_wait(work->handed_over);
    double start = clock_seconds();
    bool done = worker_pool_done(e->host.workers, work->ticket);
    worker_pool_wait(e->host.workers, work->ticket);
    double end = clock_seconds();
    if (done)
        return;
    e->host.stall_seconds += end - start;
    trace_span(e->config.trace, TRACE_HOST, 0, "stall", trace_step(e->config.trace), start, end);
}

double host_take_stall(struct engine *e)
{
    double seconds = e->host.stall_seconds;
    e->host.stall_seconds = 0;
    return seconds;
}

void host_trace(const struct engine *e, struct host_work *work, const char *name)
{
    double begin, end;
    if (!work->step)
        return;
    for (int w = 0; w < worker_pool_threads(e->host.workers); w++) {
        worker_pool_span(e->host.workers, work->ticket, w, &begin, &end);
        trace_span(e->config.trace, TRACE_WORKERS, w, name, work->step, begin, end);
    }
    work->step = 0;
}
