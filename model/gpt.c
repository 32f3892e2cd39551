/* The schedule: forward and backward of the model over a device's operators.
 *
 * A block of GPT-2 is seven fused operators. Each norm first adds the branch that the layer before
 * it left (with its dropout) to the residual stream x, so a branch is read once:
 *
 *   x_1 = x + branch;  ln_1(x_1) -> qkv -> attention -> branch = projection
 *   x_2 = x_1 + branch;  ln_2(x_2) -> fc, activation -> branch = projection
 *
 * Others turn q and k before attention, or have SwiGLU behind fc, which is then gate and up.
 *
 * Under a classification or regression head only last tokens matter once the last block's attention
 * has mixed the tokens: from there on they are gathered and all else is left out.
 *
 * A step's micro-batches go through each layer together, in their order: forward through layer
 * after layer, at the head forward and backward, and then backward. */
#include "model/gpt_state.h"

#include "data/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Micro-batches on their way through the model. */
struct pass {
    struct gpt *m;
    struct gpt_micro_batch *micro; /* the one in work */
    int n;                         /* micro-batches */
    bool adds;                     /* gradients are added to what is there */
    const struct ops *ops;
    struct stream *stream;
    const struct gpt_step *step; /* NULL: evaluation */
    float *logits; /* evaluation: (n_seqs, num_labels) in host memory, where they go, or NULL */
    struct gpt_cache *cache; /* generation: what is there of the sequence; else NULL */
};

/* Keys and values of one sequence. */
struct gpt_cache {
    struct device *device;
    int n, capacity;   /* tokens */
    size_t layer_size; /* elements of a block's */
    void *memory;      /* (n_layer, capacity, 2, K, D) */
};

static struct pass pass_begin(struct gpt *m, const struct batch *batches, int n)
{
    assert(n > 0 && n <= m->size.micro_batches);
    for (int u = 0; u < n; u++)
        gpt_upload_batch(m, u, &batches[u]);
    return (struct pass){.m = m,
                         .micro = m->micro_batches,
                         .n = n,
                         .ops = m->device->ops,
                         .stream = m->device->compute};
}

static void pass_end(const struct pass *p)
{
    for (int u = 0; u < p->n; u++)
        gpt_release_batch(p->m, u);
}

/* The first one writes gradients, the others add. */
#define for_each_micro_batch(p)                                                                    \
    for ((p)->micro = (p)->m->micro_batches, (p)->adds = (p)->step && (p)->step->continues;        \
         (p)->micro < (p)->m->micro_batches + (p)->n; (p)->micro++, (p)->adds = true)

static void before_layer(const struct pass *p, int layer)
{
    const struct gpt_hooks *hooks = &p->m->hooks;
    if (hooks->before_layer)
        hooks->before_layer(hooks->context, layer);
}

static void after_layer(const struct pass *p, int layer)
{
    const struct gpt_hooks *hooks = &p->m->hooks;
    if (hooks->after_layer)
        hooks->after_layer(hooks->context, layer);
}

/* Dropouts are numbered: 0 the embeddings', then three of each block. The attention operator adds
 * its head's number above the low 16 bits; no model has so many blocks that they meet. */
enum dropout_place { DROP_ATTENTION, DROP_ATTENTION_RESIDUAL, DROP_MLP_RESIDUAL, BLOCK_DROPOUTS };

static struct dropout dropout_at(const struct pass *p, float probability, uint32_t site)
{
    return (struct dropout){
        .p = p->step ? probability : 0,
        .seed = p->step ? p->step->seed : 0,
        .step = p->step ? p->step->step : 0,
        .site = site,
    };
}

static struct dropout embedding_dropout(const struct pass *p)
{
    return dropout_at(p, p->m->config.embd_pdrop, 0);
}

static struct dropout block_dropout(const struct pass *p, int block, enum dropout_place place)
{
    const struct gpt_config *c = &p->m->config;
    return dropout_at(p, place == DROP_ATTENTION ? c->attn_pdrop : c->resid_pdrop,
                      1 + (uint32_t)block * BLOCK_DROPOUTS + (uint32_t)place);
}

