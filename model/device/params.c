#include "model/device/params.h"

#include "data/alloc.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAM_ALIGNMENT ((size_t)64) /* elements */

static size_t aligned(size_t n)
{
    return (n + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
}

void params_pad(struct param_table *table, size_t n)
{
    table->n_elements += aligned(n);
    table->n_placed = table->n_values = table->n_gradients = table->n_elements;
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
        .place = table->n_elements,
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
    return i < table->n_params ? table->params[i].place : table->n_placed;
}

static size_t greater(size_t a, size_t b)
{
    return a > b ? a : b;
}

void params_divide(struct param_table *table, int ranks)
{
    size_t place = 0;
    assert(table->value_slots == 0 && table->gradient_slots == 0);
    table->ranks = ranks;
    for (int i = 0; i < table->n_params; i++) {
        struct param *p = &table->params[i];
        const size_t next = i + 1 < table->n_params ? p[1].offset : table->n_elements;
        const size_t rows = p->rows > 1 ? (size_t)((p->rows + ranks - 1) / ranks * ranks) : 1;
        p->place = p->value_offset = p->gradient_offset = place;
        place += greater(next - p->offset, aligned(rows * (size_t)p->cols));
    }
    table->n_placed = table->n_values = table->n_gradients = place;
}

/* How layers take turns in an array's places. */
struct turns {
    int slots;       /* of blocks */
    bool share_ends; /* embeddings and head have one place, in front, and not one at either end */
};

/* Where a layer's place begins; of n_layers, where the array ends. */
static size_t place_of(const struct param_table *t, struct turns turns, int layer)
{
    const int blocks = t->n_layers - 2;
    const size_t first = params_layer(t, 1), block = params_layer(t, 2) - first;
    const size_t last = t->n_placed - params_layer(t, blocks + 1);
    const size_t front = turns.share_ends ? greater(first, last) : first;
    const size_t behind = front + (size_t)turns.slots * block;
    assert(params_layer(t, blocks + 1) == first + (size_t)blocks * block);
    if (layer == 0 || (layer == blocks + 1 && turns.share_ends))
        return 0;
    if (layer <= blocks)
        return front + (size_t)((layer - 1) % turns.slots) * block;
    return layer == blocks + 1 || turns.share_ends ? behind : behind + last;
}

static size_t shared_offset(const struct param_table *t, struct turns turns, const struct param *p)
{
    return place_of(t, turns, p->layer) + p->place - params_layer(t, p->layer);
}

/* Whether blocks take turns at all. */
static bool takes_turns(const struct param_table *table, int slots)
{
    return slots > 0 && slots < table->n_layers - 2;
}

void params_share_values(struct param_table *table, int slots)
{
    const struct turns turns = {.slots = slots};
    if (!takes_turns(table, slots))
        return;
    table->value_slots = slots;
    table->n_values = place_of(table, turns, table->n_layers);
    for (int i = 0; i < table->n_params; i++)
        table->params[i].value_offset = shared_offset(table, turns, &table->params[i]);
}

void params_share_gradients(struct param_table *table, int slots)
{
    const struct turns turns = {slots, table->ends_alternate};
    if (!takes_turns(table, slots))
        return;
    table->gradient_slots = slots;
    table->n_gradients = place_of(table, turns, table->n_layers);
    for (int i = 0; i < table->n_params; i++)
        table->params[i].gradient_offset = shared_offset(table, turns, &table->params[i]);
}

static int slot_of(const struct param_table *table, struct turns turns, int layer)
{
    const int blocks = table->n_layers - 2;
    if (turns.slots == 0 || layer == 0)
        return layer;
    if (layer <= blocks)
        return 1 + (layer - 1) % turns.slots;
    if (turns.share_ends)
        return layer == blocks + 1 ? 0 : turns.slots + 1;
    return layer - blocks + turns.slots;
}

int params_value_slot(const struct param_table *table, int layer)
{
    return slot_of(table, (struct turns){.slots = table->value_slots}, layer);
}

int params_gradient_slot(const struct param_table *table, int layer)
{
    return slot_of(table, (struct turns){table->gradient_slots, table->ends_alternate}, layer);
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
