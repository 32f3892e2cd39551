/* The whole model's gradients, dropout on: against finite differences, and independent of how a
 * step is cut into micro-batches; and the hooks around them. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/rng.h"
#include "model/gpt.h"

#include <math.h>

#define N_SEQS     6
#define VOCAB      40
#define POSITIONS  120
#define MAX_TOKENS (N_SEQS * POSITIONS)
#define SEED       5
#define STEP       9

static const int lengths[N_SEQS] = {5, 1, 20, 9, 3, 14};

static uint32_t draw(uint32_t i)
{
    return philox4x32((struct philox){{i}}, 77, 0).v[0];
}

struct example {
    int tokens[MAX_TOKENS], position[MAX_TOKENS], seq_start[N_SEQS + 1], targets[MAX_TOKENS];
    uint32_t token_seq[MAX_TOKENS];
    float scores[N_SEQS];
    int stretch; /* lengths are multiplied by it */
    struct batch batch;
};

static struct example *new_example(int stretch)
{
    struct example *e = zf_calloc(1, sizeof *e);
    e->stretch = stretch;
    return e;
}

/* Sequences first..first+count of a step of N_SEQS. */
static void make_example(struct example *e, enum gpt_head head, int first, int count)
{
    int n = 0;
    e->seq_start[0] = 0;
    for (int i = 0; i < count; i++) {
        int number = first + i, length = lengths[number] * e->stretch;
        for (int t = 0; t < length; t++, n++) {
            uint32_t key = (uint32_t)(number * POSITIONS + t);
            e->tokens[n] = (int)(draw(key) % VOCAB);
            e->position[n] = t;
            e->token_seq[n] = (uint32_t)number;
            if (head == GPT_HEAD_LM)
                e->targets[n] = t + 1 < length ? (int)(draw(key + 1) % VOCAB) : TARGET_IGNORE;
        }
        e->seq_start[i + 1] = n;
        e->scores[i] = (float)number / 2;
        if (head == GPT_HEAD_CLASSIFY)
            e->targets[i] = number % 3;
    }
    e->batch = (struct batch){.n_tokens = n,
                              .n_seqs = count,
                              .tokens = e->tokens,
                              .position = e->position,
                              .seq_start = e->seq_start,
                              .token_seq = e->token_seq,
                              .targets = head == GPT_HEAD_REGRESS ? NULL : e->targets,
                              .scores = head == GPT_HEAD_REGRESS ? e->scores : NULL};
}

static struct gpt_config small_config(const char *preset, enum gpt_head head, float dropout)
{
    struct gpt_config c;
    struct zf_error err;
    assert_works(gpt_config_preset(&c, preset, &err), err);
    c.vocab_size = VOCAB;
    c.n_positions = POSITIONS;
    c.n_embd = 24;
    c.n_head = 3;
    c.n_inner = 56;
    c.initializer_range = 0.3f;
    c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = dropout;
    c.head = head;
    c.num_labels = head == GPT_HEAD_REGRESS ? 1 : 3;
    return c;
}

/* Of the size, what is about gradients and micro-batches. */
static struct gpt *make_model_with(struct device *device, const struct gpt_config *config,
                                   struct gpt_size size)
{
    size.max_tokens = MAX_TOKENS;
    size.max_seqs = N_SEQS;
    struct gpt *model = gpt_create(device, config, &size);
    gpt_init_weights(model, 3);
    if (gpt_grad_data(model)) /* between parameters nobody writes */
        memset(gpt_grad_data(model), 0, gpt_params(model)->n_gradients * sizeof(float));
    return model;
}

static struct gpt *make_model_on(struct device *device, enum gpt_head head, float dropout,
                                 enum gpt_mode mode)
{
    const struct gpt_config c = small_config("gpt", head, dropout);
    return make_model_with(device, &c, (struct gpt_size){.mode = mode});
}

static struct gpt *make_model(enum gpt_head head, float dropout)
{
    return make_model_on(device_cpu(0), head, dropout, GPT_TRAIN);
}

/* Adds step * direction to a parameter. On the CPU device its memory is ours. */
static void move(struct gpt *model, const struct param *p, const float *direction, float step)
{
    float *w = (float *)gpt_param_data(model) + p->offset;
    for (size_t i = 0; i < p->n_elements; i++)
        w[i] += step * direction[i];
}