static struct attention block_attention(const struct pass *p, int block)
{
    const struct gpt_config *c = &p->m->config;
    const struct heads heads = gpt_heads(c);
    float scale = c->scale_attn_weights ? 1 / sqrtf((float)heads.head_dim) : 1;
    if (c->scale_attn_by_inverse_layer_idx)
        scale /= (float)(block + 1);
    return (struct attention){.heads = heads,
                              .window = block >= c->first_windowed ? c->window : 0,
                              .scale = scale,
                              .drop = block_dropout(p, block, DROP_ATTENTION)};
}

/* The width of attention's output. */
static int attention_width(const struct pass *p)
{
    const struct heads heads = gpt_heads(&p->m->config);
    return heads.n_head * heads.head_dim;
}

static struct rotary block_rotary(const struct pass *p, int block)
{
    const struct gpt *m = p->m;
    return (struct rotary){.heads = gpt_heads(&m->config),
                           .frequency = m->frequency,
                           .scale = m->rope_scale,
                           .q_weight = gpt_weight(m, gpt_block_pair(m, block, Q_NORM)->weight),
                           .k_weight = gpt_weight(m, gpt_block_pair(m, block, K_NORM)->weight),
                           .eps = m->config.layer_norm_epsilon};
}

/* Evaluation keeps nothing for backward: all blocks use the first one's memory. */
static struct gpt_block *block_memory(const struct pass *p, int block)
{
    return &p->micro->blocks[p->step ? block : 0];
}

/* The rows that a block has after its attention. */
static const struct token_rows *rows_after_attention(const struct pass *p, int block)
{
    return gpt_takes_last(p->m, block) ? &p->micro->batch.last : &p->micro->batch.rows;
}

/* Linear layers: a matrix (in, out), with a bias or without. */

/* y = act(x W + b).  x: (n, in)  y: (n, out)  before_act: (n, out) or NULL */
static void linear_forward(const struct pass *p, void *y, const void *x,
                           const struct gpt_pair *linear, int n, enum activation act,
                           void *before_act)
{
    const struct param *w = &p->m->table.params[linear->weight];
    p->ops->matmul(p->stream, y, x, gpt_weight(p->m, linear->weight),
                   &(struct matmul){.m = n,
                                    .n = w->cols,
                                    .k = w->rows,
                                    .bias = gpt_weight(p->m, linear->bias),
                                    .act = act,
                                    .pre = before_act});
}

/* dW = x^T dy;  db = column sums of dy, or added to what is there. */
static void linear_backward_weight(const struct pass *p, const void *dy, const void *x,
                                   const struct gpt_pair *linear, int n)
{
    const struct param *w = &p->m->table.params[linear->weight];
    p->ops->matmul(p->stream, gpt_gradient(p->m, linear->weight), x, dy,
                   &(struct matmul){.m = w->rows,
                                    .n = w->cols,
                                    .k = n,
                                    .trans_a = true,
                                    .accumulate = p->adds,
                                    .c_is_f32 = true});
    if (linear->bias != GPT_NONE)
        p->ops->bias_backward(p->stream, gpt_gradient(p->m, linear->bias), dy, n, w->cols, p->adds);
}

/* dx = dy W^T, times act' where x was act(before_act). */
static void linear_backward_input(const struct pass *p, void *dx, const void *dy,
                                  const struct gpt_pair *linear, int n, enum activation act,
                                  const void *before_act)
{
    const struct param *w = &p->m->table.params[linear->weight];
    p->ops->matmul(p->stream, dx, dy, gpt_weight(p->m, linear->weight),
                   &(struct matmul){.m = n,
                                    .n = w->rows,
                                    .k = w->cols,
                                    .trans_b = true,
                                    .act = act,
                                    .gradient_of = before_act});
}

/* Both, of a layer whose x is what the layer before it left. */
static void linear_backward(const struct pass *p, void *dx, const void *dy, const void *x,
                            const struct gpt_pair *linear, int n)
{
    linear_backward_weight(p, dy, x, linear, n);
    linear_backward_input(p, dx, dy, linear, n, ACT_NONE, NULL);
}

/* Norms. */

