/* Every operator that the trainer needs of a device, declared once. model/cpu/ and model/cuda/
 * implement them.
 *
 * Notation: n is a number of tokens (or rows), C the model's width. All arrays are row-major.
 * `void *` arrays hold the device's own dtype (device->dtype: parameters and activations); `float
 * *` arrays are fp32 on every device (statistics, losses, gradients of parameters). "+=" marks what
 * is added to; all other outputs are overwritten. Arrays do not overlap unless it is said.
 *
 * Operators are asynchronous on their stream, check nothing but by assert, and never fail. n = 0 is
 * allowed everywhere. Results do not depend on the number of threads. */
#ifndef ZF_MODEL_DEVICE_OPS_H
#define ZF_MODEL_DEVICE_OPS_H

#include "model/device/device.h"
#include "model/device/matrix_batch.h"

#include <stdint.h>

/* Inverted dropout: each element is kept with probability 1 - p and scaled by 1 / (1 - p). Whether
 * element (token, column) is kept is a function of (seed, step, site, the token's sequence number
 * in the step, its position, column) alone: Philox4x32-10 with
 *   key     = (seed, step)
 *   counter = (column / 4, position, sequence, site)   and word column % 4,
 * kept where philox_uniform(word) >= p. So it depends neither on threads nor on how a step is cut
 * into ranks and micro-batches, and backward draws the same mask again. */
struct dropout {
    float p; /* 0: none */
    uint32_t seed;
    uint32_t step;
    uint32_t site; /* which dropout of the model this is */
};

/* The rows of a token stream, in device memory. */
struct token_rows {
    int n_tokens, n_seqs;
    const int *tokens;         /* (n_tokens) */
    const int *position;       /* (n_tokens) */
    const int *seq_start;      /* (n_seqs + 1) */
    const uint32_t *token_seq; /* (n_tokens) */
};

enum activation { ACT_NONE, ACT_GELU_TANH, ACT_GELU_ERF, ACT_RELU };

/* A matrix product  c = op(a) op(b)  and what follows it in one go.
 *   op(a): (m, k), a is (k, m) if trans_a.   op(b): (k, n), b is (n, k) if trans_b.   c: (m, n)
 * In this order:  c = op(a) op(b);  + bias (n);  pre = c;  c = act(c);
 *                 c *= act'(gradient_of)  element by element;  c += old c. */
struct matmul {
    int m, n, k;
    bool trans_a, trans_b;
    bool accumulate;         /* c += instead of c = */
    bool c_is_f32;           /* c is float on every device (gradients of parameters, logits) */
    const void *bias;        /* (n) or NULL */
    enum activation act;     /* of the forward pass, or of gradient_of */
    void *pre;               /* (m, n) or NULL: the value before the activation, for backward */
    const void *gradient_of; /* (m, n) or NULL: multiply by act' at these pre-activations; then the
                                activation itself is not applied */
};

/* AdamW as torch.optim.AdamW (Loshchilov and Hutter, "Decoupled weight decay", ICLR 2019):
 *   g = gradient_scale * gradient;  p -= lr * weight_decay * p
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *   p -= lr * (m / correction1) / (sqrt(v / correction2) + eps),  correction_i = 1 - beta_i^t
 * With l2 (torch.optim.Adam): weight_decay * p is added to g instead. */
struct adamw {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2;
    bool l2;
};

/* Where a channel stands. One that leaves the important channels does so when its group's window
 * closes: it gathers gradients from then on, but is no part of the update that this closing starts.
 * One that is resident is never chosen: it stays on the device. */
enum channel_place { CHANNEL_DEFERRED, CHANNEL_IMPORTANT, CHANNEL_LEAVING, CHANNEL_RESIDENT };

/* Some channels (rows) of every matrix: the deferred ones whose group is in `groups`, with those
 * that are leaving or without. */
struct channel_set {
    int n_groups;
    bool with_leaving;
    uint64_t groups; /* bit j: group j is meant */
};

