/* A model's configuration: config.json in and out, and the presets. */
#include "model/gpt.h"

#include "data/alloc.h"
#include "data/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Greatest sizes. They are far above any model's and keep every product of two of them, and of a
 * parameter's bytes, within 64 bits. */
#define MAX_VOCAB     (1 << 24)
#define MAX_POSITIONS (1 << 20)
#define MAX_WIDTH     (1 << 16)
#define MAX_INNER     (1 << 18)
#define MAX_LAYERS    1024
#define MAX_HEADS     1024
#define MAX_LABELS    (1 << 16)

static const struct {
    const char *name; /* in config.json; the first of an activation is the one that is written */
    enum activation activation;
} activations[] = {
    {"gelu_new", ACT_GELU_TANH},  {"gelu_pytorch_tanh", ACT_GELU_TANH},
    {"gelu_fast", ACT_GELU_TANH}, {"gelu", ACT_GELU_ERF},
    {"relu", ACT_RELU},
};
#define N_ACTIVATIONS ((int)(sizeof activations / sizeof *activations))

static const struct gpt_config defaults = {
    .parts = {.linear_bias = true, .learned_positions = true},
    .vocab_size = 50257,
    .n_positions = 1024,
    .n_embd = 768,
    .n_layer = 12,
    .n_head = 12,
    .n_inner = 4 * 768,
    .activation_function = ACT_GELU_TANH,
    .layer_norm_epsilon = 1e-5f,
    .initializer_range = 0.02f,
    .embd_pdrop = 0.1f,
    .attn_pdrop = 0.1f,
    .resid_pdrop = 0.1f,
    .scale_attn_weights = true,
    .tie_word_embeddings = true,
    .bos_token_id = 50256,
    .eos_token_id = 50256,
    .pad_token_id = -1,
    .head = GPT_HEAD_LM,
    .num_labels = 2,
};

/* Presets. */

/* GPT-2 and DistilGPT-2: https://huggingface.co/openai-community/gpt2 and its sisters.
 * Cerebras-GPT: Dey et al., "Cerebras-GPT: Open Compute-Optimal Language Models" (2023), table 1.
 * gpt-6.7b: the shape of Brown et al., "Language Models are Few-Shot Learners"
 * (2020), table 2.1. */
static const struct preset {
    const char *name;
    int vocab_size, n_positions, n_embd, n_layer, n_head;
    enum activation activation;
    float dropout;
} presets[] = {
    {"gpt", 8000, 512, 96, 2, 3, ACT_GELU_TANH, 0.1f},
    {"distilgpt2", 50257, 1024, 768, 6, 12, ACT_GELU_TANH, 0.1f},
    {"gpt2", 50257, 1024, 768, 12, 12, ACT_GELU_TANH, 0.1f},
    {"gpt2-medium", 50257, 1024, 1024, 24, 16, ACT_GELU_TANH, 0.1f},
    {"gpt2-large", 50257, 1024, 1280, 36, 20, ACT_GELU_TANH, 0.1f},
    {"gpt2-xl", 50257, 1024, 1600, 48, 25, ACT_GELU_TANH, 0.1f},
    {"cerebras-gpt-111m", 50257, 2048, 768, 10, 12, ACT_GELU_ERF, 0},
    {"cerebras-gpt-256m", 50257, 2048, 1088, 14, 17, ACT_GELU_ERF, 0},
    {"cerebras-gpt-590m", 50257, 2048, 1536, 18, 12, ACT_GELU_ERF, 0},
    {"cerebras-gpt-1.3b", 50257, 2048, 2048, 24, 16, ACT_GELU_ERF, 0},
    {"cerebras-gpt-2.7b", 50257, 2048, 2560, 32, 32, ACT_GELU_ERF, 0},
    {"cerebras-gpt-6.7b", 50257, 2048, 4096, 32, 32, ACT_GELU_ERF, 0},
    {"cerebras-gpt-13b", 50257, 2048, 5120, 40, 40, ACT_GELU_ERF, 0},
    {"gpt-6.7b", 50257, 2048, 4096, 32, 32, ACT_GELU_TANH, 0.1f},
};
#define N_PRESETS ((int)(sizeof presets / sizeof *presets))