/* x_out = x_in + dropout(branch);  y = norm(x_out) */
static void norm_forward(const struct pass *p, void *x_out, void *y, float *mean, float *rstd,
                         const void *x_in, const void *branch, const struct token_rows *rows,
                         const struct gpt_pair *norm, struct dropout drop)
{
    const struct gpt_config *c = &p->m->config;
    if (c->parts.rms_norm) {
        p->ops->residual_rmsnorm_forward(p->stream, x_out, y, rstd, x_in, branch, rows,
                                         gpt_weight(p->m, norm->weight), c->layer_norm_epsilon,
                                         c->n_embd, drop);
        return;
    }
    p->ops->residual_layernorm_forward(p->stream, x_out, y, mean, rstd, x_in, branch, rows,
                                       gpt_weight(p->m, norm->weight), gpt_weight(p->m, norm->bias),
                                       c->layer_norm_epsilon, c->n_embd, drop);
}

/* d_x: the gradient of x_out, then of x_in;  d_branch: of branch, or NULL */
static void norm_backward(const struct pass *p, void *d_x, void *d_branch, const void *d_y,
                          const void *x_out, const float *mean, const float *rstd,
                          const struct token_rows *rows, const struct gpt_pair *norm,
                          struct dropout drop)
{
    const struct gpt_config *c = &p->m->config;
    const void *weight = gpt_weight(p->m, norm->weight);
    float *d_weight = gpt_gradient(p->m, norm->weight), *d_bias = gpt_gradient(p->m, norm->bias);
    if (c->parts.rms_norm)
        p->ops->residual_rmsnorm_backward(p->stream, d_x, d_branch, d_weight, d_y, x_out, rstd,
                                          rows, weight, c->n_embd, drop, p->adds);
    else
        p->ops->residual_layernorm_backward(p->stream, d_x, d_branch, d_weight, d_bias, d_y, x_out,
                                            mean, rstd, rows, weight, c->n_embd, drop, p->adds);
}

/* Forward. */

/* The first norm. x: (n, C) the residual stream;  branch: what the block before left to add to it,
 * or NULL. */
static void block_begin(const struct pass *p, int block, const void *x, const void *branch)
{
    struct gpt_block *a = block_memory(p, block);
    norm_forward(p, a->x_1, a->ln_1, a->mean_1, a->rstd_1, x, branch, &p->micro->batch.rows,
                 gpt_block_pair(p->m, block, LN_1),
                 branch ? block_dropout(p, block - 1, DROP_MLP_RESIDUAL) : (struct dropout){0});
}

static bool block_turns(const struct pass *p, int block)
{
    const struct gpt_config *c = &p->m->config;
    return c->parts.rotary && (c->no_rope_interval == 0 || (block + 1) % c->no_rope_interval != 0);
}

/* Positions and norms of q and k, where there are such. */
static void turn_forward(const struct pass *p, int block)
{
    struct gpt_block *a = block_memory(p, block);
    const struct rotary rotary = block_rotary(p, block);
    if (block_turns(p, block))
        p->ops->rotary_forward(p->stream, a->qkv, a->qk, &p->micro->batch.rows, &rotary);
}

/* fc with its activation; of SwiGLU what is before that. */
static void fc_forward(const struct pass *p, int block, int n)
{
    const struct gpt_config *c = &p->m->config;
    struct gpt_block *a = block_memory(p, block);
    const struct gpt_pair *fc = gpt_block_pair(p->m, block, FC);
    if (c->parts.swiglu)
        linear_forward(p, a->fc_before_act, a->ln_2, fc, n, ACT_NONE, NULL);
    else
        linear_forward(p, a->fc, a->ln_2, fc, n, c->activation_function,
                       p->step ? a->fc_before_act : NULL);
}

/* From qkv to att. */
static void attend(const struct pass *p, int block)
{
    const struct gpt_block *a = block_memory(p, block);
    const struct token_rows *rows = &p->micro->batch.rows;
    const struct attention attention = block_attention(p, block);
    const struct gpt_cache *cache = p->cache;
    if (!cache)
        p->ops->attention_forward(p->stream, a->att, a->lse, a->qkv, rows, &attention);
    else
        p->ops->attention_cached(p->stream, a->att,
                                 gpt_at(p->m, cache->memory, (size_t)block * cache->layer_size),
                                 cache->n, a->qkv, rows, &attention);
}

