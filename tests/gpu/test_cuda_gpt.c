/* The whole model on the CUDA device: against PyTorch and Transformers in fp32, within the bounds
 * of bf16; against the CPU device with dropout; and the same bits in every order of the streams. */
#include "tests/gpu/cuda_testing.h"
#include "tests/parity/gpt_fixture.h"

#include "data/file.h"
#include "data/json.h"

/* Relative differences that bf16 may make: of a loss, of a batch's logits, of a gradient. */
#define LOSS_BOUND     1e-2
#define LOGITS_BOUND   2.5e-2
#define GRADIENT_BOUND 3e-2

static void check(const char *what, double difference, double bound)
{
    if (!(difference < bound))
        fail_msg("%s differs by %.3g", what, difference);
}

static double worst_gradient(struct fixture *f, char *worst_name, size_t bytes)
{
    double worst = -1;
    for (int i = 0; i < safetensors_count(f->expected); i++) {
        const struct tensor *t = safetensors_at(f->expected, i);
        const char *name = gradient_name(t, "single");
        if (!name)
            continue;
        float *g = read_gradient(f->model, name, t);
        double difference = relative_difference(g, t);
        if (!(difference <= worst)) {
            worst = difference;
            snprintf(worst_name, bytes, "%s", name);
        }
        free(g);
    }
    return worst;
}

/* The worst relative error of a gradient in PyTorch's own bf16: see make_gpt.py. */
static double pytorch_error(const char *name)
{
    struct json_file f;
    struct zf_error err;
    assert_works(json_load(&f, GPT_FIXTURES "bf16.json", &err), err);
    const double error = json_number_value(json_object_get(f.root, name));
    if (!(error > 0))
        fail_msg("%s: there is no number for %s", f.path, name);
    json_free(&f);
    return error;
}

/* The bound is half as much again as theirs, and no less than GRADIENT_BOUND. */
static void agrees_with_pytorch(void **state)
{
    const char *name = *state;
    const double theirs = pytorch_error(name);
    struct fixture f = open_fixture(cuda_device(), name, GPT_TRAIN);
    bool lm = gpt_get_config(f.model)->head == GPT_HEAD_LM;
    float logits[64], items = (float)f.batch.n_items;
    char worst_name[80];
    float evaluated = (float)gpt_evaluate(f.model, &f.batch, lm ? NULL : logits) / items;
    gpt_train(f.model, &f.batch, 1, &(struct gpt_step){.scale = 1 / items, .seed = 1, .step = 1});
    float trained = (float)gpt_take_loss(f.model) / items;
    double d_loss = relative_difference(&trained, find(&f, "single.loss"));
    double d_logits = lm ? 0 : relative_difference(logits, find(&f, "single.logits"));
    double d_gradient = worst_gradient(&f, worst_name, sizeof worst_name);
    print_message("%s: loss %.1e, logits %.1e, gradients at most %.1e (%s; PyTorch's bf16 %.1e)\n",
                  name, d_loss, d_logits, d_gradient, worst_name, theirs);
    check("the loss", d_loss, LOSS_BOUND);
    check("the evaluated loss", relative_difference(&evaluated, find(&f, "single.loss")),
          LOSS_BOUND);
    check("the logits", d_logits, LOGITS_BOUND);
    check(worst_name, d_gradient, fmax(GRADIENT_BOUND, 1.5 * theirs));
    close_fixture(&f);
}

/* Parameters are the file's, rounded to bf16, whichever way they lie in it; saved and loaded again
 * they are the same. */
