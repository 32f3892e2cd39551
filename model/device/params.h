/* The parameter table: every parameter's Hugging Face name, shape and offset.
 *
 * All parameters of a model lie in one array. Gradients lie in another, of the same layout. In
 * device memory layers may take turns in slots, of either. A matrix is stored input-major,
 * W[in][out]: a row is an input channel, one contiguous run of memory. */
#ifndef ZF_MODEL_DEVICE_PARAMS_H
#define ZF_MODEL_DEVICE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>

enum param_kind {
    PARAM_MATRIX, /* weights: rows are channels */
    PARAM_VECTOR, /* biases and norm gains: 1 row */
};

struct param {
    char name[80]; /* "transformer.h.0.attn.c_attn.weight" */
    enum param_kind kind;
    int rows, cols;
    int layer;       /* 0: embeddings; 1..n_layer: blocks; n_layer + 1: final norm and head */
    bool transposed; /* the checkpoint holds (cols, rows), as nn.Linear does */
    bool decay;      /* weight decay applies: matrices, but not biases and norms */
    float init_std;  /* of the random initialisation; 0: zeros, or ones for a norm's gain */
    bool init_one;
    size_t offset;          /* of its first element, in elements from the start of the array */
    size_t place;           /* the same in device memory, where every layer has its own place, */
    size_t value_offset;    /* in the device's array of parameters, */
    size_t gradient_offset; /* and in that of gradients, where slots make them shorter */
    size_t n_elements;
};

struct param_table {
    struct param *params;
    int n_params;
    int n_layers;        /* how many values `layer` takes */
    size_t n_elements;   /* length of the array; offsets are multiples of 64, gaps stay zero */
    size_t n_placed;     /* the same in device memory, if every layer has its own place */
    size_t n_values;     /* length of the device's array of parameters */
    size_t n_gradients;  /* and of that of gradients */
    size_t n_parameters; /* the sum of the parameters' own elements */
    int ranks;           /* that params_divide has made room for; 0: one */
    int value_slots, gradient_slots; /* blocks' places there; 0: each has its own */
    bool ends_alternate; /* the last layer's gradient is complete before the first's begins */
};

/* Appends a parameter and places it; weight decay applies to matrices. The pointer is good until
 * the next one is appended. */
struct param *params_add(struct param_table *table, const char *name, enum param_kind kind,
                         int rows, int cols, int layer);
/* Leaves room for n elements more behind the last parameter; they stay zero. */
void params_pad(struct param_table *table, size_t n);
/* Leaves room in device memory, behind each matrix of several rows, for as many rows as it lacks to
 * be divided evenly over so many ranks. Before layers share places. */
void params_divide(struct param_table *table, int ranks);
/* Where a layer's place begins, in elements; of n_layers, where the last one's ends. */
size_t params_layer(const struct param_table *table, int layer);
/* Blocks, which are the layers between the first and the last and have the same size, take turns in
 * this many slots for parameters on the device, and for gradients: each lies where the block so
 * many before it lay. Embeddings and head, which may be several times a block's size, have places
 * of their own, or for gradients one, if they alternate. Where there are no more blocks than slots,
 * or `slots` is 0, every layer has its own. */
void params_share_values(struct param_table *table, int slots);
void params_share_gradients(struct param_table *table, int slots);
/* Which slot a layer lies in, from 0, those of embeddings and head counted; of n_layers: how many
 * there are. */
int params_value_slot(const struct param_table *table, int layer);
int params_gradient_slot(const struct param_table *table, int layer);
void params_free(struct param_table *table);
/* By name, or NULL. */
const struct param *params_find(const struct param_table *table, const char *name);

#endif