const char *gpt_preset_name(int i)
{
    return i >= 0 && i < N_PRESETS ? presets[i].name : NULL;
}

bool gpt_config_preset(struct gpt_config *config, const char *name, struct zf_error *err)
{
    char names[512] = "";
    for (int i = 0; i < N_PRESETS; i++) {
        const struct preset *p = &presets[i];
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", p->name);
        if (strcmp(p->name, name) != 0)
            continue;
        *config = defaults;
        config->vocab_size = p->vocab_size;
        config->n_positions = p->n_positions;
        config->n_embd = p->n_embd;
        config->n_layer = p->n_layer;
        config->n_head = p->n_head;
        config->n_inner = 4 * p->n_embd;
        config->activation_function = p->activation;
        config->embd_pdrop = config->attn_pdrop = config->resid_pdrop = p->dropout;
        if (p->vocab_size <= defaults.eos_token_id)
            config->bos_token_id = config->eos_token_id = -1;
        return true;
    }
    return zf_fail(err, "\"%.200s\" is not a preset model: choose one of %s", name, names);
}

/* Reading. */

static bool read_size(const struct json_file *f, const char *key, int *value, int greatest,
                      struct zf_error *err)
{
    char expected[64];
    if (!json_get_int(f, key, value, err))
        return false;
    snprintf(expected, sizeof expected, "a whole number from 1 to %d", greatest);
    return (*value >= 1 && *value <= greatest) || json_fail(f, key, expected, err);
}

static bool read_sizes(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    if (!read_size(f, "vocab_size", &c->vocab_size, MAX_VOCAB, err) ||
        !read_size(f, "n_positions", &c->n_positions, MAX_POSITIONS, err) ||
        !read_size(f, "n_embd", &c->n_embd, MAX_WIDTH, err) ||
        !read_size(f, "n_layer", &c->n_layer, MAX_LAYERS, err) ||
        !read_size(f, "n_head", &c->n_head, MAX_HEADS, err))
        return false;
    c->n_inner = 4 * c->n_embd;
    if (!read_size(f, "n_inner", &c->n_inner, MAX_INNER, err))
        return false;
    return c->n_embd % c->n_head == 0 ||
           zf_fail(err, "%s:%d: n_embd is %d, but it is a multiple of n_head, which is %d", f->path,
                   json_line(f, "n_embd"), c->n_embd, c->n_head);
}

static bool read_probability(const struct json_file *f, const char *key, float *value,
                             struct zf_error *err)
{
    return json_get_float(f, key, value, err) &&
           ((*value >= 0 && *value < 1) || json_fail(f, key, "a number from 0 to below 1", err));
}

static bool read_numbers(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    if (!read_probability(f, "embd_pdrop", &c->embd_pdrop, err) ||
        !read_probability(f, "attn_pdrop", &c->attn_pdrop, err) ||
        !read_probability(f, "resid_pdrop", &c->resid_pdrop, err) ||
        !json_get_float(f, "layer_norm_epsilon", &c->layer_norm_epsilon, err) ||
        !json_get_float(f, "initializer_range", &c->initializer_range, err))
        return false;
    if (!(c->layer_norm_epsilon > 0 && c->layer_norm_epsilon <= 1))
        return json_fail(f, "layer_norm_epsilon", "a number above 0 and at most 1", err);
    if (!(c->initializer_range >= 0 && c->initializer_range <= 1))
        return json_fail(f, "initializer_range", "a number from 0 to 1", err);
    return true;
}

static bool read_activation(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    char expected[256] = "supported as one of";
    const char *name = NULL;
    if (!json_get_string(f, "activation_function", &name, err))
        return false;
    if (!name)
        return true;
    for (int i = 0; i < N_ACTIVATIONS; i++) {
        size_t n = strlen(expected);
        snprintf(expected + n, sizeof expected - n, "%s %s", i ? "," : "", activations[i].name);
        if (strcmp(activations[i].name, name) == 0) {
            c->activation_function = activations[i].activation;
            return true;
        }
    }
    return json_fail(f, "activation_function", expected, err);
}

