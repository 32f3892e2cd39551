/* Every operator that a model needs of a device, declared once, as a function type. model/cpu/ and
 * model/cuda/ implement them; row_ops.h has those of the engine.
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
    const int *seq_start;      /* (n_seqs + 1), what FlashAttention calls cu_seqlens */
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

/* x[t] = dropout(wte[tokens[t]] + wpe[position[t]]).  x: (n, C)  wte: (vocab, C)  wpe: (P, C)
 * or NULL: no such term */
typedef void op_embedding_forward(struct stream *s, void *x, const struct token_rows *rows,
                                  const void *wte, const void *wpe, int C, struct dropout drop);
/* dwte[tokens[t]] += dx[t] undropped;  dwpe[position[t]] += the same, or NULL. Deterministic.
 * Gradients: fp32. order: (n) tokens' indices sorted by id, stable (host-made, device memory). */
typedef void op_embedding_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                                   const struct token_rows *rows, const int *order, int C,
                                   struct dropout drop);

/* x_out = x_in + dropout(branch);  y = gamma * (x_out - mean) * rstd + beta  per row.
 * branch NULL: x_out = x_in. x_out may be x_in. All (n, C); mean, rstd: (n); gamma, beta: (C). */
typedef void op_residual_layernorm_forward(struct stream *s, void *x_out, void *y, float *mean,
                                           float *rstd, const void *x_in, const void *branch,
                                           const struct token_rows *rows, const void *gamma,
                                           const void *beta, float eps, int C, struct dropout drop);
/* dx: in, the gradient of x_out from what follows it; out, that plus layer norm's own: the
 * gradient of x_in. dbranch: (n, C) or NULL: the gradient of branch. dgamma, dbeta: (C), += if
 * `accumulate`. */
typedef void op_residual_layernorm_backward(struct stream *s, void *dx, void *dbranch,
                                            float *dgamma, float *dbeta, const void *dy,
                                            const void *x_out, const float *mean, const float *rstd,
                                            const struct token_rows *rows, const void *gamma, int C,
                                            struct dropout drop, bool accumulate);

/* x_out = x_in + dropout(branch);  y = weight * (x_out * rstd) per row, where
 * rstd = 1 / sqrt(mean(x_out^2) + eps) (Zhang and Sennrich, "Root mean square layer normalization",
 * NeurIPS 2019). x_out * rstd is rounded to the device's dtype, as in Transformers. All else as for
 * the layer norm. */
typedef void op_residual_rmsnorm_forward(struct stream *s, void *x_out, void *y, float *rstd,
                                         const void *x_in, const void *branch,
                                         const struct token_rows *rows, const void *weight,
                                         float eps, int C, struct dropout drop);
/* dx, dbranch: as for the layer norm. dweight: (C), written, or added to if `accumulate`. */
typedef void op_residual_rmsnorm_backward(struct stream *s, void *dx, void *dbranch, float *dweight,
                                          const void *dy, const void *x_out, const float *rstd,
                                          const struct token_rows *rows, const void *weight, int C,
                                          struct dropout drop, bool accumulate);

typedef void op_matmul(struct stream *s, void *c, const void *a, const void *b,
                       const struct matmul *product);
/* db[j] = sum over rows of dy[i][j], or += if `accumulate`.  dy: (n, C), db: (C) */
typedef void op_bias_backward(struct stream *s, float *db, const void *dy, int n, int C,
                              bool accumulate);

/* What a row of q, k and v holds, each head head_dim wide: n_head heads of q, n_kv_head of k, as
 * many of v. Head h of q goes with head h / (n_head / n_kv_head) of k and v (Ainslie et al.,
 * "GQA", EMNLP 2023). */
struct heads {
    int n_head, n_kv_head; /* the first is a multiple of the second */
    int head_dim;
};

static inline int heads_row(const struct heads *h)
{
    return (h->n_head + 2 * h->n_kv_head) * h->head_dim;
}

/* Rotary position embedding (Su et al., "RoFormer", 2021), in the order of Transformers: element i
 * of a head turns with element i + head_dim / 2, by the angle position * frequency[i], |it| < 2^20.
 * Kinds of it (default, llama3, yarn, ...) differ in frequencies and scale alone. */
struct rotary {
    struct heads heads;     /* head_dim is even */
    const float *frequency; /* (head_dim / 2) radians a position, device memory */
    float scale;            /* of cosine and sine; 1, but for yarn */
    /* RMSNorm of each head of q and of k before it: (head_dim) each; both NULL: none */
    const void *q_weight, *k_weight;
    float eps;
};

struct attention {
    struct heads heads;
    int window; /* a token sees so many, the last of which is itself; 0: all before it too */
    float scale;
    struct dropout drop;
};

/* Norms and turns q and k of each row of qkv, (n, heads_row), in place; v stays. Cosine and sine
 * are rounded to the device's dtype, as is the norms' output.  pre: (n, n_head + n_kv_head,
 * head_dim), q and k as they were, for backward; not used without norms. */
typedef void op_rotary_forward(struct stream *s, void *qkv, void *pre,
                               const struct token_rows *rows, const struct rotary *rotary);