/* From there to the activation, SwiGLU's not included. Leaves its x_2. */
static void block_inner(const struct pass *p, int block)
{
    struct gpt *m = p->m;
    struct gpt_block *a = block_memory(p, block);
    struct gpt_buffers *t = &m->buffers;
    struct gpt_carry *carry = &p->micro->carry;
    const struct token_rows *rows = &p->micro->batch.rows, *tail = rows_after_attention(p, block);

    linear_forward(p, a->qkv, a->ln_1, gpt_block_pair(p->m, block, QKV), rows->n_tokens, ACT_NONE,
                   NULL);
    turn_forward(p, block);
    attend(p, block);
    const void *x_1 = a->x_1, *att = a->att;
    if (gpt_takes_last(m, block)) {
        p->ops->gather_last(p->stream, t->x_last, a->x_1, rows, m->config.n_embd);
        p->ops->gather_last(p->stream, carry->att_last, a->att, rows, attention_width(p));
        x_1 = t->x_last, att = carry->att_last;
    }
    linear_forward(p, carry->branch, att, gpt_block_pair(p->m, block, ATT_PROJ), tail->n_tokens,
                   ACT_NONE, NULL);
    norm_forward(p, a->x_2, a->ln_2, a->mean_2, a->rstd_2, x_1, carry->branch, tail,
                 gpt_block_pair(p->m, block, LN_2),
                 block_dropout(p, block, DROP_ATTENTION_RESIDUAL));
    fc_forward(p, block, tail->n_tokens);
}

/* The residual stream that enters a block, or behind the last one the final norm. */
static void *entering(const struct pass *p, int block)
{
    return block > 0 ? block_memory(p, block - 1)->x_2 : block_memory(p, 0)->x_1;
}

/* Takes the residual stream, and carry.branch, what the block before left to add to it, unless this
 * is the first. Leaves its own x_2 and branch. */
static void block_forward(const struct pass *p, int block)
{
    const struct gpt_config *c = &p->m->config;
    const struct gpt_block *a = block_memory(p, block);
    const int n = rows_after_attention(p, block)->n_tokens;
    void *branch = p->micro->carry.branch;
    block_begin(p, block, entering(p, block), block > 0 ? branch : NULL);
    block_inner(p, block);
    if (c->parts.swiglu)
        p->ops->swiglu_forward(p->stream, a->fc, a->fc_before_act, n, c->n_inner);
    linear_forward(p, branch, a->fc, gpt_block_pair(p->m, block, MLP_PROJ), n, ACT_NONE, NULL);
}

/* Before its backward pass: all that block_forward left but x_1, which is still there, the branch,
 * which is no longer needed, and SwiGLU's output, which comes with its gradient. The last block's
 * memory nobody has used since, unless there are several micro-batches. */
static void block_recompute(const struct pass *p, int block)
{
    const bool is_there = p->n == 1 && block == p->m->config.n_layer - 1;
    if (p->m->size.mode != GPT_TRAIN_RECOMPUTE || is_there)
        return;
    block_begin(p, block, block_memory(p, block)->x_1, NULL);
    block_inner(p, block);
}

static void embed(const struct pass *p)
{
    struct gpt *m = p->m;
    p->ops->embedding_forward(p->stream, entering(p, 0), &p->micro->batch.rows,
                              gpt_weight(m, m->layout.wte), gpt_weight(m, m->layout.wpe),
                              m->config.n_embd, embedding_dropout(p));
}

/* Embeddings and blocks. */
static void model_forward(struct pass *p)
{
    before_layer(p, 0);
    for_each_micro_batch (p)
        embed(p);
    for (int i = 0; i < p->m->config.n_layer; i++) {
        before_layer(p, i + 1);
        for_each_micro_batch (p)
            block_forward(p, i);
        after_layer(p, i + 1);
    }
}

/* The final norm, up to buffers.ln_f: (n, C) for language modelling, (n_seqs, C) for the other
 * heads. */
static void final_norm(const struct pass *p)
{
    struct gpt *m = p->m;
    struct gpt_buffers *t = &m->buffers;
    const int n_blocks = m->config.n_layer;
    norm_forward(p, t->x_f, t->ln_f, t->mean_f, t->rstd_f, entering(p, n_blocks),
                 p->micro->carry.branch, rows_after_attention(p, n_blocks - 1), &m->layout.ln_f,
                 block_dropout(p, n_blocks - 1, DROP_MLP_RESIDUAL));
}

/* Heads: losses, and in training at once the gradient of ln_f in buffers.d_y. */