static void train_only(struct gpt *model, const struct batch *batch)
{
    gpt_train(model, batch, 1, &(struct gpt_step){.scale = 1, .seed = SEED, .step = STEP});
}

static double train_at(struct gpt *model, const struct batch *batch, uint32_t seed, uint32_t step)
{
    gpt_train(model, batch, 1, &(struct gpt_step){.scale = 1, .seed = seed, .step = step});
    return gpt_take_loss(model);
}

static double train(struct gpt *model, const struct batch *batch)
{
    return train_at(model, batch, SEED, STEP);
}

/* Along `direction` (unit length): the loss's slope by central differences and by the gradient. */
static double slope_error(struct gpt *model, const struct batch *batch, const struct param *p,
                          const float *gradient, const float *direction, float step)
{
    double expected = 0;
    float *saved = zf_malloc(p->n_elements * sizeof *saved);
    float *w = (float *)gpt_param_data(model) + p->offset;
    memcpy(saved, w, p->n_elements * sizeof *saved);
    for (size_t i = 0; i < p->n_elements; i++)
        expected += (double)gradient[i] * (double)direction[i];
    move(model, p, direction, step);
    double above = train(model, batch);
    memcpy(w, saved, p->n_elements * sizeof *saved);
    move(model, p, direction, -step);
    double below = train(model, batch);
    memcpy(w, saved, p->n_elements * sizeof *saved);
    free(saved);
    return fabs((above - below) / (2 * (double)step) - expected);
}

static void normalise(float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < n; i++)
        x[i] = sum > 0 ? (float)((double)x[i] / sqrt(sum)) : 0;
}

/* Along the gradient itself, and along a random direction; errors relative to the gradient's norm
 * are of the order of the step's square and of the losses' rounding over the step. */
static double check_parameter(struct gpt *model, const struct batch *batch, const struct param *p,
                              const float *gradient)
{
    double norm = 0, worst = 0;
    float *direction = zf_malloc(p->n_elements * sizeof *direction);
    memcpy(direction, gradient, p->n_elements * sizeof *direction);
    for (size_t i = 0; i < p->n_elements; i++)
        norm += (double)gradient[i] * (double)gradient[i];
    norm = sqrt(norm);
    for (int way = 0; way < 2; way++) {
        normalise(direction, p->n_elements);
        float step = (float)fmin(5e-3, 0.02 / norm);
        double error = slope_error(model, batch, p, gradient, direction, step) / norm;
        if (!(error < 5e-3))
            fail_msg("%s: the slope along %s is off by %.3g of the gradient's norm %.3g", p->name,
                     way ? "a random direction" : "the gradient", error, norm);
        worst = fmax(worst, error);
        for (size_t i = 0; i < p->n_elements; i++)
            direction[i] = philox_uniform(draw((uint32_t)i)) - 0.5f;
    }
    free(direction);
    return worst;
}

static void differences_agree(struct gpt *model, const char *title)
{
    enum gpt_head head = gpt_get_config(model)->head;
    const struct param_table *table = gpt_params(model);
    struct example *e = new_example(1);
    double worst = 0;
    make_example(e, head, 0, N_SEQS);
    float *gradients = zf_malloc(table->n_elements * sizeof *gradients);
    train(model, &e->batch);
    memcpy(gradients, gpt_grad_data(model), table->n_elements * sizeof *gradients);
    for (int i = 0; i < table->n_params; i++) {
        const struct param *p = &table->params[i];
        worst = fmax(worst, check_parameter(model, &e->batch, p, gradients + p->offset));
    }
    print_message("%s: slopes differ by at most %.1e of a gradient's norm\n", title, worst);
    free(gradients);
    free(e);
    gpt_destroy(model);
}

static void classifier_agrees_with_differences(void **state)
{
    (void)state;
    differences_agree(make_model(GPT_HEAD_CLASSIFY, 0.2f), "classification");
}

static void regression_agrees_with_differences(void **state)
{
    (void)state;
    differences_agree(make_model(GPT_HEAD_REGRESS, 0.2f), "regression");
}

static void language_model_agrees_with_differences(void **state)
{
    (void)state;
    differences_agree(make_model(GPT_HEAD_LM, 0.2f), "language modelling");
}

