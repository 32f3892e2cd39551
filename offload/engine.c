/* Creation, and the order of a step. */
#include "offload/engine_internal.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "offload/host_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED_IN_A_ROW_LIMIT 10
/* Elements in one chunk of host work: 64 Ki of 28 bytes, about a core's L2. */
#define TASK_ELEMENTS 65536
/* update_interval "auto" begins with this. */
#define FIRST_AUTO_INTERVAL 4

/* ---- creation ---- */

static size_t elements(const struct matrix *m)
{
    return (size_t)m->n_owned * (size_t)m->cols;
}

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
        m->owned = schedule_owned(i, p->rows, comm_size(e->comm), comm_rank(e->comm));
        m->n_owned = m->owned.last - m->owned.first;
        m->cols = p->cols;
        m->first_channel = e->n_channels;
        e->n_channels += (size_t)p->rows;
        size_t first = p->offset + (size_t)m->owned.first * (size_t)p->cols;
        m->values = (char *)e->params + first * dtype_size(e->device->dtype);
        m->grad = e->grads + first;
        m->slot_of = zf_malloc(sizeof(int) * (size_t)(m->n_owned + 1));
        for (int row = 0; row < m->n_owned; row++)
            m->slot_of[row] = -1;
        e->host_elements += m->selectable ? elements(m) : 0;
        e->defers |= m->selectable;
    }
}

static void *device_memory(struct engine *e, size_t bytes)
{
    e->device_bytes += bytes;
    return e->device->allocate(bytes);
}

/* With several ranks a rank's share of the gradient is reduced into a place of its own. */
static void place_owned_gradients(struct engine *e)
{
    size_t n = 0;
    if (comm_size(e->comm) == 1)
        return;
    for (int i = 0; i < e->n_matrices; i++)
        n += elements(&e->matrices[i]);
    e->owned_grads = device_memory(e, sizeof(float) * n);
    n = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        e->matrices[i].grad = e->owned_grads + n;
        n += elements(&e->matrices[i]);
    }
}

/* Each channel of each matrix has a count of updates; the host's state and exchange buffer exist
 * where channels may be deferred. */
static void place_host_state(struct engine *e)
{
    bool on_host = e->config.accumulate == ENGINE_ACCUMULATE_HOST;
    size_t n = e->host_elements, exchange = dtype_size(exchange_dtype(e)), at = 0, row = 0;
    float *state = e->host_state, *windows = on_host ? state + 3 * n : e->windows;
    e->updates = zf_calloc(e->n_channels, sizeof *e->updates);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        m->host = (struct host_adam_matrix){.rows = (size_t)m->n_owned,
                                            .cols = (size_t)m->cols,
                                            .exchange_dtype = exchange_dtype(e),
                                            .updates = e->updates + row};
        row += (size_t)m->n_owned;
        if (!m->selectable)
            continue;
        m->host.master = state + at;
        m->host.m = state + n + at;
        m->host.v = state + 2 * n + at;
        m->host.exchange = (char *)e->exchange + at * exchange;
        m->staged = on_host ? (char *)e->exchange + (n + at) * exchange : NULL;
        m->window = windows + at;
        at += elements(m);
    }
}

static bool allocate_host_state(struct engine *e, struct zf_error *err)
{
    size_t n = e->host_elements;
    bool on_host = e->config.accumulate == ENGINE_ACCUMULATE_HOST;
    if (n > 0) {
        e->host_state_bytes = sizeof(float) * n * (on_host ? 4 : 3);
        e->exchange_bytes = dtype_size(exchange_dtype(e)) * n * (on_host ? 2 : 1);
        e->host_state = host_memory_allocate(e->host_state_bytes, err);
        if (!e->host_state)
            return false;
        e->exchange = e->device->allocate_host(e->exchange_bytes);
        if (!on_host)
            e->windows = device_memory(e, sizeof(float) * n);
    }
    place_host_state(e);
    return true;
}

static void make_tasks(struct engine *e)
{
    for (int pass = 0; pass < 2; pass++) {
        e->n_tasks = 0;
        for (int i = 0; i < e->n_matrices; i++) {
            const struct matrix *m = &e->matrices[i];
            int rows = TASK_ELEMENTS / m->cols > 0 ? TASK_ELEMENTS / m->cols : 1;
            for (int row = 0; m->selectable && row < m->n_owned; row += rows) {
                int last = row + rows < m->n_owned ? row + rows : m->n_owned;
                if (pass == 1)
                    e->tasks[e->n_tasks] = (struct task){i, row, last};
                e->n_tasks++;
            }
        }
        if (pass == 0)
            e->tasks = zf_malloc(sizeof *e->tasks * (size_t)(e->n_tasks + 1));
    }
}

/* The fp32 masters are the parameters as they were loaded; each page is first touched by the worker
 * that will update it. */
