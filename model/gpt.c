/* The schedule: forward and backward of the model over a device's operators.
 *
 * A block is seven fused operators. Each layer norm first adds the branch that the layer before it
 * left (with its dropout) to the residual stream x, so a branch is read once:
 *
 *   x_1 = x + branch;  ln_1(x_1) -> qkv -> attention -> branch = projection
 *   x_2 = x_1 + branch;  ln_2(x_2) -> fc, activation -> branch = projection
 *
 * Under a classification or regression head only last tokens matter once the last block's attention
 * has mixed the tokens: from there on they are gathered and all else is left out. */
#include "model/gpt_state.h"

#include <assert.h>
#include <math.h>

/* One run through the model. */
struct pass {
    struct gpt *m;
    const struct ops *ops;
    struct stream *stream;
    bool training;
    uint32_t seed, step; /* of the dropouts */
    const struct gpt_hooks *hooks;
    float *logits; /* evaluation: (n_seqs, num_labels) in host memory, where they go, or NULL */
};

static struct pass pass_begin(struct gpt *m, const struct batch *batch)
{
    gpt_upload_batch(m, batch);
    return (struct pass){.m = m, .ops = m->device->ops, .stream = m->device->compute};
}

static void before_layer(const struct pass *p, int layer)
{
    if (p->hooks && p->hooks->before_layer)
        p->hooks->before_layer(p->hooks->context, layer);
}

/* Dropouts are numbered: 0 the embeddings', then three of each block. The attention operator adds
 * its head's number above the low 16 bits; no model has so many blocks that they meet. */
enum dropout_place { DROP_ATTENTION, DROP_ATTENTION_RESIDUAL, DROP_MLP_RESIDUAL, BLOCK_DROPOUTS };

