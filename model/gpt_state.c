/* A model's parameter table and memory. */
#include "model/gpt_state.h"

#include "data/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct heads gpt_heads(const struct gpt_config *c)
{
    return (struct heads){.n_head = c->n_head,
                          .n_kv_head = c->n_kv_heads > 0 ? c->n_kv_heads : c->n_head,
                          .head_dim = c->head_dim > 0 ? c->head_dim : c->n_embd / c->n_head};
}

/* The parameter table. */

static int add_matrix(struct param_table *t, const char *name, int rows, int cols, int layer,
                      float init_std)
{
    params_add(t, name, PARAM_MATRIX, rows, cols, layer)->init_std = init_std;
    return t->n_params - 1;
}

static int add_bias(struct param_table *t, const char *name, int cols, int layer)
{
    char full[80];
    snprintf(full, sizeof full, "%s.bias", name);
    params_add(t, full, PARAM_VECTOR, 1, cols, layer);
    return t->n_params - 1;
}

static struct gpt_pair add_norm(struct param_table *t, const char *name, int cols, int layer,
                                bool bias)
{
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    params_add(t, full, PARAM_VECTOR, 1, cols, layer)->init_one = true;
    int gain = t->n_params - 1;
    return (struct gpt_pair){gain, bias ? add_bias(t, name, cols, layer) : GPT_NONE};
}

/* The parameters of a block, as they are added. */
struct block_maker {
    struct param_table *table;
    const struct gpt_config *config;
    int block;
    struct gpt_pair *pairs; /* (GPT_BLOCK_PAIRS) where they go */
};

static void name_pair(const struct block_maker *b, enum gpt_block_pair which, char name[64])
{
    const struct gpt_names *names = b->config->arch->names;
    snprintf(name, 64, "%s%s.%d.%s", names->prefix, names->blocks, b->block, names->pairs[which]);
}

static void add_block_norm(const struct block_maker *b, enum gpt_block_pair which)
{
    char name[64];
    name_pair(b, which, name);
    b->pairs[which] =
        add_norm(b->table, name, b->config->n_embd, b->block + 1, !b->config->parts.rms_norm);
}

static void add_head_norm(const struct block_maker *b, enum gpt_block_pair which, int head_dim)
{
    char name[64];
    b->pairs[which] = (struct gpt_pair){GPT_NONE, GPT_NONE};
    if (!b->config->parts.qk_norm)
        return;
    name_pair(b, which, name);
    b->pairs[which] = add_norm(b->table, name, head_dim, b->block + 1, false);
}

static void add_block_linear(const struct block_maker *b, enum gpt_block_pair which, int in,
                             int out, bool bias, float init_std)
{
    char name[64], weight[80];
    int layer = b->block + 1;
    name_pair(b, which, name);
    snprintf(weight, sizeof weight, "%s.weight", name);
    struct gpt_pair *pair = &b->pairs[which];
    pair->weight = add_matrix(b->table, weight, in, out, layer, init_std);
    b->table->params[pair->weight].transposed = b->config->arch->transposed;
    pair->bias = bias ? add_bias(b->table, name, out, layer) : GPT_NONE;
}

static void add_block(struct param_table *t, const struct gpt_config *c, int block,
                      struct gpt_pair *pairs)
{
    const struct block_maker b = {t, c, block, pairs};
    const struct gpt_parts *parts = &c->parts;
    const struct heads h = gpt_heads(c);
    const int C = c->n_embd, I = c->n_inner, width = h.n_head * h.head_dim;
    const float std = c->initializer_range;
    const float residual = c->arch->scales_residuals ? std / sqrtf(2.0f * (float)c->n_layer) : std;
    add_block_norm(&b, LN_1);
    add_block_linear(&b, QKV, C, heads_row(&h), parts->qkv_bias, std);
    add_head_norm(&b, Q_NORM, h.head_dim);
    add_head_norm(&b, K_NORM, h.head_dim);
    add_block_linear(&b, ATT_PROJ, width, C, parts->projection_bias, residual);
    add_block_norm(&b, LN_2);
    add_block_linear(&b, FC, C, parts->swiglu ? 2 * I : I, parts->mlp_bias, std);
    add_block_linear(&b, MLP_PROJ, I, C, parts->mlp_bias, residual);
}