/* logits = y W.  y: (n, C)  logits: (n, outputs) */
static void head_forward(const struct pass *p, const void *y, int n, int outputs)
{
    const struct gpt *m = p->m;
    p->ops->matmul(p->stream, m->buffers.logits, y, gpt_weight(m, m->layout.head),
                   &(struct matmul){.m = n,
                                    .n = outputs,
                                    .k = m->config.n_embd,
                                    .trans_b = gpt_is_tied(&m->config),
                                    .c_is_f32 = true});
}

/* From the logits' gradient:  dy = dlogits W^T;  dW = y^T dlogits, or added to what is there. */
static void head_backward(const struct pass *p, void *dy, const void *y, int n, int outputs,
                          bool adds)
{
    const struct gpt *m = p->m;
    const struct gpt_buffers *t = &m->buffers;
    bool tied = gpt_is_tied(&m->config);
    int weight = m->layout.head, C = m->config.n_embd;
    p->ops->matmul(p->stream, gpt_gradient(m, weight), tied ? t->d_logits : y,
                   tied ? y : t->d_logits,
                   &(struct matmul){.m = tied ? outputs : C,
                                    .n = tied ? C : outputs,
                                    .k = n,
                                    .trans_a = true,
                                    .accumulate = adds,
                                    .c_is_f32 = true});
    p->ops->matmul(p->stream, dy, t->d_logits, gpt_weight(m, weight),
                   &(struct matmul){.m = n, .n = C, .k = outputs, .trans_b = !tied});
}

/* Where the loss leaves the logits' gradient; NULL: it is not wanted. */
static void *logits_gradient(const struct pass *p)
{
    return p->step ? p->m->buffers.d_logits : NULL;
}

/* The last tokens' head. */
static void score_head(const struct pass *p, float scale)
{
    const struct gpt *m = p->m;
    const struct gpt_buffers *t = &m->buffers;
    int n = p->micro->batch.last.n_tokens, outputs = m->config.num_labels;
    head_forward(p, t->ln_f, n, outputs);
    if (p->logits && n > 0) /* before the loss, which may overwrite them */
        m->device->copy(p->stream, p->logits, t->logits,
                        (size_t)n * (size_t)outputs * sizeof(float));
    if (!p->micro->batch.targets && !p->step)
        return;
    if (m->config.head == GPT_HEAD_REGRESS)
        p->ops->squared_error(p->stream, t->losses, logits_gradient(p), t->logits,
                              p->micro->batch.targets, n, scale);
    else
        p->ops->cross_entropy(p->stream, t->losses, logits_gradient(p), t->logits,
                              p->micro->batch.targets, n, outputs, outputs, scale);
    if (p->step)
        head_backward(p, t->d_y, t->ln_f, n, outputs, p->adds);
}

/* Every token's head, a chunk of tokens at a time. */
static void lm_head(const struct pass *p, float scale)
{
    const struct gpt *m = p->m;
    const struct gpt_buffers *t = &m->buffers;
    int n = p->micro->batch.rows.n_tokens, outputs = gpt_head_outputs(&m->config);
    const int *targets = p->micro->batch.targets;
    if (!targets && !p->step)
        return;
    const int most = m->device->head_rows;
    for (int first = 0; first == 0 || first < n; first += most) { /* no tokens: gradients are 0 */
        int rows = n - first < most ? n - first : most;
        size_t at = (size_t)first * (size_t)m->config.n_embd;
        const void *y = gpt_at(m, t->ln_f, at);
        head_forward(p, y, rows, outputs);
        p->ops->cross_entropy(p->stream, t->losses + first, logits_gradient(p), t->logits,
                              targets + first, rows, m->config.vocab_size, outputs, scale);
        if (p->step)
            head_backward(p, gpt_at(m, t->d_y, at), y, rows, outputs, p->adds || first > 0);
    }
}

static void head(const struct pass *p, float scale)
{
    if (p->m->config.head == GPT_HEAD_LM)
        lm_head(p, scale);
    else
        score_head(p, scale);
}

/* Adds the losses that the head left to one of the sums. */
static void sum_losses(const struct pass *p, enum gpt_loss which)
{
    const struct gpt *m = p->m;
    const struct gpt_batch *b = &p->micro->batch;
    int n = m->config.head == GPT_HEAD_LM ? b->rows.n_tokens : b->last.n_tokens;
    if (b->targets)
        p->ops->add_sum(p->stream, m->losses + which, m->buffers.losses, n);
}

