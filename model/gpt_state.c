/* A model's parameter table and memory, and the way of a batch into it. */
#include "model/gpt_state.h"

#include "data/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The parameter table. */

static void add_matrix(struct param_table *t, const char *name, int rows, int cols, int layer,
                       float init_std)
{
    params_add(t, name, PARAM_MATRIX, rows, cols, layer)->init_std = init_std;
}

/* "transformer.h.3." + name, a block's parameter. */
static const char *block_name(char *text, size_t bytes, int block, const char *name)
{
    snprintf(text, bytes, "transformer.h.%d.%s", block, name);
    return text;
}

static void add_norm(struct param_table *t, const char *name, int cols, int layer)
{
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    params_add(t, full, PARAM_VECTOR, 1, cols, layer)->init_one = true;
    snprintf(full, sizeof full, "%s.bias", name);
    params_add(t, full, PARAM_VECTOR, 1, cols, layer);
}

static void add_linear(struct param_table *t, const char *name, int in, int out, int layer,
                       float init_std)
{
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    add_matrix(t, full, in, out, layer, init_std);
    snprintf(full, sizeof full, "%s.bias", name);
    params_add(t, full, PARAM_VECTOR, 1, out, layer);
}

/* In the order of enum gpt_block_param. */
static void add_block(struct param_table *t, const struct gpt_config *c, int block)
{
    char name[64];
    int C = c->n_embd, layer = block + 1;
    float std = c->initializer_range, residual = std / sqrtf(2.0f * (float)c->n_layer);
    add_norm(t, block_name(name, sizeof name, block, "ln_1"), C, layer);
    add_linear(t, block_name(name, sizeof name, block, "attn.c_attn"), C, 3 * C, layer, std);
    add_linear(t, block_name(name, sizeof name, block, "attn.c_proj"), C, C, layer, residual);
    add_norm(t, block_name(name, sizeof name, block, "ln_2"), C, layer);
    add_linear(t, block_name(name, sizeof name, block, "mlp.c_fc"), C, c->n_inner, layer, std);
    add_linear(t, block_name(name, sizeof name, block, "mlp.c_proj"), c->n_inner, C, layer,
               residual);
}

static void add_params(struct param_table *t, const struct gpt_config *c)
{
    int C = c->n_embd, last = c->n_layer + 1;
    add_matrix(t, "transformer.wte.weight", c->vocab_size, C, 0, c->initializer_range);
    add_matrix(t, "transformer.wpe.weight", c->n_positions, C, 0, c->initializer_range);
    for (int i = 0; i < c->n_layer; i++)
        add_block(t, c, i);
    add_norm(t, "transformer.ln_f", C, last);
    if (gpt_is_tied(c))
        return;
    bool lm = c->head == GPT_HEAD_LM;
    struct param *head = params_add(t, lm ? "lm_head.weight" : "score.weight", PARAM_MATRIX, C,
                                    lm ? c->vocab_size : c->num_labels, last);
    head->init_std = c->initializer_range;
    head->transposed = true;
}

/* Memory. */

/* Hands out consecutive pieces; with base NULL it only measures. */
struct arena {
    char *base;
    size_t used;
};

static void *take(struct arena *a, size_t count, size_t element_bytes)
{
    char *piece = a->base ? a->base + a->used : NULL;
    a->used += (count * element_bytes + 63) / 64 * 64;
    return piece;
}

