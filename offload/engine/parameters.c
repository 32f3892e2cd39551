/* Parameters that come to where the model reads them, a layer at a time, into slots that blocks
 * share: each pass brings a block into the slot that the block so many before it has left. They
 * come from the host, whose array is copied as it lies (rows whose state is on the device then get
 * their masters, which are newer); or, divided over ranks, from all of them, each of which has the
 * rows of its own channels on its device or brings them from its host. What a slot holds is good
 * until the step's end changes parameters. Embeddings and head have slots of their own.
 *
 * All ranks gather in the same order, that of the passes, between the same reductions; and what one
 * operation of theirs waits for has always been queued before it. So none waits for ever. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "data/simd.h"

#include <stdlib.h>
#include <string.h>

static int slot_of(const struct engine *e, int layer)
{
    return params_value_slot(e->table, layer);
}

/* ---- where they live ---- */

/* Whether a matrix's owned parameters live on the device, and what the model reads is a slot. */
static bool has_home(const struct engine *e, const struct matrix *m)
{
    return divides(e) && !m->streams;
}

/* Elements of a home: a rank's whole part, which it sends, be it full or not. */
static size_t home_elements(const struct engine *e, const struct matrix *m)
{
    const int rows = m->param->rows, part = rows == 1 ? m->n_owned : schedule_part(rows, e->ranks);
    return (size_t)part * (size_t)m->cols;
}

void parameters_place(struct engine *e)
{
    struct arena *a = &e->arena;
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (has_home(e, m) && home_elements(e, m) > 0)
            m->values =
                arena_take(a, &a->use.parameters, home_elements(e, m), dtype_size(e->dtype));
    }
}

ZF_SIMD
static void round_to_bf16(uint16_t *restrict to, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_parameter(values[i]);
}

ZF_SIMD
static void round_in_f32(float *to, const float *values, size_t n)
{
#pragma omp simd /* `to` may be `values` */
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_to_f32(bf16_parameter(values[i]));
}

void parameters_round(const struct engine *e, void *to, const float *values, size_t n)
{
#pragma omp parallel for schedule(static) if (n > ENGINE_PIECE)
    for (size_t at = 0; at < n; at += ENGINE_PIECE) {
        const size_t piece = n - at < ENGINE_PIECE ? n - at : ENGINE_PIECE;
        if (e->dtype == DTYPE_BF16)
            round_to_bf16((uint16_t *)to + at, values + at, piece);
        else if (e->config.bf16)
            round_in_f32((float *)to + at, values + at, piece);
        else
            memmove((float *)to + at, values + at, piece * sizeof *values);
    }
}

void parameters_take(struct engine *e, const struct matrix *m, size_t first, size_t n,
                     const float *values)
{
    const size_t size = dtype_size(e->dtype);
    const bool on_host = e->config.evaluates && m->streams;
    if (!on_host && !has_home(e, m))
        return;
    void *rounded = zf_malloc(n * size);
    parameters_round(e, rounded, values, n);
    if (on_host)
        host_adam_write_parameters(&m->host, first, n, rounded);
    else
        e->device->copy(e->device->compute, (char *)m->values + first * size, rounded, n * size);
    free(rounded);
}

/* ---- making ---- */

static void describe_slots(struct engine *e)
{
    const size_t size = dtype_size(e->dtype);
    e->parameters.slots = zf_calloc((size_t)e->n_matrices, sizeof *e->parameters.slots);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        struct comm_shares *slot = &e->parameters.slots[i];
        *slot = sharing_divide(e, m, (char *)e->params + m->param->value_offset * size, size);
        if (!has_home(e, m))
            continue;
        slot->own = m->values;
        /* what lies between parameters stays zero, and a part's end is sent there */
        if (home_elements(e, m) > 0)
            e->device->zero(e->device->compute, m->values, home_elements(e, m) * size);
    }
}

void parameters_create(struct engine *e)
{
    struct parameters *p = &e->parameters;
    p->n_slots = params_value_slot(e->table, e->table->n_layers);
    p->holds = zf_malloc(sizeof *p->holds * (size_t)p->n_slots);
    p->left = zf_calloc((size_t)p->n_slots, sizeof *p->left);
    p->changed = e->device->event_create();
    for (int i = 0; i < p->n_slots; i++)
        p->left[i] = e->device->event_create();
    if (divides(e))
        describe_slots(e);
    parameters_forget(e);
}

void parameters_release(struct engine *e)
{
    struct parameters *p = &e->parameters;
    for (int i = 0; i < p->n_slots; i++)
        e->device->event_destroy(p->left[i]);
    e->device->event_destroy(p->changed);
    free(p->holds);
    free(p->left);
    free(p->slots);
}

/* ---- coming ---- */

/* The compute stream waits for what is on its way to a layer. */
static void await(struct engine *e, int layer)
{
    if (e->streams.arriving[layer])
        e->device->event_order(e->device->compute, e->streams.arrived[layer]);
    e->streams.arriving[layer] = false;
}

