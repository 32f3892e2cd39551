/* model/gpt_weights: initialisation, loading from every form of file, saving, and the faults. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/safetensors.h"
#include "model/gpt.h"

#include <math.h>
#include <omp.h>

#define FIXTURES ZF_TESTS_DIR "/fixtures/gpt/"

static char directory[] = "/tmp/zf-test-gpt-weights-XXXXXX";

static struct gpt *make(const struct gpt_config *config)
{
    const struct gpt_size size = {.max_tokens = 4, .max_seqs = 2, .mode = GPT_EVALUATE};
    return gpt_create(device_cpu(0), config, &size);
}

static struct gpt *load(const char *from, bool *head_is_new)
{
    struct gpt_config c;
    struct zf_error err;
    assert_works(gpt_config_load(&c, from, &err), err);
    struct gpt *model = make(&c);
    assert_works(gpt_load_weights(model, from, 11, head_is_new, &err), err);
    return model;
}

/* The CPU device's memory is ours to look at. */
static const float *weights(struct gpt *model, const char *name)
{
    const struct param *p = params_find(gpt_params(model), name);
    assert_non_null(p);
    return (const float *)gpt_param_data(model) + p->offset;
}

static void same_weights(struct gpt *a, struct gpt *b)
{
    assert_memory_equal(gpt_param_data(a), gpt_param_data(b),
                        gpt_params(a)->n_elements * sizeof(float));
}

static void initialises_preset(const char *preset)
{
    struct gpt_config c;
    struct zf_error err;
    assert_works(gpt_config_preset(&c, preset, &err), err);
    c.head = GPT_HEAD_CLASSIFY;
    struct gpt *model = make(&c);
    gpt_init_weights(model, 3);
    for (int i = 0; i < gpt_params(model)->n_params; i++) {
        const struct param *p = &gpt_params(model)->params[i];
        const float *w = weights(model, p->name);
        double n = (double)p->n_elements, sum = 0, squares = 0;
        for (size_t j = 0; j < p->n_elements; j++) {
            sum += (double)w[j];
            squares += (double)w[j] * (double)w[j];
        }
        if (p->kind == PARAM_VECTOR) {
            bool gain = strstr(p->name, ".weight");
            assert_true(sum == (gain ? n : 0) && squares == sum);
            assert_false(p->decay);
            continue;
        }
        double std = strstr(p->name, "c_proj") ? 0.02 / sqrt(2 * c.n_layer) : 0.02;
        assert_true(p->decay);
        assert_true(fabs(sum / n) < 5 * std / sqrt(n));
        assert_true(fabs(squares / n / (std * std) - 1) < 5 * sqrt(2 / n));
    }
    assert_true(gpt_params(model)->n_parameters > 900000);
    gpt_destroy(model);
}

/* GPT-2 divides residual projections, those after it do not. */
static void initialises_as_transformers(void **state)
{
    (void)state;
    initialises_preset("gpt");
    initialises_preset("llama");
}

static void initialisation_depends_on_seed_and_name_alone(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    assert_works(gpt_config_preset(&c, "gpt", &err), err);
    struct gpt *a = make(&c), *b = make(&c);
    int threads = omp_get_max_threads();
    omp_set_num_threads(3);
    gpt_init_weights(a, 3);
    omp_set_num_threads(1);
    gpt_init_weights(b, 3);
    omp_set_num_threads(threads);
    same_weights(a, b);
    gpt_init_weights(b, 4);
    assert_memory_not_equal(weights(a, "transformer.wpe.weight"),
                            weights(b, "transformer.wpe.weight"), 64);
    assert_memory_not_equal(weights(a, "transformer.h.0.mlp.c_fc.weight"),
                            weights(a, "transformer.h.1.mlp.c_fc.weight"), 64);
    gpt_destroy(b);
    c.n_layer = 1;
    b = make(&c);
    gpt_init_weights(b, 3);
    assert_memory_equal(weights(a, "transformer.h.0.mlp.c_fc.weight"),
                        weights(b, "transformer.h.0.mlp.c_fc.weight"), 64);
    gpt_destroy(a);
    gpt_destroy(b);
}

/* What gpt_offer_values has given. */
struct offered {
    float *values;       /* (n_elements) */
    unsigned char *seen; /* (n_elements) how often */
};

static void note_values(void *context, size_t offset, const float *values, size_t n)
{
    struct offered *o = context;
    memcpy(o->values + offset, values, sizeof *values * n);
    for (size_t i = offset; i < offset + n; i++)
        o->seen[i]++;
}