/* Places every array of the forward and backward pass: the shapes are those of gpt_state.h. */
static void place_arrays(struct gpt *m, struct arena *a)
{
    const struct gpt_config *c = &m->config;
    size_t n = (size_t)m->max_tokens, s = (size_t)m->max_seqs, C = (size_t)c->n_embd;
    size_t I = (size_t)c->n_inner, H = (size_t)c->n_head;
    size_t bytes = dtype_size(m->device->dtype), f32 = sizeof(float);
    for (int i = 0; i < c->n_layer; i++)
        m->blocks[i] = (struct gpt_block){
            .x_1 = take(a, n * C, bytes),
            .ln_1 = take(a, n * C, bytes),
            .mean_1 = take(a, n, f32),
            .rstd_1 = take(a, n, f32),
            .qkv = take(a, n * 3 * C, bytes),
            .att = take(a, n * C, bytes),
            .lse = take(a, n * H, f32),
            .x_2 = take(a, n * C, bytes),
            .ln_2 = take(a, n * C, bytes),
            .mean_2 = take(a, n, f32),
            .rstd_2 = take(a, n, f32),
            .fc_before_act = take(a, n * I, bytes),
            .fc = take(a, n * I, bytes),
        };
    size_t chunk = n < GPT_HEAD_CHUNK ? n : GPT_HEAD_CHUNK;
    size_t logits =
        c->head == GPT_HEAD_LM ? chunk * (size_t)c->vocab_size : s * (size_t)c->num_labels;
    m->buffers = (struct gpt_buffers){
        .branch = take(a, n * C, bytes),
        .x_last = take(a, s * C, bytes),
        .att_last = take(a, s * C, bytes),
        .x_f = take(a, n * C, bytes),
        .ln_f = take(a, n * C, bytes),
        .mean_f = take(a, n, f32),
        .rstd_f = take(a, n, f32),
        .logits = take(a, logits, f32),
        .losses = take(a, n, f32),
        .d_x = take(a, n * C, bytes),
        .d_branch = take(a, n * C, bytes),
        .d_y = take(a, n * C, bytes),
        .d_wide = take(a, n * (3 * C > I ? 3 * C : I), bytes),
        .d_x_last = take(a, s * C, bytes),
        .d_att_last = take(a, s * C, bytes),
    };
    m->buffers.d_logits =
        m->device->dtype == DTYPE_F32 ? m->buffers.logits : take(a, logits, bytes);
}

/* The elements between parameters are zero, so that work over the whole array may include them. */
static void clear_gaps(struct gpt *m)
{
    const struct param_table *t = &m->table;
    for (int i = 0; i < t->n_params; i++) {
        size_t begin = t->params[i].offset + t->params[i].n_elements;
        size_t end = i + 1 < t->n_params ? t->params[i + 1].offset : t->n_elements;
        if (end > begin)
            m->device->zero(m->device->compute, gpt_at(m, m->weights, begin),
                            (end - begin) * dtype_size(m->device->dtype));
    }
}

/* ints that gpt_upload_batch lays out. */
static size_t input_ints(const struct gpt *m)
{
    return 5 * (size_t)m->max_tokens + 3 * (size_t)m->max_seqs + 1;
}

struct gpt *gpt_create(struct device *device, const struct gpt_config *config, int max_tokens,
                       int max_seqs)
{
    assert(max_tokens >= max_seqs && max_seqs > 0);
    struct gpt *m = zf_calloc(1, sizeof *m);
    m->device = device;
    m->config = *config;
    m->max_tokens = max_tokens;
    m->max_seqs = max_seqs;
    add_params(&m->table, config);
    m->weights = device->allocate(m->table.n_elements * dtype_size(device->dtype));
    m->gradients = device->allocate(m->table.n_elements * sizeof(float));
    clear_gaps(m);
    device->zero(device->compute, m->gradients, m->table.n_elements * sizeof(float));

    struct arena arena = {0};
    m->blocks = zf_calloc((size_t)config->n_layer, sizeof *m->blocks);
    place_arrays(m, &arena);
    m->arena = device->allocate(arena.used);
    arena = (struct arena){.base = m->arena};
    place_arrays(m, &arena);

    m->inputs = device->allocate(input_ints(m) * sizeof(int));
    m->inputs_host = device->allocate_host(input_ints(m) * sizeof(int));
    m->losses_host = device->allocate_host((size_t)max_tokens * sizeof(float));
    m->sort_scratch = zf_malloc((size_t)max_tokens * sizeof(int));
    device->stream_wait(device->compute);
    return m;
}

