/* The CPU device's operators: one function for each entry of struct ops, and what they share.
 *
 * An operator cuts its rows into tasks, and a ZF_SIMD leaf function works on one task. How sums are
 * cut depends on their length alone, never on the number of threads. */
#ifndef ZF_MODEL_CPU_CPU_H
#define ZF_MODEL_CPU_CPU_H

#include "model/device/ops.h"

/* An operator on fewer elements than this runs on one thread: waking the others costs more. */
#define PARALLEL_ELEMENTS 16384

/* The CPU's stream: work runs inline, so all it has is memory that operators may use while they
 * run, kept from one to the next. */
struct stream {
    float *scratch;
    size_t scratch_length; /* floats */
};

/* Scratch of at least n floats, aligned to 64 bytes, not initialised; it is the stream's, and the
 * next call may move it. */
float *cpu_scratch(struct stream *s, size_t n);

/* Rows are handed to threads in tasks of about this many elements. */
#define TASK_ELEMENTS 8192

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}

static inline int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* How many rows of `width` elements one task takes. */
static inline int task_rows(int width)
{
    return width >= TASK_ELEMENTS ? 1 : TASK_ELEMENTS / width;
}

/* Sums over rows are made in chunks, at most SUM_CHUNKS of them, and the chunks' sums are added in
 * order. */
#define SUM_CHUNKS 64
static inline int sum_chunk_rows(int n)
{
    int rows = divide_up(n, SUM_CHUNKS);
    return rows < 16 ? 16 : rows;
}

void cpu_embedding_forward(struct stream *s, void *x, const struct token_rows *rows,
                           const void *wte, const void *wpe, int C, struct dropout drop);
void cpu_embedding_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                            const struct token_rows *rows, const int *order, int C,
                            struct dropout drop);
void cpu_residual_layernorm_forward(struct stream *s, void *x_out, void *y, float *mean,
                                    float *rstd, const void *x_in, const void *branch,
                                    const struct token_rows *rows, const void *gamma,
                                    const void *beta, float eps, int C, struct dropout drop);
void cpu_residual_layernorm_backward(struct stream *s, void *dx, void *dbranch, float *dgamma,
                                     float *dbeta, const void *dy, const void *x_out,
                                     const float *mean, const float *rstd,
                                     const struct token_rows *rows, const void *gamma, int C,
                                     struct dropout drop);
void cpu_matmul(struct stream *s, void *c, const void *a, const void *b,
                const struct matmul *product);
void cpu_bias_backward(struct stream *s, float *db, const void *dy, int n, int C);
void cpu_attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                           const struct token_rows *rows, int n_head, int head_dim, float scale,
                           struct dropout drop);
void cpu_attention_backward(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                            const void *out, const float *lse, const struct token_rows *rows,
                            int n_head, int head_dim, float scale, struct dropout drop);
void cpu_gather_last(struct stream *s, void *y, const void *x, const struct token_rows *rows,
                     int C);
void cpu_scatter_last(struct stream *s, void *dx, const void *dy, const struct token_rows *rows,
                      int C);
void cpu_cross_entropy(struct stream *s, float *losses, void *dlogits, float *logits,
                       const int *targets, int n, int n_classes, int stride, float scale);
void cpu_squared_error(struct stream *s, float *losses, void *dlogits, float *logits,
                       const float *scores, int n, float scale);
void cpu_add_sum(struct stream *s, double *sum, const float *x, int n);
void cpu_from_f32(struct stream *s, void *dst, const float *src, size_t n);
void cpu_to_f32(struct stream *s, float *dst, const void *src, size_t n);
void cpu_row_norms_squared(struct stream *s, const struct matrix_batch *batch);
void cpu_summarise_norms(struct stream *s, struct norm_summary *out, const float *sums,
                         const unsigned char *place, int n, float limit);
void cpu_select_rows(struct stream *s, unsigned char *chosen, const float *sums, int n, int k);
void cpu_adamw_rows(struct stream *s, const struct matrix_batch *batch,
                    struct channel_update *updates, int n, enum row_source source,
                    const struct adamw *rule, const float *gradient_scale, bool bf16);
void cpu_accumulate_rows(struct stream *s, const struct matrix_batch *batch,
                         const struct channel_set *set, uint64_t fresh, const float *scale);
void cpu_send_rows(struct stream *s, const struct matrix_batch *batch, enum row_source source,
                   enum dtype dtype, const struct channel_set *set, float divisor);
void cpu_receive_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                      const struct channel_set *set);
void cpu_copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                   const int *src_row, int n, size_t row_bytes);

/* Work on rows [first, last) of a matrix. */
typedef void cpu_row_work(const struct matrix_rows *m, int first, int last, const void *argument);
/* Does it for all rows of a batch, in one parallel region: threads share elements evenly. */
void cpu_for_rows(const struct matrix_batch *batch, cpu_row_work *work, const void *argument);

/* What follows a product (bias, pre, activation or its slope), on rows [row, row_end) and columns
 * [col, col_end) of c. */
void cpu_finish_product(float *c, const struct matmul *product, int row, int row_end, int col,
                        int col_end);

/* dst[0..bytes) = src, or zeros if src is NULL, on all threads. */
void cpu_copy_bytes(void *dst, const void *src, size_t bytes);

#endif
