/* GPT-2 models against PyTorch and Transformers: logits, loss and every parameter's gradient, with
 * and without padding on their side; and ten steps of AdamW. See tests/fixtures/make_gpt.py. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "model/gpt.h"

#include <math.h>

#define TOLERANCE 1e-4 /* norm(a - b) / norm(b) */
#define FIXTURES  ZF_TESTS_DIR "/fixtures/gpt/"

#define N_STEPS      10
#define STEP_SEQS    4
#define WARMUP_STEPS 3
#define PEAK_LR      3e-3
#define WEIGHT_DECAY 0.1f
#define CLIP_NORM    1.0

struct fixture {
    struct gpt *model;
    struct safetensors *expected;
    struct batch batch; /* all sequences; its arrays are owned */
};

static const struct tensor *find(const struct fixture *f, const char *name)
{
    const struct tensor *t = safetensors_find(f->expected, name);
    if (!t)
        fail_msg("expected.safetensors has no %s", name);
    return t;
}

static void *copy_tensor(const struct fixture *f, const char *name, size_t *n)
{
    const struct tensor *t = find(f, name);
    size_t bytes = t->n_elements * dtype_size(t->dtype);
    if (n)
        *n = t->n_elements;
    return memcpy(zf_malloc(bytes), t->data, bytes);
}

/* Sequences `chosen` of `all`, as a batch with memory of its own. */
static struct batch choose(const struct batch *all, const int *chosen, int count,
                           enum gpt_head head)
{
    struct batch b = {.n_seqs = count};
    size_t n = (size_t)all->n_tokens;
    b.tokens = zf_malloc(n * sizeof *b.tokens);
    b.position = zf_malloc(n * sizeof *b.position);
    b.token_seq = zf_malloc(n * sizeof *b.token_seq);
    b.seq_start = zf_malloc((size_t)(count + 1) * sizeof *b.seq_start);
    b.targets = all->targets ? zf_malloc(n * sizeof *b.targets) : NULL;
    b.scores = all->scores ? zf_malloc(n * sizeof *b.scores) : NULL;
    b.seq_start[0] = 0;
    for (int i = 0; i < count; i++) {
        int first = all->seq_start[chosen[i]], last = all->seq_start[chosen[i] + 1];
        for (int t = first; t < last; t++, b.n_tokens++) {
            b.tokens[b.n_tokens] = all->tokens[t];
            b.position[b.n_tokens] = t - first;
            b.token_seq[b.n_tokens] = (uint32_t)i;
            if (head == GPT_HEAD_LM) {
                b.targets[b.n_tokens] = all->targets[t];
                b.n_items += all->targets[t] != TARGET_IGNORE;
            }
        }
        b.seq_start[i + 1] = b.n_tokens;
        if (head == GPT_HEAD_CLASSIFY)
            b.targets[i] = all->targets[chosen[i]];
        if (head == GPT_HEAD_REGRESS)
            b.scores[i] = all->scores[chosen[i]];
        b.n_items += head != GPT_HEAD_LM;
    }
    return b;
}

static void release(struct batch *b)
{
    free(b->tokens);
    free(b->position);
    free(b->token_seq);
    free(b->seq_start);
    free(b->targets);
    free(b->scores);
}

static struct fixture open_fixture(const char *name)
{
    struct fixture f;
    struct zf_error err;
    struct gpt_config config;
    bool head_is_new;
    size_t n_tokens, n_starts;
    char *directory = zf_format("%s%s", FIXTURES, name);
    char *path = zf_format("%s/expected.safetensors", directory);
    f.expected = safetensors_open(path, &err);
    if (!f.expected)
        fail_msg("%s", err.text);
    assert_works(gpt_config_load(&config, directory, &err), err);
    struct batch all = {.tokens = copy_tensor(&f, "tokens", &n_tokens)};
    all.seq_start = copy_tensor(&f, "seq_start", &n_starts);
    all.n_tokens = (int)n_tokens;
    if (config.head == GPT_HEAD_REGRESS)
        all.scores = copy_tensor(&f, "scores", NULL);
    else
        all.targets = copy_tensor(&f, "targets", NULL);
    int every[16];
    for (int i = 0; i < 16; i++)
        every[i] = i;
    f.batch = choose(&all, every, (int)n_starts - 1, config.head);
    release(&all);
    f.model = gpt_create(device_cpu(0), &config, (int)n_tokens, (int)n_starts);
    assert_works(gpt_load_weights(f.model, directory, 0, &head_is_new, &err), err);
    assert_false(head_is_new);
    free(directory);
    free(path);
    return f;
}