/* Whoever asks for it gets each value once, initialised or loaded. */
static void offers_every_value(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    bool head_is_new;
    assert_works(gpt_config_load(&c, FIXTURES "loader-bf16", &err), err);
    for (int load = 0; load < 2; load++) {
        struct gpt *model = make(&c);
        const struct param_table *table = gpt_params(model);
        struct offered o = {zf_calloc(table->n_elements, sizeof(float)),
                            zf_calloc(table->n_elements, 1)};
        gpt_offer_values(model, note_values, &o);
        if (load)
            assert_works(gpt_load_weights(model, FIXTURES "loader-bf16", 11, &head_is_new, &err),
                         err);
        else
            gpt_init_weights(model, 3);
        gpt_offer_values(model, NULL, NULL);
        for (int i = 0; i < table->n_params; i++) {
            const struct param *p = &table->params[i];
            assert_memory_equal(o.values + p->offset, weights(model, p->name),
                                sizeof(float) * p->n_elements);
            for (size_t j = p->offset; j < p->offset + p->n_elements; j++)
                assert_int_equal(o.seen[j], 1);
        }
        gpt_init_weights(model, 4); /* nobody asks any more */
        assert_int_equal(o.seen[0], 1);
        gpt_destroy(model);
        free(o.values);
        free(o.seen);
    }
}

static void loads_every_form(void **state)
{
    (void)state;
    bool head_is_new;
    struct gpt *whole = load(FIXTURES "classify3", &head_is_new);
    assert_false(head_is_new);
    struct gpt *sharded = load(FIXTURES "loader-sharded", &head_is_new);
    assert_false(head_is_new);
    same_weights(whole, sharded);
    struct gpt *half = load(FIXTURES "loader-f16", &head_is_new);
    assert_false(head_is_new);
    struct gpt *brain = load(FIXTURES "loader-bf16", &head_is_new); /* no head, no prefix */
    assert_true(head_is_new);
    struct gpt *fresh = make(gpt_get_config(whole));
    gpt_init_weights(fresh, 11);
    size_t head = params_find(gpt_params(whole), "score.weight")->offset;
    const float *a = gpt_param_data(whole), *f16 = gpt_param_data(half);
    const float *bf16 = gpt_param_data(brain), *new_head = gpt_param_data(fresh);
    for (size_t i = 0; i < gpt_params(whole)->n_elements; i++) {
        assert_true(fabsf(f16[i] - a[i]) <= fabsf(a[i]) * 0x1p-11f + 0x1p-25f);
        if (i < head)
            assert_true(fabsf(bf16[i] - a[i]) <= fabsf(a[i]) * 0x1p-8f);
        else
            assert_true(bf16[i] == new_head[i]);
    }
    gpt_destroy(whole);
    gpt_destroy(sharded);
    gpt_destroy(half);
    gpt_destroy(brain);
    gpt_destroy(fresh);
}

static void heads_are_input_major(void **state)
{
    (void)state;
    bool head_is_new;
    struct zf_error err;
    struct gpt *model = load(FIXTURES "classify3", &head_is_new);
    struct safetensors *s = safetensors_open(FIXTURES "classify3/model.safetensors", &err);
    assert_non_null(s);
    const struct tensor *t = safetensors_find(s, "score.weight");
    const float *w = weights(model, "score.weight");
    float theirs[3 * 24];
    assert_int_equal(t->n_elements, 3 * 24);
    assert_works(tensor_read_f32(t, theirs, 0, 3 * 24, &err), err);
    for (int in = 0; in < 24; in++)
        for (int out = 0; out < 3; out++)
            assert_true(w[in * 3 + out] == theirs[out * 24 + in]);
    safetensors_close(s);
    gpt_destroy(model);
}

static void loads_what_it_saves(void **state)
{
    (void)state;
    static const char *const cases[] = {"classify3", "regress", "lm", "lm-untied"};
    for (int i = 0; i < 4; i++) {
        char *from = zf_format(FIXTURES "%s", cases[i]);
        bool head_is_new;
        struct zf_error err;
        struct gpt *a = load(from, &head_is_new);
        assert_works(gpt_save(a, directory, NULL, &err), err);
        struct gpt *b = load(directory, &head_is_new);
        assert_false(head_is_new);
        same_weights(a, b);
        gpt_destroy(a);
        gpt_destroy(b);
        free(from);
    }
}

