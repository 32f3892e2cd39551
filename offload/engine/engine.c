/* Making and ending an engine. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void describe_matrices(struct engine *e)
{
    e->n_matrices = e->table->n_params;
    e->matrices = zf_calloc((size_t)e->n_matrices, sizeof *e->matrices);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        const struct param *p = &e->table->params[i];
        m->param = p;
        m->index = i;
        m->streams = streams_layer(e, p->layer);
        m->selectable =
            e->config.evaluates ? m->streams : p->kind == PARAM_MATRIX && e->config.topk_ratio < 1;
        m->owned = schedule_owned(i, p->rows, e->ranks, e->rank);
        m->n_owned = m->owned.last - m->owned.first;
        m->cols = p->cols;
        m->first_channel = e->n_channels;
        e->n_channels += (size_t)p->rows;
        assert(i == 0 || p->layer >= p[-1].layer);
        const size_t before = (size_t)m->owned.first * (size_t)p->cols;
        if (!is_measuring(e)) {
            m->values = (char *)e->params + (p->value_offset + before) * dtype_size(e->dtype);
            m->grad = e->grads ? e->grads + p->gradient_offset + before : NULL;
        }
        e->host.elements += m->selectable ? owned_elements(m) : 0;
        e->defers |= m->selectable;
    }
}

/* All device memory of the engine. */
static void place_device_memory(struct engine *e)
{
    parameters_place(e);
    if (e->config.evaluates)
        return;
    sharing_place(e);
    state_place(e);
    carry_place(e);
    visits_place(e);
    table_place(e);
    windows_place(e);
    exchange_place(e);
    selection_place(e);
    norms_place(e);
}

/* bf16 on a device that computes in fp32: n of its parameters are rounded; masters were taken
 * before. */
static void round_parameters(struct engine *e, float *values, size_t n)
{
    if (!e->config.bf16 || e->dtype != DTYPE_F32 || e->device->plan)
        return;
    assert(e->device->unified);
    parameters_round(e, values, values, n);
}

/* Elements [first, end) of the table's that are a matrix's own, from its element `from` on. */
struct overlap {
    size_t from, first, end;
};

static struct overlap overlap(size_t begin, size_t n, size_t offset, size_t count)
{
    const size_t first = begin > offset ? begin : offset;
    const size_t end = begin + n < offset + count ? begin + n : offset + count;
    return (struct overlap){first - begin, first, end};
}

void engine_take_values(struct engine *e, size_t offset, const float *values, size_t n)
{
    if (!e->config.evaluates && !e->host.start) /* before the first step nothing is on its way */
        windows_wait(e);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        const struct param *p = m->param;
        const size_t owned = p->offset + (size_t)m->owned.first * (size_t)m->cols;
        const struct overlap own = overlap(owned, owned_elements(m), offset, n);
        const struct overlap all = overlap(p->offset, p->n_elements, offset, n);
        if (own.first < own.end) {
            host_await_start_of(e, p->layer);
            if (!e->config.evaluates)
                state_take_masters(e, m, own.from, own.end - own.first,
                                   values + (own.first - offset));
            parameters_take(e, m, own.from, own.end - own.first, values + (own.first - offset));
        }
        if (all.first < all.end && !fills_layer(e, p->layer))
            round_parameters(e, (float *)e->params + p->value_offset + all.from,
                             all.end - all.first);
    }
    parameters_forget(e);
}

void engine_forget(struct engine *e)
{
    streams_wait(e);
    stall_take(e);
    pace_forget(e);
    state_forget(e);
    carry_forget(e);
    windows_forget(e);
    selection_forget(e);
    parameters_forget(e);
}

/* An engine that only measures: its matrices are to be freed. */
static struct engine measured(const struct engine_config *config, struct device *device,
                              const struct param_table *table, int rank, int ranks)
{
    struct engine e = {.config = *config, .dtype = device->dtype};
    e.device = device;
    e.table = table;
    e.rank = rank;
    e.ranks = ranks;
    describe_matrices(&e);
    return e;
}

void engine_measure(const struct engine_config *config, struct device *device,
                    const struct param_table *table, int rank, int ranks, struct memory_use *use)
{
    struct engine e = measured(config, device, table, rank, ranks);
    e.arena.use = *use;
    place_device_memory(&e);
    *use = e.arena.use;
    state_free_slots(&e);
    free(e.matrices);
}

