/* The state of channels: fp32 master, m and v of each, in a slot on the device or in the host's
 * arrays. For checkpoints it crosses the link through pinned memory, many rows at a time, and the
 * host waits: the host's arrays are too large to be pinned themselves within a start-up of a
 * second. Channels that change sides have their own way (carry.c), and those that visit the device
 * theirs (visits.c). */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Pinned memory that state moves through, in bytes; less where no matrix has as much. */
#define STAGING_BYTES ((size_t)16 << 20)
/* ---- memory ---- */

bool state_visits(const struct engine *e, const struct matrix *m)
{
    return e->config.offload_important && m->selectable;
}

const struct state_arrays *state_arrays(const struct engine *e, const struct matrix *m)
{
    return state_visits(e, m) ? &e->visits.arrays : &m->slots->state;
}

/* ---- slots ---- */

/* The slots of a matrix: new ones, or those of another whose channels are as wide. */
static struct slots *find_slots(struct engine *e, const struct matrix *m)
{
    struct moves *all = &e->moves;
    for (int i = 0; i < all->n_slots; i++)
        if (m->selectable && all->slots[i].shared && all->slots[i].cols == m->cols)
            return &all->slots[i];
    struct slots *s = &all->slots[all->n_slots++];
    *s = (struct slots){.cols = m->cols, .shared = m->selectable};
    if (s->shared) {
        s->capacity_of = zf_calloc((size_t)e->ranks, sizeof *s->capacity_of);
        s->important_of = zf_calloc((size_t)e->ranks, sizeof *s->important_of);
    }
    return s;
}

/* Blocks are alike, and what one has too many of on a rank others have too few of there. Of
 * embeddings and heads a rank may well own all that are chosen: tokens are numbered by how frequent
 * they are. */
static void count_slots(struct engine *e, struct matrix *m)
{
    struct slots *s = m->slots;
    const int layer = m->param->layer, rows = m->param->rows;
    const int chosen = schedule_important(e->config.topk_ratio, rows);
    if (!m->selectable) {
        s->capacity = m->n_owned;
        return;
    }
    for (int r = 0; r < e->ranks; r++) {
        const struct range owned = schedule_owned(m->index, rows, e->ranks, r);
        const int n = owned.last - owned.first, most = chosen < n ? chosen : n;
        const bool is_block = layer > 0 && layer < e->table->n_layers - 1;
        s->capacity_of[r] += is_block ? schedule_room(chosen, n, rows) : most;
    }
    s->n_chosen += chosen;
    s->capacity = s->capacity_of[e->rank];
}

/* masters: parameters are not the masters themselves */
static void place_arrays(struct engine *e, struct state_arrays *s, size_t n, bool masters)
{
    struct arena *a = &e->arena;
    s->m = arena_take(a, &a->use.important, n, sizeof(float));
    s->v = arena_take(a, &a->use.important, n, sizeof(float));
    if (masters)
        s->master = arena_take(a, &a->use.important, n, sizeof(float));
}

/* Memory for moves of any matrix. */
static void place_staging(struct engine *e)
{
    struct staging *s = &e->moves.staging;
    size_t row = 0, matrix = 0;
    int most = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        size_t bytes = sizeof(float) * (size_t)m->cols, all = 3 * bytes * (size_t)m->n_owned;
        if (!m->selectable || e->config.topk_ratio <= 0)
            continue;
        row = bytes > row ? bytes : row;
        matrix = all > matrix ? all : matrix;
        most = m->n_owned > most ? m->n_owned : most;
    }
    if (matrix == 0)
        return;
    size_t least = matrix < STAGING_BYTES ? matrix : STAGING_BYTES;
    s->capacity = least > row ? least : row;
    s->rows = arena_take(&e->arena, &e->arena.use.workspace, (size_t)most, sizeof(int));
    if (!is_measuring(e))
        s->memory = e->device->allocate_host(s->capacity);
}

static void place_slots(struct engine *e, struct slots *s)
{
    struct arena *a = &e->arena;
    const size_t n = (size_t)s->capacity, elements = n * (size_t)s->cols;
    s->taken = zf_calloc(n + 1, sizeof *s->taken);
    if (n == 0)
        return;
    s->waiting = arena_take(a, &a->use.important, elements, sizeof *s->waiting);
    if (!s->shared || !e->config.offload_important)
        place_arrays(e, &s->state, elements, s->masters);
}