/* Begins to copy a sum to the host. */
static void tell_loss(const struct pass *p, enum gpt_loss which)
{
    const struct gpt *m = p->m;
    m->device->copy(p->stream, m->losses_host + which, m->losses + which, sizeof(double));
}

/* Backward. */

/* From carry.d_branch to buffers.d_y, the gradient of ln_2. */
static void mlp_backward(const struct pass *p, int block, int n)
{
    const struct gpt_config *c = &p->m->config;
    const struct gpt_pair *projection = gpt_block_pair(p->m, block, MLP_PROJ);
    const struct gpt_block *a = block_memory(p, block);
    const void *d_branch = p->micro->carry.d_branch;
    void *d_fc = p->m->buffers.d_wide;
    if (c->parts.swiglu) { /* fc holds its gradient and then again its values */
        d_fc = a->fc_before_act;
        linear_backward_input(p, a->fc, d_branch, projection, n, ACT_NONE, NULL);
        p->ops->swiglu_backward(p->stream, d_fc, a->fc, a->fc, a->fc_before_act, n, c->n_inner);
        linear_backward_weight(p, d_branch, a->fc, projection, n);
    } else {
        linear_backward_weight(p, d_branch, a->fc, projection, n);
        linear_backward_input(p, d_fc, d_branch, projection, n, c->activation_function,
                              a->fc_before_act);
    }
    linear_backward(p, p->m->buffers.d_y, d_fc, a->ln_2, gpt_block_pair(p->m, block, FC), n);
}

static void turn_backward(const struct pass *p, int block)
{
    struct gpt *m = p->m;
    const struct rotary rotary = block_rotary(p, block);
    if (block_turns(p, block))
        p->ops->rotary_backward(
            p->stream, m->buffers.d_wide, gpt_gradient(m, gpt_block_pair(m, block, Q_NORM)->weight),
            gpt_gradient(m, gpt_block_pair(m, block, K_NORM)->weight), block_memory(p, block)->qk,
            &p->micro->batch.rows, &rotary, p->adds);
}

/* In: carry.d_branch and d_x (d_x_last after gathering), the gradients of what block_forward left.
 * Out: d_x, the gradient of the x that it took, and d_branch, that of the branch. */
static void block_backward(const struct pass *p, int block)
{
    struct gpt *m = p->m;
    struct gpt_block *a = block_memory(p, block);
    struct gpt_buffers *t = &m->buffers;
    struct gpt_carry *carry = &p->micro->carry;
    const struct token_rows *rows = &p->micro->batch.rows, *tail = rows_after_attention(p, block);
    bool last = gpt_takes_last(m, block);
    void *d_x = last ? carry->d_x_last : carry->d_x, *d_att = last ? t->d_att_last : t->d_y;

    mlp_backward(p, block, tail->n_tokens);
    norm_backward(p, d_x, carry->d_branch, t->d_y, a->x_2, a->mean_2, a->rstd_2, tail,
                  gpt_block_pair(p->m, block, LN_2),
                  block_dropout(p, block, DROP_ATTENTION_RESIDUAL));
    linear_backward(p, d_att, carry->d_branch, last ? carry->att_last : a->att,
                    gpt_block_pair(p->m, block, ATT_PROJ), tail->n_tokens);
    if (last) {
        p->ops->scatter_last(p->stream, carry->d_x, carry->d_x_last, rows, m->config.n_embd);
        p->ops->scatter_last(p->stream, t->d_y, t->d_att_last, rows, attention_width(p));
    }
    const struct attention attention = block_attention(p, block);
    p->ops->attention_backward(p->stream, t->d_wide, t->d_y, a->qkv, a->att, a->lse, rows,
                               &attention);
    turn_backward(p, block);
    linear_backward(p, t->d_y, t->d_wide, a->ln_1, gpt_block_pair(p->m, block, QKV),
                    rows->n_tokens);
    norm_backward(p, carry->d_x, block > 0 ? carry->d_branch : NULL, t->d_y, a->x_1, a->mean_1,
                  a->rstd_1, rows, gpt_block_pair(p->m, block, LN_1),
                  block > 0 ? block_dropout(p, block - 1, DROP_MLP_RESIDUAL) : (struct dropout){0});
}