static void initialise_chunk(void *argument, int chunk)
{
    struct engine *e = argument;
    const struct task *task = &e->tasks[chunk];
    const struct matrix *m = &e->matrices[task->matrix];
    size_t at = (size_t)task->first * (size_t)m->cols;
    size_t n = (size_t)(task->last - task->first) * (size_t)m->cols;
    memcpy(m->host.master + at, (const float *)m->values + at, sizeof(float) * n);
    memset(m->host.m + at, 0, sizeof(float) * n);
    memset(m->host.v + at, 0, sizeof(float) * n);
    memset((char *)m->host.exchange + at * dtype_size(exchange_dtype(e)), 0,
           n * dtype_size(exchange_dtype(e)));
}

static void start_workers(struct engine *e)
{
    const struct engine_config *c = &e->config;
    struct worker_config w = {.local_rank = comm_core_rank(e->comm),
                              .local_size = comm_core_size(e->comm),
                              .reserved_share = (float)c->reserved_cores,
                              .delay_seconds = c->worker_delay_seconds,
                              .delay_seed = c->worker_delay_seed};
    if (!e->defers)
        return;
    e->workers = worker_pool_create(&w);
    struct worker_job job = {initialise_chunk, e, e->n_tasks};
    worker_pool_wait(e->workers, worker_pool_submit(e->workers, &job));
}

/* bf16: what the device computes with is rounded; masters were taken before. */
static void round_parameters(struct engine *e)
{
    float *values = e->params;
    for (size_t i = 0; e->config.bf16 && i < e->table->n_elements; i++)
        values[i] = bf16_to_f32(bf16_from_f32(values[i]));
}

/* Vectors, and every channel where topk_ratio is 1, are important from the start. */
static void place_resident_channels(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (m->selectable)
            continue;
        memset(e->place + m->first_channel, CHANNEL_IMPORTANT, (size_t)m->param->rows);
        channels_initialise(e, m);
    }
    memcpy(e->target, e->place, e->n_channels);
    e->device->copy(e->device->compute, e->place_device, e->place, e->n_channels);
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
    e->comm = comm;
    e->table = table;
    e->params = params;
    e->grads = grads;
    describe_matrices(e);
    place_owned_gradients(e);
    e->place = zf_calloc(e->n_channels, 1);
    e->target = zf_calloc(e->n_channels, 1);
    e->updated = zf_calloc(e->n_channels, 1);
    e->place_device = device_memory(e, e->n_channels);
    e->norms = zf_calloc(e->n_channels, sizeof(float));
    e->norms_device = device_memory(e, sizeof(float) * e->n_channels);
    e->scale = device_memory(e, sizeof(float));
    e->important_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
    e->deferred_norm = zf_calloc((size_t)e->n_matrices, sizeof(double));
    e->shared_offset = zf_calloc((size_t)comm_size(comm) + 1, sizeof *e->shared_offset);
    make_tasks(e);
    if (!allocate_host_state(e, err)) {
        engine_destroy(e);
        return NULL;
    }
    start_workers(e);
    place_resident_channels(e);
    round_parameters(e);
    windows_begin(e, 1, 0, 0);
    return e;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    worker_pool_destroy(e->workers);
    channels_release(e);
    host_memory_free(e->host_state, e->host_state_bytes);
    if (e->exchange)
        e->device->release_host(e->exchange);
    void *device_arrays[] = {e->owned_grads, e->windows, e->place_device, e->norms_device,
                             e->scale};
    for (size_t i = 0; i < sizeof device_arrays / sizeof *device_arrays; i++)
        if (device_arrays[i])
            e->device->release(device_arrays[i]);
    free(e->tasks);
    free(e->shared);
    free(e->shared_offset);
    free(e->updates);
    free(e->place);
    free(e->target);
    free(e->updated);
    free(e->norms);
    free(e->important_norm);
    free(e->deferred_norm);
    free(e->matrices);
    free(e);
}

struct engine_memory engine_memory(const struct engine *e)
{
    size_t counts = e->n_channels * sizeof *e->updates;
    return (struct engine_memory){.host = e->host_state_bytes + e->exchange_bytes + counts,
                                  .device = e->device_bytes,
                                  .host_elements = e->host_elements};
}

/* ---- a step ---- */

void engine_begin_step(struct engine *e, float lr)
{
    e->lr = lr;
}

void engine_layer_gradients_ready(struct engine *e, int layer)
{
    int size = comm_size(e->comm);
    if (size == 1)
        return;
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct param *p = m->param;
        if (p->layer != layer)
            continue;
        for (int r = 0; r < size; r++) {
            struct range owned = schedule_owned(i, p->rows, size, r);
            comm_reduce_start(e->comm, e->grads + p->offset + (size_t)owned.first * (size_t)p->cols,
                              m->grad, (size_t)(owned.last - owned.first) * (size_t)p->cols, r);
        }
    }
}

/* Squared norms of all channels, on all ranks; returns the global norm, summed in double in the
 * order of the channels, so that it does not depend on the number of ranks. */
