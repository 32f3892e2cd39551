/* model/gpt_config: Transformers' names and defaults, presets, and every fault by a sentence. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"
#include "model/gpt.h"

#include <math.h>

static char directory[] = "/tmp/zf-test-gpt-config-XXXXXX";

static bool load(struct gpt_config *c, const char *text, struct zf_error *err)
{
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_works(file_write(path, text, strlen(text), err), *err);
    return gpt_config_load(c, directory, err);
}

static void has_the_defaults_of_transformers(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    assert_works(load(&c, "{\"model_type\": \"gpt2\", \"n_inner\": null}", &err), err);
    assert_int_equal(c.vocab_size, 50257);
    assert_int_equal(c.n_positions, 1024);
    assert_int_equal(c.n_embd, 768);
    assert_int_equal(c.n_layer, 12);
    assert_int_equal(c.n_head, 12);
    assert_int_equal(c.n_inner, 3072);
    assert_int_equal(c.activation_function, ACT_GELU_TANH);
    assert_true(c.layer_norm_epsilon == 1e-5f && c.initializer_range == 0.02f);
    assert_true(c.embd_pdrop == 0.1f && c.attn_pdrop == 0.1f && c.resid_pdrop == 0.1f);
    assert_true(c.scale_attn_weights && !c.scale_attn_by_inverse_layer_idx);
    assert_true(c.tie_word_embeddings);
    assert_int_equal(c.bos_token_id, 50256);
    assert_int_equal(c.eos_token_id, 50256);
    assert_int_equal(c.pad_token_id, -1);
    assert_int_equal(c.head, GPT_HEAD_LM);
    assert_int_equal(c.num_labels, 2);
}

static void reads_values(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    assert_works(load(&c,
                      "{\"architectures\": [\"GPT2ForSequenceClassification\"], \"n_embd\": 32,"
                      "\"n_head\": 4, \"vocab_size\": 100, \"activation_function\": \"gelu\","
                      "\"attn_pdrop\": 0, \"scale_attn_by_inverse_layer_idx\": true,"
                      "\"eos_token_id\": [5, 6], \"pad_token_id\": 7,"
                      "\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}}",
                      &err),
                 err);
    assert_int_equal(c.n_inner, 128);
    assert_int_equal(c.activation_function, ACT_GELU_ERF);
    assert_true(c.attn_pdrop == 0 && c.scale_attn_by_inverse_layer_idx);
    assert_int_equal(c.bos_token_id, -1); /* the default is outside this vocabulary */
    assert_int_equal(c.eos_token_id, 5);
    assert_int_equal(c.pad_token_id, 7);
    assert_int_equal(c.head, GPT_HEAD_CLASSIFY);
    assert_int_equal(c.num_labels, 3);
    assert_works(load(&c,
                      "{\"architectures\": [\"GPT2ForSequenceClassification\"],"
                      "\"model_type\": \"gpt2\", \"num_labels\": 1, \"n_inner\": 5}",
                      &err),
                 err);
    assert_int_equal(c.head, GPT_HEAD_REGRESS);
    assert_int_equal(c.n_inner, 5);
}

static void refuses_by_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *text, *piece;
    } faults[] = {
        {"{\"model_type\": \"llama\"}", ":1: model_type is \"llama\", but it is \"gpt2\""},
        {"{\"model_type\": \"bert\"}", "GPT-2, DistilGPT-2, Cerebras-GPT and other models of that"},
        {"{}", "neither model_type nor architectures says that this is a GPT-2"},
        {"{\"architectures\": [\"BertModel\"]}", "neither model_type nor architectures"},
        {"{\"model_type\": \"gpt2\",\n\"n_layer\": 0}", ":2: n_layer is 0, but it is a whole"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": -3}", "n_layer is -3"},
        {"{\"model_type\": \"gpt2\", \"vocab_size\": 2147483647}", "from 1 to 16777216"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 99999999999}", "n_embd is 99999999999"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 70000}", "n_embd is 70000"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": \"768\"}", "n_embd is \"768\""},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 100}", "a multiple of n_head, which is 12"},
        {"{\"model_type\": \"gpt2\", \"n_positions\": 0}", "n_positions is 0"},
        {"{\"model_type\": \"gpt2\", \"n_inner\": 0}", "n_inner is 0"},
        {"{\"model_type\": \"gpt2\", \"activation_function\": \"silu\"}",
         "is \"silu\", but it is supported as one of gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, "
         "relu"},
        {"{\"model_type\": \"gpt2\", \"attn_pdrop\": 1}", "attn_pdrop is 1, but it is a number "},
        {"{\"model_type\": \"gpt2\", \"embd_pdrop\": -0.1}", "embd_pdrop"},
        {"{\"model_type\": \"gpt2\", \"resid_pdrop\": 1e300}", "resid_pdrop"},
        {"{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 0}", "layer_norm_epsilon is 0"},
        {"{\"model_type\": \"gpt2\", \"initializer_range\": 2}", "initializer_range is 2"},
        {"{\"model_type\": \"gpt2\", \"tie_word_embeddings\": 1}", "it is true or false"},
        {"{\"model_type\": \"gpt2\", \"add_cross_attention\": true}", "there is no encoder"},
        {"{\"model_type\": \"gpt2\", \"eos_token_id\": \"x\"}", "eos_token_id is \"x\""},
        {"{\"model_type\": \"gpt2\", \"bos_token_id\": -2}", "bos_token_id is -2"},
        {"{\"model_type\": \"gpt2\", \"num_labels\": 0}", "num_labels is 0"},
        {"{\"architectures\": [\"GPT2ForSequenceClassification\"], \"problem_type\": "
         "\"multi_label_classification\"}",
         "problem_type is \"multi_label_classification\""},
        {"{\"architectures\": [\"GPT2ForSequenceClassification\"], \"problem_type\": "
         "\"regression\"}",
         "num_labels is 2 and problem_type is regression"},
        {"{", "not valid JSON"},
    };
    struct gpt_config c, before;
    struct zf_error err;
    memset(&c, 7, sizeof c);
    before = c;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        if (load(&c, faults[i].text, &err))
            fail_msg("%s was accepted", faults[i].text);
        assert_says(err, faults[i].piece);
        assert_says(err, "/config.json");
        assert_memory_equal(&c, &before, sizeof c);
    }
    assert_false(gpt_config_load(&c, "/nonexistent", &err));
    assert_says(err, "/nonexistent/config.json: cannot be read");
}

