#include "model/device/params.h"

#include "data/alloc.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAM_ALIGNMENT ((size_t)64) /* elements */

void params_pad(struct param_table *table, size_t n)
{
    table->n_elements += (n + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    table->n_values = table->n_gradients = table->n_elements;
}

struct param *params_add(struct param_table *table, const char *name, enum param_kind kind,
                         int rows, int cols, int layer)
{
    int i = table->n_params++;
    table->params = zf_realloc(table->params, (size_t)table->n_params * sizeof *table->params);
    struct param *p = &table->params[i];
    *p = (struct param){
        .kind = kind,
        .rows = rows,
        .cols = cols,
        .layer = layer,
        .decay = kind == PARAM_MATRIX,
        .offset = table->n_elements,
        .value_offset = table->n_elements,
        .gradient_offset = table->n_elements,
        .n_elements = (size_t)rows * (size_t)cols,
    };
    int length = snprintf(p->name, sizeof p->name, "%s", name);
    assert(length < (int)sizeof p->name);
    (void)length;
    table->n_parameters += p->n_elements;
    params_pad(table, p->n_elements);
    if (layer >= table->n_layers)
        table->n_layers = layer + 1;
    return p;
}

size_t params_layer(const struct param_table *table, int layer)
{
    int i = 0;
    while (i < table->n_params && table->params[i].layer < layer)
        i++;
    return i < table->n_params ? table->params[i].offset : table->n_elements;
}

/* Where element `offset` of a layer lies in an array in which blocks share slots; of n_layers,
 * which length that array has. */
static size_t shared_offset(const struct param_table *t, int slots, int layer, size_t offset)
{
    const int blocks = t->n_layers - 2;
    const size_t first = params_layer(t, 1), block = params_layer(t, 2) - first;
    const int before = layer == 0       ? 0
                       : layer > blocks ? blocks - slots
                                        : (layer - 1) / slots * slots;
    assert(params_layer(t, blocks + 1) == first + (size_t)blocks * block);
    return offset - (size_t)before * block;
}

/* Whether blocks take turns at all. */
static bool takes_turns(const struct param_table *table, int slots)
{
    return slots > 0 && slots < table->n_layers - 2;
}

void params_share_values(struct param_table *table, int slots)
{
    if (!takes_turns(table, slots))
        return;
    table->value_slots = slots;
    table->n_values = shared_offset(table, slots, table->n_layers, table->n_elements);
    for (int i = 0; i < table->n_params; i++) {
        struct param *p = &table->params[i];
        p->value_offset = shared_offset(table, slots, p->layer, p->offset);
    }
}

void params_share_gradients(struct param_table *table, int slots)
{
    if (!takes_turns(table, slots))
        return;
    table->gradient_slots = slots;
    table->n_gradients = shared_offset(table, slots, table->n_layers, table->n_elements);
    for (int i = 0; i < table->n_params; i++) {
        struct param *p = &table->params[i];
        p->gradient_offset = shared_offset(table, slots, p->layer, p->offset);
    }
}

int params_slot(const struct param_table *table, int slots, int layer)
{
    const int blocks = table->n_layers - 2;
    if (slots == 0 || layer == 0)
        return layer;
    return layer <= blocks ? 1 + (layer - 1) % slots : layer - blocks + slots;
}

void params_free(struct param_table *table)
{
    free(table->params);
    *table = (struct param_table){0};
}

const struct param *params_find(const struct param_table *table, const char *name)
{
    for (int i = 0; i < table->n_params; i++)
        if (strcmp(table->params[i].name, name) == 0)
            return &table->params[i];
    return NULL;
}