/* A model that is there stays. score.weight is transposed in the file. */
static void refuses_to_save_what_is_not_finite(void **state)
{
    (void)state;
    static const char *const names[] = {"transformer.h.1.mlp.c_fc.bias", "score.weight"};
    char *path = zf_format("%s/model.safetensors", directory);
    bool head_is_new;
    struct zf_error err;
    struct gpt *a = load(FIXTURES "classify3", &head_is_new);
    assert_works(gpt_save(a, directory, NULL, &err), err);
    for (int i = 0; i < 2; i++) {
        const struct param *p = params_find(gpt_params(a), names[i]);
        float *last = (float *)gpt_param_data(a) + p->offset + p->n_elements - 1, kept = *last;
        *last = i ? -INFINITY : NAN;
        assert_false(gpt_save(a, directory, NULL, &err));
        assert_says(err, path);
        assert_says(err, names[i]);
        *last = kept;
        struct gpt *b = load(directory, &head_is_new);
        same_weights(a, b);
        gpt_destroy(b);
    }
    gpt_destroy(a);
    free(path);
}

/* The hooks of a pass, in order. */
struct hook_log {
    char text[400];
};

static void log_before(void *context, int layer)
{
    struct hook_log *log = context;
    const size_t n = strlen(log->text);
    snprintf(log->text + n, sizeof log->text - n, "<%d", layer);
}

static void log_after(void *context, int layer)
{
    struct hook_log *log = context;
    const size_t n = strlen(log->text);
    snprintf(log->text + n, sizeof log->text - n, "%d>", layer);
}

/* Who evaluates, saves, fails to save, or passes by calls the same hooks in the same order: what
 * ranks do beside each other, where each has a part of the parameters. */
static void the_same_hooks_whoever_reads(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    assert_works(gpt_config_preset(&c, "gpt", &err), err);
    c.head = GPT_HEAD_CLASSIFY;
    struct gpt *model = make(&c);
    struct hook_log log = {""};
    const struct gpt_hooks hooks = {
        .context = &log, .before_layer = log_before, .after_layer = log_after};
    struct batch *batch = batches_create(1, 4, 2);
    char *path = zf_format("%s/hooks", directory);
    assert_works(file_make_directory(path, &err), err);
    gpt_init_weights(model, 1);
    gpt_set_hooks(model, &hooks);
    gpt_pass_by(model);
    assert_string_equal(log.text, "<0<11><22><33>0>");
    const struct hook_log expected = log;
    log.text[0] = 0;
    batch->n_tokens = batch->n_seqs = 0;
    gpt_evaluate(model, batch, NULL);
    assert_string_equal(log.text, expected.text);
    for (int i = 0; i < 3; i++) {
        log.text[0] = 0;
        if (i == 1)
            *(float *)weights(model, "transformer.h.0.ln_1.weight") = NAN;
        const bool saved = gpt_save(model, i == 2 ? "/no/such/folder" : path, NULL, &err);
        assert_true(saved == (i == 0));
        assert_string_equal(log.text, expected.text);
    }
    batches_free(batch, 1);
    gpt_destroy(model);
    free(path);
}

/* A vocabulary has one gradient on the device, be head and embeddings one matrix or two. */
static void embeddings_and_head_share_a_gradient(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct gpt_config c;
        struct zf_error err;
        assert_works(gpt_config_preset(&c, "llama", &err), err);
        c.tie_word_embeddings = tied;
        c.n_layer = 5;
        struct param_table t = gpt_param_table(&c);
        const size_t blocks = 2 * (params_layer(&t, 2) - params_layer(&t, 1));
        const size_t ends = t.n_gradients - 5 * blocks / 2;
        const size_t head = t.n_elements - params_layer(&t, 6);
        params_share_gradients(&t, 2);
        assert_true(t.n_gradients - blocks == (tied ? ends : head));
        assert_true(params_gradient_slot(&t, 7) == (tied ? 4 : 3));
        assert_true((params_gradient_slot(&t, 0) == params_gradient_slot(&t, 6)) == !tied);
        params_free(&t);
    }
}

static void a_language_model_becomes_a_classifier(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    bool head_is_new;
    assert_works(gpt_config_load(&c, FIXTURES "lm-untied", &err), err);
    c.head = GPT_HEAD_CLASSIFY;
    struct gpt *model = make(&c);
    assert_works(gpt_load_weights(model, FIXTURES "lm-untied", 1, &head_is_new, &err), err);
    assert_true(head_is_new);
    assert_null(params_find(gpt_params(model), "lm_head.weight"));
    gpt_destroy(model);
}