/* Which rows an operator reads. */
enum row_source { ROWS_GRADIENT, ROWS_WINDOW };

/* What the norms of all channels say about a step; in device memory. */
struct norm_summary {
    float norm;   /* global L2 norm, summed in double in an order that n alone decides */
    float factor; /* of clipping, as torch.nn.utils.clip_grad_norm_; 0 where the norm is not
                     finite: then nothing may change in this step */
    double important, selectable; /* sums of squares of the important channels, and of all channels
                               that are not resident */
};

struct ops {
    /* x[t] = dropout(wte[tokens[t]] + wpe[position[t]]).  x: (n, C)  wte: (vocab, C)  wpe: (P, C)
     * or NULL: no such term */
    void (*embedding_forward)(struct stream *s, void *x, const struct token_rows *rows,
                              const void *wte, const void *wpe, int C, struct dropout drop);
    /* dwte[tokens[t]] += dx[t] undropped;  dwpe[position[t]] += the same, or NULL. Deterministic.
     * Gradients: fp32. order: (n) tokens' indices sorted by id, stable (host-made, device memory).
     */
    void (*embedding_backward)(struct stream *s, float *dwte, float *dwpe, const void *dx,
                               const struct token_rows *rows, const int *order, int C,
                               struct dropout drop);

    /* x_out = x_in + dropout(branch);  y = gamma * (x_out - mean) * rstd + beta  per row.
     * branch NULL: x_out = x_in. x_out may be x_in. All (n, C); mean, rstd: (n); gamma, beta: (C).
     */
    void (*residual_layernorm_forward)(struct stream *s, void *x_out, void *y, float *mean,
                                       float *rstd, const void *x_in, const void *branch,
                                       const struct token_rows *rows, const void *gamma,
                                       const void *beta, float eps, int C, struct dropout drop);
    /* dx: in, the gradient of x_out from what follows it; out, that plus layer norm's own: the
     * gradient of x_in. dbranch: (n, C) or NULL: the gradient of branch. dgamma, dbeta: (C), +=. */
    void (*residual_layernorm_backward)(struct stream *s, void *dx, void *dbranch, float *dgamma,
                                        float *dbeta, const void *dy, const void *x_out,
                                        const float *mean, const float *rstd,
                                        const struct token_rows *rows, const void *gamma, int C,
                                        struct dropout drop);

    void (*matmul)(struct stream *s, void *c, const void *a, const void *b,
                   const struct matmul *product);
    /* db[j] += sum over rows of dy[i][j].  dy: (n, C), db: (C) */
    void (*bias_backward)(struct stream *s, float *db, const void *dy, int n, int C);

    /* Causal self-attention within each sequence, over heads. qkv: (n, 3C) holding q, k, v, each
     * (n_head, head_dim);  out: (n, C);  lse: (n, n_head), log-sum-exp of each row's scaled scores,
     * for backward. Probabilities = softmax(scale * q k^T), then dropout: site's counter is
     * (key position / 4, query position, sequence, site + (head << 16)). */
    void (*attention_forward)(struct stream *s, void *out, float *lse, const void *qkv,
                              const struct token_rows *rows, int n_head, int head_dim, float scale,
                              struct dropout drop);
    /* dqkv: (n, 3C) */
    void (*attention_backward)(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                               const void *out, const float *lse, const struct token_rows *rows,
                               int n_head, int head_dim, float scale, struct dropout drop);

    /* y[i] = x[seq_start[i + 1] - 1]: each sequence's last token.  y: (n_seqs, C) */
    void (*gather_last)(struct stream *s, void *y, const void *x, const struct token_rows *rows,
                        int C);
    /* dx = 0 but on those tokens, where it is dy.  dx: (n, C) */
    void (*scatter_last)(struct stream *s, void *dx, const void *dy, const struct token_rows *rows,
                         int C);