/* What models of the family may differ in: GPT-2's block with one part changed, Llama's, and
 * Llama's with more. */
static const struct variant {
    const char *title;
    bool llama;
    struct gpt_parts parts;
    int n_kv_heads, head_dim, window, no_rope_interval;
    enum rope_type rope;
} variants[] = {
    {.title = "GPT-2 without biases", .parts = {.learned_positions = true}},
    {.title = "biases of q, k and v alone", .parts = {.qkv_bias = true}},
    {.title = "biases of the projection alone", .parts = {.projection_bias = true}},
    {.title = "biases of the MLP alone", .parts = {.mlp_bias = true}},
    {.title = "RMSNorm", .parts = {.rms_norm = true, .learned_positions = true}},
    {.title = "SwiGLU", .parts = {.swiglu = true, .learned_positions = true}},
    {.title = "SwiGLU with biases", .parts = {.swiglu = true, .mlp_bias = true}},
    {.title = "rotary positions", .parts = {.rotary = true}},
    {.title = "shared keys", .parts = {.learned_positions = true}, .n_kv_heads = 1},
    {.title = "wide heads", .parts = {.learned_positions = true}, .head_dim = 12},
    {.title = "narrow heads", .parts = {.learned_positions = true}, .head_dim = 5},
    {.title = "a window", .parts = {.learned_positions = true}, .window = 3},
    {.title = "Llama", .llama = true},
    {.title = "Llama with shared keys", .llama = true, .n_kv_heads = 1, .rope = ROPE_YARN},
    {.title = "Qwen2", .llama = true, .parts = {.qkv_bias = true}, .n_kv_heads = 1},
    {.title = "Qwen3", .llama = true, .parts = {.qk_norm = true}, .n_kv_heads = 1, .head_dim = 12},
    {.title = "a block that does not turn", .llama = true, .no_rope_interval = 2},
    {.title = "all of it",
     .llama = true,
     .parts = {.qkv_bias = true, .projection_bias = true, .mlp_bias = true, .qk_norm = true},
     .n_kv_heads = 1,
     .head_dim = 6,
     .window = 4,
     .rope = ROPE_LINEAR},
};
#define N_VARIANTS ((int)(sizeof variants / sizeof *variants))

static struct gpt *make_variant(struct device *device, const struct variant *v, enum gpt_head head,
                                float dropout, struct gpt_size size)
{
    struct gpt_config c = small_config(v->llama ? "llama" : "gpt", head, dropout);
    c.parts = v->parts;
    if (v->llama)
        c.parts.rms_norm = c.parts.swiglu = c.parts.rotary = true;
    if (v->parts.swiglu || v->llama)
        c.activation_function = ACT_NONE;
    c.n_kv_heads = v->n_kv_heads;
    c.head_dim = v->head_dim;
    c.window = v->window;
    c.first_windowed = 1;
    c.no_rope_interval = v->no_rope_interval;
    c.rope = (struct rope){.type = v->rope,
                           .theta = 100,
                           .factor = 4,
                           .original_positions = 16,
                           .beta_fast = 4,
                           .beta_slow = 1,
                           .truncate = true};
    return make_model_with(device, &c, size);
}

static int count_named(const struct gpt *model, const char *piece)
{
    int n = 0;
    for (int i = 0; i < gpt_params(model)->n_params; i++)
        n += strstr(gpt_params(model)->params[i].name, piece) != NULL;
    return n;
}

/* Every parameter that is there has its gradient, and none is there that the parts rule out. */
static void models_of_other_parts_agree_with_differences(void **state)
{
    (void)state;
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        const enum gpt_head head = i % 2 ? GPT_HEAD_LM : GPT_HEAD_CLASSIFY;
        struct gpt *model =
            make_variant(device_cpu(0), v, head, 0.2f, (struct gpt_size){.mode = GPT_TRAIN});
        const struct gpt_parts *parts = &gpt_get_config(model)->parts;
        const int n_layer = gpt_get_config(model)->n_layer;
        const int biases = 1 * parts->qkv_bias + parts->projection_bias + 2 * parts->mlp_bias +
                           2 * !parts->rms_norm;
        assert_int_equal(count_named(model, ".bias"), n_layer * biases + !parts->rms_norm);
        assert_int_equal(count_named(model, "wpe"), parts->learned_positions);
        assert_int_equal(count_named(model, "k_norm"), n_layer * parts->qk_norm);
        differences_agree(model, v->title);
    }
}