static void saves_what_it_loads(void **state)
{
    (void)state;
    struct gpt_config c, d;
    struct zf_error err;
    for (int i = 0; gpt_preset_name(i); i++) {
        assert_works(gpt_config_preset(&c, gpt_preset_name(i), &err), err);
        c.head = (enum gpt_head)(i % 3);
        c.num_labels = c.head == GPT_HEAD_REGRESS ? 1 : c.head == GPT_HEAD_CLASSIFY ? 3 : 2;
        c.n_inner += i % 2;
        c.attn_pdrop = (float)i / 17;
        c.scale_attn_by_inverse_layer_idx = i % 2;
        assert_works(gpt_config_save(&c, directory, NULL, &err), err);
        assert_works(gpt_config_load(&d, directory, &err), err);
        assert_int_equal(d.pad_token_id, c.eos_token_id); /* Transformers needs one for batches */
        d.pad_token_id = c.pad_token_id;
        assert_memory_equal(&c, &d, sizeof c);
    }
}

static void writes_labels(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    struct json_file f;
    char path[256];
    const char *const labels[] = {"yes", "no"};
    assert_works(gpt_config_preset(&c, "gpt", &err), err);
    c.head = GPT_HEAD_CLASSIFY;
    assert_works(gpt_config_save(&c, directory, labels, &err), err);
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_works(json_load(&f, path, &err), err);
    assert_string_equal(json_string_value(json_find(&f, "id2label.1")), "no");
    assert_int_equal(json_integer_value(json_find(&f, "label2id.no")), 1);
    assert_string_equal(json_string_value(json_array_get(json_find(&f, "architectures"), 0)),
                        "GPT2ForSequenceClassification");
    assert_true(json_real_value(json_find(&f, "layer_norm_epsilon")) == 1e-5);
    json_free(&f);
    assert_false(gpt_config_save(&c, "/nonexistent", NULL, &err));
    assert_says(err, "/nonexistent/config.json: cannot be written");
}

/* Parameters of the bare model, as published. */
static double count(const struct gpt_config *c)
{
    double C = c->n_embd, I = c->n_inner;
    double block = 4 * C + 3 * C * C + 3 * C + C * C + C + 2 * C * I + I + C;
    return C * (c->vocab_size + c->n_positions) + c->n_layer * block + 2 * C;
}

static void presets_have_their_size(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double n_parameters;
    } published[] = {{"distilgpt2", 81912576},         {"gpt2", 124439808},
                     {"gpt2-medium", 354823168},       {"gpt2-large", 774030080},
                     {"gpt2-xl", 1557611200},          {"cerebras-gpt-111m", 111050496},
                     {"cerebras-gpt-1.3b", 1315723264}};
    struct gpt_config c;
    struct zf_error err;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        assert_works(gpt_config_preset(&c, published[i].name, &err), err);
        if (count(&c) != published[i].n_parameters)
            fail_msg("%s has %.0f parameters", c.n_embd ? published[i].name : "", count(&c));
    }
    for (int i = 0; gpt_preset_name(i); i++) { /* those with their size in the name */
        const char *size = strrchr(gpt_preset_name(i), '-');
        assert_works(gpt_config_preset(&c, gpt_preset_name(i), &err), err);
        assert_int_equal(c.n_embd % c.n_head, 0);
        char unit = size ? size[strlen(size) - 1] : 0;
        double named = size ? atof(size + 1) * (unit == 'b' ? 1e9 : 1e6) : 0;
        if (named > 0 && fabs(count(&c) / named - 1) > 0.03)
            fail_msg("%s has %.0f parameters", gpt_preset_name(i), count(&c));
    }
    assert_false(gpt_config_preset(&c, "gpt3", &err));
    assert_says(err, "\"gpt3\" is not a preset model: choose one of gpt, distilgpt2, gpt2,");
}

int main(void)
{
    struct zf_error err;
    if (!mkdtemp(directory))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_defaults_of_transformers),
        cmocka_unit_test(reads_values),
        cmocka_unit_test(refuses_by_a_sentence),
        cmocka_unit_test(saves_what_it_loads),
        cmocka_unit_test(writes_labels),
        cmocka_unit_test(presets_have_their_size),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_directory(directory, &err);
    return failed;
}
