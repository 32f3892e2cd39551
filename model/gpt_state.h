/* What struct gpt holds: parameters, the memory of forward and backward, and a batch on the device.
 * Private to model/gpt*.c. */
#ifndef ZF_MODEL_GPT_STATE_H
#define ZF_MODEL_GPT_STATE_H

#include "model/gpt_arch.h"

/* fp32 values that gpt_weights.c moves between host and device at a time, at most: 2 MB. */
#define GPT_STAGE_ELEMENTS ((size_t)1 << 19)

/* A linear layer's or a norm's parameters, by their numbers in the table. */
struct gpt_pair {
    int weight; /* a matrix, or a norm's gain */
    int bias;   /* or GPT_NONE */
};
#define GPT_NONE (-1) /* the model has no such parameter */

/* Where a model's parameters stand in its table. */
struct gpt_layout {
    int wte; /* (vocab_size, C) token embeddings; also the head's weight of a tied LM */
    int wpe; /* (n_positions, C) position embeddings, or GPT_NONE */
    struct gpt_pair (*blocks)[GPT_BLOCK_PAIRS]; /* (n_layer) */
    struct gpt_pair ln_f;
    int head; /* (C, num_labels) score, or (C, vocab_size) of an untied LM; tied: wte */
};

/* Shapes: n tokens of a micro-batch, s its sequences, C = n_embd, I = n_inner, H = n_head, K =
 * n_kv_heads, D = head_dim; GPT-2 has K = H and H D = C. All are in device memory; void * is of the
 * device's dtype. RMSNorms have no means. */

/* What a block's forward pass leaves for its backward pass. Under GPT_TRAIN_RECOMPUTE only x_1 is
 * the block's own, and x_2 the micro-batch's; all else is shared, and under GPT_EVALUATE
 * everything. */
struct gpt_block {
    void *x_1;              /* (n, C) residual stream that enters ln_1 */
    void *ln_1;             /* (n, C) */
    float *mean_1, *rstd_1; /* (n) */
    void *qk;               /* (n, (H + K) D) q and k before their norms; NULL: they have none */
    void *qkv;              /* (n, (H + 2K) D), q and k turned */
    void *att;              /* (n, H D) attention's output */
    float *lse;             /* (n, H) */
    void *x_2;              /* (n, C) residual stream that enters ln_2 */
    void *ln_2;             /* (n, C) */
    float *mean_2, *rstd_2; /* (n) */
    void *fc_before_act;    /* (n, I); of SwiGLU gate and up, (n, 2I), and then their gradient */
    void *fc;               /* (n, I); of SwiGLU all blocks' is the same, and backward computes it
                                 again */
};

/* What one layer leaves for the next, and the last block's last tokens, in the arrays of one
 * micro-batch. Gradients are NULL under GPT_EVALUATE. */
struct gpt_carry {
    void *branch;   /* (n, C) output of a projection, until the next norm adds it to x */
    void *att_last; /* (s, H D) last tokens of the last block's att */
    void *d_x;      /* (n, C) gradient of the residual stream */
    void *d_x_last; /* (s, C) of the last tokens' */
    void *d_branch; /* (n, C) of a projection's output */
};

/* What all micro-batches share within a layer, and the head's. Gradients are NULL under
 * GPT_EVALUATE. */
struct gpt_buffers {
    void *x_last;           /* (s, C) last tokens of the last block's x_1 */
    void *x_f;              /* (n, C) residual stream that enters ln_f */
    void *ln_f;             /* (n, C) */
    float *mean_f, *rstd_f; /* (n) */
    float *logits;          /* (s, num_labels) or, of a language model, (device->head_rows,
                                vocab_size): (n, vocab_size) never exists */
    float *losses;          /* (n) */

    void *d_y;        /* (n, max(C, H D)) gradient of a norm's or of attention's output */
    void *d_wide;     /* (n, (H + 2K) D) of qkv, or (n, I) of fc_before_act */
    void *d_att_last; /* (s, H D) of att_last */
    void *d_logits;   /* as logits; the same array where the device computes in fp32 */
};

