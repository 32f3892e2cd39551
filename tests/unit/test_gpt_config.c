/* model/gpt_config: Transformers' names and defaults, presets, and every fault by a sentence. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"
#include "model/gpt.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

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

#define SMOLLM3 "{\"model_type\": \"smollm3\", \"num_hidden_layers\": 6, "
#define LLAMA   "{\"model_type\": \"llama\", "

static void refuses_by_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *text, *piece;
    } faults[] = {
        {"{\"model_type\": \"bert\"}",
         ":1: model_type is \"bert\", but it is one of gpt2 (GPT-2), llama (Llama), mistral "
         "(Mistral), qwen2 (Qwen2), qwen3 (Qwen3), "
         "smollm3 (SmolLM3)"},
        {"{}", "neither model_type nor architectures says what model this is"},
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
        {"{\"model_type\": \"gpt2\", \"pad_token_id\": [1]}", "pad_token_id is [1]"},
        {"{\"model_type\": \"gpt2\", \"eos_token_id\": [1, \"x\"]}", "a list of up to 16 ids"},
        {"{\"model_type\": \"gpt2\", \"eos_token_id\": "
         "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}",
         "a list of up to 16 ids"},
        {"{\"model_type\": \"gpt2\", \"num_labels\": 0}", "num_labels is 0"},
        {"{\"architectures\": [\"GPT2ForSequenceClassification\"], \"problem_type\": "
         "\"multi_label_classification\"}",
         "problem_type is \"multi_label_classification\""},
        {"{\"architectures\": [\"GPT2ForSequenceClassification\"], \"problem_type\": "
         "\"regression\"}",
         "num_labels is 2 and problem_type is regression"},
        {"{", "not valid JSON"},
        {LLAMA "\"num_attention_heads\": 6}", "hidden_size is 4096, but it is a multiple of num_a"},
        {LLAMA "\"num_key_value_heads\": 5}", "num_attention_heads is 32, but it is a multiple of "
                                              "num_key_value_heads, which is 5"},
        {LLAMA "\"num_key_value_heads\": 0}", "num_key_value_heads is 0, but it is a whole number"},
        {LLAMA "\"head_dim\": 2000}", "head_dim is 2000, but it is a whole number from 1 to 1024"},
        {LLAMA "\"head_dim\": 33}", "its heads are 33 wide (head_dim, or hidden_size / num_att"},
        {LLAMA "\"hidden_act\": \"gelu\"}", "hidden_act is \"gelu\", but it is \"silu\""},
        {LLAMA "\"rms_norm_eps\": 0}", "rms_norm_eps is 0"},
        {LLAMA "\"pretraining_tp\": 2}", "pretraining_tp is 2, but it is 1"},
        {LLAMA "\"partial_rotary_factor\": 0.5}", "partial_rotary_factor is 0.5, but it is 1"},
        {LLAMA "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}",
         "rope_parameters.partial_rotary_factor is 0.5, but it is 1"},
        {LLAMA "\"rope_theta\": 1}", "rope_theta is 1, but it is a number above 1"},
        {LLAMA "\"rope_scaling\": 3}", "rope_scaling is 3, but it is an object or null"},
        {LLAMA "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
         "rope_scaling.type is \"dynamic\", but it is \"default\", \"linear\", \"llama3\" or "},
        {LLAMA "\"rope_parameters\": {\"rope_type\": \"longrope\"}}",
         "rope_parameters.rope_type is \"longrope\""},
        {LLAMA "\"rope_scaling\": {\"type\": \"linear\"}}", "rope_scaling.factor is absent"},
        {LLAMA "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}",
         "rope_scaling.original_max_position_embeddings is absent"},
        {LLAMA
         "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"original_max_position_embeddings\": 8, \"high_freq_factor\": 4}}",
         "rope_scaling.high_freq_factor is 4, but it is a number from 4.004 on"},
        {LLAMA "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"mscale\": 0.5}}",
         "rope_scaling.mscale is 0.5"},
        {LLAMA "\"rope_parameters\": {\"rope_theta\": 0}}", "rope_parameters.rope_theta is 0"},
        {"{\"model_type\": \"mistral\", \"sliding_window\": 0}", "sliding_window is 0"},
        {"{\"model_type\": \"qwen2\", \"max_window_layers\": -1, \"use_sliding_window\": true}",
         "max_window_layers is -1"},
        {"{\"model_type\": \"qwen2\", \"layer_types\": [\"full_attention\"]}",
         "layer_types is [\"full_attention\"], but it is \"full_attention\" of the first layers"},
        {"{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"layer_types\": "
         "[\"sliding_attention\", \"full_attention\"]}",
         "one word for each layer"},
        {SMOLLM3 "\"no_rope_layers\": [1, 0, 1, 1, 1, 0]}", "0 of every n-th and 1 of the others"},
        {SMOLLM3 "\"no_rope_layers\": [1]}", "no_rope_layers is [1], but it is a number for each"},
        {SMOLLM3 "\"no_rope_layer_interval\": 0}", "no_rope_layer_interval is 0"},
        {SMOLLM3 "\"use_sliding_window\": true}", "use_sliding_window is true, but it is false"},
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
        c.attn_pdrop = (float)i / 64;
        c.scale_attn_by_inverse_layer_idx = i % 2 && c.parts.learned_positions;
        assert_works(gpt_config_save(&c, directory, NULL, &err), err);
        assert_works(gpt_config_load(&d, directory, &err), err);
        assert_int_equal(d.pad_token_id, c.eos_token_id); /* Transformers needs one for batches */
        d.pad_token_id = c.pad_token_id;
        assert_memory_equal(&c, &d, sizeof c);
    }
}

