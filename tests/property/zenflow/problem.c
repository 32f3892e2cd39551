#include "tests/property/zenflow/problem.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "data/rng.h"
#include "model/gpt.h"
#include "tests/seed.h"
#include "tests/testing.h"

#include <math.h>

#define LLAMA_SEEDS 4 /* one problem in so many */

struct device *problem_device;
struct comm *world, *alone;
int problem_value_slots;

/* Of tests/cuda_emulator, where this is linked with it. */
void emulator_seed(uint32_t seed) __attribute__((weak));
static uint32_t emulator_orders;

static uint32_t bits(uint32_t a, uint32_t b, uint32_t c, uint32_t seed)
{
    static uint32_t of_run;
    static bool known;
    if (!known)
        of_run = test_seed();
    known = true;
    return philox4x32((struct philox){{a, b, c, 0}}, seed, 77 + of_run).v[0];
}

static float noise(uint32_t a, uint32_t b, uint32_t c, uint32_t seed)
{
    return 2 * philox_uniform(bits(a, b, c, seed)) - 1;
}

static int between(int low, int high, uint32_t a, unsigned seed)
{
    return low + (int)(bits(a, 1, 2, seed) % (uint32_t)(high - low + 1));
}

/* Parameters of a layer, the last of them a vector. shape: which sizes */
static void add_layer(struct param_table *t, int layer, int n, uint32_t shape, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        char name[32];
        const bool vector = i == n - 1;
        const uint32_t draw = 10 * shape + (uint32_t)i;
        snprintf(name, sizeof name, "p%d", t->n_params);
        struct param *p = params_add(t, name, vector ? PARAM_VECTOR : PARAM_MATRIX,
                                     vector ? 1 : between(1, 23, 10 + draw, seed),
                                     between(1, 19, 60 + draw, seed), layer);
        p->decay = !vector;
    }
}

/* The parameters of a Llama, or of a Qwen3 with its norms of q and k. */
static struct param_table llama_params(unsigned seed)
{
    struct zf_error err;
    struct gpt_config c;
    assert_works(gpt_config_preset(&c, "llama", &err), err);
    c.n_layer = between(1, 4, 7, seed);
    c.n_kv_heads = between(1, 2, 11, seed);
    c.n_head = c.n_kv_heads * between(1, 3, 12, seed);
    c.head_dim = 2 * between(1, 3, 13, seed);
    c.n_embd = between(3, 14, 14, seed);
    c.n_inner = between(3, 19, 15, seed);
    c.vocab_size = between(5, 40, 16, seed);
    c.parts.qk_norm = between(0, 1, 17, seed);
    c.tie_word_embeddings = between(0, 1, 18, seed);
    return gpt_param_table(&c);
}

/* Blocks are alike, and take turns in slots for gradients, or do not. */
static void add_params(struct param_table *t, unsigned seed)
{
    const int blocks = between(1, 4, 7, seed);
    add_layer(t, 0, 3, 0, seed);
    for (int block = 1; block <= blocks; block++)
        add_layer(t, block, blocks < 3 ? 3 : 2, 1, seed);
    add_layer(t, blocks + 1, 2, 2, seed);
}

static void write_param(struct problem *p, const struct param *q)
{
    struct device *d = p->device;
    const bool bf16 = d->dtype == DTYPE_BF16;
    float *params = p->params + q->offset;
    uint16_t *rounded = zf_malloc(sizeof *rounded * q->n_elements);
    for (size_t i = 0; i < q->n_elements; i++)
        rounded[i] = bf16_parameter(params[i]);
    d->copy(d->compute, (char *)p->device_params + q->value_offset * dtype_size(d->dtype),
            bf16 ? (void *)rounded : (void *)params, dtype_size(d->dtype) * q->n_elements);
    d->stream_wait(d->compute);
    free(rounded);
}

/* The device's parameters are `params`, rounded where it holds bf16; in slots it has them until
 * they are used otherwise. */
