/* The CUDA device's operators: one function for each entry of struct ops. */
#ifndef ZF_MODEL_CUDA_CUDA_OPS_H
#define ZF_MODEL_CUDA_CUDA_OPS_H

#include "model/device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

void cuda_embedding_forward(struct stream *s, void *x, const struct token_rows *rows,
                            const void *wte, const void *wpe, int C, struct dropout drop);
void cuda_embedding_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                             const struct token_rows *rows, const int *order, int C,
                             struct dropout drop);
void cuda_residual_layernorm_forward(struct stream *s, void *x_out, void *y, float *mean,
                                     float *rstd, const void *x_in, const void *branch,
                                     const struct token_rows *rows, const void *gamma,
                                     const void *beta, float eps, int C, struct dropout drop);
void cuda_residual_layernorm_backward(struct stream *s, void *dx, void *dbranch, float *dgamma,
                                      float *dbeta, const void *dy, const void *x_out,
                                      const float *mean, const float *rstd,
                                      const struct token_rows *rows, const void *gamma, int C,
                                      struct dropout drop);
void cuda_matmul(struct stream *s, void *c, const void *a, const void *b,
                 const struct matmul *product);
void cuda_bias_backward(struct stream *s, float *db, const void *dy, int n, int C);
void cuda_attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                            const struct token_rows *rows, int n_head, int head_dim, float scale,
                            struct dropout drop);
void cuda_attention_backward(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                             const void *out, const float *lse, const struct token_rows *rows,
                             int n_head, int head_dim, float scale, struct dropout drop);
void cuda_gather_last(struct stream *s, void *y, const void *x, const struct token_rows *rows,
                      int C);
void cuda_scatter_last(struct stream *s, void *dx, const void *dy, const struct token_rows *rows,
                       int C);
void cuda_cross_entropy(struct stream *s, float *losses, void *dlogits, float *logits,
                        const int *targets, int n, int n_classes, int stride, float scale);
void cuda_squared_error(struct stream *s, float *losses, void *dlogits, float *logits,
                        const float *scores, int n, float scale);
void cuda_add_sum(struct stream *s, double *sum, const float *x, int n);
void cuda_from_f32(struct stream *s, void *dst, const float *src, size_t n);
void cuda_to_f32(struct stream *s, float *dst, const void *src, size_t n);
void cuda_row_norms_squared(struct stream *s, const struct matrix_batch *batch);
void cuda_summarise_norms(struct stream *s, struct norm_summary *out, const float *sums,
                          const unsigned char *place, int n, float limit);
void cuda_select_rows(struct stream *s, unsigned char *chosen, const float *sums, int n, int k);
void cuda_adamw_rows(struct stream *s, const struct matrix_batch *batch,
                     struct channel_update *updates, int n, enum row_source source,
                     const struct adamw *rule, const float *gradient_scale, bool bf16);
void cuda_accumulate_rows(struct stream *s, const struct matrix_batch *batch,
                          const struct channel_set *set, uint64_t fresh, const float *scale);
void cuda_send_rows(struct stream *s, const struct matrix_batch *batch, enum row_source source,
                    enum dtype dtype, const struct channel_set *set, float divisor);
void cuda_receive_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                       const struct channel_set *set);
void cuda_copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                    const int *src_row, int n, size_t row_bytes);

#ifdef __cplusplus
}
#endif

#endif