/* Changes of the model that the loss must feel, one by one. */
static void each_part_is_felt(void **state)
{
    (void)state;
    double loss[N_VARIANTS];
    struct example *e = new_example(1);
    make_example(e, GPT_HEAD_LM, 0, N_SEQS);
    for (int i = 0; i < N_VARIANTS; i++) {
        struct gpt *model = make_variant(device_cpu(0), &variants[i], GPT_HEAD_LM, 0,
                                         (struct gpt_size){.mode = GPT_EVALUATE});
        loss[i] = gpt_evaluate(model, &e->batch, NULL);
        for (int k = 0; k < i; k++) /* biases begin at 0 */
            if (fabs(loss[i] - loss[k]) < 1e-6 * loss[i] &&
                (variants[i].llama || variants[i].parts.learned_positions))
                fail_msg("%s and %s have the same loss", variants[i].title, variants[k].title);
        gpt_destroy(model);
    }
    free(e);
}

/* One batch of six sequences, and the same as 3 + 3 and 1 + 5 with an empty one between. */
static void cut_is_independent(enum gpt_head head, int stretch)
{
    static const int cuts[2][3] = {{3, 3, 0}, {1, 0, 5}};
    struct gpt *model = make_model(head, 0.3f);
    size_t n = gpt_params(model)->n_elements;
    struct example *e = new_example(stretch);
    float *whole = zf_malloc(n * sizeof *whole);
    make_example(e, head, 0, N_SEQS);
    double loss = train(model, &e->batch);
    memcpy(whole, gpt_grad_data(model), n * sizeof *whole);
    for (int c = 0; c < 2; c++) {
        double sum = 0, difference = 0, size = 0;
        for (int i = 0, first = 0; i < 3; first += cuts[c][i++]) {
            make_example(e, head, first, cuts[c][i]);
            gpt_train(model, &e->batch, 1,
                      &(struct gpt_step){.scale = 1,
                                         .seed = SEED,
                                         .step = STEP,
                                         .continues = i > 0,
                                         .to_continue = i < 2});
            sum += gpt_take_loss(model);
        }
        for (size_t i = 0; i < n; i++) {
            double d = (double)gpt_grad_data(model)[i] - (double)whole[i];
            difference += d * d;
            size += (double)whole[i] * (double)whole[i];
        }
        assert_true(fabs(sum - loss) < 1e-5 * loss);
        assert_true(sqrt(difference / size) < 1e-5);
    }
    free(whole);
    free(e);
    gpt_destroy(model);
}

static void cut_into_micro_batches_does_not_matter(void **state)
{
    (void)state;
    cut_is_independent(GPT_HEAD_CLASSIFY, 1);
    cut_is_independent(GPT_HEAD_REGRESS, 1);
    cut_is_independent(GPT_HEAD_LM, 1);
    cut_is_independent(GPT_HEAD_LM, 6); /* 312 tokens: more than the head takes at a time */
}

/* Gradients as a step leaves them, layer by layer. */
struct collected {
    struct gpt *model;
    float *gradients; /* (n_elements) zero where there is no parameter */
    int order[16];    /* of layers: needed, then ready; ~layer where it is ready */
    int n;
};

static void note_gradient_needed(void *context, int layer)
{
    struct collected *c = context;
    c->order[c->n++] = layer;
}

static void collect_gradient(void *context, int layer)
{
    struct collected *c = context;
    const struct param_table *table = gpt_params(c->model);
    c->order[c->n++] = ~layer;
    for (int i = 0; i < table->n_params; i++) {
        const struct param *p = &table->params[i];
        if (p->layer == layer)
            memcpy(c->gradients + p->offset, gpt_grad_data(c->model) + p->gradient_offset,
                   p->n_elements * sizeof(float));
    }
}

/* A step of MICRO_BATCHES different micro-batches, the second of them empty, and its loss, taken
 * once. size.micro_batches of them go together. */
#define MICRO_BATCHES 3