void state_place(struct engine *e)
{
    const size_t n = (size_t)e->n_matrices;
    e->moves.slots = zf_calloc(n + 1, sizeof *e->moves.slots);
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        m->slots = find_slots(e, m);
        m->slot_of = zf_malloc(sizeof(int) * (size_t)(m->n_owned + 1));
        /* A master on its way is not visible yet: a parameter is none. */
        m->slots->masters |= e->config.bf16 || m->selectable || m->streams;
        count_slots(e, m);
    }
    for (int i = 0; i < e->moves.n_slots; i++)
        place_slots(e, &e->moves.slots[i]);
    place_staging(e);
}

void state_free_slots(struct engine *e)
{
    for (int i = 0; i < e->moves.n_slots; i++) {
        free(e->moves.slots[i].taken);
        free(e->moves.slots[i].capacity_of);
        free(e->moves.slots[i].important_of);
    }
    for (int i = 0; i < e->n_matrices; i++)
        free(e->matrices[i].slot_of);
    free(e->moves.slots);
}

void state_release(struct engine *e)
{
    state_free_slots(e);
    if (e->moves.staging.memory)
        e->device->release_host(e->moves.staging.memory);
}

void state_take_slot(struct engine *e, struct matrix *m, int row)
{
    struct slots *s = m->slots;
    int slot = s->lowest_free;
    while (slot < s->capacity && s->taken[slot])
        slot++;
    assert(slot < s->capacity);
    s->lowest_free = slot + 1;
    s->taken[slot] = true;
    m->slot_of[row] = slot;
    e->list.important = false;
}

void state_free_slot(struct engine *e, struct matrix *m, int row)
{
    struct slots *s = m->slots;
    const int slot = m->slot_of[row];
    s->taken[slot] = false;
    if (slot < s->lowest_free)
        s->lowest_free = slot;
    m->slot_of[row] = -1;
    e->list.important = false;
}

void state_forget(struct engine *e)
{
    for (int i = 0; i < e->moves.n_slots; i++) {
        struct slots *s = &e->moves.slots[i];
        memset(s->taken, 0, (size_t)s->capacity * sizeof *s->taken);
        s->lowest_free = 0;
    }
    for (int i = 0; i < e->n_matrices; i++)
        for (int row = 0; row < e->matrices[i].n_owned; row++)
            e->matrices[i].slot_of[row] = -1;
    e->list.important = false;
}

void state_adopt(struct engine *e, struct matrix *m)
{
    if (!m->selectable)
        return;
    for (int row = 0; row < m->n_owned; row++)
        if (channel_is_important(place_of(e, m, row)))
            state_take_slot(e, m, row);
}

void state_initialise(struct engine *e, struct matrix *m)
{
    struct device *d = e->device;
    struct state_arrays *s = &m->slots->state;
    size_t n = (size_t)m->n_owned * (size_t)m->cols;
    for (int row = 0; row < m->n_owned; row++)
        state_take_slot(e, m, row);
    if (n == 0)
        return;
    d->zero(d->compute, s->m, sizeof(float) * n);
    d->zero(d->compute, s->v, sizeof(float) * n);
    if (s->master && !e->config.values_follow)
        d->ops->to_f32(d->compute, s->master, m->values, n);
}

void state_take_masters(struct engine *e, struct matrix *m, size_t first, size_t n,
                        const float *values)
{
    struct device *d = e->device;
    if (!m->selectable) {
        if (m->slots->state.master) /* slots are the rows, in their order */
            d->copy(d->compute, m->slots->state.master + first, values, sizeof(float) * n);
        return;
    }
#pragma omp parallel for schedule(static) if (n > ENGINE_PIECE)
    for (size_t at = 0; at < n; at += ENGINE_PIECE)
        host_adam_write_masters(&m->host, first + at, n - at < ENGINE_PIECE ? n - at : ENGINE_PIECE,
                                NULL, values + at);
}

/* ---- rows of it ---- */

