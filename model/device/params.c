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
    table->n_gradients = table->n_elements;
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

void params_share_gradients(struct param_table *table, int slots)
{
    const int blocks = table->n_layers - 2;
    if (slots == 0 || slots >= blocks)
        return;
    const size_t first = params_layer(table, 1), block = params_layer(table, 2) - first;
    assert(params_layer(table, blocks + 1) == first + (size_t)blocks * block);
    table->gradient_slots = slots;
    table->n_gradients = table->n_elements - (size_t)(blocks - slots) * block;
    for (int i = 0; i < table->n_params; i++) {
        struct param *p = &table->params[i];
        const int before = p->layer == 0       ? 0
                           : p->layer > blocks ? blocks - slots
                                               : (p->layer - 1) / slots * slots;
        p->gradient_offset = p->offset - (size_t)before * block;
    }
}

int params_gradient_slot(const struct param_table *table, int layer)
{
    const int slots = table->gradient_slots, blocks = table->n_layers - 2;
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