/* v: NULL: GPT-2 as it is */
static struct collected one_step(const struct variant *v, enum gpt_head head, struct gpt_size size,
                                 double *loss)
{
    struct device *device = device_cpu(0);
    const struct gpt_config gpt2 = small_config("gpt", head, 0.3f);
    struct gpt *model =
        v ? make_variant(device, v, head, 0.3f, size) : make_model_with(device, &gpt2, size);
    struct collected c = {.model = model};
    struct example *e[MICRO_BATCHES];
    struct batch batches[MICRO_BATCHES];
    const struct gpt_hooks hooks = {.context = &c,
                                    .gradients_needed = note_gradient_needed,
                                    .gradients_ready = collect_gradient};
    c.gradients = zf_calloc(gpt_params(model)->n_elements, sizeof *c.gradients);
    for (int i = 0; i < MICRO_BATCHES; i++) {
        e[i] = new_example(6);
        make_example(e[i], head, 2 * i, i == 1 ? 0 : 3 - i);
        batches[i] = e[i]->batch;
    }
    gpt_set_hooks(model, &hooks);
    assert_true(gpt_take_loss(model) == 0);
    const int together = size.micro_batches ? size.micro_batches : 1;
    for (int first = 0; first < MICRO_BATCHES; first += together)
        gpt_train(model, batches + first, together,
                  &(struct gpt_step){.scale = 1,
                                     .seed = SEED,
                                     .step = STEP,
                                     .continues = first > 0,
                                     .to_continue = first + together < MICRO_BATCHES});
    assert_true(gpt_evaluate(model, batches, NULL) > 0); /* counts for itself */
    *loss = gpt_take_loss(model);
    assert_true(gpt_take_loss(model) == 0);
    for (int i = 0; i < MICRO_BATCHES; i++)
        free(e[i]);
    return c;
}

/* v: as for one_step */
static void ways_give_the_same_bits(const struct variant *v, enum gpt_head head)
{
    static const int order[] = {3, ~3, 2, ~2, 1, ~1, 0, ~0};
    static const int tied_order[] = {3, 0, ~3, 2, ~2, 1, ~1, ~0};
    double loss, again;
    struct gpt_size size = {.mode = GPT_TRAIN};
    struct collected apart = one_step(v, head, size, &loss);
    const bool tied = head == GPT_HEAD_LM && gpt_get_config(apart.model)->tie_word_embeddings;
    for (int way = 0; way < 7; way++) {
        const bool together = way < 6;
        size = (struct gpt_size){.micro_batches = together ? MICRO_BATCHES : 1,
                                 .gradient_slots = together ? way / 2 : 0,
                                 .mode = way % 2 ? GPT_TRAIN : GPT_TRAIN_RECOMPUTE};
        struct collected c = one_step(v, head, size, &again);
        const struct param_table *t = gpt_params(c.model);
        /* a tied head's gradient is summed over micro-batches before the embeddings' */
        size_t skipped = tied && together ? t->params[1].offset : 0;
        assert_true(loss > 0 && loss == again);
        assert_memory_equal(apart.gradients + skipped, c.gradients + skipped,
                            (t->n_elements - skipped) * sizeof(float));
        assert_int_equal(c.n, 8);
        if (together)
            assert_memory_equal(c.order, tied ? tied_order : order, sizeof order);
        for (size_t k = 0; k < skipped; k++)
            assert_true(fabsf(apart.gradients[k] - c.gradients[k]) < 1e-5f);
        free(c.gradients);
        gpt_destroy(c.model);
    }
    free(apart.gradients);
    gpt_destroy(apart.model);
}

/* Micro-batches apart or together, blocks with gradients of their own or taking turns, activations
 * kept or computed again. */
static void every_way_gives_the_same_bits(void **state)
{
    (void)state;
    static const enum gpt_head heads[] = {GPT_HEAD_CLASSIFY, GPT_HEAD_REGRESS, GPT_HEAD_LM};
    for (int i = 0; i < 3; i++) {
        ways_give_the_same_bits(NULL, heads[i]);
        ways_give_the_same_bits(&variants[N_VARIANTS - 1], heads[i]);
    }
}

/* What is measured is what is allocated, and each mode needs less than the one before. */

static size_t allocated;