static double measure_norms(struct engine *e)
{
    struct device *d = e->device;
    double sum = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        size_t first = m->first_channel + (size_t)m->owned.first;
        d->ops->row_norms_squared(d->compute, e->norms_device + first, m->grad, m->n_owned,
                                  m->cols);
    }
    if (comm_size(e->comm) > 1)
        memset(e->norms, 0, sizeof(float) * e->n_channels);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        size_t first = m->first_channel + (size_t)m->owned.first;
        d->copy(d->compute, e->norms + first, e->norms_device + first,
                sizeof(float) * (size_t)m->n_owned);
    }
    d->stream_wait(d->compute);
    comm_all_reduce_f32(e->comm, e->norms, e->n_channels);
    for (size_t i = 0; i < e->n_channels; i++)
        sum += e->norms[i];
    return sqrt(sum);
}

/* As torch.nn.utils.clip_grad_norm_. */
static float clipping_factor(float limit, double norm)
{
    double factor = limit > 0 ? limit / (norm + 1e-6) : 1;
    return factor < 1 ? (float)factor : 1;
}

/* After the warm-up, windows of the configured length begin. */
static void leave_warm_up(struct engine *e)
{
    int first =
        e->config.apply_lag > FIRST_AUTO_INTERVAL ? e->config.apply_lag : FIRST_AUTO_INTERVAL;
    int interval = e->config.update_interval ? e->config.update_interval : first;
    if (e->step == e->config.full_warm_up_rounds)
        windows_begin(e, interval, e->config.apply_lag, e->step);
}

enum shared_copy { SHARED_COUNT, SHARED_PACK, SHARED_UNPACK };

/* Counts the bytes of one rank's channels whose parameters changed, or copies them to or from a
 * buffer, in the order of the table. */
static size_t copy_shared(struct engine *e, int rank, char *buffer, enum shared_copy what)
{
    struct device *d = e->device;
    size_t at = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        struct range owned = schedule_owned(i, m->param->rows, comm_size(e->comm), rank);
        size_t bytes = (size_t)m->cols * dtype_size(d->dtype);
        char *values = (char *)e->params + m->param->offset * dtype_size(d->dtype);
        for (int row = owned.first; row < owned.last; row++) {
            if (!e->updated[m->first_channel + (size_t)row])
                continue;
            if (what == SHARED_PACK)
                d->copy(d->compute, buffer + at, values + (size_t)row * bytes, bytes);
            else if (what == SHARED_UNPACK)
                d->copy(d->compute, values + (size_t)row * bytes, buffer + at, bytes);
            at += bytes;
        }
    }
    return at;
}

/* Owned channels whose parameters changed go to the other ranks, theirs come here. */
static void share_parameters(struct engine *e)
{
    int size = comm_size(e->comm), me = comm_rank(e->comm);
    size_t total = 0;
    for (int r = 0; r < size && size > 1; r++) {
        e->shared_offset[r] = total;
        total += copy_shared(e, r, NULL, SHARED_COUNT);
        e->shared_offset[r + 1] = total;
    }
    if (size > 1) {
        if (total > e->shared_bytes)
            e->shared = zf_realloc(e->shared, e->shared_bytes = total);
        copy_shared(e, me, e->shared + e->shared_offset[me], SHARED_PACK);
        e->device->stream_wait(e->device->compute);
        comm_all_gather(e->comm, e->shared, e->shared_offset);
        for (int r = 0; r < size; r++)
            if (r != me)
                copy_shared(e, r, e->shared + e->shared_offset[r], SHARED_UNPACK);
    }
    memset(e->updated, 0, e->n_channels);
}

static void update(struct engine *e, float factor, struct step_report *report)
{
    leave_warm_up(e);
    channels_select(e, report);
    channels_update_important(e, factor, report);
    windows_accumulate(e, factor, report);
    windows_arrive(e, false, report);
    for (int j = 0; j < e->interval; j++)
        if (schedule_closes(j, e->step - e->windows_began, e->interval, e->config.stagger))
            windows_close(e, &e->groups[j], report);
    windows_arrive(e, false, report);
    windows_choose_interval(e, report);
    share_parameters(e);
    e->step++;
}

bool engine_end_step(struct engine *e, struct step_report *report, struct zf_error *err)
{
    struct device *d = e->device;
    comm_reduce_finish(e->comm);
    double norm = measure_norms(e);
    *report = (struct step_report){.grad_norm = (float)norm, .skipped = !isfinite(norm)};
    if (report->skipped) {
        e->skipped_in_a_row++;
    } else {
        e->skipped_in_a_row = 0;
        update(e, clipping_factor(e->config.gradient_clipping, norm), report);
    }
    d->zero(d->compute, e->grads, e->table->n_elements * sizeof(float));
    report->update_interval = e->interval;
    if (e->workers) {
        double busy = worker_pool_busy_seconds(e->workers);
        report->host_seconds = busy - e->host_seconds_before;
        e->host_seconds_before = busy;
    }
    return e->skipped_in_a_row < SKIPPED_IN_A_ROW_LIMIT ||
           zf_fail(err,
                   "the gradient was not finite in %d steps in a row, the last with a learning "
                   "rate of %g: a smaller learning rate or gradient_clipping may help",
                   e->skipped_in_a_row, e->lr);
}

int engine_steps(const struct engine *e)
{
    return e->step;
}

void engine_finish(struct engine *e)
{
    struct step_report ignored = {0};
    windows_flush(e, &ignored);
    share_parameters(e);
}