size_t engine_host_total(const struct engine_host_use *use)
{
    return use->optimizer + use->parameters + use->windows + use->staged + use->exchange;
}

static struct engine_host_use host_use(const struct engine *e, size_t exchange)
{
    struct engine_host_use use = host_held(e);
    use.exchange = exchange;
    return use;
}

static struct engine_host_use host_most(const struct engine *e)
{
    return host_use(e, e->config.evaluates ? 0 : exchange_most_bytes(e));
}

size_t engine_measure_host(const struct engine_config *config, struct device *device,
                           const struct param_table *table, int rank, int ranks)
{
    struct engine e = measured(config, device, table, rank, ranks);
    const struct engine_host_use use = host_most(&e);
    free(e.matrices);
    return engine_host_total(&use);
}

/* What training has beside parameters, but for the host's state; and once that is there. */
static void create_parts(struct engine *e)
{
    stall_create(e);
    windows_create(e);
    norms_create(e);
    selection_create(e);
    carry_create(e);
    sharing_create(e);
    pace_create(e);
    interval_create(e);
}

static void start(struct engine *e)
{
    exchange_create(e);
    table_fill(e);
    host_start(e);
    engine_forget(e);
}

static bool check_windows(const struct engine_config *c, struct zf_error *err)
{
    const int longest = c->update_interval ? c->update_interval : ENGINE_MAX_INTERVAL;
    if (longest > ENGINE_MAX_INTERVAL)
        return zf_fail(err,
                       "zero_optimization.zenflow.update_interval is %d, but windows have at most "
                       "%d steps",
                       longest, ENGINE_MAX_INTERVAL);
    return c->apply_lag <= longest ||
           zf_fail(err,
                   "zero_optimization.zenflow.apply_lag is %d, but windows have at most %d steps, "
                   "and a host update must be visible before the next one begins",
                   c->apply_lag, longest);
}

struct engine *engine_create(const struct engine_config *config, struct device *device,
                             struct comm *comm, const struct param_table *table, void *params,
                             float *grads, struct zf_error *err)
{
    if (!config->evaluates && !check_windows(config, err))
        return NULL;
    struct engine *e = zf_calloc(1, sizeof *e);
    e->config = *config;
    e->device = device;
    e->arena.device = device;
    e->dtype = device->dtype;
    e->comm = comm;
    e->rank = comm_rank(comm);
    e->ranks = comm_size(comm);
    e->table = table;
    e->params = params;
    e->grads = grads;
    assert(config->topk_ratio > 0 || config->update_interval > 0 ||
           config->interval_rule == ENGINE_INTERVAL_KEEP_UP);
    assert(config->bf16 || device->dtype == DTYPE_F32);
    assert(config->values_follow || !(config->params_on_host || divides(e)));
    assert(!config->params_on_host || e->ranks == 1 || divides(e));
    assert(!config->evaluates || config->values_follow);
    assert(e->ranks == 1 || table->ranks == e->ranks);
    describe_matrices(e);
    streams_create(e);
    place_device_memory(e);
    table_number(e);
    parameters_create(e);
    if (!config->evaluates)
        create_parts(e);
    if (!host_create(e, err)) {
        engine_destroy(e);
        return NULL;
    }
    if (!config->evaluates)
        start(e);
    trace_set_lanes(config->trace, e->streams.down, e->streams.up, e->streams.carrying,
                    e->host.workers ? worker_pool_threads(e->host.workers) : 0);
    if (!config->values_follow)
        round_parameters(e, params, table->n_values);
    return e;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    streams_wait(e);
    streams_release(e);
    stall_release(e);
    parameters_release(e);
    host_release(e);
    exchange_release(e);
    windows_release(e);
    norms_release(e);
    state_release(e);
    carry_release(e);
    visits_release(e);
    table_release(e);
    selection_release(e);
    sharing_release(e);
    pace_release(e);
    interval_release(e);
    arena_release(&e->arena);
    free(e->matrices);
    free(e);
}

struct engine_memory engine_memory(const struct engine *e)
{
    const struct engine_host_use now = host_use(e, e->exchange.bytes), most = host_most(e);
    return (struct engine_memory){.host = engine_host_total(&now),
                                  .host_most = engine_host_total(&most),
                                  .host_use = now,
                                  .device = memory_total(&e->arena.use),
                                  .host_elements = e->config.evaluates ? 0 : e->host.elements};
}