static void *count_allocation(size_t bytes)
{
    allocated += (bytes + 255) / 256 * 256; /* allocations are aligned so */
    return device_cpu(0)->allocate(bytes);
}

static void memory_of(const struct gpt_config *config)
{
    static const enum gpt_mode modes[] = {GPT_TRAIN, GPT_TRAIN_RECOMPUTE, GPT_EVALUATE};
    struct device device = *device_cpu(0);
    size_t before = SIZE_MAX;
    device.allocate = count_allocation;
    for (int i = 0; i < 3; i++) {
        struct memory_use use = {0};
        allocated = 0;
        struct gpt *model = make_model_with(&device, config, (struct gpt_size){.mode = modes[i]});
        const struct gpt_size size = {
            .max_tokens = MAX_TOKENS, .max_seqs = N_SEQS, .mode = modes[i]};
        gpt_measure(&device, gpt_get_config(model), &size, &use);
        assert_int_equal(memory_total(&use), allocated);
        assert_true(use.parameters >= gpt_params(model)->n_elements * sizeof(float));
        assert_true((gpt_grad_data(model) == NULL) == (modes[i] == GPT_EVALUATE));
        assert_true((use.gradients == 0) == (modes[i] == GPT_EVALUATE));
        assert_true(use.activations < before);
        before = use.activations;
        gpt_destroy(model);
    }
}

static void memory_is_as_measured(void **state)
{
    (void)state;
    const struct gpt_config gpt2 = small_config("gpt", GPT_HEAD_LM, 0);
    struct gpt_config llama = small_config("llama", GPT_HEAD_LM, 0);
    llama.parts.qk_norm = true;
    memory_of(&gpt2);
    memory_of(&llama);
}

/* Inside a step the host waits for nothing but a slot for the batch, of which there are two. */

static int stream_waits, event_waits;

static void count_stream_wait(struct stream *stream)
{
    (void)stream;
    stream_waits++;
}

static void count_event_wait(struct event *event)
{
    (void)event;
    event_waits++;
}

static void host_runs_ahead(void **state)
{
    (void)state;
    struct device device = *device_cpu(0);
    device.stream_wait = count_stream_wait;
    device.event_wait = count_event_wait;
    struct gpt *model = make_model_on(&device, GPT_HEAD_LM, 0.1f, GPT_TRAIN);
    struct example *e = new_example(1);
    make_example(e, GPT_HEAD_LM, 0, N_SEQS);
    stream_waits = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(event_waits, i < 2 ? 0 : i - 2);
        train_only(model, &e->batch);
    }
    assert_int_equal(event_waits, 2);
    assert_true(gpt_take_loss(model) > 0);
    assert_int_equal(event_waits, 3);
    assert_int_equal(stream_waits, 0);
    free(e);
    gpt_destroy(model);
}

/* Another step, seed or sequence number draws other masks; evaluation draws none. */
static void dropout_depends_on_seed_and_step(void **state)
{
    (void)state;
    struct gpt *model = make_model(GPT_HEAD_CLASSIFY, 0.3f);
    struct gpt *plain = make_model(GPT_HEAD_CLASSIFY, 0);
    struct example *e = new_example(1);
    make_example(e, GPT_HEAD_CLASSIFY, 0, N_SEQS);
    double loss = train(model, &e->batch);
    assert_true(train(model, &e->batch) == loss);
    assert_true(train_at(model, &e->batch, SEED, STEP + 1) != loss);
    assert_true(train_at(model, &e->batch, SEED + 1, STEP) != loss);
    assert_true(gpt_evaluate(model, &e->batch, NULL) != loss);
    assert_true(gpt_evaluate(model, &e->batch, NULL) == gpt_evaluate(plain, &e->batch, NULL));
    assert_true(gpt_evaluate(model, &e->batch, NULL) == train(plain, &e->batch));
    for (int i = 0; i < e->batch.n_tokens; i++)
        e->token_seq[i] += N_SEQS;
    assert_true(train(model, &e->batch) != loss);
    free(e);
    gpt_destroy(model);
    gpt_destroy(plain);
}

/* Which dropouts the schedule asks for: a device that notes them and passes the work on. */

static struct {
    const struct ops *ops;
    uint32_t sites[2][32]; /* of forward, of backward */
    int n[2];
} noted;