/* From buffers.d_y, the gradient of ln_f. */
static void final_norm_backward(const struct pass *p)
{
    struct gpt *m = p->m;
    struct gpt_buffers *t = &m->buffers;
    struct gpt_carry *carry = &p->micro->carry;
    const int last = m->config.n_layer - 1;
    const struct token_rows *rows = rows_after_attention(p, last);
    void *d_x = gpt_takes_last(m, last) ? carry->d_x_last : carry->d_x;
    m->device->zero(p->stream, d_x,
                    (size_t)rows->n_tokens * (size_t)m->config.n_embd *
                        dtype_size(m->device->dtype));
    norm_backward(p, d_x, carry->d_branch, t->d_y, t->x_f, t->mean_f, t->rstd_f, rows,
                  &m->layout.ln_f, block_dropout(p, last, DROP_MLP_RESIDUAL));
}

/* A layer whose gradient is about to be written. */
static void begin_gradient(const struct pass *p, int layer)
{
    const struct gpt_hooks *hooks = &p->m->hooks;
    if (hooks->gradients_needed && !p->step->continues)
        hooks->gradients_needed(hooks->context, layer);
}

static void end_gradient(const struct pass *p, int layer)
{
    const struct gpt_hooks *hooks = &p->m->hooks;
    if (hooks->gradients_ready && !p->step->to_continue)
        hooks->gradients_ready(hooks->context, layer);
}

/* The final norm and the head, forward and backward. */
static void top(const struct pass *p)
{
    final_norm(p);
    head(p, p->step->scale);
    sum_losses(p, GPT_LOSS_TRAIN);
    final_norm_backward(p);
}

static void zero_gradient(const struct pass *p, int param)
{
    const struct gpt *m = p->m;
    if (param != GPT_NONE && !p->step->continues)
        m->device->zero(p->stream, gpt_gradient(m, param),
                        m->table.params[param].n_elements * sizeof(float));
}

/* Tokens that do not occur have no gradient: it is zero, and what there is is added; to the head's,
 * if that is tied. */
static void embeddings_backward(struct pass *p)
{
    struct gpt *m = p->m;
    if (!gpt_is_tied(&m->config))
        zero_gradient(p, m->layout.wte);
    zero_gradient(p, m->layout.wpe);
    for_each_micro_batch (p)
        p->ops->embedding_backward(p->stream, gpt_gradient(m, m->layout.wte),
                                   gpt_gradient(m, m->layout.wpe), p->micro->carry.d_x,
                                   &p->micro->batch.rows, p->micro->batch.order, m->config.n_embd,
                                   embedding_dropout(p));
}

/* Blocks and embeddings. */
static void model_backward(struct pass *p)
{
    for (int layer = p->m->config.n_layer; layer > 0; layer--) {
        before_layer(p, layer);
        begin_gradient(p, layer);
        for_each_micro_batch (p) {
            block_recompute(p, layer - 1);
            block_backward(p, layer - 1);
        }
        after_layer(p, layer);
        end_gradient(p, layer);
    }
    if (!gpt_is_tied(&p->m->config))
        begin_gradient(p, 0);
    embeddings_backward(p);
    after_layer(p, 0);
    end_gradient(p, 0);
}

double gpt_evaluate(struct gpt *model, const struct batch *batch, float *logits)
{
    struct device *d = model->device;
    struct pass p = pass_begin(model, batch, 1);
    p.logits = logits;
    d->zero(p.stream, model->losses + GPT_LOSS_EVALUATE, sizeof(double));
    model_forward(&p);
    p.micro = model->micro_batches;
    before_layer(&p, model->config.n_layer + 1);
    final_norm(&p);
    head(&p, 1);
    after_layer(&p, model->config.n_layer + 1);
    after_layer(&p, 0);
    sum_losses(&p, GPT_LOSS_EVALUATE);
    tell_loss(&p, GPT_LOSS_EVALUATE);
    pass_end(&p);
    d->stream_wait(p.stream);
    return model->losses_host[GPT_LOSS_EVALUATE];
}