static void write_params(struct problem *p)
{
    for (int k = 0; k < p->table.n_params; k++)
        write_param(p, &p->table.params[k]);
    if (p->engine && p->takes_values)
        engine_take_values(p->engine, 0, p->params, p->table.n_elements);
}

static void read_param(struct problem *p, const struct param *q)
{
    struct device *d = p->device;
    const bool bf16 = d->dtype == DTYPE_BF16;
    float *params = p->params + q->offset;
    uint16_t *rounded = zf_malloc(sizeof *rounded * q->n_elements);
    d->copy(d->compute, bf16 ? (void *)rounded : (void *)params,
            (char *)p->device_params + q->value_offset * dtype_size(d->dtype),
            dtype_size(d->dtype) * q->n_elements);
    d->stream_wait(d->compute);
    for (size_t i = 0; i < q->n_elements && bf16; i++)
        params[i] = bf16_to_f32(rounded[i]);
    free(rounded);
}

/* As whoever saves them. */
void problem_read_params(struct problem *p)
{
    for (int layer = 0; layer < p->table.n_layers; layer++) {
        engine_before_layer(p->engine, layer);
        for (int k = 0; k < p->table.n_params; k++)
            if (p->table.params[k].layer == layer)
                read_param(p, &p->table.params[k]);
        engine_after_layer(p->engine, layer);
    }
}

void problem_copy_params(struct problem *to, const struct problem *from)
{
    memcpy(to->params, from->params, sizeof(float) * to->table.n_elements);
    write_params(to);
}

/* Everything but the table, whose layers have no places yet. gradient_slots: that blocks share */
static void create(struct problem *p, unsigned seed, int gradient_slots,
                   const struct engine_config *config)
{
    struct zf_error err;
    struct engine_config used = *config;
    if (emulator_seed) /* every problem and rank sees another order of the streams' work */
        emulator_seed(64 * ++emulator_orders + (uint32_t)comm_rank(p->comm));
    size_t n = p->table.n_elements;
    p->params = zf_malloc_aligned(sizeof(float) * n);
    p->grads = zf_malloc_aligned(sizeof(float) * n);
    memset(p->grads, 0, sizeof(float) * n);
    memset(p->params, 0, sizeof(float) * n);
    for (int k = 0; k < p->table.n_params; k++) {
        const struct param *q = &p->table.params[k];
        for (size_t i = q->offset; i < q->offset + q->n_elements; i++)
            p->params[i] = noise((uint32_t)i, 3, 4, seed);
    }
    const bool divided = used.params_divided && comm_size(p->comm) > 1;
    p->takes_values = used.values_follow |= used.params_on_host | used.params_divided;
    params_divide(&p->table, comm_size(p->comm));
    if (used.params_on_host || divided)
        params_share_values(&p->table, problem_value_slots);
    params_share_gradients(&p->table, gradient_slots);
    p->device_params = p->device->allocate(dtype_size(p->device->dtype) * p->table.n_values);
    p->device_grads = p->device->allocate(sizeof(float) * p->table.n_gradients);
    write_params(p);
    used.bf16 |= p->device->dtype == DTYPE_BF16;
    p->engine = engine_create(&used, p->device, p->comm, &p->table, p->device_params,
                              p->device_grads, &err);
    if (!p->engine)
        fail_msg("%s", err.text);
    write_params(p);
    problem_read_params(p);
}

static void begin(struct problem *p, struct comm *comm)
{
    if (!problem_device)
        problem_device = device_cpu(1);
    *p = (struct problem){.device = problem_device, .comm = comm};
}

void problem_create(struct problem *p, unsigned seed, struct comm *comm,
                    const struct engine_config *config)
{
    begin(p, comm);
    if (seed % LLAMA_SEEDS == LLAMA_SEEDS - 1)
        p->table = llama_params(seed);
    else
        add_params(&p->table, seed);
    p->table.ends_alternate |= between(0, 1, 19, seed);
    create(p, seed, between(0, 2, 8, seed), config);
}