    /* losses[i] = -log softmax(logits[i])[targets[i]], 0 where the target is TARGET_IGNORE; and
     * unless dlogits is NULL, dlogits[i] = scale * d losses[i] / d logits[i].
     * logits: (n, n_classes) fp32, rows at a distance of stride >= n_classes, may be overwritten;
     * targets: (n);  losses: (n);  dlogits: (n, stride), 0 behind each row's classes; may be
     * `logits` where the device's dtype is F32. */
    void (*cross_entropy)(struct stream *s, float *losses, void *dlogits, float *logits,
                          const int *targets, int n, int n_classes, int stride, float scale);
    /* losses[i] = (logits[i] - scores[i])^2;  the same way. logits, scores, losses: (n) */
    void (*squared_error)(struct stream *s, float *losses, void *dlogits, float *logits,
                          const float *scores, int n, float scale);
    /* *sum += x[0] + ... + x[n - 1], in double, in an order that n alone decides. sum: device
     * memory */
    void (*add_sum)(struct stream *s, double *sum, const float *x, int n);
    /* Converts fp32 to the device's dtype; a copy on the CPU device. n elements. */
    void (*from_f32)(struct stream *s, void *dst, const float *src, size_t n);
    /* And back. */
    void (*to_f32)(struct stream *s, float *dst, const void *src, size_t n);

    /* norms[i] = sum of squares of row i of the gradient, for every matrix of the batch; in an
     * order that the row's length alone decides. */
    void (*row_norms_squared)(struct stream *s, const struct matrix_batch *batch);
    /* out: device memory. sums: (n) squared norms of all channels;  place: (n) enum channel_place,
     * or such a choice as select_rows makes;  limit: greatest global norm, 0: none. */
    void (*summarise_norms)(struct stream *s, struct norm_summary *out, const float *sums,
                            const unsigned char *place, int n, float limit);
    /* chosen[i] = 1 (CHANNEL_IMPORTANT) for the k greatest of sums[0..n), ties to the lower index;
     * 0 for the others. sums are finite and not negative. */
    void (*select_rows)(struct stream *s, unsigned char *chosen, const float *sums, int n, int k);

    /* The operators below take factors on gradients from device memory, one float each: 0 says that
     * the step is skipped, and then they change nothing. */

    /* One AdamW update of n channels, no two the same. updates: (n) device memory; the counts in it
     * go up by one, and bias corrections are 1 - beta^updates, taken in double (the rule's own are
     * not used). The gradient is a row of `source` times a factor, gradient_scale. Values get the
     * master, rounded to bf16 if `bf16`. */
    void (*adamw_rows)(struct stream *s, const struct matrix_batch *batch,
                       struct channel_update *updates, int n, enum row_source source,
                       const struct adamw *rule, const float *gradient_scale, bool bf16);
    /* For each row of the set: window = (its group in `fresh` ? 0 : window) + scale * gradient.
     * scale: the factor */
    void (*accumulate_rows)(struct stream *s, const struct matrix_batch *batch,
                            const struct channel_set *set, uint64_t fresh, const float *scale);
    /* For each row of the set, as `dtype` (F32 or BF16): exchange = window / divisor, or where the
     * source is the gradient, staged = gradient / divisor. */
    void (*send_rows)(struct stream *s, const struct matrix_batch *batch, enum row_source source,
                      enum dtype dtype, const struct channel_set *set, float divisor);
    /* For each row of the set: values = exchange, which holds `dtype`. */
    void (*receive_rows)(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                         const struct channel_set *set);
    /* dst[dst_row[i]] = src[src_row[i]] for i < n: rows of row_bytes bytes each, a multiple of 2.
     * dst_row, src_row: (n) in device memory, NULL: i itself. dst, src: device memory, or memory of
     * allocate_host. The rows of dst differ. */
    void (*copy_rows)(struct stream *s, void *dst, const int *dst_row, const void *src,
                      const int *src_row, int n, size_t row_bytes);
};

#endif
