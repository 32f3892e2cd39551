/* The architectures of the family: what each calls its tensors and its configuration's keys, which
 * parts it has, and its defaults; and words that all know. A new one is a row of the table in
 * gpt_arch.c. Private to model/gpt*.c. */
#ifndef ZF_MODEL_GPT_ARCH_H
#define ZF_MODEL_GPT_ARCH_H

#include "model/gpt.h"

/* A block's linear layers and norms, in the order of the table of parameters. H, K, D: as in struct
 * heads. */
enum gpt_block_pair {
    LN_1,
    QKV,      /* (C, (H + 2K) D) q's columns, then k's, then v's */
    Q_NORM,   /* (D) */
    K_NORM,   /* (D) */
    ATT_PROJ, /* (H D, C) */
    LN_2,
    FC,       /* (C, I), or of SwiGLU (C, 2I): gate's columns, then up's */
    MLP_PROJ, /* (I, C) */
    GPT_BLOCK_PAIRS,
};

#define GPT_MAX_PIECES 3

/* Of tensors, without ".weight" and ".bias". */
struct gpt_names {
    const char *prefix;                 /* of all but the heads' */
    const char *tokens, *positions;     /* embeddings */
    const char *blocks;                 /* what stands before a block's number */
    const char *pairs[GPT_BLOCK_PAIRS]; /* behind it */
    const char *final_norm;
    /* Tensors of a file whose columns, side by side, are one matrix here: of q, k and v, and of
     * gate and up. NULL: it is one tensor in the file too. */
    const char *qkv[GPT_MAX_PIECES], *gate_up[GPT_MAX_PIECES];
};

/* Of config.json, where architectures differ in them. */
struct gpt_keys {
    const char *n_positions, *n_embd, *n_layer, *n_head, *n_inner;
    const char *activation, *norm_epsilon, *attn_pdrop;
};

/* Which blocks' attention has a window. */
enum gpt_windows {
    GPT_NO_WINDOW,
    GPT_WINDOW_EVERYWHERE, /* sliding_window, unless it is null */
    GPT_WINDOW_FROM_LAYER, /* if use_sliding_window, blocks from max_window_layers on */
};

struct gpt_arch {
    const char *title;           /* for sentences */
    const char *model_type;      /* of config.json */
    const char *lm, *classifier; /* its architectures */
    const struct gpt_names *names;
    const struct gpt_keys *keys;
    bool transposed;       /* files hold a block's matrices as nn.Linear does, (out, in) */
    bool scales_residuals; /* initialisation: projections divided by sqrt(2 n_layer) */
    /* Keys that only some have. */
    bool gpt2_keys; /* embd_pdrop, scale_attn_weights, ...; others: head_dim, rope_theta, ... */
    bool attention_bias; /* of q, k, v and the projection */
    bool mlp_bias;
    bool no_rope_layers;
    enum gpt_windows windows;
    struct gpt_config defaults; /* but for `arch` */
};

/* By model_type; NULL: none. gpt_arch_at(i): the i-th, NULL after the last. */
const struct gpt_arch *gpt_arch_find(const char *model_type);
const struct gpt_arch *gpt_arch_at(int i);
struct gpt_config gpt_arch_defaults(const struct gpt_arch *arch);

/* Words of config.json, NULL after the last; the first of an activation is the one written. */
struct gpt_activation {
    const char *name;
    enum activation activation;
};
extern const struct gpt_activation gpt_activations[];
extern const char *const gpt_rope_types[]; /* by enum rope_type; NULL after the last */

#endif
