#include "model/device/matrix_batch.h"

static int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

static int pieces_of(const struct matrix_rows *m)
{
    return m->n_rows * divide_up(m->cols, ROW_PIECE);
}

static int norm_pieces_of(const struct matrix_rows *m)
{
    return m->cols < NORM_LONG_ROW ? divide_up(m->n_rows, NORM_ROWS) : m->n_rows;
}

void matrix_batch_number(struct matrix_rows *matrices, int n)
{
    int pieces = 0, norm_pieces = 0;
    for (int i = 0; i < n; i++) {
        struct matrix_rows *m = &matrices[i];
        m->first_piece = pieces;
        m->first_norm_piece = norm_pieces;
        pieces += pieces_of(m);
        norm_pieces += norm_pieces_of(m);
    }
}

struct matrix_batch matrix_batch_part(const struct matrix_rows *matrices,
                                      const struct matrix_rows *table, int first, int last)
{
    struct matrix_batch b = {.matrices = table + first, .n = last - first};
    if (b.n == 0)
        return b;
    b.first_piece = matrices[first].first_piece;
    b.first_norm_piece = matrices[first].first_norm_piece;
    for (int i = first; i < last; i++) {
        const struct matrix_rows *m = &matrices[i];
        b.n_elements += (size_t)m->n_rows * (size_t)m->cols;
        b.widest = m->cols > b.widest ? m->cols : b.widest;
        b.n_pieces += pieces_of(m);
        b.n_norm_pieces += norm_pieces_of(m);
    }
    return b;
}

struct matrix_batch matrix_batch_upload(struct device *device, struct matrix_rows *matrices, int n)
{
    struct matrix_rows *table = device->allocate(sizeof *table * (size_t)n);
    matrix_batch_number(matrices, n);
    device->copy(device->compute, table, matrices, sizeof *table * (size_t)n);
    return matrix_batch_part(matrices, table, 0, n);
}