void gpt_pass_by(struct gpt *model)
{
    const struct pass p = {.m = model};
    const int head = model->config.n_layer + 1;
    for (int layer = 0; layer <= head; layer++) {
        before_layer(&p, layer);
        if (layer > 0)
            after_layer(&p, layer);
    }
    after_layer(&p, 0);
}

struct gpt_cache *gpt_cache_create(struct gpt *model, int capacity)
{
    const struct heads heads = gpt_heads(&model->config);
    struct device *d = model->device;
    assert(model->config.head == GPT_HEAD_LM && capacity <= model->config.n_positions);
    if (!d->ops->attention_cached)
        return NULL;
    struct gpt_cache *cache = zf_malloc(sizeof *cache);
    *cache = (struct gpt_cache){.device = d, .capacity = capacity};
    cache->layer_size = 2 * (size_t)capacity * (size_t)heads.n_kv_head * (size_t)heads.head_dim;
    cache->memory =
        d->allocate((size_t)model->config.n_layer * cache->layer_size * dtype_size(d->dtype));
    return cache;
}

void gpt_cache_destroy(struct gpt_cache *cache)
{
    if (cache)
        cache->device->release(cache->memory);
    free(cache);
}

int gpt_cache_length(const struct gpt_cache *cache)
{
    return cache->n;
}

void gpt_cache_cut(struct gpt_cache *cache, int n)
{
    assert(n >= 0 && n <= cache->n);
    cache->n = n;
}

/* Tokens that go on with a sequence of `past`. */
static void fill_continuation(struct batch *b, const int *tokens, int n, int past)
{
    for (int i = 0; i < n; i++) {
        b->tokens[i] = tokens[i];
        b->position[i] = past + i;
        b->token_seq[i] = 0;
    }
    b->n_tokens = b->seq_start[1] = n;
    b->n_seqs = 1;
}

void gpt_continue(struct gpt *model, struct gpt_cache *cache, const int *tokens, int n,
                  float *logits)
{
    struct device *d = model->device;
    struct batch batch;
    assert(n > 0 && cache->n + n <= cache->capacity);
    batch_init(&batch, n, 1);
    fill_continuation(&batch, tokens, n, cache->n);
    struct pass p = pass_begin(model, &batch, 1);
    batch_free(&batch);
    p.cache = cache;
    model_forward(&p);
    p.micro = model->micro_batches;
    before_layer(&p, model->config.n_layer + 1);
    final_norm(&p);
    head_forward(&p,
                 gpt_at(model, model->buffers.ln_f, (size_t)(n - 1) * (size_t)model->config.n_embd),
                 1, gpt_head_outputs(&model->config));
    after_layer(&p, model->config.n_layer + 1);
    after_layer(&p, 0);
    d->copy(p.stream, logits, model->buffers.logits,
            (size_t)model->config.vocab_size * sizeof(float));
    pass_end(&p);
    d->stream_wait(p.stream);
    cache->n += n;
}

void gpt_train(struct gpt *model, const struct batch *batches, int n, const struct gpt_step *step)
{
    const int last = model->config.n_layer + 1;
    const struct gpt_hooks *hooks = &model->hooks;
    assert(model->size.mode != GPT_EVALUATE);
    assert(model->size.gradient_slots == model->config.n_layer ||
           !(step->continues || step->to_continue));
    struct pass p = pass_begin(model, batches, n);
    p.step = step;
    model_forward(&p);
    before_layer(&p, last);
    begin_gradient(&p, last);
    if (gpt_is_tied(&model->config))
        begin_gradient(&p, 0);
    for_each_micro_batch (&p)
        top(&p);
    tell_loss(&p, GPT_LOSS_TRAIN);
    model->device->event_record(model->loss_copied, p.stream);
    model->loss_is_due = true;
    if (hooks->before_backward)
        hooks->before_backward(hooks->context);
    after_layer(&p, last);
    end_gradient(&p, last);
    model_backward(&p);
    pass_end(&p);
}

double gpt_take_loss(struct gpt *model)
{
    struct device *d = model->device;
    if (!model->loss_is_due)
        return 0;
    d->event_wait(model->loss_copied);
    double sum = model->losses_host[GPT_LOSS_TRAIN];
    d->zero(d->compute, model->losses + GPT_LOSS_TRAIN, sizeof(double));
    model->loss_is_due = false;
    return sum;
}