void gpt_destroy(struct gpt *m)
{
    if (!m)
        return;
    m->device->stream_wait(m->device->compute);
    m->device->release(m->weights);
    m->device->release(m->gradients);
    m->device->release(m->arena);
    m->device->release(m->inputs);
    m->device->release_host(m->inputs_host);
    m->device->release_host(m->losses_host);
    free(m->sort_scratch);
    free(m->blocks);
    params_free(&m->table);
    free(m);
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

float *gpt_grad_data(struct gpt *model)
{
    return model->gradients;
}

/* Batches. */

/* order: the indices of ids[0..n), sorted by id, equal ids by index: a radix sort of eight bits at
 * a time. scratch: (n) */
static void sort_by_id(int *order, int *scratch, const int *ids, int n, int n_ids)
{
    int *from = scratch, *to = order;
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int shift = 0; shift < 32 && (n_ids - 1) >> shift > 0; shift += 8) {
        int start[256] = {0};
        int *swap = from;
        from = to;
        to = swap;
        for (int i = 0; i < n; i++)
            start[(ids[i] >> shift) & 255]++;
        for (int digit = 0, sum = 0; digit < 256; digit++) {
            int count = start[digit];
            start[digit] = sum;
            sum += count;
        }
        for (int i = 0; i < n; i++)
            to[start[(ids[from[i]] >> shift) & 255]++] = from[i];
    }
    if (to != order)
        memcpy(order, to, (size_t)n * sizeof *order);
}

/* Puts n values behind the staged ones, src's if there is one, and returns where they begin. */
static size_t stage(struct gpt *m, size_t *used, const void *src, int n)
{
    size_t at = *used;
    if (src && n > 0)
        memcpy(m->inputs_host + at, src, (size_t)n * sizeof(int));
    *used += (size_t)n;
    return at;
}

static void stage_last_tokens(struct gpt *m, size_t *used, const struct batch *b)
{
    size_t position = stage(m, used, NULL, b->n_seqs);
    size_t token_seq = stage(m, used, NULL, b->n_seqs);
    for (int i = 0; i < b->n_seqs; i++) {
        int t = b->seq_start[i + 1] - 1;
        m->inputs_host[position + (size_t)i] = b->position[t];
        m->inputs_host[token_seq + (size_t)i] = (int)b->token_seq[t];
    }
    m->batch.last = (struct token_rows){
        .n_tokens = b->n_seqs,
        .n_seqs = b->n_seqs,
        .position = m->inputs + position,
        .token_seq = (const uint32_t *)(m->inputs + token_seq),
    };
}

static const void *stage_targets(struct gpt *m, size_t *used, const struct batch *b)
{
    enum gpt_head head = m->config.head;
    const void *targets =
        head == GPT_HEAD_REGRESS ? (const void *)b->scores : (const void *)b->targets;
    int n = head == GPT_HEAD_LM ? b->n_tokens : b->n_seqs;
    return targets ? m->inputs + stage(m, used, targets, n) : NULL;
}

void gpt_upload_batch(struct gpt *m, const struct batch *b)
{
    assert(b->n_tokens <= m->max_tokens && b->n_seqs <= m->max_seqs);
    size_t used = 0;
    size_t tokens = stage(m, &used, b->tokens, b->n_tokens);
    size_t position = stage(m, &used, b->position, b->n_tokens);
    size_t token_seq = stage(m, &used, b->token_seq, b->n_tokens);
    size_t seq_start = stage(m, &used, b->seq_start, b->n_seqs + 1);
    size_t order = stage(m, &used, NULL, b->n_tokens);
    sort_by_id(m->inputs_host + order, m->sort_scratch, b->tokens, b->n_tokens,
               m->config.vocab_size);
    m->batch.order = m->inputs + order;
    m->batch.rows = (struct token_rows){
        .n_tokens = b->n_tokens,
        .n_seqs = b->n_seqs,
        .tokens = m->inputs + tokens,
        .position = m->inputs + position,
        .seq_start = m->inputs + seq_start,
        .token_seq = (const uint32_t *)(m->inputs + token_seq),
    };
    stage_last_tokens(m, &used, b);
    m->batch.targets = stage_targets(m, &used, b);
    m->device->copy(m->device->compute, m->inputs, m->inputs_host, used * sizeof(int));
}