static void close_fixture(struct fixture *f)
{
    gpt_destroy(f->model);
    safetensors_close(f->expected);
    release(&f->batch);
}

/* The parameter's gradient in host memory, in the file's order. */
static float *read_gradient(struct gpt *model, const struct param *p)
{
    struct device *device = gpt_device(model);
    float *straight = zf_malloc(p->n_elements * sizeof *straight);
    float *g = zf_malloc(p->n_elements * sizeof *g);
    device->copy(device->compute, straight, gpt_grad_data(model) + p->offset,
                 p->n_elements * sizeof *straight);
    device->stream_wait(device->compute);
    for (int i = 0; i < p->rows; i++)
        for (int j = 0; j < p->cols; j++)
            g[p->transposed ? j * p->rows + i : i * p->cols + j] = straight[i * p->cols + j];
    free(straight);
    return g;
}

static double relative_difference(const float *a, const struct tensor *b)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < b->n_elements; i++) {
        float y;
        memcpy(&y, (const char *)b->data + i * sizeof y, sizeof y);
        difference += (double)(a[i] - y) * (double)(a[i] - y);
        size += (double)y * (double)y;
    }
    return sqrt(difference / size);
}

static double check(const float *a, const struct tensor *b)
{
    double difference = relative_difference(a, b);
    if (!(difference < TOLERANCE))
        fail_msg("%s: %s differs by %.3g", b->file, b->name, difference);
    return difference;
}

static double check_gradients(struct fixture *f, const char *way)
{
    double worst = 0;
    const struct param_table *table = gpt_params(f->model);
    for (int i = 0; i < table->n_params; i++) {
        char *name = zf_format("%s.%s", way, table->params[i].name);
        float *g = read_gradient(f->model, &table->params[i]);
        worst = fmax(worst, check(g, find(f, name)));
        free(g);
        free(name);
    }
    return worst;
}

static void agrees(const char *name)
{
    struct fixture f = open_fixture(name);
    const char *const ways[] = {"single", "padded"};
    bool lm = gpt_get_config(f.model)->head == GPT_HEAD_LM;
    float logits[64];
    double items = f.batch.n_items;
    float evaluated = (float)(gpt_evaluate(f.model, &f.batch, lm ? NULL : logits) / items);
    float trained =
        (float)(gpt_train(f.model, &f.batch, (float)(1 / items), 1, 1, true, NULL) / items);
    for (int i = 0; i < 2; i++) {
        char *loss = zf_format("%s.loss", ways[i]), *expected = zf_format("%s.logits", ways[i]);
        double d_loss = fmax(check(&evaluated, find(&f, loss)), check(&trained, find(&f, loss)));
        double d_logits = lm ? 0 : check(logits, find(&f, expected));
        double d_gradients = check_gradients(&f, ways[i]);
        print_message("%s, %s: loss %.1e, logits %.1e, gradients at most %.1e\n", name, ways[i],
                      d_loss, d_logits, d_gradients);
        free(loss);
        free(expected);
    }
    close_fixture(&f);
}

static void classifies_two(void **state)
{
    (void)state;
    agrees("classify2");
}

static void classifies_three(void **state)
{
    (void)state;
    agrees("classify3");
}

static void regresses(void **state)
{
    (void)state;
    agrees("regress");
}

static void models_language(void **state)
{
    (void)state;
    agrees("lm");
}

static void models_language_untied(void **state)
{
    (void)state;
    agrees("lm-untied");
}

/* Ten steps. */

struct optimizer {
    struct device *device;
    const struct param_table *table;
    float *m, *v;  /* (n_elements), device memory */
    float *sums;   /* (most rows of a parameter), device memory */
    float *factor; /* one float, device memory */
    float *sums_host;
};

static float *zeroed(struct device *device, size_t n)
{
    float *x = device->allocate(n * sizeof *x);
    device->zero(device->compute, x, n * sizeof *x);
    return x;
}

static struct optimizer optimizer_create(struct gpt *model)
{
    struct optimizer o = {.device = gpt_device(model), .table = gpt_params(model)};
    size_t rows = 1;
    for (int i = 0; i < o.table->n_params; i++)
        if ((size_t)o.table->params[i].rows > rows)
            rows = (size_t)o.table->params[i].rows;
    o.m = zeroed(o.device, o.table->n_elements);
    o.v = zeroed(o.device, o.table->n_elements);
    o.sums = zeroed(o.device, rows);
    o.factor = zeroed(o.device, 1);
    o.sums_host = zf_malloc(rows * sizeof *o.sums_host);
    return o;
}