/* The arrays that move. */
enum state_part { STATE_MASTER, STATE_M, STATE_V };

/* Elements [first, first + n) of the host's moments, m or v. */
static void copy_moments(const struct host_adam_matrix *h, enum state_part part, size_t first,
                         size_t n, float *values, bool to_host)
{
    for (size_t at = 0; at < n;) {
        const struct host_adam_state s = host_adam_state(h, first + at, n - at);
        float *moments = part == STATE_M ? s.m : s.v;
        memcpy(to_host ? moments : values + at, to_host ? values + at : moments,
               sizeof(float) * s.n);
        at += s.n;
    }
}

/* Whether a channel's update is under way and not visible yet. */
static bool is_in_flight(const struct engine *e, const struct matrix *m, int row)
{
    const struct row_groups groups = owned_groups(e, m);
    return channel_closes(place_of(e, m, row)) &&
           e->windows.groups[row_groups_group(&groups, row)].in_flight;
}

/* Of a layer whose parameters stream, those of a channel whose update is under way and not visible
 * yet; or NULL. */
static void *newer_parameters(const struct engine *e, const struct matrix *m, int row)
{
    return m->streams && is_in_flight(e, m, row) ? exchange_row(e, m, row) : NULL;
}

/* A row of a part of the host's state, as its newest update has it. */
static void copy_row(const struct engine *e, const struct matrix *m, enum state_part part, int row,
                     float *values, bool to_host)
{
    const size_t cols = (size_t)m->cols, first = (size_t)row * cols;
    if (part != STATE_MASTER)
        copy_moments(&m->host, part, first, cols, values, to_host);
    else if (to_host)
        host_adam_write_masters(&m->host, first, cols, newer_parameters(e, m, row), values);
    else
        host_adam_read_masters(&m->host, first, cols, newer_parameters(e, m, row), values);
}

void state_read_row(const struct engine *e, const struct matrix *m, int row, float *packed,
                    size_t stride)
{
    for (enum state_part part = STATE_MASTER; part <= STATE_V; part++)
        copy_row(e, m, part, row, packed + (size_t)part * stride, false);
}

void state_write_row(const struct engine *e, const struct matrix *m, int row, float *packed,
                     size_t stride)
{
    for (enum state_part part = STATE_MASTER; part <= STATE_V; part++)
        copy_row(e, m, part, row, packed + (size_t)part * stride, true);
}

void state_commit_row(const struct engine *e, const struct matrix *m, int row)
{
    const size_t cols = (size_t)m->cols;
    const void *newer = newer_parameters(e, m, row);
    if (newer)
        host_adam_write_parameters(&m->host, (size_t)row * cols, cols, newer);
}

/* Room for as many of n rows as there is; if there is none, what is there has to go first. */
static char *staging_take(struct engine *e, int cols, int n, int *count)
{
    struct staging *s = &e->moves.staging;
    size_t row = sizeof(float) * (size_t)cols;
    if (s->used + row > s->capacity) {
        e->device->stream_wait(e->streams.carrying);
        s->used = 0;
    }
    size_t room = (s->capacity - s->used) / row;
    *count = (size_t)n < room ? n : (int)room;
    char *place = s->memory + s->used;
    s->used += row * (size_t)*count;
    return place;
}

/* A part of the state on the device, and which of its rows a slot is: the parameter itself where
 * that is the fp32 master. */
struct device_part {
    float *values;
    bool by_slot;
};

static struct device_part part_of(struct engine *e, struct matrix *m, enum state_part part)
{
    const struct state_arrays *s = state_arrays(e, m);
    float *arrays[] = {s->master ? s->master : m->values, s->m, s->v};
    return (struct device_part){arrays[part], part != STATE_MASTER || s->master};
}

static int *slots_of(const struct matrix *m, const int *rows, int n)
{
    int *slots = zf_malloc(sizeof(int) * (size_t)(n + 1));
    for (int i = 0; i < n; i++)
        slots[i] = m->slot_of[rows[i]];
    return slots;
}