void parameters_forget(struct engine *e)
{
    struct parameters *p = &e->parameters;
    for (int i = 0; i < p->n_slots; i++)
        p->holds[i] = -1;
    p->last = 0;
    e->device->event_record(p->changed, e->device->compute);
}

/* The host's runs, as they lie where the device's type is theirs. */
static void copy_matrix(struct engine *e, const struct matrix *m)
{
    struct device *d = e->device;
    const size_t n = owned_elements(m), size = dtype_size(e->dtype);
    for (size_t at = 0; at < n;) {
        const struct host_adam_state s = host_adam_state(&m->host, at, n - at);
        char *to = (char *)m->values + at * size;
        if (e->dtype == exchange_dtype(e))
            d->copy(e->streams.up, to, s.parameters, s.n * size);
        else
            d->row_ops->widen(e->streams.up, (float *)to, s.parameters, s.n);
        at += s.n;
    }
}

static size_t copy_layer(struct engine *e, int layer)
{
    size_t elements = 0;
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        if (!m->selectable)
            continue;
        copy_matrix(e, m);
        elements += owned_elements(m);
    }
    return elements * dtype_size(exchange_dtype(e));
}

/* This rank's rows come up from the host, into the slot; then, once the device has updated them,
 * those whose state it has. */
static void come_up(struct engine *e, int layer)
{
    struct parameters *p = &e->parameters;
    if (!e->config.evaluates) {
        carry_land(e); /* of channels that left */
        windows_wait_commits(e, layer);
    }
    e->device->event_order(e->streams.up, p->left[slot_of(e, layer)]);
    if (e->config.params_come_late) /* the host is ahead of the device */
        streams_follow(e, e->streams.up, e->device->compute);
    trace_begin(e->config.trace, TRACE_LINK_UP, "layer");
    const size_t bytes = copy_layer(e, layer);
    e->device->event_order(e->streams.up, p->changed);
    if (!e->config.evaluates)
        e->device->row_ops->show_rows(e->streams.up, &e->batches.layers[layer], exchange_dtype(e));
    trace_end(e->config.trace, TRACE_LINK_UP, bytes);
    p->bytes_up += bytes;
    streams_bring(e, layer, e->streams.up);
}

/* All ranks' rows meet in the slot; this one's are behind what brings them from the host: into the
 * slot, or what the host has updated to where they live. */
static void gather_layer(struct engine *e, int layer)
{
    struct parameters *p = &e->parameters;
    const int first = e->batches.first_of_layer[layer], last = e->batches.first_of_layer[layer + 1];
    e->device->event_order(e->streams.gathering, p->changed);
    e->device->event_order(e->streams.gathering, p->left[slot_of(e, layer)]);
    e->device->event_order(e->streams.gathering, e->streams.arrived[layer]);
    comm_device_all_gather(e->comm, e->streams.gathering, p->slots + first, last - first);
    for (int i = first; i < last; i++)
        p->bytes_gathered += (e->matrices[i].param->n_elements - owned_elements(&e->matrices[i])) *
                             dtype_size(e->dtype);
    streams_bring(e, layer, e->streams.gathering);
}

/* Brings a layer into its slot, unless that holds it. */
static void fill(struct engine *e, int layer)
{
    int *holds = &e->parameters.holds[slot_of(e, layer)];
    if (!fills_layer(e, layer) || *holds == layer)
        return;
    *holds = layer;
    if (streams_layer(e, layer))
        come_up(e, layer);
    if (divides(e))
        gather_layer(e, layer);
}

/* Slots that blocks have. */
static int count_slots(const struct engine *e)
{
    return e->table->value_slots > 0 ? e->table->value_slots : e->table->n_layers - 2;
}

/* The first blocks of a pass come while the embeddings are computed. */
static void fill_first(struct engine *e)
{
    if (e->config.params_come_late)
        return;
    for (int layer = 1; layer <= count_slots(e); layer++)
        fill(e, layer);
}

void engine_before_layer(struct engine *e, int layer)
{
    struct parameters *p = &e->parameters;
    p->direction = layer < p->last ? -1 : 1;
    p->last = layer;
    fill(e, layer);
    await(e, layer);
    if (layer == 0)
        fill_first(e);
}

/* Behind a block its slot brings the next one; behind the last that has none, on the way up, comes
 * the head. */
void engine_after_layer(struct engine *e, int layer)
{
    struct parameters *p = &e->parameters;
    const int head = e->table->n_layers - 1, next = layer + p->direction * count_slots(e);
    if (!fills_layer(e, layer))
        return;
    e->device->event_record(p->left[slot_of(e, layer)], e->device->compute);
    if (layer > 0 && layer < head && next > 0 && next <= head && !e->config.params_come_late)
        fill(e, next);
}

void engine_settle(struct engine *e)
{
    pace_interrupt(e);
    for (int layer = 0; layer < e->table->n_layers; layer++)
        await(e, layer);
}

void parameters_report(struct engine *e, struct step_report *report)
{
    struct parameters *p = &e->parameters;
    report->bytes_up += p->bytes_up;
    report->bytes_gathered += p->bytes_gathered;
    p->bytes_up = p->bytes_gathered = 0;
}