/* dqkv: in, the gradient of what forward left; out, of what it was given. pre: forward's.
 * dq_weight, dk_weight: (head_dim) each, written, or added to if `accumulate`; without norms not
 * used. */
typedef void op_rotary_backward(struct stream *s, void *dqkv, float *dq_weight, float *dk_weight,
                                const void *pre, const struct token_rows *rows,
                                const struct rotary *rotary, bool accumulate);

/* Causal self-attention within each sequence, over heads.  qkv: (n, heads_row);  out: (n, n_head *
 * head_dim);  lse: (n, n_head), log-sum-exp of each row's scaled scores, for backward.
 * Probabilities = softmax(scale * q k^T), then dropout: site's counter is
 * (key position / 4, query position, sequence, site + (head << 16)), head being q's. */
typedef void op_attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                                  const struct token_rows *rows, const struct attention *attention);
/* dqkv: as qkv; a head's dk and dv are sums over its heads of q, in their order */
typedef void op_attention_backward(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                                   const void *out, const float *lse, const struct token_rows *rows,
                                   const struct attention *attention);

/* Attention of rows that go on with one sequence, of which `past` are there before them (rows has
 * one sequence, whose positions begin at past). cache: (capacity, 2, n_kv_head, head_dim), k and v
 * of each of its tokens; those of the new rows are put there. out, qkv: as for attention_forward.
 * No dropout. */
typedef void op_attention_cached(struct stream *s, void *out, void *cache, int past,
                                 const void *qkv, const struct token_rows *rows,
                                 const struct attention *attention);

/* y = silu(gate) * up, silu(z) = z / (1 + exp(-z)): the activation of SwiGLU.
 * gate_up: (n, 2I), of each row gate and then up;  y: (n, I) */
typedef void op_swiglu_forward(struct stream *s, void *y, const void *gate_up, int n, int I);
/* dgate_up: (n, 2I), may be gate_up.  y: (n, I), the output again, so that none has to keep it, or
 * NULL; may be dy. */
typedef void op_swiglu_backward(struct stream *s, void *dgate_up, void *y, const void *dy,
                                const void *gate_up, int n, int I);

/* y[i] = x[seq_start[i + 1] - 1]: each sequence's last token.  y: (n_seqs, C) */
typedef void op_gather_last(struct stream *s, void *y, const void *x, const struct token_rows *rows,
                            int C);
/* dx = 0 but on those tokens, where it is dy.  dx: (n, C) */
typedef void op_scatter_last(struct stream *s, void *dx, const void *dy,
                             const struct token_rows *rows, int C);

/* losses[i] = -log softmax(logits[i])[targets[i]], 0 where the target is TARGET_IGNORE; and
 * unless dlogits is NULL, dlogits[i] = scale * d losses[i] / d logits[i].
 * logits: (n, n_classes) fp32, rows at a distance of stride >= n_classes, may be overwritten;
 * targets: (n);  losses: (n);  dlogits: (n, stride), 0 behind each row's classes; may be
 * `logits` where the device's dtype is F32. */
typedef void op_cross_entropy(struct stream *s, float *losses, void *dlogits, float *logits,
                              const int *targets, int n, int n_classes, int stride, float scale);
/* losses[i] = (logits[i] - scores[i])^2;  the same way. logits, scores, losses: (n) */
typedef void op_squared_error(struct stream *s, float *losses, void *dlogits, float *logits,
                              const float *scores, int n, float scale);
/* *sum += x[0] + ... + x[n - 1], in double, in an order that n alone decides. sum: device
 * memory */
typedef void op_add_sum(struct stream *s, double *sum, const float *x, int n);
/* Converts parameters from fp32 to the device's dtype, bf16 as data/bf16.h rounds parameters; a
 * copy on the CPU device. n elements. */
typedef void op_from_f32(struct stream *s, void *dst, const float *src, size_t n);
/* And back. */
typedef void op_to_f32(struct stream *s, float *dst, const void *src, size_t n);

/* All of them, for what a device says once for each: X(embedding_forward) ... */
#define MODEL_OPERATORS(X)                                                                         \
    X(embedding_forward)                                                                           \
    X(embedding_backward)                                                                          \
    X(residual_layernorm_forward)                                                                  \
    X(residual_layernorm_backward)                                                                 \
    X(residual_rmsnorm_forward)                                                                    \
    X(residual_rmsnorm_backward)                                                                   \
    X(matmul)                                                                                      \
    X(bias_backward)                                                                               \
    X(rotary_forward)                                                                              \
    X(rotary_backward)                                                                             \
    X(attention_forward)                                                                           \
    X(attention_backward)                                                                          \
    X(swiglu_forward)                                                                              \
    X(swiglu_backward)                                                                             \
    X(gather_last)                                                                                 \
    X(scatter_last)                                                                                \
    X(cross_entropy)                                                                               \
    X(squared_error)                                                                               \
    X(add_sum)                                                                                     \
    X(from_f32)                                                                                    \
    X(to_f32)

/* A device's. */
struct ops {
#define X(name) op_##name *name;
    MODEL_OPERATORS(X)
#undef X
    op_attention_cached *attention_cached; /* NULL: the device does not generate */
};

#endif