static void weights_are_rounded_once(void **state)
{
    (void)state;
    static const char *const names[] = {"classify3", "lm-untied"};
    for (int i = 0; i < 2; i++) {
        struct fixture f = open_fixture(cuda_device(), names[i], GPT_EVALUATE);
        char directory[] = "/tmp/zf-test-cuda-gpt-XXXXXX";
        struct zf_error err;
        assert_non_null(mkdtemp(directory));
        assert_works(gpt_save(f.model, directory, NULL, &err), err);
        char *path = zf_format("%s%s/model.safetensors", GPT_FIXTURES, names[i]);
        char *saved_path = zf_format("%s/model.safetensors", directory);
        struct safetensors *file = safetensors_open(path, &err);
        struct safetensors *saved = safetensors_open(saved_path, &err);
        assert_true(file && saved);
        assert_int_equal(safetensors_count(saved), gpt_params(f.model)->n_params);
        for (int k = 0; k < safetensors_count(saved); k++) {
            const struct tensor *t = safetensors_at(saved, k);
            const struct tensor *theirs = safetensors_find(file, t->name);
            assert_non_null(theirs);
            for (size_t j = 0; j < t->n_elements; j++) {
                float a, b;
                memcpy(&a, (const char *)t->data + j * sizeof a, sizeof a);
                memcpy(&b, (const char *)theirs->data + j * sizeof b, sizeof b);
                assert_true(a == bf16_to_f32(bf16_parameter(b)));
            }
        }
        safetensors_close(file);
        safetensors_close(saved);
        assert_works(file_remove_directory(directory, &err), err);
        free(path);
        free(saved_path);
        close_fixture(&f);
    }
}

/* Models with heads of 32 that share keys, dropout, and sequences of one token and of many. */

enum { SEQS = 5, VOCAB = 200, MOST_TOKENS = 200 };

struct stream_case {
    struct gpt_config config;
    struct batch batch;
    int tokens[MOST_TOKENS], position[MOST_TOKENS], targets[MOST_TOKENS], seq_start[SEQS + 1];
    uint32_t token_seq[MOST_TOKENS];
};

/* Sequences number first, ... of the step. */
static void make_case(struct stream_case *c, const char *preset, enum gpt_head head, uint32_t first)
{
    static const int lengths[SEQS] = {17, 1, 70, 33, 8};
    struct zf_error err;
    *c = (struct stream_case){0};
    assert_works(gpt_config_preset(&c->config, preset, &err), err);
    c->config.vocab_size = VOCAB;
    c->config.n_embd = 64;
    c->config.n_inner = 128;
    c->config.n_head = 2;
    c->config.n_kv_heads = 1;
    c->config.head_dim = 32;
    c->config.attn_pdrop = c->config.resid_pdrop = 0.1f;
    c->config.initializer_range = 0.1f;
    c->config.head = head;
    c->config.num_labels = 3;
    const int n = cuda_lay_sequences(lengths, SEQS, first, c->position, c->token_seq, c->seq_start);
    for (int t = 0; t < n; t++) {
        c->tokens[t] = cuda_random_int(0, VOCAB - 1, (uint32_t)t, first);
        c->targets[t] = (c->tokens[t] * 7 + 1) % VOCAB;
    }
    for (int i = 0; i < SEQS; i++)
        c->targets[c->seq_start[i + 1] - 1] = TARGET_IGNORE;
    if (head == GPT_HEAD_CLASSIFY)
        for (int i = 0; i < SEQS; i++)
            c->targets[i] = i % 3;
    c->batch = (struct batch){.n_tokens = n,
                              .n_seqs = SEQS,
                              .tokens = c->tokens,
                              .position = c->position,
                              .seq_start = c->seq_start,
                              .token_seq = c->token_seq,
                              .targets = c->targets};
}

struct outcome {
    double loss, evaluated;
    size_t n;
    float *gradients; /* (n) */
};

/* An evaluation, and four micro-batches in a row: more than there are places to put them. */
static struct outcome train_on(struct device *device, const char *preset, enum gpt_head head,
                               enum gpt_mode mode)
{
    struct stream_case *c = zf_malloc(sizeof *c);
    struct outcome o;
    make_case(c, preset, head, 0);
    struct gpt *model =
        gpt_create(device, &c->config,
                   &(struct gpt_size){.max_tokens = MOST_TOKENS, .max_seqs = SEQS, .mode = mode});
    gpt_init_weights(model, 7);
    device->zero(device->compute, gpt_grad_data(model),
                 gpt_params(model)->n_elements * sizeof(float));
    o.evaluated = gpt_evaluate(model, &c->batch, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        make_case(c, preset, head, i * SEQS);
        gpt_train(
            model, &c->batch, 1,
            &(struct gpt_step){
                .scale = 0.2f, .seed = 11, .step = 4, .continues = i > 0, .to_continue = i < 3});
    }
    o.loss = gpt_take_loss(model);
    assert_true(gpt_take_loss(model) == 0);
    o.n = gpt_params(model)->n_elements;
    o.gradients = zf_malloc(o.n * sizeof *o.gradients);
    device->copy(device->compute, o.gradients, gpt_grad_data(model), o.n * sizeof *o.gradients);
    device->stream_wait(device->compute);
    gpt_destroy(model);
    free(c);
    return o;
}

