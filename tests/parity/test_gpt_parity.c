/* Models of the family against PyTorch and Transformers: logits, loss and every parameter's
 * gradient, with and without padding on their side; and ten steps of AdamW. What cases there are,
 * the folders say that tests/fixtures/make_gpt.py made. */
#include "tests/testing.h"

#include "tests/parity/gpt_fixture.h"

#include "model/device/row_ops.h"
#include "model/gpt_arch.h"

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

/* Of all parameters. */
static double check_gradients(struct fixture *f, const char *way)
{
    double worst = 0;
    size_t n_elements = 0;
    for (int i = 0; i < safetensors_count(f->expected); i++) {
        const struct tensor *t = safetensors_at(f->expected, i);
        const char *name = gradient_name(t, way);
        if (!name)
            continue;
        float *g = read_gradient(f->model, name, t);
        worst = fmax(worst, check(g, t));
        n_elements += t->n_elements;
        free(g);
    }
    assert_int_equal(n_elements, gpt_params(f->model)->n_parameters);
    return worst;
}

static void agrees(void **state)
{
    const char *name = *state;
    struct fixture f = open_fixture(device_cpu(0), name, GPT_TRAIN);
    const char *const ways[] = {"single", "padded"};
    bool lm = gpt_get_config(f.model)->head == GPT_HEAD_LM;
    float logits[64];
    double items = f.batch.n_items;
    float evaluated = (float)(gpt_evaluate(f.model, &f.batch, lm ? NULL : logits) / items);
    gpt_train(f.model, &f.batch, 1,
              &(struct gpt_step){.scale = (float)(1 / items), .seed = 1, .step = 1});
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

/* Ten steps. */

struct optimizer {
    struct device *device;
    float *m, *v, *waiting; /* (n_elements), device memory */
    unsigned char *place;   /* (most rows of a parameter) all resident, in slots of their own */
    int *slot;
    float *norms;  /* (n_updates) of all rows, device memory */
    float *factor; /* one float, device memory */
    struct matrix_batch batch;
    struct channel_update *updates; /* (n_updates) all rows of all parameters */
    int n_updates;
};

static void *zeroed(struct device *device, size_t n)
{
    void *x = device->allocate(n * sizeof(float));
    device->zero(device->compute, x, n * sizeof(float));
    return x;
}

static void describe_rows(struct optimizer *o, struct gpt *model, const struct param_table *table)
{
    struct matrix_rows *rows = zf_calloc((size_t)table->n_params, sizeof *rows);
    struct channel_update *updates = zf_malloc((size_t)o->n_updates * sizeof *updates);
    int n = 0;
    for (int i = 0; i < table->n_params; i++) {
        const struct param *p = &table->params[i];
        rows[i] = (struct matrix_rows){.values = (float *)gpt_param_data(model) + p->offset,
                                       .gradient = gpt_grad_data(model) + p->offset,
                                       .place = o->place,
                                       .slot = o->slot,
                                       .waiting = o->waiting + p->offset,
                                       .norms = o->norms + n,
                                       .m = o->m + p->offset,
                                       .v = o->v + p->offset,
                                       .n_rows = p->rows,
                                       .cols = p->cols,
                                       .decays = p->decay};
        for (int row = 0; row < p->rows; row++)
            updates[n++] = (struct channel_update){i, row, row, 0, 0};
    }
    o->batch = matrix_batch_upload(o->device, rows, table->n_params);
    o->device->copy(o->device->compute, o->updates, updates, (size_t)n * sizeof *updates);
    free(rows);
    free(updates);
}

static void place_rows(struct optimizer *o, int n)
{
    unsigned char *place = zf_malloc((size_t)n);
    int *slot = zf_malloc(sizeof *slot * (size_t)n);
    for (int i = 0; i < n; i++) {
        place[i] = CHANNEL_RESIDENT;
        slot[i] = i;
    }
    o->place = o->device->allocate((size_t)n);
    o->slot = o->device->allocate(sizeof *slot * (size_t)n);
    o->device->copy(o->device->compute, o->place, place, (size_t)n);
    o->device->copy(o->device->compute, o->slot, slot, sizeof *slot * (size_t)n);
    free(place);
    free(slot);
}

static struct optimizer optimizer_create(struct gpt *model)
{
    struct optimizer o = {.device = gpt_device(model)};
    const struct param_table *table = gpt_params(model);
    for (int i = 0; i < table->n_params; i++)
        o.n_updates += table->params[i].rows;
    o.m = zeroed(o.device, table->n_elements);
    o.v = zeroed(o.device, table->n_elements);
    o.waiting = zeroed(o.device, table->n_elements);
    place_rows(&o, o.n_updates);
    o.norms = zeroed(o.device, (size_t)o.n_updates);
    o.factor = zeroed(o.device, 1);
    o.updates = o.device->allocate((size_t)o.n_updates * sizeof *o.updates);
    describe_rows(&o, model, table);
    return o;
}

static void optimizer_destroy(struct optimizer *o)
{
    o->device->release(o->m);
    o->device->release(o->v);
    o->device->release(o->waiting);
    o->device->release(o->place);
    o->device->release(o->slot);
    o->device->release(o->norms);
    o->device->release(o->factor);
    o->device->release(o->updates);
    o->device->release((void *)o->batch.matrices);
}

static double gradient_norm(const struct optimizer *o)
{
    const size_t n = (size_t)o->n_updates;
    float *norms = zf_malloc(n * sizeof *norms);
    double sum = 0;
    o->device->row_ops->take_rows(o->device->compute, &o->batch, DTYPE_F32);
    o->device->copy(o->device->compute, norms, o->norms, n * sizeof *norms);
    o->device->stream_wait(o->device->compute);
    for (size_t i = 0; i < n; i++)
        sum += (double)norms[i];
    free(norms);
    return sqrt(sum);
}

/* As torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW. Returns the norm. */
static double optimizer_step(struct optimizer *o, double lr)
{
    double norm = gradient_norm(o);
    float factor = (float)fmin(1, CLIP_NORM / (norm + 1e-6));
    struct adamw rule = {.lr = (float)lr,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .eps = 1e-8f,
                         .weight_decay = WEIGHT_DECAY};
    o->device->copy(o->device->compute, o->factor, &factor, sizeof factor);
    o->device->row_ops->adamw_rows(o->device->compute, &o->batch, o->updates, o->n_updates,
                                   ROWS_GRADIENT, &rule, o->factor, false);
    o->device->stream_wait(o->device->compute);
    return norm;
}

static void follows(void **state)
{
    const char *name = *state;
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
        gpt_train(f.model, &b, 1,
                  &(struct gpt_step){.scale = (float)scale, .seed = 1, .step = (uint32_t)step});
        losses[step] = (float)(scale * gpt_take_loss(f.model));
        norms[step] = (float)optimizer_step(&o, lr);
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

static bool has_steps(const char *name)
{
    struct zf_error err;
    char *path = zf_format("%s%s/expected.safetensors", GPT_FIXTURES, name);
    struct safetensors *expected = safetensors_open(path, &err);
    bool has = expected && safetensors_find(expected, "steps.losses");
    safetensors_close(expected);
    free(path);
    return has;
}

/* Each architecture has a case of language modelling, and one of ten steps, as has regression. */
static void every_architecture_has_its_cases(void **state)
{
    const struct file_names *names = *state;
    bool regression = false;
    const struct gpt_arch *arch;
    for (int i = 0; (arch = gpt_arch_at(i)); i++) {
        bool lm = false, steps = false;
        for (int k = 0; k < names->n; k++) {
            struct gpt_config c;
            struct zf_error err;
            char *directory = zf_format("%s%s", GPT_FIXTURES, names->list[k]);
            assert_works(gpt_config_load(&c, directory, &err), err);
            free(directory);
            if (c.arch != arch)
                continue;
            lm |= c.head == GPT_HEAD_LM;
            steps |= has_steps(names->list[k]);
            regression |= c.head == GPT_HEAD_REGRESS && has_steps(names->list[k]);
        }
        if (!lm || !steps)
            fail_msg("tests/fixtures/make_gpt.py has no case of %s%s", arch->model_type,
                     lm ? " with ten steps" : " and language modelling");
    }
    assert_true(regression);
}

int main(void)
{
    struct file_names names = fixture_names();
    int n_steps = 0, n = 0;
    for (int i = 0; i < names.n; i++)
        n_steps += has_steps(names.list[i]);
    struct CMUnitTest tests[1 + names.n + n_steps];
    tests[n++] = (struct CMUnitTest){"every_architecture_has_its_cases",
                                     every_architecture_has_its_cases, NULL, NULL, &names};
    for (int i = 0; i < names.n; i++)
        tests[n++] = (struct CMUnitTest){names.list[i], agrees, NULL, NULL, names.list[i]};
    for (int i = 0; i < names.n; i++)
        if (has_steps(names.list[i]))
            tests[n++] = (struct CMUnitTest){names.list[i], follows, NULL, NULL, names.list[i]};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_names_free(&names);
    return failed;
}