/* A micro-batch on the device. */
struct gpt_batch {
    struct token_rows rows; /* its tokens */
    struct token_rows last; /* each sequence's last token as a row of its own */
    const int *order;       /* (n) tokens' indices sorted by id */
    const void *targets;    /* (s) int or float, or (n) int; NULL: the batch has none */
};

/* Memory for one micro-batch's inputs. There is one more than a step has micro-batches, so that the
 * host can fill it while the device works with the others. */
struct gpt_inputs {
    int *device, *host;   /* (input_ints) */
    struct event *filled; /* the device's has the batch */
    struct event *done;   /* the pass that uses it is over */
    bool in_use;          /* `done` has been recorded */
};

/* One of a step's micro-batches. */
struct gpt_micro_batch {
    struct gpt_batch batch;
    struct gpt_inputs *inputs; /* that it lies in */
    struct gpt_block *blocks;  /* (n_layer) */
    struct gpt_carry carry;
};

/* Sums of losses, one for training and one for evaluation. */
enum gpt_loss { GPT_LOSS_TRAIN, GPT_LOSS_EVALUATE, GPT_LOSSES };

struct gpt {
    struct gpt_config config;
    struct device *device;
    struct param_table table;
    struct gpt_layout layout;
    struct gpt_size size;
    struct gpt_hooks hooks;

    struct arena arena;                    /* holds all device memory of the model */
    void *weights;                         /* (table.n_values) */
    float *gradients;                      /* (table.n_gradients); NULL under GPT_EVALUATE */
    struct gpt_micro_batch *micro_batches; /* (size.micro_batches) */
    struct gpt_buffers buffers;
    float *staging;   /* (GPT_STAGE_ELEMENTS, or the largest parameter's) of gpt_weights.c; NULL
                         where the device's dtype is F32 */
    float *frequency; /* (D / 2) of rotary positions; NULL: none */
    float rope_scale; /* and of their sine and cosine */
    gpt_take_values *take; /* of gpt_offer_values */
    void *taker;

    struct stream *upload;
    struct gpt_inputs *inputs; /* (size.micro_batches + 1) */
    int turn;                  /* which of them was filled last */
    int *sort_scratch;         /* (max_tokens), host */

    double *losses;            /* (GPT_LOSSES) device memory */
    double *losses_host;       /* (GPT_LOSSES) copied to once a pass has them */
    struct event *loss_copied; /* of training */
    bool loss_is_due;          /* gpt_train was called since gpt_take_loss */
};

static inline const struct gpt_pair *gpt_block_pair(const struct gpt *m, int block,
                                                    enum gpt_block_pair which)
{
    return &m->layout.blocks[block][which];
}

/* The array's element i, of the device's dtype. */
static inline void *gpt_at(const struct gpt *m, void *array, size_t i)
{
    return (char *)array + i * dtype_size(m->device->dtype);
}

/* A parameter's values; NULL of GPT_NONE. */
static inline const void *gpt_weight(const struct gpt *m, int param)
{
    return param == GPT_NONE ? NULL : gpt_at(m, m->weights, m->table.params[param].value_offset);
}

static inline float *gpt_gradient(const struct gpt *m, int param)
{
    return param == GPT_NONE ? NULL : m->gradients + m->table.params[param].gradient_offset;
}

/* Whether only last tokens matter after attention of this block: in the last one, under a head
 * that looks at nothing else. */
static inline bool gpt_takes_last(const struct gpt *m, int block)
{
    return m->config.head != GPT_HEAD_LM && block == m->config.n_layer - 1;
}

static inline bool gpt_is_tied(const struct gpt_config *c)
{
    return c->head == GPT_HEAD_LM && c->tie_word_embeddings;
}

/* ints of one micro-batch's inputs at most. */
size_t gpt_input_ints(const struct gpt *m);
/* Copies a batch to the device, as micro-batch i: what is put on the compute stream from now on
 * sees it. The host waits until the inputs that it gets are free. */
void gpt_upload_batch(struct gpt *m, int i, const struct batch *batch);
/* The pass over micro-batch i is on the compute stream. */
void gpt_release_batch(struct gpt *m, int i);

#endif