/* A tied head's matrix is the token embeddings and zero rows behind them, so that rows of logits
 * are aligned as tensor cores ask for it. */
#define LOGITS_ALIGNMENT 64

int gpt_head_outputs(const struct gpt_config *c)
{
    int vocab = c->vocab_size, padded = (vocab + LOGITS_ALIGNMENT - 1) / LOGITS_ALIGNMENT;
    if (c->head != GPT_HEAD_LM)
        return c->num_labels;
    return gpt_is_tied(c) ? padded * LOGITS_ALIGNMENT : vocab;
}

static int add_head(struct param_table *t, const struct gpt_config *c)
{
    bool lm = c->head == GPT_HEAD_LM;
    int head = add_matrix(t, lm ? "lm_head.weight" : "score.weight", c->n_embd,
                          lm ? c->vocab_size : c->num_labels, c->n_layer + 1, c->initializer_range);
    t->params[head].transposed = true;
    return head;
}

static int add_embeddings(struct param_table *t, const struct gpt_config *c, const char *name,
                          int rows)
{
    char full[80];
    snprintf(full, sizeof full, "%s%s.weight", c->arch->names->prefix, name);
    return add_matrix(t, full, rows, c->n_embd, 0, c->initializer_range);
}

/* All parameters in their order. layout->blocks: (n_layer) */
static struct param_table lay_out(const struct gpt_config *c, struct gpt_layout *layout)
{
    struct param_table table = {0}, *t = &table;
    const struct gpt_names *names = c->arch->names;
    const int C = c->n_embd;
    char final_norm[64];
    snprintf(final_norm, sizeof final_norm, "%s%s", names->prefix, names->final_norm);
    layout->wte = add_embeddings(t, c, names->tokens, c->vocab_size);
    if (gpt_is_tied(c))
        params_pad(t, (size_t)(gpt_head_outputs(c) - c->vocab_size) * (size_t)C);
    layout->wpe = c->parts.learned_positions
                      ? add_embeddings(t, c, names->positions, c->n_positions)
                      : GPT_NONE;
    for (int i = 0; i < c->n_layer; i++)
        add_block(t, c, i, layout->blocks[i]);
    layout->ln_f = add_norm(t, final_norm, C, c->n_layer + 1, !c->parts.rms_norm);
    layout->head = gpt_is_tied(c) ? layout->wte : add_head(t, c);
    table.ends_alternate = !gpt_is_tied(c);
    return table;
}

static struct gpt_layout layout_create(const struct gpt_config *c)
{
    struct gpt_layout layout = {0};
    layout.blocks = zf_malloc(sizeof *layout.blocks * (size_t)c->n_layer);
    return layout;
}

struct param_table gpt_param_table(const struct gpt_config *c)
{
    struct gpt_layout layout = layout_create(c);
    struct param_table table = lay_out(c, &layout);
    free(layout.blocks);
    return table;
}

/* Memory. */

static size_t attention_width(const struct gpt *m)
{
    const struct heads h = gpt_heads(&m->config);
    return (size_t)h.n_head * (size_t)h.head_dim;
}

/* A norm's means, or none. */
static float *place_means(const struct gpt *m, struct arena *a)
{
    return m->config.parts.rms_norm
               ? NULL
               : arena_take(a, &a->use.activations, (size_t)m->size.max_tokens, sizeof(float));
}

/* first: the first block, whose fc all have where there is SwiGLU; NULL: this is it */
static void place_mlp(const struct gpt *m, struct arena *a, struct gpt_block *block,
                      const struct gpt_block *first)
{
    const size_t inner = (size_t)m->size.max_tokens * (size_t)m->config.n_inner;
    const size_t bytes = dtype_size(m->device->dtype);
    size_t *use = &a->use.activations;
    if (m->config.parts.swiglu)
        block->fc_before_act = arena_take(a, use, 2 * inner, bytes);
    else if (m->size.mode != GPT_EVALUATE)
        block->fc_before_act = arena_take(a, use, inner, bytes);
    block->fc = first && m->config.parts.swiglu ? first->fc : arena_take(a, use, inner, bytes);
}