static void a_head_for_other_labels_is_replaced(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    bool head_is_new;
    assert_works(gpt_config_load(&c, FIXTURES "classify3", &err), err);
    struct gpt *own = make(&c), *other = NULL;
    assert_works(gpt_load_weights(own, FIXTURES "classify3", 1, &head_is_new, &err), err);
    c.num_labels = 2;
    other = make(&c);
    assert_works(gpt_check_weights(other, FIXTURES "classify3", false, &err), err);
    assert_works(gpt_load_weights_without_head(other, FIXTURES "classify3", 1, &err), err);
    const struct param_table *table = gpt_params(other);
    const float *a = gpt_param_data(own), *b = gpt_param_data(other);
    for (int i = 0; i < table->n_params; i++) {
        const struct param *p = &table->params[i], *q = params_find(gpt_params(own), p->name);
        bool head = strcmp(p->name, "score.weight") == 0;
        bool same = memcmp(a + q->offset, b + p->offset, p->n_elements * sizeof *b) == 0;
        assert_true(same == !head);
        assert_true(!head || b[p->offset] != 0);
    }
    gpt_destroy(own);
    gpt_destroy(other);
}

/* Every tensor of Transformers' file is written again, with its name, shape and bits: several of
 * them are one parameter. */
static void writes_the_tensors_that_it_read(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-biased", "llama-lm-tied", "qwen2", "qwen3",
                                        "classify3"};
    struct zf_error err;
    bool head_is_new;
    char *written = zf_format("%s/model.safetensors", directory);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *from = zf_format(FIXTURES "%s", names[i]);
        char *path = zf_format("%s/model.safetensors", from);
        struct gpt *model = load(from, &head_is_new);
        assert_works(gpt_save(model, directory, NULL, &err), err);
        struct safetensors *a = safetensors_open(path, &err);
        struct safetensors *b = safetensors_open(written, &err);
        assert_true(a && b && !head_is_new);
        assert_int_equal(safetensors_count(a), safetensors_count(b));
        for (int k = 0; k < safetensors_count(a); k++) {
            const struct tensor *t = safetensors_at(a, k), *u = safetensors_find(b, t->name);
            if (!u)
                fail_msg("%s has no %s", written, t->name);
            assert_int_equal(t->n_dims, u->n_dims);
            assert_memory_equal(t->shape, u->shape, sizeof *t->shape * (size_t)t->n_dims);
            assert_memory_equal(t->data, u->data, t->n_elements * sizeof(float));
        }
        safetensors_close(a);
        safetensors_close(b);
        gpt_destroy(model);
        free(from);
        free(path);
    }
    free(written);
}

static void refused(const struct gpt_config *c, const char *from, const char *piece)
{
    struct zf_error err;
    bool head_is_new;
    struct gpt *model = make(c);
    gpt_init_weights(model, 1);
    struct gpt *before = make(c);
    gpt_init_weights(before, 1);
    if (gpt_load_weights(model, from, 1, &head_is_new, &err))
        fail_msg("loaded, but \"%s\" was expected", piece);
    assert_says(err, piece);
    assert_false(gpt_check_weights(model, from, true, &err)); /* with the same words */
    assert_says(err, piece);
    same_weights(model, before);
    gpt_destroy(model);
    gpt_destroy(before);
}

static void refuses_what_does_not_fit(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    const char *from = FIXTURES "classify3";
    assert_works(gpt_config_load(&c, from, &err), err);
    struct gpt_config changed = c;
    changed.n_layer = 2;
    refused(&changed, from,
            "classify3/model.safetensors: tensor transformer.h.2.attn.c_attn.bias of shape (72) is "
            "not part of a GPT-2 of the 2 layers");
    changed.n_layer = 4;
    refused(&changed, from, "tensor transformer.h.3.ln_1.weight of shape (24) is missing");
    changed = c;
    changed.vocab_size = 65;
    refused(&changed, from,
            "transformer.wte.weight has the shape (64, 24), but config.json makes it (65, 24)");
    changed = c;
    changed.n_inner = 41;
    refused(&changed, from,
            "c_fc.weight has the shape (24, 40), but config.json makes it (24, 41)");
    changed = c;
    changed.num_labels = 2;
    refused(&changed, from, "score.weight has the shape (3, 24), but config.json makes it (2, 24)");
    changed = c;
    changed.head = GPT_HEAD_LM;
    changed.tie_word_embeddings = false;
    refused(&changed, from, "tensor lm_head.weight of shape (64, 24) is missing");
    refused(&c, "/nonexistent", "/nonexistent/model.safetensors: cannot be read");
}