static void note(int backward, struct dropout drop)
{
    if (drop.p > 0)
        noted.sites[backward][noted.n[backward]++] = drop.site;
}

static void note_embedding_forward(struct stream *s, void *x, const struct token_rows *rows,
                                   const void *wte, const void *wpe, int C, struct dropout drop)
{
    note(0, drop);
    noted.ops->embedding_forward(s, x, rows, wte, wpe, C, drop);
}

static void note_embedding_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                                    const struct token_rows *rows, const int *order, int C,
                                    struct dropout drop)
{
    note(1, drop);
    noted.ops->embedding_backward(s, dwte, dwpe, dx, rows, order, C, drop);
}

static void note_norm_forward(struct stream *s, void *x_out, void *y, float *mean, float *rstd,
                              const void *x_in, const void *branch, const struct token_rows *rows,
                              const void *gamma, const void *beta, float eps, int C,
                              struct dropout drop)
{
    note(0, drop);
    noted.ops->residual_layernorm_forward(s, x_out, y, mean, rstd, x_in, branch, rows, gamma, beta,
                                          eps, C, drop);
}

static void note_norm_backward(struct stream *s, void *dx, void *dbranch, float *dgamma,
                               float *dbeta, const void *dy, const void *x_out, const float *mean,
                               const float *rstd, const struct token_rows *rows, const void *gamma,
                               int C, struct dropout drop, bool accumulate)
{
    note(1, drop);
    noted.ops->residual_layernorm_backward(s, dx, dbranch, dgamma, dbeta, dy, x_out, mean, rstd,
                                           rows, gamma, C, drop, accumulate);
}

static void note_attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                                   const struct token_rows *rows, const struct attention *attention)
{
    note(0, attention->drop);
    noted.ops->attention_forward(s, out, lse, qkv, rows, attention);
}

static void note_attention_backward(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                                    const void *out, const float *lse,
                                    const struct token_rows *rows,
                                    const struct attention *attention)
{
    note(1, attention->drop);
    noted.ops->attention_backward(s, dqkv, dout, qkv, out, lse, rows, attention);
}

static void each_dropout_has_a_site_of_its_own(void **state)
{
    (void)state;
    struct device device = *device_cpu(0);
    struct ops ops = *device.ops;
    noted.ops = device.ops;
    ops.embedding_forward = note_embedding_forward;
    ops.embedding_backward = note_embedding_backward;
    ops.residual_layernorm_forward = note_norm_forward;
    ops.residual_layernorm_backward = note_norm_backward;
    ops.attention_forward = note_attention_forward;
    ops.attention_backward = note_attention_backward;
    device.ops = &ops;
    struct gpt *model = make_model_on(&device, GPT_HEAD_CLASSIFY, 0.1f, GPT_TRAIN);
    struct example *e = new_example(1);
    make_example(e, GPT_HEAD_CLASSIFY, 0, N_SEQS);
    train(model, &e->batch);
    assert_int_equal(noted.n[0], 1 + 3 * gpt_get_config(model)->n_layer);
    assert_int_equal(noted.n[1], noted.n[0]);
    for (int i = 0; i < noted.n[0]; i++) {
        assert_int_equal(noted.sites[0][i], noted.sites[1][noted.n[1] - 1 - i]);
        assert_true(noted.sites[0][i] < 1 << 16); /* attention numbers its heads above */
        for (int j = 0; j < i; j++)
            assert_int_not_equal(noted.sites[0][i], noted.sites[0][j]);
    }
    free(e);
    gpt_destroy(model);
}

/* Hooks. */

#define BACKWARD (-1)

struct calls {
    struct gpt *model;
    int layers[16];
    int n;
    double norms[16]; /* of the layer's gradient when it was reported */
};

static double layer_norm_of(struct gpt *model, int layer)
{
    double sum = 0;
    for (int i = 0; i < gpt_params(model)->n_params; i++) {
        const struct param *p = &gpt_params(model)->params[i];
        if (p->layer == layer)
            for (size_t j = 0; j < p->n_elements; j++)
                sum += pow((double)gpt_grad_data(model)[p->offset + j], 2);
    }
    return sum;
}

static void note_needed(void *context, int layer)
{
    struct calls *c = context;
    c->layers[c->n++] = layer;
}

