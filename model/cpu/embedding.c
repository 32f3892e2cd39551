/* Embedding: the sum of a token's and a position's rows, and each sequence's last row. */
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/dropout.h"

#include <string.h>

/* b may be NULL */
ZF_SIMD
static void add_rows(float *restrict x, const float *restrict a, const float *restrict b, int C,
                     const struct dropout *drop, uint32_t sequence, uint32_t position)
{
    if (drop->p == 0) {
        for (int j = 0; j < C; j++)
            x[j] = b ? a[j] + b[j] : a[j];
        return;
    }
    float factor[DROPOUT_RUN];
    for (int first = 0; first < C; first += DROPOUT_RUN) {
        int n = min_int(C - first, DROPOUT_RUN);
        dropout_draw(factor, drop, drop->site, sequence, position, first, n);
        for (int j = 0; j < n; j++)
            x[first + j] = (b ? a[first + j] + b[first + j] : a[first + j]) * factor[j];
    }
}

/* gradient += dx undropped */
ZF_SIMD
static void accumulate_row(float *restrict gradient, const float *restrict dx, int C,
                           const struct dropout *drop, uint32_t sequence, uint32_t position)
{
    if (drop->p == 0) {
        for (int j = 0; j < C; j++)
            gradient[j] += dx[j];
        return;
    }
    float factor[DROPOUT_RUN];
    for (int first = 0; first < C; first += DROPOUT_RUN) {
        int n = min_int(C - first, DROPOUT_RUN);
        dropout_draw(factor, drop, drop->site, sequence, position, first, n);
        for (int j = 0; j < n; j++)
            gradient[first + j] += dx[first + j] * factor[j];
    }
}

void cpu_embedding_forward(struct stream *s, void *x, const struct token_rows *rows,
                           const void *wte, const void *wpe, int C, struct dropout drop)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)rows->n_tokens * C > PARALLEL_ELEMENTS)
    for (int t = 0; t < rows->n_tokens; t++) {
        const float *token = (const float *)wte + (size_t)rows->tokens[t] * C;
        const float *place = wpe ? (const float *)wpe + (size_t)rows->position[t] * C : NULL;
        add_rows((float *)x + (size_t)t * C, token, place, C, &drop, rows->token_seq[t],
                 (uint32_t)rows->position[t]);
    }
}

/* Adds the rows of dx whose token's id stands first in `order` within [begin, end): a run of equal
 * ids belongs to the piece in which it starts. */
static void accumulate_tokens(float *dwte, const float *dx, const struct token_rows *rows,
                              const int *order, int begin, int end, int C,
                              const struct dropout *drop)
{
    int i = begin;
    while (i > 0 && i < end && rows->tokens[order[i]] == rows->tokens[order[i - 1]])
        i++;
    if (i >= end)
        return;
    for (; i < rows->n_tokens; i++) {
        int t = order[i];
        if (i >= end && rows->tokens[t] != rows->tokens[order[i - 1]])
            return;
        accumulate_row(dwte + (size_t)rows->tokens[t] * C, dx + (size_t)t * C, C, drop,
                       rows->token_seq[t], (uint32_t)rows->position[t]);
    }
}

static void accumulate_position(float *dwpe, const float *dx, const struct token_rows *rows,
                                int position, int C, const struct dropout *drop)
{
    for (int i = 0; i < rows->n_seqs; i++) {
        int t = rows->seq_start[i] + position;
        if (t < rows->seq_start[i + 1])
            accumulate_row(dwpe + (size_t)position * C, dx + (size_t)t * C, C, drop,
                           rows->token_seq[t], (uint32_t)position);
    }
}

void cpu_embedding_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                            const struct token_rows *rows, const int *order, int C,
                            struct dropout drop)
{
    (void)s;
    const int n = rows->n_tokens, piece = 16, n_pieces = divide_up(n, piece);
    int longest = 0;
    if (dwpe)
        for (int i = 0; i < rows->n_seqs; i++) {
            int length = rows->seq_start[i + 1] - rows->seq_start[i];
            longest = length > longest ? length : longest;
        }
#pragma omp parallel if ((size_t)n * C > PARALLEL_ELEMENTS)
    {
#pragma omp for schedule(dynamic, 1) nowait
        for (int i = 0; i < n_pieces; i++)
            accumulate_tokens(dwte, dx, rows, order, i * piece, min_int(n, (i + 1) * piece), C,
                              &drop);
#pragma omp for schedule(dynamic, 4)
        for (int position = 0; position < longest; position++)
            accumulate_position(dwpe, dx, rows, position, C, &drop);
    }
}

void cpu_gather_last(struct stream *s, void *y, const void *x, const struct token_rows *rows, int C)
{
    (void)s;
    for (int i = 0; i < rows->n_seqs; i++) {
        size_t last = (size_t)rows->seq_start[i + 1] - 1;
        memcpy((float *)y + (size_t)i * C, (const float *)x + last * C, sizeof(float) * C);
    }
}

void cpu_scatter_last(struct stream *s, void *dx, const void *dy, const struct token_rows *rows,
                      int C)
{
    (void)s;
    cpu_copy_bytes(dx, NULL, sizeof(float) * rows->n_tokens * C);
    for (int i = 0; i < rows->n_seqs; i++) {
        size_t last = (size_t)rows->seq_start[i + 1] - 1;
        memcpy((float *)dx + last * C, (const float *)dy + (size_t)i * C, sizeof(float) * C);
    }
}