void problem_create_layers(struct problem *p, int layers, int matrices, struct comm *comm,
                           const struct engine_config *config)
{
    begin(p, comm);
    for (int i = 0; i < layers * matrices; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%d", i);
        const bool vector = i % 2;
        params_add(&p->table, name, vector ? PARAM_VECTOR : PARAM_MATRIX, vector ? 1 : 12,
                   4 + i % 5, i / matrices);
    }
    create(p, 1, 0, config);
}

void problem_create_tall(struct problem *p, int rows, struct comm *comm,
                         const struct engine_config *config)
{
    begin(p, comm);
    params_add(&p->table, "first", PARAM_VECTOR, 1, 5, 0);
    params_add(&p->table, "tall", PARAM_MATRIX, rows, 3, 1)->decay = true;
    params_add(&p->table, "last", PARAM_VECTOR, 1, 5, 2);
    create(p, 1, 0, config);
}

void problem_destroy(struct problem *p)
{
    engine_destroy(p->engine);
    p->device->release(p->device_params);
    p->device->release(p->device_grads);
    params_free(&p->table);
    free(p->params);
    free(p->grads);
}

void problem_add_gradient(const struct problem *p, int step, int sample, const float *params,
                          float *grads)
{
    for (int k = 0; k < p->table.n_params; k++) {
        const struct param *q = &p->table.params[k];
        for (int row = 0; row < q->rows; row++) {
            uint32_t who = (uint32_t)(k * 1000 + row);
            float size = expf(3 * noise(who, (uint32_t)step / 5, 9, 5));
            for (int col = 0; col < q->cols; col++) {
                size_t i = q->offset + (size_t)row * (size_t)q->cols + (size_t)col;
                float g = noise((uint32_t)i, (uint32_t)step, (uint32_t)sample, 6);
                grads[i] += size * (g + 0.3f * params[i]) / PROBLEM_SAMPLES;
            }
        }
    }
}

void problem_gradient(const struct problem *p, int step, float *grads)
{
    memset(grads, 0, sizeof(float) * p->table.n_elements);
    for (int s = 0; s < PROBLEM_SAMPLES; s++)
        problem_add_gradient(p, step, s, p->params, grads);
}

/* What forward does with a layer's parameters: it reads them on the compute stream. */
static void note_layer(struct problem *p, int layer)
{
    struct device *d = p->device;
    size_t size = dtype_size(d->dtype);
    for (int k = 0; k < p->table.n_params; k++) {
        const struct param *q = &p->table.params[k];
        if (q->layer == layer)
            d->copy(d->compute, p->seen + q->offset * size,
                    (char *)p->device_params + q->value_offset * size, q->n_elements * size);
    }
}

/* What backward leaves of a layer, in its slot. */
static void write_gradient(struct problem *p, int layer)
{
    struct device *d = p->device;
    for (int k = 0; k < p->table.n_params; k++) {
        const struct param *q = &p->table.params[k];
        if (q->layer == layer)
            d->copy(d->compute, p->device_grads + q->gradient_offset, p->grads + q->offset,
                    q->n_elements * sizeof(float));
    }
}

void problem_give_gradient(struct problem *p)
{
    struct device *d = p->device;
    for (int layer = 0; layer < p->table.n_layers; layer++) {
        engine_before_layer(p->engine, layer);
        if (p->seen)
            note_layer(p, layer);
        engine_after_layer(p->engine, layer);
    }
    if (p->seen)
        p->seen += p->table.n_elements * dtype_size(d->dtype);
    for (int layer = p->table.n_layers - 1; layer >= 0; layer--) {
        engine_before_layer(p->engine, layer);
        if (p->seen)
            note_layer(p, layer);
        engine_before_gradients(p->engine, layer);
        write_gradient(p, layer);
        engine_after_layer(p->engine, layer);
        engine_layer_gradients_ready(p->engine, layer);
    }
    if (p->seen)
        p->seen += p->table.n_elements * dtype_size(d->dtype);
    memset(p->grads, 0, sizeof(float) * p->table.n_elements);
}