static void note_backward(void *context)
{
    struct calls *c = context;
    c->layers[c->n++] = BACKWARD;
}

static void note_ready(void *context, int layer)
{
    struct calls *c = context;
    c->norms[c->n] = layer_norm_of(c->model, layer);
    c->layers[c->n++] = layer;
}

static void check_calls(enum gpt_head head, int count)
{
    /* a block's parameters are needed in backward too, before its gradients are ready */
    static const int order[] = {0, 1, 2, 3, BACKWARD, 3, 2, 2, 1, 1, 0};
    struct gpt *model = make_model(head, 0.1f);
    struct example *e = new_example(1);
    struct calls calls = {.model = model};
    const struct gpt_hooks hooks = {.context = &calls,
                                    .before_layer = note_needed,
                                    .before_backward = note_backward,
                                    .gradients_ready = note_ready};
    assert_int_equal(gpt_params(model)->n_layers, 4);
    make_example(e, head, 0, N_SEQS);
    struct gpt_step step = {.scale = 1, .seed = SEED, .step = STEP, .to_continue = true};
    gpt_set_hooks(model, &hooks);
    gpt_train(model, &e->batch, 1, &step);
    assert_int_equal(calls.n, 7); /* no gradient is ready before the last micro-batch */
    calls.n = 0;
    make_example(e, head, 0, count);
    gpt_take_loss(model);
    step.continues = true;
    step.to_continue = false;
    gpt_train(model, &e->batch, 1, &step);
    double loss = gpt_take_loss(model);
    assert_true(count > 0 ? loss > 0 : loss == 0);
    assert_int_equal(calls.n, 11);
    assert_memory_equal(calls.layers, order, sizeof order);
    for (int i = 5; i < 11; i++) {
        if (i == 6 || i == 8)
            continue; /* not ready, needed */
        assert_true(calls.norms[i] > 0);
        assert_true(calls.norms[i] == layer_norm_of(model, order[i]));
    }
    free(e);
    gpt_destroy(model);
}

static void hooks_surround_layers(void **state)
{
    (void)state;
    check_calls(GPT_HEAD_CLASSIFY, N_SEQS);
    check_calls(GPT_HEAD_CLASSIFY, 0);
    check_calls(GPT_HEAD_REGRESS, 0);
    check_calls(GPT_HEAD_LM, N_SEQS);
    check_calls(GPT_HEAD_LM, 0);
}

/* Sequences are apart from each other: each one alone has the logits that it has in the batch. */
static void evaluation_of_parts(void **state)
{
    (void)state;
    struct gpt *model = make_model(GPT_HEAD_CLASSIFY, 0.1f);
    struct example *e = new_example(1);
    float all[3 * N_SEQS], one[3];
    make_example(e, GPT_HEAD_CLASSIFY, 0, N_SEQS);
    e->batch.targets = NULL;
    assert_true(gpt_evaluate(model, &e->batch, all) == 0);
    for (int i = 0; i < N_SEQS; i++) {
        make_example(e, GPT_HEAD_CLASSIFY, i, 1);
        assert_true(gpt_evaluate(model, &e->batch, one) > 0);
        for (int j = 0; j < 3; j++)
            assert_true(fabsf(one[j] - all[3 * i + j]) < 1e-4f);
    }
    make_example(e, GPT_HEAD_CLASSIFY, 0, 0);
    assert_true(gpt_evaluate(model, &e->batch, one) == 0);
    free(e);
    gpt_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classifier_agrees_with_differences),
        cmocka_unit_test(regression_agrees_with_differences),
        cmocka_unit_test(language_model_agrees_with_differences),
        cmocka_unit_test(models_of_other_parts_agree_with_differences),
        cmocka_unit_test(each_part_is_felt),
        cmocka_unit_test(cut_into_micro_batches_does_not_matter),
        cmocka_unit_test(every_way_gives_the_same_bits),
        cmocka_unit_test(memory_is_as_measured),
        cmocka_unit_test(host_runs_ahead),
        cmocka_unit_test(dropout_depends_on_seed_and_step),
        cmocka_unit_test(each_dropout_has_a_site_of_its_own),
        cmocka_unit_test(hooks_surround_layers),
        cmocka_unit_test(evaluation_of_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
