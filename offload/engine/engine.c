/* Making and ending an engine. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/bf16.h"

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
        m->selectable = p->kind == PARAM_MATRIX && e->config.topk_ratio < 1;
        m->owned = schedule_owned(i, p->rows, e->ranks, e->rank);
        m->n_owned = m->owned.last - m->owned.first;
        m->cols = p->cols;
        m->first_channel = e->n_channels;
        e->n_channels += (size_t)p->rows;
        assert(i == 0 || p->layer >= p[-1].layer);
        const size_t before = (size_t)m->owned.first * (size_t)p->cols;
        if (!is_measuring(e)) {
            m->values = (char *)e->params + (p->offset + before) * dtype_size(e->dtype);
            m->grad = e->grads + p->gradient_offset + before;
        }
        e->host.elements += m->selectable ? owned_elements(m) : 0;
        e->defers |= m->selectable;
    }
}

/* All device memory of the engine. */
static void place_device_memory(struct engine *e)
{
    sharing_place(e);
    state_place(e);
    table_place(e);
    windows_place(e);
    selection_place(e);
    norms_place(e);
}

/* bf16 on a device that computes in fp32: elements [first, first + n) of its parameters are
 * rounded; masters were taken before. */
static void round_parameters(struct engine *e, size_t first, size_t n)
{
    float *values = e->params;
    if (!e->config.bf16 || e->dtype != DTYPE_F32 || e->device->plan)
        return;
    assert(e->device->unified);
    for (size_t i = first; i < first + n; i++)
        values[i] = bf16_to_f32(bf16_parameter(values[i]));
}

void engine_take_values(struct engine *e, size_t offset, const float *values, size_t n)
{
    assert(e->step == 0);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        const size_t own = m->param->offset + (size_t)m->owned.first * (size_t)m->cols;
        const size_t own_end = own + owned_elements(m), end = offset + n;
        const size_t first = own > offset ? own : offset, last = own_end < end ? own_end : end;
        if (first < last)
            state_take_masters(e, m, first - own, last - first, values + (first - offset));
    }
    round_parameters(e, offset, n);
}

void engine_forget(struct engine *e)
{
    streams_wait(e);
    host_take_stall(e);
    interval_forget(e);
    state_forget(e);
    windows_forget(e);
    selection_forget(e);
}

void engine_measure(const struct engine_config *config, const struct param_table *table,
                    enum dtype dtype, int rank, int ranks, struct memory_use *use)
{
    struct engine e = {.config = *config, .arena = {.use = *use}, .dtype = dtype};
    e.table = table;
    e.rank = rank;
    e.ranks = ranks;
    describe_matrices(&e);
    place_device_memory(&e);
    *use = e.arena.use;
    for (int i = 0; i < e.n_matrices; i++) {
        free(e.matrices[i].slots.row);
        free(e.matrices[i].slot_of);
    }
    free(e.matrices);
}

struct engine *engine_create(const struct engine_config *config, struct device *device,
                             struct comm *comm, const struct param_table *table, void *params,
                             float *grads, struct zf_error *err)
{
    int longest = config->update_interval ? config->update_interval : ENGINE_MAX_INTERVAL;
    if (config->apply_lag > longest || longest > ENGINE_MAX_INTERVAL) {
        zf_fail(
            err,
            "zero_optimization.zenflow: update_interval is %d and apply_lag %d, but windows have "
            "at most %d steps, and a host update must be visible before the next one begins",
            config->update_interval, config->apply_lag, ENGINE_MAX_INTERVAL);
        return NULL;
    }
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
    assert(config->bf16 || device->dtype == DTYPE_F32);
    describe_matrices(e);
    streams_create(e);
    windows_create(e);
    norms_create(e);
    place_device_memory(e);
    selection_create(e);
    sharing_create(e);
    interval_create(e);
    if (!host_create(e, err)) {
        engine_destroy(e);
        return NULL;
    }
    table_fill(e);
    host_start(e);
    trace_set_lanes(config->trace, e->streams.down, e->streams.up,
                    e->host.workers ? worker_pool_threads(e->host.workers) : 0);
    engine_forget(e);
    if (!config->values_follow)
        round_parameters(e, 0, table->n_elements);
    return e;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    streams_wait(e);
    streams_release(e);
    host_release(e);
    windows_release(e);
    norms_release(e);
    state_release(e);
    table_release(e);
    selection_release(e);
    sharing_release(e);
    interval_release(e);
    arena_release(&e->arena);
    free(e->matrices);
    free(e);
}

struct engine_memory engine_memory(const struct engine *e)
{
    size_t counts = e->n_channels * sizeof *e->host.updates;
    return (struct engine_memory){.host = e->host.state_bytes + e->host.exchange_bytes + counts,
                                  .device = memory_total(&e->arena.use),
                                  .host_elements = e->host.elements};
}