/* In a folder that has no others; e2e/pickled.sh runs what the sentence says. */
static void says_how_to_convert_pickled_weights(void **state)
{
    (void)state;
    static const char *const files[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    struct gpt_config c;
    struct zf_error err;
    char folder[] = "/tmp/zf-test-pickled-Ada's-XXXXXX";
    assert_non_null(mkdtemp(folder));
    assert_works(gpt_config_load(&c, FIXTURES "llama-biased", &err), err);
    for (int i = 0; i < 2; i++) {
        char *path = zf_format("%s/%s", folder, files[i]);
        char *expected = zf_format("/%s is not read, but model.safetensors beside it is; this "
                                   "makes it: cd '/tmp/zf-test-pickled-Ada'\\''s-",
                                   files[i]);
        assert_works(file_write(path, "PK", 2, &err), err);
        refused(&c, folder, expected);
        refused(&c, folder, i == 0 ? "['pytorch_model.bin']" : "['weight_map']");
        remove(path);
        free(path);
        free(expected);
    }
    assert_works(file_remove_directory(folder, &err), err);
}

static void refuses_pieces_that_do_not_fit(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    const char *from = FIXTURES "llama-biased";
    assert_works(gpt_config_load(&c, from, &err), err);
    struct gpt_config changed = c;
    changed.n_kv_heads = 2;
    refused(&changed, from,
            "layers.0.self_attn.k_proj.weight has the shape (40, 16), but config.json makes it "
            "(20, 16)");
    changed = c;
    changed.n_inner = 25;
    refused(&changed, from, "mlp.gate_proj.weight has the shape (24, 16), but config.json makes");
    changed = c;
    changed.parts.qkv_bias = false;
    refused(&changed, from, "_proj.bias of shape (40) is not part of a Llama of the 2 layers");
    changed = c;
    changed.n_layer = 3;
    refused(&changed, from,
            "tensor model.layers.2.input_layernorm.weight of shape (16) is missing");
    changed = c;
    changed.parts.qk_norm = true;
    refused(&changed, from, "tensor model.layers.0.self_attn.q_norm.weight of shape (10) is miss");
}

static void refuses_whole_numbers(void **state)
{
    (void)state;
    bool head_is_new;
    struct zf_error err;
    struct gpt *model = load(FIXTURES "regress", &head_is_new);
    char *path = zf_format("%s/model.safetensors", directory);
    struct safetensors *s = safetensors_open(FIXTURES "regress/model.safetensors", &err);
    struct safetensors_writer *w = safetensors_write_begin(path, &err);
    assert_true(s && w);
    for (int i = 0; i < safetensors_count(s); i++) {
        const struct tensor *t = safetensors_at(s, i);
        bool norm = strcmp(t->name, "transformer.ln_f.bias") == 0;
        safetensors_write_declare(w, t->name, norm ? DTYPE_I32 : t->dtype, t->n_dims, t->shape);
    }
    for (int i = 0; i < safetensors_count(s); i++)
        safetensors_write_data(w, safetensors_at(s, i)->data, safetensors_at(s, i)->n_elements * 4);
    assert_works(safetensors_write_end(w, true, &err), err);
    refused(gpt_get_config(model), directory, "tensor transformer.ln_f.bias is I32");
    safetensors_close(s);
    free(path);
    gpt_destroy(model);
}

int main(void)
{
    struct zf_error err;
    if (!mkdtemp(directory))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initialises_as_transformers),
        cmocka_unit_test(initialisation_depends_on_seed_and_name_alone),
        cmocka_unit_test(offers_every_value),
        cmocka_unit_test(loads_every_form),
        cmocka_unit_test(heads_are_input_major),
        cmocka_unit_test(loads_what_it_saves),
        cmocka_unit_test(writes_the_tensors_that_it_read),
        cmocka_unit_test(refuses_to_save_what_is_not_finite),
        cmocka_unit_test(the_same_hooks_whoever_reads),
        cmocka_unit_test(embeddings_and_head_share_a_gradient),
        cmocka_unit_test(a_language_model_becomes_a_classifier),
        cmocka_unit_test(a_head_for_other_labels_is_replaced),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(refuses_pieces_that_do_not_fit),
        cmocka_unit_test(says_how_to_convert_pickled_weights),
        cmocka_unit_test(refuses_whole_numbers),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_directory(directory, &err);
    return failed;
}