static void same_bits(struct outcome *a, struct outcome *b)
{
    assert_true(a->loss == b->loss && a->evaluated == b->evaluated);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->gradients, b->gradients, a->n * sizeof *a->gradients);
}

static const char *const presets[] = {"gpt", "llama"};
#define N_PRESETS 2

static void agrees_with_the_cpu_device(void **state)
{
    (void)state;
    static const enum gpt_head heads[] = {GPT_HEAD_CLASSIFY, GPT_HEAD_LM};
    for (int i = 0; i < 2 * N_PRESETS; i++) {
        const char *preset = presets[i / 2];
        struct outcome cpu = train_on(device_cpu(0), preset, heads[i % 2], GPT_TRAIN);
        struct outcome cuda = train_on(cuda_device(), preset, heads[i % 2], GPT_TRAIN);
        double d_gradient = cuda_relative_error(cuda.gradients, cpu.gradients, cpu.n);
        double d_loss = fabs(cuda.loss - cpu.loss) / cpu.loss;
        double d_evaluated = fabs(cuda.evaluated - cpu.evaluated) / cpu.evaluated;
        print_message("%s, %s: loss %.1e, evaluated %.1e, gradient %.1e\n", preset,
                      i % 2 ? "lm" : "classify", d_loss, d_evaluated, d_gradient);
        check("the loss", d_loss, LOSS_BOUND);
        check("the evaluated loss", d_evaluated, LOSS_BOUND);
        check("the gradient", d_gradient, GRADIENT_BOUND);
        free(cpu.gradients);
        free(cuda.gradients);
    }
}

static void recomputing_gives_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_PRESETS; i++) {
        struct outcome kept = train_on(cuda_device(), presets[i], GPT_HEAD_LM, GPT_TRAIN);
        struct outcome again =
            train_on(cuda_device(), presets[i], GPT_HEAD_LM, GPT_TRAIN_RECOMPUTE);
        same_bits(&kept, &again);
        free(kept.gradients);
        free(again.gradients);
    }
}

/* Batches and losses cross the link while the device computes, and parameters stay as they are. */
static void every_order_gives_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_PRESETS; i++) {
        struct outcome first = train_on(cuda_device(), presets[i], GPT_HEAD_CLASSIFY, GPT_TRAIN);
        for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
            cuda_order(order);
            struct outcome again =
                train_on(cuda_device(), presets[i], GPT_HEAD_CLASSIFY, GPT_TRAIN);
            same_bits(&first, &again);
            free(again.gradients);
        }
        free(first.gradients);
    }
}

int main(void)
{
    cuda_device(); /* or the whole program is skipped */
    struct file_names names = fixture_names();
    const struct CMUnitTest others[] = {
        cmocka_unit_test(weights_are_rounded_once),
        cmocka_unit_test(agrees_with_the_cpu_device),
        cmocka_unit_test(recomputing_gives_the_same_bits),
        cmocka_unit_test(every_order_gives_the_same_bits),
    };
    const int n_others = sizeof others / sizeof *others;
    struct CMUnitTest tests[names.n + n_others];
    for (int i = 0; i < names.n; i++)
        tests[i] =
            (struct CMUnitTest){names.list[i], agrees_with_pytorch, NULL, NULL, names.list[i]};
    memcpy(tests + names.n, others, sizeof others);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_names_free(&names);
    return failed;
}
