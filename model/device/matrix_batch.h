/* Many matrices at once: a table of matrices in device memory, on which the engine's operators work
 * (model/device/row_ops.h). A step over a model's parameters is then a few operators, however many
 * parameters there are. This header tells what a table holds and which part of it an operator is
 * given. */
#ifndef ZF_MODEL_DEVICE_MATRIX_BATCH_H
#define ZF_MODEL_DEVICE_MATRIX_BATCH_H

#include "model/device/device.h"
#include "model/device/row_groups.h"

#include <stdint.h>

/* Operators number what they work on through a whole table, so that threads share it evenly. A row
 * is cut into pieces of so many columns; the last of a row is shorter. */
#define ROW_PIECE 512
/* A piece for norms is NORM_ROWS whole rows, or a single one of NORM_LONG_ROW columns or more. */
#define NORM_ROWS     8
#define NORM_LONG_ROW 4096

/* A range of a matrix's rows, which are channels. Arrays are in device memory but where it is said;
 * one that no operator is asked to use may be NULL. */
struct matrix_rows {
    void *values;               /* (n_rows, cols) parameters, of the device's dtype */
    float *gradient;            /* (n_rows, cols) until it is taken */
    float *norms;               /* (n_rows) squared norms of the gradient's rows */
    const unsigned char *place; /* (n_rows) enum channel_place */
    const int *slot;            /* (n_rows) of channels that have one */
    void *deferred;             /* (n_rows, cols) taken rows of deferred channels, fp32 or bf16 */
    float *waiting;             /* (slots, cols) taken rows of channels that have slots */
    float *window;              /* (n_rows, cols) gathered gradients */
    void *staged;               /* (n_rows, cols) gradients leave into it; memory of
                                   allocate_host */
    float *master, *m, *v;      /* (slots, cols) state of AdamW, a row for each slot, or if
                                   `visiting` where each update says; master NULL: `values` is the
                                   fp32 master */
    int n_rows, cols;
    size_t packed;           /* where its rows begin among its layer's packed ones, in elements */
    struct matrix_part part; /* which rows they are, for their groups */
    int decays;              /* 1: the rule's weight decay applies; 0: it does not */
    int streams;             /* 1: `values` is a slot: what updates masters leaves it alone */
    int visiting;            /* 1: master, m and v are on the device for an update alone */
    int first_piece, first_norm_piece; /* how many the table's matrices before this one have */
};

/* Consecutive matrices of a table. */
struct matrix_batch {
    const struct matrix_rows *matrices; /* (n) device memory */
    size_t n_elements;
    int n;
    int widest; /* most columns of a matrix */
    int first_piece, n_pieces;
    int first_norm_piece, n_norm_pieces;
};

/* One channel's AdamW update. */
struct channel_update {
    int matrix;       /* in the batch */
    int slot;         /* where its state is */
    int row;          /* where its value is */
    uint32_t updates; /* how many it has had */
    uint32_t visit;   /* where its state is, in elements, if its matrix is `visiting` */
};

/* Sets first_piece and first_norm_piece of a table's matrices. */
void matrix_batch_number(struct matrix_rows *matrices, int n);
/* Matrices [first, last) of a table: `matrices` in host memory, numbered, and `table`, its copy in
 * device memory. */
struct matrix_batch matrix_batch_part(const struct matrix_rows *matrices,
                                      const struct matrix_rows *table, int first, int last);
/* Numbers n matrices and copies them to new device memory, on the compute stream: a batch of all of
 * them. The caller releases batch.matrices. */
struct matrix_batch matrix_batch_upload(struct device *device, struct matrix_rows *matrices, int n);

#endif