/* A token id, or the first of a list. One outside the vocabulary, such as the default in a small
 * model, is none. */
static bool read_token_id(struct gpt_config *c, const struct json_file *f, const char *key, int *id,
                          struct zf_error *err)
{
    json_t *value = json_find(f, key);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (json_is_null(value))
        *id = -1;
    else if (json_is_integer(value) && json_integer_value(value) >= -1)
        *id = json_integer_value(value) < c->vocab_size ? (int)json_integer_value(value) : -1;
    else if (json_find(f, key))
        return json_fail(f, key, "a token id, null or a list of ids", err);
    if (*id >= c->vocab_size)
        *id = -1;
    return true;
}

static bool read_flags(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    bool cross_attention = false;
    if (!json_get_bool(f, "scale_attn_weights", &c->scale_attn_weights, err) ||
        !json_get_bool(f, "scale_attn_by_inverse_layer_idx", &c->scale_attn_by_inverse_layer_idx,
                       err) ||
        !json_get_bool(f, "tie_word_embeddings", &c->tie_word_embeddings, err) ||
        !json_get_bool(f, "add_cross_attention", &cross_attention, err))
        return false;
    return !cross_attention ||
           json_fail(f, "add_cross_attention", "false: there is no encoder to attend to", err);
}

/* The architecture: the first of the list, or "" where there is none. */
static bool read_architecture(const struct json_file *f, const char **architecture,
                              struct zf_error *err)
{
    const char *model_type = NULL;
    json_t *first = json_array_get(json_find(f, "architectures"), 0);
    *architecture = json_is_string(first) ? json_string_value(first) : "";
    if (!json_get_string(f, "model_type", &model_type, err))
        return false;
    if (model_type && strcmp(model_type, "gpt2") != 0)
        return json_fail(
            f, "model_type",
            "\"gpt2\": GPT-2, DistilGPT-2, Cerebras-GPT and other models of that architecture "
            "run here, and no others",
            err);
    if (!model_type && strncmp(*architecture, "GPT2", 4) != 0)
        return zf_fail(err, "%s: neither model_type nor architectures says that this is a GPT-2",
                       f->path);
    return true;
}

static bool read_head(struct gpt_config *c, const struct json_file *f, const char *architecture,
                      struct zf_error *err)
{
    const char *problem = NULL;
    json_t *labels = json_find(f, "id2label");
    if (json_is_object(labels) && json_object_size(labels) >= 1 &&
        json_object_size(labels) <= MAX_LABELS)
        c->num_labels = (int)json_object_size(labels);
    if (!read_size(f, "num_labels", &c->num_labels, MAX_LABELS, err) ||
        !json_get_string(f, "problem_type", &problem, err))
        return false;
    if (strcmp(architecture, "GPT2ForSequenceClassification") != 0)
        return true;
    bool regression = problem ? strcmp(problem, "regression") == 0 : c->num_labels == 1;
    if (problem && !regression && strcmp(problem, "single_label_classification") != 0)
        return json_fail(f, "problem_type", "\"regression\" or \"single_label_classification\"",
                         err);
    if (regression != (c->num_labels == 1))
        return zf_fail(err,
                       "%s: num_labels is %d and problem_type is %s, but regression, and it "
                       "alone, has one output",
                       f->path, c->num_labels, problem);
    c->head = regression ? GPT_HEAD_REGRESS : GPT_HEAD_CLASSIFY;
    return true;
}

bool gpt_config_load(struct gpt_config *config, const char *directory, struct zf_error *err)
{
    struct json_file f;
    struct gpt_config c = defaults;
    const char *architecture;
    char *path = zf_format("%s/config.json", directory);
    bool ok = json_load(&f, path, err);
    if (ok) {
        ok = read_architecture(&f, &architecture, err) && read_sizes(&c, &f, err) &&
             read_numbers(&c, &f, err) && read_activation(&c, &f, err) && read_flags(&c, &f, err) &&
             read_token_id(&c, &f, "bos_token_id", &c.bos_token_id, err) &&
             read_token_id(&c, &f, "eos_token_id", &c.eos_token_id, err) &&
             read_token_id(&c, &f, "pad_token_id", &c.pad_token_id, err) &&
             read_head(&c, &f, architecture, err);
        json_free(&f);
    }
    free(path);
    if (ok)
        *config = c;
    return ok;
}