static struct dropout dropout_at(const struct pass *p, float probability, uint32_t site)
{
    return (struct dropout){
        .p = p->training ? probability : 0,
        .seed = p->seed,
        .step = p->step,
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
    const int head_dim = c->n_embd / c->n_head;
    float scale = c->scale_attn_weights ? 1 / sqrtf((float)head_dim) : 1;
    if (c->scale_attn_by_inverse_layer_idx)
        scale /= (float)(block + 1);
    return (struct attention){.heads = {c->n_head, c->n_head, head_dim},
                              .scale = scale,
                              .drop = block_dropout(p, block, DROP_ATTENTION)};
}

/* Evaluation keeps nothing for backward: all blocks use the first one's memory. */
static struct gpt_block *block_memory(const struct pass *p, int block)
{
    return &p->m->blocks[p->training ? block : 0];
}

/* The rows that a block has after its attention. */
static const struct token_rows *rows_after_attention(const struct gpt *m, int block)
{
    return gpt_takes_last(m, block) ? &m->batch.last : &m->batch.rows;
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

/* dW += x^T dy;  db += column sums of dy;  dx = dy W^T, times act' where x was act(before_act). */
static void linear_backward(const struct pass *p, void *dx, const void *dy, const void *x,
                            const struct gpt_pair *linear, int n, enum activation act,
                            const void *before_act)
{
    const struct param *w = &p->m->table.params[linear->weight];
    p->ops->matmul(p->stream, gpt_gradient(p->m, linear->weight), x, dy,
                   &(struct matmul){.m = w->rows,
                                    .n = w->cols,
                                    .k = n,
                                    .trans_a = true,
                                    .accumulate = true,
                                    .c_is_f32 = true});
    if (linear->bias != GPT_NONE)
        p->ops->bias_backward(p->stream, gpt_gradient(p->m, linear->bias), dy, n, w->cols);
    p->ops->matmul(p->stream, dx, dy, gpt_weight(p->m, linear->weight),
                   &(struct matmul){.m = n,
                                    .n = w->rows,
                                    .k = w->cols,
                                    .trans_b = true,
                                    .act = act,
                                    .gradient_of = before_act});
}

/* Layer norms. */

/* x_out = x_in + dropout(branch);  y = norm(x_out) */
static void norm_forward(const struct pass *p, void *x_out, void *y, float *mean, float *rstd,
                         const void *x_in, const void *branch, const struct token_rows *rows,
                         const struct gpt_pair *norm, struct dropout drop)
{
    const struct gpt_config *c = &p->m->config;
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
    p->ops->residual_layernorm_backward(
        p->stream, d_x, d_branch, gpt_gradient(p->m, norm->weight), gpt_gradient(p->m, norm->bias),
        d_y, x_out, mean, rstd, rows, gpt_weight(p->m, norm->weight), p->m->config.n_embd, drop);
}

/* Forward. */

/* The first norm. x: (n, C) the residual stream;  branch: what the block before left to add to it,
 * or NULL. */
static void block_begin(const struct pass *p, int block, const void *x, const void *branch)
{
    struct gpt_block *a = block_memory(p, block);
    norm_forward(p, a->x_1, a->ln_1, a->mean_1, a->rstd_1, x, branch, &p->m->batch.rows,
                 gpt_block_pair(p->m, block, LN_1),
                 branch ? block_dropout(p, block - 1, DROP_MLP_RESIDUAL) : (struct dropout){0});
}

/* From there to the activation. Leaves its x_2. */
static void block_inner(const struct pass *p, int block)
{
    struct gpt *m = p->m;
    const struct gpt_config *c = &m->config;
    struct gpt_block *a = block_memory(p, block);
    struct gpt_buffers *t = &m->buffers;
    const struct token_rows *rows = &m->batch.rows, *tail = rows_after_attention(m, block);
    int C = c->n_embd;

    linear_forward(p, a->qkv, a->ln_1, gpt_block_pair(p->m, block, QKV), rows->n_tokens, ACT_NONE,
                   NULL);
    const struct attention attention = block_attention(p, block);
    p->ops->attention_forward(p->stream, a->att, a->lse, a->qkv, rows, &attention);
    const void *x_1 = a->x_1, *att = a->att;
    if (gpt_takes_last(m, block)) {
        p->ops->gather_last(p->stream, t->x_last, a->x_1, rows, C);
        p->ops->gather_last(p->stream, t->att_last, a->att, rows, C);
        x_1 = t->x_last, att = t->att_last;
    }
    linear_forward(p, t->branch, att, gpt_block_pair(p->m, block, ATT_PROJ), tail->n_tokens,
                   ACT_NONE, NULL);
    norm_forward(p, a->x_2, a->ln_2, a->mean_2, a->rstd_2, x_1, t->branch, tail,
                 gpt_block_pair(p->m, block, LN_2),
                 block_dropout(p, block, DROP_ATTENTION_RESIDUAL));
    linear_forward(p, a->fc, a->ln_2, gpt_block_pair(p->m, block, FC), tail->n_tokens,
                   c->activation_function, p->training ? a->fc_before_act : NULL);
}

/* x: (n, C) the residual stream; buffers.branch what the block before left to add to it, unless
 * this is the first. Leaves its own x_2 and branch. */
static void block_forward(const struct pass *p, int block, const void *x)
{
    struct gpt *m = p->m;
    block_begin(p, block, x, block > 0 ? m->buffers.branch : NULL);
    block_inner(p, block);
    linear_forward(p, m->buffers.branch, block_memory(p, block)->fc,
                   gpt_block_pair(p->m, block, MLP_PROJ), rows_after_attention(m, block)->n_tokens,
                   ACT_NONE, NULL);
}

/* Before its backward pass: all that block_forward left but x_1, which is still there, and the
 * branch, which is no longer needed. The last block's memory nobody has used since. */
static void block_recompute(const struct pass *p, int block)
{
    if (p->m->mode != GPT_TRAIN_RECOMPUTE || block == p->m->config.n_layer - 1)
        return;
    block_begin(p, block, block_memory(p, block)->x_1, NULL);
    block_inner(p, block);
}

/* Up to buffers.ln_f: (n, C) for language modelling, (n_seqs, C) for the other heads. */
static void model_forward(const struct pass *p)
{
    struct gpt *m = p->m;
    struct gpt_buffers *t = &m->buffers;
    int n_blocks = m->config.n_layer;
    before_layer(p, 0);
    void *x = block_memory(p, 0)->x_1;
    p->ops->embedding_forward(p->stream, x, &m->batch.rows, gpt_weight(m, m->layout.wte),
                              gpt_weight(m, m->layout.wpe), m->config.n_embd, embedding_dropout(p));
    for (int i = 0; i < n_blocks; i++) {
        before_layer(p, i + 1);
        block_forward(p, i, x);
        x = block_memory(p, i)->x_2;
    }
    before_layer(p, n_blocks + 1);
    norm_forward(p, t->x_f, t->ln_f, t->mean_f, t->rstd_f, x, t->branch,
                 rows_after_attention(m, n_blocks - 1), &m->layout.ln_f,
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

/* From the logits' gradient:  dy = dlogits W^T;  dW += y^T dlogits. */
static void head_backward(const struct pass *p, void *dy, const void *y, int n, int outputs)
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
                                    .accumulate = true,
                                    .c_is_f32 = true});
    p->ops->matmul(p->stream, dy, t->d_logits, gpt_weight(m, weight),
                   &(struct matmul){.m = n, .n = C, .k = outputs, .trans_b = !tied});
}

/* Where the loss leaves the logits' gradient; NULL: it is not wanted. */
static void *logits_gradient(const struct pass *p)
{
    return p->training ? p->m->buffers.d_logits : NULL;
}

/* The last tokens' head. */
static void score_head(const struct pass *p, float scale)
{
    const struct gpt *m = p->m;
    const struct gpt_buffers *t = &m->buffers;
    int n = m->batch.last.n_tokens, outputs = m->config.num_labels;
    head_forward(p, t->ln_f, n, outputs);
    if (p->logits && n > 0) /* before the loss, which may overwrite them */
        m->device->copy(p->stream, p->logits, t->logits,
                        (size_t)n * (size_t)outputs * sizeof(float));
    if (!m->batch.targets)
        return;
    if (m->config.head == GPT_HEAD_REGRESS)
        p->ops->squared_error(p->stream, t->losses, logits_gradient(p), t->logits, m->batch.targets,
                              n, scale);
    else
        p->ops->cross_entropy(p->stream, t->losses, logits_gradient(p), t->logits, m->batch.targets,
                              n, outputs, outputs, scale);
    if (p->training)
        head_backward(p, t->d_y, t->ln_f, n, outputs);
}

/* Every token's head, a chunk of tokens at a time. */
static void lm_head(const struct pass *p, float scale)
{
    const struct gpt *m = p->m;
    const struct gpt_buffers *t = &m->buffers;
    int n = m->batch.rows.n_tokens, outputs = gpt_head_outputs(&m->config);
    const int *targets = m->batch.targets;
    if (!targets)
        return;
    const int most = m->device->head_rows;
    for (int first = 0; first < n; first += most) {
        int rows = n - first < most ? n - first : most;
        size_t at = (size_t)first * (size_t)m->config.n_embd;
        const void *y = gpt_at(m, t->ln_f, at);
        head_forward(p, y, rows, outputs);
        p->ops->cross_entropy(p->stream, t->losses + first, logits_gradient(p), t->logits,
                              targets + first, rows, m->config.vocab_size, outputs, scale);
        if (p->training)
            head_backward(p, gpt_at(m, t->d_y, at), y, rows, outputs);
    }
}

static void head(const struct pass *p, float scale)
{
    if (p->m->config.head == GPT_HEAD_LM)
        lm_head(p, scale);
    else
        score_head(p, scale);
}

/* Adds the losses that the head left to one of the sums, and begins to copy that to the host. */
static void sum_losses(const struct pass *p, enum gpt_loss which)
{
    const struct gpt *m = p->m;
    int n = m->config.head == GPT_HEAD_LM ? m->batch.rows.n_tokens : m->batch.last.n_tokens;
    if (m->batch.targets)
        p->ops->add_sum(p->stream, m->losses + which, m->buffers.losses, n);
    m->device->copy(p->stream, m->losses_host + which, m->losses + which, sizeof(double));
}

/* Backward. */

/* In: buffers.d_branch and d_x (d_x_last after gathering), the gradients of what block_forward
 * left. Out: d_x, the gradient of the x that it took, and d_branch, that of the branch. */
static void block_backward(const struct pass *p, int block)
{
    struct gpt *m = p->m;
    const struct gpt_config *c = &m->config;
    struct gpt_block *a = block_memory(p, block);
    struct gpt_buffers *t = &m->buffers;
    const struct token_rows *rows = &m->batch.rows, *tail = rows_after_attention(m, block);
    bool last = gpt_takes_last(m, block);
    void *d_x = last ? t->d_x_last : t->d_x, *d_att = last ? t->d_att_last : t->d_y;
    int C = c->n_embd;

    linear_backward(p, t->d_wide, t->d_branch, a->fc, gpt_block_pair(p->m, block, MLP_PROJ),
                    tail->n_tokens, c->activation_function, a->fc_before_act);
    linear_backward(p, t->d_y, t->d_wide, a->ln_2, gpt_block_pair(p->m, block, FC), tail->n_tokens,
                    ACT_NONE, NULL);
    norm_backward(p, d_x, t->d_branch, t->d_y, a->x_2, a->mean_2, a->rstd_2, tail,
                  gpt_block_pair(p->m, block, LN_2),
                  block_dropout(p, block, DROP_ATTENTION_RESIDUAL));
    linear_backward(p, d_att, t->d_branch, last ? t->att_last : a->att,
                    gpt_block_pair(p->m, block, ATT_PROJ), tail->n_tokens, ACT_NONE, NULL);
    if (last) {
        p->ops->scatter_last(p->stream, t->d_x, t->d_x_last, rows, C);
        p->ops->scatter_last(p->stream, t->d_y, t->d_att_last, rows, C);
    }
    const struct attention attention = block_attention(p, block);
    p->ops->attention_backward(p->stream, t->d_wide, t->d_y, a->qkv, a->att, a->lse, rows,
                               &attention);
    linear_backward(p, t->d_y, t->d_wide, a->ln_1, gpt_block_pair(p->m, block, QKV), rows->n_tokens,
                    ACT_NONE, NULL);
    norm_backward(p, t->d_x, block > 0 ? t->d_branch : NULL, t->d_y, a->x_1, a->mean_1, a->rstd_1,
                  rows, gpt_block_pair(p->m, block, LN_1),
                  block > 0 ? block_dropout(p, block - 1, DROP_MLP_RESIDUAL) : (struct dropout){0});
}

/* From buffers.d_y, the gradient of ln_f. */
static void model_backward(const struct pass *p, bool last)
{
    struct gpt *m = p->m;
    struct gpt_buffers *t = &m->buffers;
    int n_blocks = m->config.n_layer;
    const struct token_rows *rows = rows_after_attention(m, n_blocks - 1);
    bool report = last && p->hooks && p->hooks->gradients_ready;
    void *d_x = gpt_takes_last(m, n_blocks - 1) ? t->d_x_last : t->d_x;
    size_t d_x_elements = (size_t)rows->n_tokens * (size_t)m->config.n_embd;

    m->device->zero(p->stream, d_x, d_x_elements * dtype_size(m->device->dtype));
    norm_backward(p, d_x, t->d_branch, t->d_y, t->x_f, t->mean_f, t->rstd_f, rows, &m->layout.ln_f,
                  block_dropout(p, n_blocks - 1, DROP_MLP_RESIDUAL));
    for (int layer = n_blocks + 1; layer > 0; layer--) {
        if (layer <= n_blocks) {
            block_recompute(p, layer - 1);
            block_backward(p, layer - 1);
        }
        if (report)
            p->hooks->gradients_ready(p->hooks->context, layer);
    }
    p->ops->embedding_backward(p->stream, gpt_gradient(m, m->layout.wte),
                               gpt_gradient(m, m->layout.wpe), t->d_x, &m->batch.rows,
                               m->batch.order, m->config.n_embd, embedding_dropout(p));
    if (report)
        p->hooks->gradients_ready(p->hooks->context, 0);
}

double gpt_evaluate(struct gpt *model, const struct batch *batch, float *logits)
{
    struct device *d = model->device;
    struct pass p = pass_begin(model, batch);
    p.logits = logits;
    d->zero(p.stream, model->losses + GPT_LOSS_EVALUATE, sizeof(double));
    model_forward(&p);
    head(&p, 1);
    sum_losses(&p, GPT_LOSS_EVALUATE);
    gpt_release_batch(model);
    d->stream_wait(p.stream);
    return model->losses_host[GPT_LOSS_EVALUATE];
}

void gpt_train(struct gpt *model, const struct batch *batch, float scale, uint32_t seed,
               uint32_t step, bool last, const struct gpt_hooks *hooks)
{
    assert(model->mode != GPT_EVALUATE);
    struct pass p = pass_begin(model, batch);
    assert(batch->n_seqs == 0 || model->batch.targets);
    p.training = true;
    p.seed = seed;
    p.step = step;
    p.hooks = hooks;
    model_forward(&p);
    head(&p, scale);
    sum_losses(&p, GPT_LOSS_TRAIN);
    model->device->event_record(model->loss_copied, p.stream);
    model->loss_is_due = true;
    if (hooks && hooks->before_backward)
        hooks->before_backward(hooks->context);
    model_backward(&p, last);
    gpt_release_batch(model);
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