static void optimizer_destroy(struct optimizer *o)
{
    o->device->release(o->m);
    o->device->release(o->v);
    o->device->release(o->sums);
    o->device->release(o->factor);
    free(o->sums_host);
}

static double gradient_norm(struct optimizer *o, struct gpt *model)
{
    double sum = 0;
    for (int i = 0; i < o->table->n_params; i++) {
        const struct param *p = &o->table->params[i];
        o->device->ops->row_norms_squared(o->device->compute, o->sums,
                                          gpt_grad_data(model) + p->offset, p->rows, p->cols);
        o->device->copy(o->device->compute, o->sums_host, o->sums, (size_t)p->rows * sizeof(float));
        o->device->stream_wait(o->device->compute);
        for (int r = 0; r < p->rows; r++)
            sum += (double)o->sums_host[r];
    }
    return sqrt(sum);
}

/* As torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW; step counts from 0. Returns the norm. */
static double optimizer_step(struct optimizer *o, struct gpt *model, int step, double lr)
{
    double norm = gradient_norm(o, model);
    float factor = (float)fmin(1, CLIP_NORM / (norm + 1e-6));
    float *params = gpt_param_data(model);
    o->device->copy(o->device->compute, o->factor, &factor, sizeof factor);
    for (int i = 0; i < o->table->n_params; i++) {
        const struct param *p = &o->table->params[i];
        struct adamw rule = {.lr = (float)lr,
                             .beta1 = 0.9f,
                             .beta2 = 0.999f,
                             .eps = 1e-8f,
                             .weight_decay = p->decay ? WEIGHT_DECAY : 0,
                             .correction1 = (float)(1 - pow(0.9, step + 1)),
                             .correction2 = (float)(1 - pow(0.999, step + 1))};
        o->device->ops->adamw(o->device->compute, params + p->offset, params + p->offset,
                              o->m + p->offset, o->v + p->offset, gpt_grad_data(model) + p->offset,
                              p->n_elements, &rule, o->factor);
    }
    o->device->zero(o->device->compute, gpt_grad_data(model), o->table->n_elements * sizeof(float));
    o->device->stream_wait(o->device->compute);
    return norm;
}

static void follows(const char *name)
{
    struct fixture f = open_fixture(name);
    struct optimizer o = optimizer_create(f.model);
    float losses[N_STEPS], norms[N_STEPS];
    for (int step = 0; step < N_STEPS; step++) {
        int chosen[STEP_SEQS];
        for (int i = 0; i < STEP_SEQS; i++)
            chosen[i] = (step + i) % f.batch.n_seqs;
        struct batch b = choose(&f.batch, chosen, STEP_SEQS, gpt_get_config(f.model)->head);
        double scale = 1.0 / b.n_items;
        double lr =
            PEAK_LR * (step < WARMUP_STEPS ? (double)step / WARMUP_STEPS
                                           : (double)(N_STEPS - step) / (N_STEPS - WARMUP_STEPS));
        losses[step] =
            (float)(scale * gpt_train(f.model, &b, (float)scale, 1, (uint32_t)step, true, NULL));
        norms[step] = (float)optimizer_step(&o, f.model, step, lr);
        release(&b);
    }
    const struct tensor *expected = find(&f, "steps.losses");
    double worst = 0;
    for (int step = 0; step < N_STEPS; step++) {
        float loss;
        memcpy(&loss, (const char *)expected->data + (size_t)step * sizeof loss, sizeof loss);
        double difference = fabs((double)(losses[step] - loss)) / (double)loss;
        if (!(difference < TOLERANCE))
            fail_msg("%s, step %d: the loss is %g, theirs %g", name, step, (double)losses[step],
                     (double)loss);
        worst = fmax(worst, difference);
    }
    print_message("%s, ten steps from loss %.3f to %.3f: losses differ by at most %.1e, gradient "
                  "norms by %.1e\n",
                  name, (double)losses[0], (double)losses[N_STEPS - 1], worst,
                  check(norms, find(&f, "steps.norms")));
    optimizer_destroy(&o);
    close_fixture(&f);
}

static void classifier_follows_ten_steps(void **state)
{
    (void)state;
    follows("classify2");
}

static void language_model_follows_ten_steps(void **state)
{
    (void)state;
    follows("lm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classifies_two),
        cmocka_unit_test(classifies_three),
        cmocka_unit_test(regresses),
        cmocka_unit_test(models_language),
        cmocka_unit_test(models_language_untied),
        cmocka_unit_test(classifier_follows_ten_steps),
        cmocka_unit_test(language_model_follows_ten_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