/* Writing. */

/* The shortest decimal that reads back as this float: 1e-05, not 9.99999975e-06. */
static json_t *json_from_float(float x)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x)
            break;
    }
    return json_real(strtod(text, NULL));
}

static json_t *json_from_token_id(int id)
{
    return id < 0 ? json_null() : json_integer(id);
}

static const char *activation_name(enum activation activation)
{
    for (int i = 0; i < N_ACTIVATIONS; i++)
        if (activations[i].activation == activation)
            return activations[i].name;
    return "linear";
}

static void set_labels(json_t *root, const struct gpt_config *c, const char *const *labels)
{
    json_t *id2label = json_object(), *label2id = json_object();
    for (int i = 0; i < c->num_labels; i++) {
        char id[16], fallback[32];
        snprintf(id, sizeof id, "%d", i);
        snprintf(fallback, sizeof fallback, "LABEL_%d", i);
        const char *label = labels ? labels[i] : fallback;
        json_object_set_new(id2label, id, json_string(label));
        json_object_set_new(label2id, label, json_integer(i));
    }
    json_object_set_new(root, "id2label", id2label);
    json_object_set_new(root, "label2id", label2id);
    json_object_set_new(
        root, "problem_type",
        json_string(c->head == GPT_HEAD_REGRESS ? "regression" : "single_label_classification"));
}

static void set_sizes(json_t *root, const struct gpt_config *c)
{
    json_object_set_new(root, "vocab_size", json_integer(c->vocab_size));
    json_object_set_new(root, "n_positions", json_integer(c->n_positions));
    json_object_set_new(root, "n_embd", json_integer(c->n_embd));
    json_object_set_new(root, "n_layer", json_integer(c->n_layer));
    json_object_set_new(root, "n_head", json_integer(c->n_head));
    json_object_set_new(root, "n_inner",
                        c->n_inner == 4 * c->n_embd ? json_null() : json_integer(c->n_inner));
}

static void set_numbers(json_t *root, const struct gpt_config *c)
{
    json_object_set_new(root, "activation_function",
                        json_string(activation_name(c->activation_function)));
    json_object_set_new(root, "layer_norm_epsilon", json_from_float(c->layer_norm_epsilon));
    json_object_set_new(root, "initializer_range", json_from_float(c->initializer_range));
    json_object_set_new(root, "embd_pdrop", json_from_float(c->embd_pdrop));
    json_object_set_new(root, "attn_pdrop", json_from_float(c->attn_pdrop));
    json_object_set_new(root, "resid_pdrop", json_from_float(c->resid_pdrop));
    json_object_set_new(root, "scale_attn_weights", json_boolean(c->scale_attn_weights));
    json_object_set_new(root, "scale_attn_by_inverse_layer_idx",
                        json_boolean(c->scale_attn_by_inverse_layer_idx));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(c->tie_word_embeddings));
}

bool gpt_config_save(const struct gpt_config *config, const char *directory,
                     const char *const *labels, struct zf_error *err)
{
    json_t *root = json_object();
    bool lm = config->head == GPT_HEAD_LM;
    int pad = config->pad_token_id >= 0 ? config->pad_token_id : config->eos_token_id;
    json_object_set_new(root, "architectures",
                        json_pack("[s]", lm ? "GPT2LMHeadModel" : "GPT2ForSequenceClassification"));
    json_object_set_new(root, "model_type", json_string("gpt2"));
    set_sizes(root, config);
    set_numbers(root, config);
    json_object_set_new(root, "bos_token_id", json_from_token_id(config->bos_token_id));
    json_object_set_new(root, "eos_token_id", json_from_token_id(config->eos_token_id));
    json_object_set_new(root, "pad_token_id", json_from_token_id(pad));
    if (!lm)
        set_labels(root, config, labels);
    char *path = zf_format("%s/config.json", directory);
    bool ok = json_write(path, root, 9, err);
    free(path);
    json_decref(root);
    return ok;
}
