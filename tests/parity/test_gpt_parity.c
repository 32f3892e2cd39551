/* GPT-2 models against PyTorch and Transformers: logits, loss and every parameter's gradient, with
 * and without padding on their side; and ten steps of AdamW. See tests/fixtures/make_gpt.py. */
#include "tests/testing.h"

#include "tests/parity/gpt_fixture.h"

#define TOLERANCE 1e-4 /* norm(a - b) / norm(b) */

#define N_STEPS      10
#define STEP_SEQS    4
#define WARMUP_STEPS 3
#define PEAK_LR      3e-3
#define WEIGHT_DECAY 0.1f
#define CLIP_NORM    1.0

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
    struct fixture f = open_fixture(device_cpu(0), name, GPT_TRAIN);
    const char *const ways[] = {"single", "padded"};
    bool lm = gpt_get_config(f.model)->head == GPT_HEAD_LM;
    float logits[64];
    double items = f.batch.n_items;
    float evaluated = (float)(gpt_evaluate(f.model, &f.batch, lm ? NULL : logits) / items);
    gpt_train(f.model, &f.batch, (float)(1 / items), 1, 1, true, NULL);
    float trained = (float)(gpt_take_loss(f.model) / items);
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
    float *m, *v;      /* (n_elements), device memory */
    float *sums;       /* (most rows of a parameter), device memory */
    float *factor;     /* one float, device memory */
    int *row;          /* (most rows), device memory: 0, 1, ... */
    uint32_t *updates; /* (rows of all parameters), device memory */
    float *sums_host;
};

static void *zeroed(struct device *device, size_t n)
{
    void *x = device->allocate(n * sizeof(float));
    device->zero(device->compute, x, n * sizeof(float));
    return x;
}

static int *counting(struct device *device, size_t n)
{
    int *host = zf_malloc(n * sizeof *host), *x = device->allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        host[i] = (int)i;
    device->copy(device->compute, x, host, n * sizeof *x);
    free(host);
    return x;
}

static struct optimizer optimizer_create(struct gpt *model)
{
    struct optimizer o = {.device = gpt_device(model), .table = gpt_params(model)};
    size_t rows = 1, all_rows = 0;
    for (int i = 0; i < o.table->n_params; i++) {
        if ((size_t)o.table->params[i].rows > rows)
            rows = (size_t)o.table->params[i].rows;
        all_rows += (size_t)o.table->params[i].rows;
    }
    o.m = zeroed(o.device, o.table->n_elements);
    o.v = zeroed(o.device, o.table->n_elements);
    o.sums = zeroed(o.device, rows);
    o.factor = zeroed(o.device, 1);
    o.row = counting(o.device, rows);
    o.updates = zeroed(o.device, all_rows);
    o.sums_host = zf_malloc(rows * sizeof *o.sums_host);
    return o;
}

static void optimizer_destroy(struct optimizer *o)
{
    o->device->release(o->m);
    o->device->release(o->v);
    o->device->release(o->sums);
    o->device->release(o->factor);
    o->device->release(o->row);
    o->device->release(o->updates);
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

/* As torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW. Returns the norm. */
static double optimizer_step(struct optimizer *o, struct gpt *model, double lr)
{
    double norm = gradient_norm(o, model);
    float factor = (float)fmin(1, CLIP_NORM / (norm + 1e-6));
    float *params = gpt_param_data(model);
    uint32_t *updates = o->updates;
    o->device->copy(o->device->compute, o->factor, &factor, sizeof factor);
    for (int i = 0; i < o->table->n_params; i++) {
        const struct param *p = &o->table->params[i];
        struct adamw rule = {.lr = (float)lr,
                             .beta1 = 0.9f,
                             .beta2 = 0.999f,
                             .eps = 1e-8f,
                             .weight_decay = p->decay ? WEIGHT_DECAY : 0};
        o->device->ops->adamw_rows(o->device->compute, params + p->offset, NULL, o->m + p->offset,
                                   o->v + p->offset, gpt_grad_data(model) + p->offset, o->row,
                                   updates, p->rows, p->cols, &rule, o->factor, false);
        updates += p->rows;
    }
    o->device->zero(o->device->compute, gpt_grad_data(model), o->table->n_elements * sizeof(float));
    o->device->stream_wait(o->device->compute);
    return norm;
}

static void follows(const char *name)
{
    struct fixture f = open_fixture(device_cpu(0), name, GPT_TRAIN);
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
        gpt_train(f.model, &b, (float)scale, 1, (uint32_t)step, true, NULL);
        losses[step] = (float)(scale * gpt_take_loss(f.model));
        norms[step] = (float)optimizer_step(&o, f.model, lr);
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