void problem_finish(struct problem *p)
{
    engine_finish(p->engine);
    problem_read_params(p);
}

void problem_begin_step(struct problem *p, int step)
{
    const int ranks = comm_size(p->comm), rank = comm_rank(p->comm);
    engine_begin_step(p->engine, problem_lr(step));
    for (int s = rank * PROBLEM_SAMPLES / ranks; s < (rank + 1) * PROBLEM_SAMPLES / ranks; s++)
        problem_add_gradient(p, step, s, p->params, p->grads);
}

struct step_report problem_step_unseen(struct problem *p, int step)
{
    struct zf_error err;
    struct step_report report;
    problem_begin_step(p, step);
    problem_give_gradient(p);
    if (!engine_end_step(p->engine, &report, &err))
        fail_msg("%s", err.text);
    return report;
}

struct step_report problem_step(struct problem *p, int step)
{
    const struct step_report report = problem_step_unseen(p, step);
    problem_read_params(p);
    return report;
}

float problem_lr(int step)
{
    return 0.01f * (1 + 0.5f * sinf((float)step));
}

struct engine_config problem_config(void)
{
    return (struct engine_config){.beta1 = 0.9f,
                                  .beta2 = 0.99f,
                                  .eps = 1e-6f,
                                  .weight_decay = 0.1f,
                                  .adam_w_mode = true,
                                  .gradient_clipping = 5,
                                  .topk_ratio = 1,
                                  .update_interval = 1,
                                  .stagger = true,
                                  .deferred_lr_scale = 1};
}

struct engine_config problem_zenflow_config(void)
{
    struct engine_config c = problem_config();
    c.topk_ratio = 0.1;
    c.update_interval = 4;
    c.apply_lag = 1;
    return c;
}

struct engine_config problem_random_config(unsigned seed)
{
    static const double ratios[] = {0, 0.05, 0.1, 0.3, 0.5, 0.9};
    struct engine_config c = problem_config();
    c.topk_ratio = ratios[between(0, 5, 50, seed)];
    c.update_interval = between(1, 6, 51, seed);
    c.apply_lag = between(0, c.update_interval < 3 ? c.update_interval : 3, 52, seed);
    c.select_every = between(0, 2, 53, seed) ? c.update_interval + between(0, 7, 54, seed) : 0;
    c.stagger = between(0, 3, 55, seed) > 0;
    c.offload_important = between(0, 3, 56, seed) == 0;
    c.full_warm_up_rounds = between(0, 2, 57, seed) ? 0 : between(1, 4, 58, seed);
    c.accumulate = between(0, 1, 59, seed) ? ENGINE_ACCUMULATE_DEVICE : ENGINE_ACCUMULATE_HOST;
    c.device_windows = between(0, 2, 65, seed); /* of those on the host */
    c.deferred_lr_scale = between(0, 2, 60, seed) ? 1 : ENGINE_LR_SQRT;
    c.adam_w_mode = between(0, 3, 61, seed) > 0;
    c.reselect_when_stale = between(0, 1, 62, seed);
    c.zero_copy = between(0, 1, 63, seed);
    c.all_steps = c.adam_w_mode && between(0, 1, 64, seed);
    c.deferred_lr_scale = c.all_steps ? 1 : c.deferred_lr_scale;
    return c;
}

const char *problem_describe(const struct engine_config *c)
{
    static char text[256];
    snprintf(
        text, sizeof text,
        "topk %g, S %d, lag %d, select %d, stagger %d, offload %d, warm-up %d, host windows %d "
        "but for %d blocks, "
        "lr scale %g, all steps %d, bf16 %d, stale %d, zero copy %d",
        c->topk_ratio, c->update_interval, c->apply_lag, c->select_every, c->stagger,
        c->offload_important, c->full_warm_up_rounds, c->accumulate, c->device_windows,
        c->deferred_lr_scale, c->all_steps, c->bf16, c->reselect_when_stale, c->zero_copy);
    return text;
}