/* As Llama 3 has it. */
static void keeps_all_tokens_that_end_a_text(void **state)
{
    (void)state;
    static const char *const lists[] = {"[128001, 128008, 128009]", "[7]", "[4, 200000, 5]", "[]"};
    static const char *const saved[] = {"[128001,128008,128009]", "7", "[4,5]", "null"};
    struct gpt_config c, d;
    struct zf_error err;
    for (int i = 0; i < 4; i++) {
        char *text = zf_format(LLAMA "\"vocab_size\": 128256, \"eos_token_id\": %s}", lists[i]);
        char *path = zf_format("%s/config.json", directory);
        struct json_file f;
        assert_works(load(&c, text, &err), err);
        assert_works(gpt_config_save(&c, directory, NULL, &err), err);
        assert_works(json_load(&f, path, &err), err);
        char *written = json_dumps(json_find(&f, "eos_token_id"), JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(written, saved[i]);
        assert_works(gpt_config_load(&d, directory, &err), err);
        d.pad_token_id = c.pad_token_id;
        assert_memory_equal(&c, &d, sizeof c);
        json_free(&f);
        free(written);
        free(path);
        free(text);
    }
}

/* What loading this says on standard error; the caller frees it. */
static char *warnings(const char *text)
{
    char *path = zf_format("%s/stderr", directory), *said;
    struct gpt_config c;
    struct zf_error err;
    size_t bytes;
    const int before = dup(STDERR_FILENO), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    const bool ok = load(&c, text, &err);
    dup2(before, STDERR_FILENO);
    close(before);
    close(file);
    assert_works(ok, err);
    assert_works(file_read(path, &said, &bytes, &err), err);
    free(path);
    return said;
}

/* Sizes that files have, and rotary positions. */
static void says_which_defaults_it_takes(void **state)
{
    (void)state;
#define SIZES                                                                                      \
    "\"vocab_size\": 9, \"hidden_size\": 64, \"num_hidden_layers\": 2, \"intermediate_size\": 3, " \
    "\"max_position_embeddings\": 10, \"rms_norm_eps\": 1e-5"
    static const struct {
        const char *text, *says;
    } files[] = {
        {LLAMA SIZES ", \"num_attention_heads\": 2, \"rope_theta\": 100}", ""},
        {LLAMA SIZES ", \"num_attention_heads\": 2, \"rope_parameters\": {\"rope_theta\": 100}}",
         ""},
        {LLAMA SIZES ", \"num_attention_heads\": 2}", "a Llama are taken: rope_theta 10000\n"},
        {LLAMA SIZES "}", "are taken: num_attention_heads 32, rope_theta 10000\n"},
        {"{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_positions\": 9, \"n_embd\": 24, "
         "\"n_layer\": 1, \"layer_norm_epsilon\": 1e-5}",
         "a GPT-2 are taken: n_head 12\n"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *said = warnings(files[i].text);
        if (*files[i].says ? !strstr(said, files[i].says) : *said != 0)
            fail_msg("%s: \"%s\"", files[i].text, said);
        free(said);
    }
}

/* Transformers' defaults, and what a file says, of Llama and those after it. */
static void reads_llama_and_those_after_it(void **state)
{
    (void)state;
    struct gpt_config c;
    struct zf_error err;
    assert_works(load(&c, LLAMA "\"attention_bias\": true}", &err), err);
    assert_true(c.vocab_size == 32000 && c.n_positions == 2048 && c.n_inner == 11008);
    assert_true(c.n_embd == 4096 && c.n_head == 32 && c.n_kv_heads == 32 && c.head_dim == 128);
    assert_true(c.layer_norm_epsilon == 1e-6f && c.attn_pdrop == 0 && c.resid_pdrop == 0);
    assert_true(c.parts.qkv_bias && c.parts.projection_bias && !c.parts.mlp_bias);
    assert_true(!c.tie_word_embeddings && c.rope.type == ROPE_DEFAULT && c.rope.theta == 10000);
    assert_works(load(&c, "{\"model_type\": \"mistral\"}", &err), err);
    assert_true(c.n_kv_heads == 8 && c.window == 4096 && c.first_windowed == 0);
    assert_works(load(&c,
                      "{\"model_type\": \"mistral\", \"sliding_window\": null, "
                      "\"num_key_value_heads\": null}",
                      &err),
                 err);
    assert_true(c.n_kv_heads == 32 && c.window == 0);
    assert_works(load(&c, "{\"model_type\": \"qwen2\", \"attention_bias\": false}", &err), err);
    assert_true(c.parts.qkv_bias && !c.parts.projection_bias && c.window == 0);
    assert_works(load(&c,
                      "{\"model_type\": \"qwen3\", \"use_sliding_window\": true, "
                      "\"sliding_window\": 7, \"max_window_layers\": 3}",
                      &err),
                 err);
    assert_true(c.head_dim == 128 && c.parts.qk_norm && c.window == 7 && c.first_windowed == 3);
    assert_works(load(&c,
                      "{\"model_type\": \"qwen2\", \"use_sliding_window\": true, "
                      "\"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\", "
                      "\"sliding_attention\", \"sliding_attention\"]}",
                      &err),
                 err);
    assert_true(c.window == 4096 && c.first_windowed == 1);
    assert_works(load(&c, SMOLLM3 "\"no_rope_layers\": null}", &err), err);
    assert_true(c.no_rope_interval == 4 && c.rope.theta == 2e6 && c.tie_word_embeddings);
    assert_works(load(&c, SMOLLM3 "\"no_rope_layers\": [1, 1, 0, 1, 1, 0]}", &err), err);
    assert_int_equal(c.no_rope_interval, 3);
    assert_works(load(&c, SMOLLM3 "\"no_rope_layers\": [1, 1, 1, 1, 1, 1]}", &err), err);
    assert_int_equal(c.no_rope_interval, 0);
    assert_works(gpt_config_save(&c, directory, NULL, &err), err);
    assert_works(gpt_config_load(&c, directory, &err), err);
    assert_int_equal(c.no_rope_interval, 0);
}

/* Both spellings of rotary positions, and each is written as it was read. */
static void reads_rotary_positions(void **state)
{
    (void)state;
    struct gpt_config old, new, again;
    struct zf_error err;
    assert_works(load(&old,
                      LLAMA "\"rope_theta\": 500000.0, \"rope_scaling\": {\"factor\": 8.0, "
                            "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                            "\"original_max_position_embeddings\": 8192, "
                            "\"rope_type\": \"llama3\"}}",
                      &err),
                 err);
    assert_works(load(&new,
                      LLAMA "\"rope_parameters\": {\"factor\": 8.0, \"rope_theta\": 5e5, "
                            "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                            "\"original_max_position_embeddings\": 8192, "
                            "\"rope_type\": \"llama3\"}}",
                      &err),
                 err);
    assert_true(old.rope.type == ROPE_LLAMA3 && old.rope.theta == 5e5 && old.rope.factor == 8);
    assert_true(old.rope.low_freq_factor == 1 && old.rope.high_freq_factor == 4);
    assert_true(old.rope.original_positions == 8192);
    assert_true(new.rope_parameters && !old.rope_parameters);
    assert_memory_equal(&new.rope, &old.rope, sizeof new.rope);
    assert_works(load(&old,
                      LLAMA "\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
                            "\"yarn\", \"factor\": 4, \"truncate\": false, "
                            "\"attention_factor\": 1.5, \"beta_fast\": 16}}",
                      &err),
                 err);
    assert_true(old.rope.type == ROPE_YARN && old.rope.original_positions == 64);
    assert_true(old.rope.beta_fast == 16 && old.rope.beta_slow == 1 && !old.rope.truncate);
    for (int i = 0; i < 2; i++) {
        const struct gpt_config *c = i ? &new : &old;
        assert_works(gpt_config_save(c, directory, NULL, &err), err);
        assert_works(gpt_config_load(&again, directory, &err), err);
        again.pad_token_id = c->pad_token_id;
        assert_memory_equal(&again, c, sizeof again);
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

static double count(const struct gpt_config *c)
{
    struct param_table table = gpt_param_table(c);
    const double n = (double)table.n_parameters;
    params_free(&table);
    return n;
}

/* The mean length of a channel: what norms take less than gradients. */
static double channel_length(const char *preset)
{
    struct gpt_config c;
    struct zf_error err;
    double channels = 0;
    assert_works(gpt_config_preset(&c, preset, &err), err);
    struct param_table table = gpt_param_table(&c);
    for (int i = 0; i < table.n_params; i++)
        channels += table.params[i].rows;
    const double length = (double)table.n_parameters / channels;
    params_free(&table);
    return length;
}

/* As offload/README.md has it. */
static void norms_are_short(void **state)
{
    (void)state;
    assert_int_equal(lround(channel_length("smollm2-135m")), 914);
    assert_int_equal(lround(channel_length("llama-2-7b")), 8621);
}

static void presets_have_their_size(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double n_parameters;
    } published[] = {{"distilgpt2", 81912576},          {"gpt2", 124439808},
                     {"gpt2-medium", 354823168},        {"gpt2-large", 774030080},
                     {"gpt2-xl", 1557611200},           {"cerebras-gpt-111m", 111050496},
                     {"cerebras-gpt-1.3b", 1315723264}, {"smollm2-135m", 134515008},
                     {"llama-2-13b", 13015864320},      {"llama-2-70b", 68976648192},
                     {"llama-3.1-8b", 8030261248},      {"qwen2.5-1.5b", 1543714304},
                     {"llama-2-7b", 6738415616},        {"llama-3.2-1b", 1235814400},
                     {"qwen2.5-0.5b", 494032768}};
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
        if (named > 0 && strstr(gpt_preset_name(i), "gpt") && fabs(count(&c) / named - 1) > 0.03)
            fail_msg("%s has %.0f parameters", gpt_preset_name(i), count(&c));
    }
    assert_false(gpt_config_preset(&c, "gpt3", &err));
    assert_says(err, "\"gpt3\" is not a preset model: choose one of gpt, distilgpt2, gpt2,");
}

/* As the models' published config.json have them: what the number of parameters does not show. */
static void presets_are_the_published_models(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int n_positions, n_head, n_kv_heads, head_dim;
        float epsilon;
        double theta, llama3_factor; /* 0: no rope_scaling */
    } published[] = {{"smollm2-135m", 8192, 9, 3, 64, 1e-5f, 100000, 0},
                     {"llama-2-7b", 4096, 32, 32, 128, 1e-5f, 10000, 0},
                     {"llama-2-13b", 4096, 40, 40, 128, 1e-5f, 10000, 0},
                     {"llama-2-70b", 4096, 64, 8, 128, 1e-5f, 10000, 0},
                     {"llama-3.1-8b", 131072, 32, 8, 128, 1e-5f, 500000, 8},
                     {"llama-3.2-1b", 131072, 32, 8, 64, 1e-5f, 500000, 32},
                     {"qwen2.5-0.5b", 32768, 14, 2, 64, 1e-6f, 1000000, 0},
                     {"qwen2.5-1.5b", 131072, 12, 2, 128, 1e-6f, 1000000, 0}};
    const size_t n = sizeof published / sizeof *published;
    struct gpt_config c;
    struct zf_error err;
    size_t n_presets = 0;
    for (int i = 0; gpt_preset_name(i); i++) {
        assert_works(gpt_config_preset(&c, gpt_preset_name(i), &err), err);
        n_presets += c.parts.rotary && strcmp(gpt_preset_name(i), "llama") != 0; /* a tiny one */
    }
    assert_int_equal(n_presets, n);
    for (size_t i = 0; i < n; i++) {
        const bool llama3 = published[i].llama3_factor > 0;
        assert_works(gpt_config_preset(&c, published[i].name, &err), err);
        const struct heads heads = gpt_heads(&c);
        print_message("%s\n", published[i].name);
        assert_int_equal(c.n_positions, published[i].n_positions);
        assert_int_equal(heads.n_head, published[i].n_head);
        assert_int_equal(heads.n_kv_head, published[i].n_kv_heads);
        assert_int_equal(heads.head_dim, published[i].head_dim);
        assert_true(c.layer_norm_epsilon == published[i].epsilon);
        assert_true(c.rope.theta == published[i].theta);
        assert_int_equal(c.rope.type, llama3 ? ROPE_LLAMA3 : ROPE_DEFAULT);
        assert_true(c.rope.factor == published[i].llama3_factor);
        assert_true(c.rope.low_freq_factor == (llama3 ? 1 : 0));
        assert_true(c.rope.high_freq_factor == (llama3 ? 4 : 0));
        assert_true(c.rope.original_positions == (llama3 ? 8192 : 0));
        assert_int_equal(c.window, 0);
    }
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
        cmocka_unit_test(keeps_all_tokens_that_end_a_text),
        cmocka_unit_test(says_which_defaults_it_takes),
        cmocka_unit_test(reads_llama_and_those_after_it),
        cmocka_unit_test(reads_rotary_positions),
        cmocka_unit_test(writes_labels),
        cmocka_unit_test(presets_have_their_size),
        cmocka_unit_test(presets_are_the_published_models),
        cmocka_unit_test(norms_are_short),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_directory(directory, &err);
    return failed;
}
