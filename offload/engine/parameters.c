/* Parameters that live on the host and come to the device, a layer at a time, into slots that
 * blocks share: each pass brings a block into the slot that the block so many before it has left. A
 * slot is filled from the host's array as it lies; rows whose state is on the device then get their
 * masters, which are newer. What it holds is good until the step's end changes parameters. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <stdlib.h>

static int slot_of(const struct engine *e, int layer)
{
    return params_slot(e->table, e->table->value_slots, layer);
}

void parameters_create(struct engine *e)
{
    struct parameters *p = &e->parameters;
    p->n_slots = params_slot(e->table, e->table->value_slots, e->table->n_layers);
    p->holds = zf_malloc(sizeof *p->holds * (size_t)p->n_slots);
    p->left = zf_calloc((size_t)p->n_slots, sizeof *p->left);
    p->changed = e->device->event_create();
    for (int i = 0; i < p->n_slots; i++)
        p->left[i] = e->device->event_create();
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
}

void parameters_forget(struct engine *e)
{
    struct parameters *p = &e->parameters;
    for (int i = 0; i < p->n_slots; i++)
        p->holds[i] = -1;
    p->last = 0;
    e->device->event_record(p->changed, e->device->compute);
}

/* The host's array as it lies; where the device's type is another, show_rows reads it instead. */
static bool copies_rows(const struct engine *e)
{
    return e->dtype == exchange_dtype(e);
}

static size_t copy_layer(struct engine *e, int layer)
{
    size_t bytes = 0;
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        const size_t here = m->selectable ? owned_elements(m) * dtype_size(exchange_dtype(e)) : 0;
        if (here > 0 && copies_rows(e))
            e->device->copy(e->streams.up, m->values, m->host.parameters, here);
        bytes += here;
    }
    return bytes;
}

/* Brings a layer into its slot, unless that holds it. */
static void fill(struct engine *e, int layer)
{
    struct parameters *p = &e->parameters;
    const int slot = slot_of(e, layer);
    if (p->holds[slot] == layer)
        return;
    p->holds[slot] = layer;
    windows_wait_commits(e, layer);
    e->device->event_order(e->streams.up, p->changed);
    e->device->event_order(e->streams.up, p->left[slot]);
    if (e->config.params_come_late) /* the host is ahead of the device */
        streams_follow(e, e->streams.up, e->device->compute);
    trace_begin(e->config.trace, TRACE_LINK_UP, "layer");
    const size_t bytes = copy_layer(e, layer);
    e->device->row_ops->show_rows(e->streams.up, &e->batches.layers[layer], exchange_dtype(e),
                                  !copies_rows(e));
    trace_end(e->config.trace, TRACE_LINK_UP, bytes);
    p->bytes += bytes;
    streams_bring(e, layer, e->streams.up);
}

/* The first blocks of a pass come while the embeddings are computed. */
static void fill_first(struct engine *e)
{
    const int blocks = e->table->n_layers - 2, slots = e->table->value_slots;
    for (int layer = 1; layer <= (slots > 0 ? slots : blocks); layer++)
        if (streams_layer(e, layer) && !e->config.params_come_late)
            fill(e, layer);
}

/* The compute stream waits for what is on its way to a layer. */
static void await(struct engine *e, int layer)
{
    if (e->streams.arriving[layer])
        e->device->event_order(e->device->compute, e->streams.arrived[layer]);
    e->streams.arriving[layer] = false;
}

void engine_before_layer(struct engine *e, int layer)
{
    struct parameters *p = &e->parameters;
    p->direction = layer < p->last ? -1 : 1;
    p->last = layer;
    if (streams_layer(e, layer))
        fill(e, layer);
    await(e, layer);
    if (layer == 0)
        fill_first(e);
}

void engine_after_layer(struct engine *e, int layer)
{
    struct parameters *p = &e->parameters;
    const int slots = e->table->value_slots, next = layer + p->direction * slots;
    if (!streams_layer(e, layer))
        return;
    e->device->event_record(p->left[slot_of(e, layer)], e->device->compute);
    if (slots > 0 && streams_layer(e, next) && !e->config.params_come_late)
        fill(e, next);
}

void engine_settle(struct engine *e)
{
    for (int layer = 0; layer < e->table->n_layers; layer++)
        await(e, layer);
}

size_t parameters_take_bytes(struct engine *e)
{
    const size_t bytes = e->parameters.bytes;
    e->parameters.bytes = 0;
    return bytes;
}