void state_upload_windows(struct engine *e, const struct matrix *m, const int *rows, int n)
{
    struct device *d = e->device;
    const size_t cols = (size_t)m->cols, bytes = sizeof(float) * cols;
    int *slots = slots_of(m, rows, n);
    streams_follow(e, e->streams.carrying, d->compute);
    trace_begin(e->config.trace, TRACE_STATE, "windows, to the device");
    for (int first = 0, count; first < n; first += count) {
        float *staged = (float *)staging_take(e, m->cols, n - first, &count);
        if (d->plan)
            plan_host_copies(d->plan, (size_t)count * bytes);
        else
            for (int i = 0; i < count; i++)
                memcpy(staged + (size_t)i * cols, m->window + (size_t)rows[first + i] * cols,
                       bytes);
        d->copy(e->streams.carrying, e->moves.staging.rows, slots + first,
                sizeof(int) * (size_t)count);
        d->row_ops->copy_rows(e->streams.carrying, m->slots->waiting, e->moves.staging.rows, staged,
                              NULL, count, bytes);
    }
    trace_end(e->config.trace, TRACE_STATE, (size_t)n * bytes);
    streams_follow(e, d->compute, e->streams.carrying);
    free(slots);
}

/* ---- all of it, for checkpoints ---- */

/* Rows of channels that have slots, between an array by channel in host memory and the device's, a
 * staging memory's worth at a time. */
static void exchange_rows(struct engine *e, const struct matrix *m, const struct device_part *p,
                          const int *rows, int n, float *values, bool write)
{
    struct device *d = e->device;
    struct staging *s = &e->moves.staging;
    const size_t cols = (size_t)m->cols, bytes = sizeof(float) * cols;
    int *slots = slots_of(m, rows, n);
    const int *device_rows = p->by_slot ? slots : rows;
    d->stream_wait(e->streams.carrying);
    s->used = 0;
    for (int first = 0, count; first < n; first += count) {
        float *staged = (float *)staging_take(e, m->cols, n - first, &count);
        d->copy(d->compute, s->rows, device_rows + first, sizeof(int) * (size_t)count);
        if (write)
            for (int i = 0; i < count; i++)
                memcpy(staged + (size_t)i * cols, values + (size_t)rows[first + i] * cols, bytes);
        d->row_ops->copy_rows(d->compute, write ? p->values : staged, write ? s->rows : NULL,
                              write ? staged : p->values, write ? NULL : s->rows, count, bytes);
        d->stream_wait(d->compute);
        if (!write)
            for (int i = 0; i < count; i++)
                memcpy(values + (size_t)rows[first + i] * cols, staged + (size_t)i * cols, bytes);
        s->used = 0;
    }
    free(slots);
}

/* What the device has of a matrix's state, in host memory, or back. */
static void copy_device(struct engine *e, struct matrix *m, int part, float *values, bool write)
{
    struct device *d = e->device;
    const struct device_part p = part_of(e, m, part);
    const size_t bytes = sizeof(float) * owned_elements(m);
    if (!m->selectable && m->n_owned > 0) { /* slots are the rows, in their order */
        d->copy(d->compute, write ? p.values : values, write ? values : p.values, bytes);
        d->stream_wait(d->compute);
        return;
    }
    int *rows = zf_malloc(sizeof(int) * (size_t)(m->n_owned + 1)), n = 0;
    if (!state_visits(e, m))
        for (int row = 0; row < m->n_owned; row++)
            if (channel_has_state(place_of(e, m, row)))
                rows[n++] = row;
    exchange_rows(e, m, &p, rows, n, values, write);
    free(rows);
}

/* What the host has of it. Written, what is in flight keeps its visible parameters. */
static void copy_host(const struct engine *e, const struct matrix *m, int part, float *values,
                      bool write)
{
    if (!m->selectable)
        return;
    for (int row = 0; row < m->n_owned; row++)
        copy_row(e, m, part, row, values + (size_t)row * (size_t)m->cols, write);
}

void state_read(struct engine *e, struct matrix *m, int part, float *values)
{
    copy_host(e, m, part, values, false);
    copy_device(e, m, part, values, false);
}

void state_write(struct engine *e, struct matrix *m, int part, float *values)
{
    copy_host(e, m, part, values, true);
    copy_device(e, m, part, values, true);
}