/* One block's arrays: the shapes are those of gpt_state.h. first: as in place_mlp */
static struct gpt_block place_block(const struct gpt *m, struct arena *a,
                                    const struct gpt_block *first)
{
    const struct heads h = gpt_heads(&m->config);
    const size_t row = (size_t)heads_row(&h), width = attention_width(m);
    const size_t rotated = (size_t)(h.n_head + h.n_kv_head) * (size_t)h.head_dim;
    size_t n = (size_t)m->size.max_tokens, C = (size_t)m->config.n_embd;
    size_t bytes = dtype_size(m->device->dtype), f32 = sizeof(float);
    size_t *use = &a->use.activations;
    struct gpt_block block = {
        .x_1 = arena_take(a, use, n * C, bytes),
        .ln_1 = arena_take(a, use, n * C, bytes),
        .mean_1 = place_means(m, a),
        .rstd_1 = arena_take(a, use, n, f32),
        .qk = m->config.parts.qk_norm ? arena_take(a, use, n * rotated, bytes) : NULL,
        .qkv = arena_take(a, use, n * row, bytes),
        .att = arena_take(a, use, n * width, bytes),
        .lse = arena_take(a, use, n * (size_t)h.n_head, f32),
        .x_2 = arena_take(a, use, n * C, bytes),
        .ln_2 = arena_take(a, use, n * C, bytes),
        .mean_2 = place_means(m, a),
        .rstd_2 = arena_take(a, use, n, f32),
    };
    place_mlp(m, a, &block, first);
    return block;
}

/* What micro-batch u has of its own of a block. */
static void place_micro_block(struct gpt *m, struct arena *a, int u, int block)
{
    size_t x_elements = (size_t)m->size.max_tokens * (size_t)m->config.n_embd;
    size_t *use = &a->use.activations, bytes = dtype_size(m->device->dtype);
    struct gpt_block *blocks = m->micro_batches[u].blocks;
    const struct gpt_block *first = u == 0 && block == 0 ? NULL : m->micro_batches[0].blocks;
    if (!first || m->size.mode == GPT_TRAIN) {
        blocks[block] = place_block(m, a, first);
        return;
    }
    blocks[block] = *first;
    if (m->size.mode != GPT_TRAIN_RECOMPUTE)
        return;
    blocks[block].x_1 = arena_take(a, use, x_elements, bytes);
    blocks[block].x_2 = block > 0 ? blocks[0].x_2 : arena_take(a, use, x_elements, bytes);
}

static size_t count_logits(const struct gpt *m)
{
    const struct gpt_config *c = &m->config;
    const int tokens = m->size.max_tokens, most = m->device->head_rows;
    int chunk = tokens < most ? tokens : most;
    int rows = c->head == GPT_HEAD_LM ? chunk : m->size.max_seqs;
    return (size_t)rows * (size_t)gpt_head_outputs(c);
}

static void place_buffers(struct gpt *m, struct arena *a)
{
    size_t n = (size_t)m->size.max_tokens, s = (size_t)m->size.max_seqs;
    size_t C = (size_t)m->config.n_embd, bytes = dtype_size(m->device->dtype), f32 = sizeof(float);
    size_t *use = &a->use.activations;
    m->buffers = (struct gpt_buffers){
        .x_last = arena_take(a, use, s * C, bytes),
        .x_f = arena_take(a, use, n * C, bytes),
        .ln_f = arena_take(a, use, n * C, bytes),
        .mean_f = place_means(m, a),
        .rstd_f = arena_take(a, use, n, f32),
        .logits = arena_take(a, use, count_logits(m), f32),
        .losses = arena_take(a, use, n, f32),
    };
}

static void place_carry(struct gpt *m, struct arena *a, struct gpt_carry *t)
{
    size_t n = (size_t)m->size.max_tokens, s = (size_t)m->size.max_seqs;
    size_t C = (size_t)m->config.n_embd, bytes = dtype_size(m->device->dtype);
    size_t *use = &a->use.activations;
    t->branch = arena_take(a, use, n * C, bytes);
    t->att_last = arena_take(a, use, s * attention_width(m), bytes);
    if (m->size.mode == GPT_EVALUATE)
        return;
    t->d_x = arena_take(a, use, n * C, bytes);
    t->d_x_last = arena_take(a, use, s * C, bytes);
    t->d_branch = arena_take(a, use, n * C, bytes);
}

