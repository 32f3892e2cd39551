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