static size_t greater(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void place_gradient_buffers(struct gpt *m, struct arena *a)
{
    struct gpt_buffers *t = &m->buffers;
    const struct heads h = gpt_heads(&m->config);
    const size_t n = (size_t)m->size.max_tokens, s = (size_t)m->size.max_seqs;
    const size_t C = (size_t)m->config.n_embd, width = attention_width(m);
    const size_t inner = m->config.parts.swiglu ? 0 : (size_t)m->config.n_inner;
    size_t bytes = dtype_size(m->device->dtype), *use = &a->use.activations;
    t->d_y = arena_take(a, use, n * greater(C, width), bytes);
    t->d_wide = arena_take(a, use, n * greater((size_t)heads_row(&h), inner), bytes);
    t->d_att_last = arena_take(a, use, s * width, bytes);
    /* logits are fp32: gradients of the same type take their place */
    t->d_logits = m->device->dtype == DTYPE_F32 ? (void *)t->logits
                                                : arena_take(a, use, count_logits(m), bytes);
}

/* What gpt_weights.c moves at a time is one parameter's. */
static size_t stage_elements(const struct param_table *t)
{
    size_t most = 0;
    for (int i = 0; i < t->n_params; i++)
        most = t->params[i].n_elements > most ? t->params[i].n_elements : most;
    return most < GPT_STAGE_ELEMENTS ? most : GPT_STAGE_ELEMENTS;
}

/* Places everything that the model has in device memory. */
static void place_arrays(struct gpt *m, struct arena *a)
{
    size_t *workspace = &a->use.workspace;
    const bool trains = m->size.mode != GPT_EVALUATE;
    m->weights = arena_take(a, &a->use.parameters, m->table.n_values, dtype_size(m->device->dtype));
    if (trains)
        m->gradients = arena_take(a, &a->use.gradients, m->table.n_gradients, sizeof(float));
    for (int u = 0; u < m->size.micro_batches; u++) {
        for (int block = 0; block < m->config.n_layer; block++)
            place_micro_block(m, a, u, block);
        place_carry(m, a, &m->micro_batches[u].carry);
    }
    place_buffers(m, a);
    if (trains)
        place_gradient_buffers(m, a);
    for (int i = 0; i <= m->size.micro_batches; i++)
        m->inputs[i].device = arena_take(a, workspace, gpt_input_ints(m), sizeof(int));
    m->losses = arena_take(a, workspace, GPT_LOSSES, sizeof(double));
    if (m->config.parts.rotary)
        m->frequency =
            arena_take(a, workspace, (size_t)gpt_heads(&m->config).head_dim / 2, sizeof(float));
    if (m->device->dtype != DTYPE_F32) /* parameters come and go in fp32 */
        m->staging = arena_take(a, workspace, stage_elements(&m->table), sizeof(float));
}

void gpt_place_params(struct param_table *table, const struct gpt_size *size)
{
    if (size->ranks > 1)
        params_divide(table, size->ranks);
    params_share_values(table, size->value_slots);
    params_share_gradients(table, size->gradient_slots);
}

/* A model whose arrays are not placed yet. */
static struct gpt *describe(struct device *device, const struct gpt_config *config,
                            const struct gpt_size *size)
{
    assert(size->max_tokens >= size->max_seqs && size->max_seqs > 0);
    const int blocks = config->n_layer, slots = size->gradient_slots;
    struct gpt *m = zf_calloc(1, sizeof *m);
    m->device = device;
    m->config = *config;
    m->size = *size;
    m->size.micro_batches += size->micro_batches == 0;
    m->size.gradient_slots = slots > 0 && slots < blocks ? slots : blocks;
    m->layout = layout_create(config);
    m->table = lay_out(config, &m->layout);
    gpt_place_params(&m->table, &m->size);
    m->inputs = zf_calloc((size_t)m->size.micro_batches + 1, sizeof *m->inputs);
    m->micro_batches = zf_calloc((size_t)m->size.micro_batches, sizeof *m->micro_batches);
    for (int u = 0; u < m->size.micro_batches; u++)
        m->micro_batches[u].blocks = zf_calloc((size_t)blocks, sizeof(struct gpt_block));
    return m;
}

static void forget(struct gpt *m)
{
    for (int u = 0; u < m->size.micro_batches; u++)
        free(m->micro_batches[u].blocks);
    free(m->micro_batches);
    free(m->inputs);
    free(m->layout.blocks);
    params_free(&m->table);
    free(m);
}

void gpt_measure(struct device *device, const struct gpt_config *config,
                 const struct gpt_size *size, struct memory_use *use)
{
    struct gpt *m = describe(device, config, size);
    struct arena measured = {.use = *use};
    place_arrays(m, &measured);
    *use = measured.use;
    forget(m);
}

static size_t measured(struct device *device, const struct gpt_config *config,
                       const struct gpt_size *size)
{
    struct memory_use use = {0};
    gpt_measure(device, config, size, &use);
    return memory_total(&use);
}

void gpt_size_for_step(struct device *device, const struct gpt_config *config,
                       struct gpt_size *size, int n)
{
    struct gpt_size apart = *size;
    size->micro_batches = n;
    size->gradient_slots = 2;
    apart.micro_batches = 1;
    apart.gradient_slots = 0;
    if (n > 1 && size->mode == GPT_TRAIN && size->value_slots == 0 &&
        measured(device, config, &apart) < measured(device, config, size))
        *size = apart;
}

static void create_inputs(struct gpt *m)
{
    struct device *d = m->device;
    m->upload = d->stream_create(STREAM_BEHIND);
    for (int i = 0; i <= m->size.micro_batches; i++) {
        m->inputs[i].host = d->allocate_host(gpt_input_ints(m) * sizeof(int));
        m->inputs[i].filled = d->event_create();
        m->inputs[i].done = d->event_create();
    }
    m->sort_scratch = zf_malloc((size_t)m->size.max_tokens * sizeof(int));
    m->losses_host = d->allocate_host(GPT_LOSSES * sizeof(double));
    m->loss_copied = d->event_create();
}

static void fill_frequencies(struct gpt *m)
{
    const int head_dim = gpt_heads(&m->config).head_dim;
    const size_t bytes = (size_t)head_dim / 2 * sizeof(float);
    if (!m->config.parts.rotary)
        return;
    float *frequency = zf_malloc(bytes);
    rope_frequencies(frequency, &m->rope_scale, &m->config.rope, head_dim);
    m->device->copy(m->device->compute, m->frequency, frequency, bytes);
    free(frequency);
}

struct gpt *gpt_create(struct device *device, const struct gpt_config *config,
                       const struct gpt_size *size)
{
    struct gpt *m = describe(device, config, size);
    m->arena.device = device;
    place_arrays(m, &m->arena);
    create_inputs(m);
    /* what lies between parameters stays zero: a tied head's last rows are there */
    device->zero(device->compute, m->weights, m->table.n_values * dtype_size(device->dtype));
    device->zero(device->compute, m->losses, GPT_LOSSES * sizeof(double));
    fill_frequencies(m);
    device->stream_wait(device->compute);
    return m;
}

void gpt_destroy(struct gpt *m)
{
    if (!m)
        return;
    struct device *d = m->device;
    d->stream_wait(m->upload);
    d->stream_wait(d->compute);
    d->stream_destroy(m->upload);
    for (int i = 0; i <= m->size.micro_batches; i++) {
        d->release_host(m->inputs[i].host);
        d->event_destroy(m->inputs[i].filled);
        d->event_destroy(m->inputs[i].done);
    }
    d->release_host(m->losses_host);
    d->event_destroy(m->loss_copied);
    arena_release(&m->arena);
    free(m->sort_scratch);
    forget(m);
}

struct device *gpt_device(const struct gpt *model)
{
    return model->device;
}

const struct gpt_config *gpt_get_config(const struct gpt *model)
{
    return &model->config;
}

const struct param_table *gpt_params(const struct gpt *model)
{
    return &model->table;
}

void *gpt_param_data(struct gpt *model)
{
    return model->weights;
}

void gpt_set_hooks(struct gpt *model, const struct gpt_hooks *hooks)
{
    model->hooks = hooks ? *hooks : (struct gpt_hooks){0};
}

float *gpt_grad_data(struct gpt *model)
{
    return model->gradients;
}
