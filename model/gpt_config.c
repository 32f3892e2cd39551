/* A model's configuration: config.json in and out, and the presets. */
#include "model/gpt_arch.h"

#include "data/alloc.h"
#include "data/json.h"
#include "data/log.h"

#include <math.h>
#include <stdio.h>
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
#define MAX_HEAD_DIM  1024
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

static struct gpt_config defaults_of(const struct gpt_arch *arch)
{
    struct gpt_config c = arch->defaults;
    c.arch = arch;
    return c;
}

/* Presets. */

/* GPT-2 and DistilGPT-2: https://huggingface.co/openai-community/gpt2 and its sisters.
 * Cerebras-GPT: Dey et al., "Cerebras-GPT: Open Compute-Optimal Language Models" (2023), table 1.
 * gpt-6.7b: the shape of Brown et al., "Language Models are Few-Shot Learners"
 * (2020), table 2.1. */
static const struct gpt2_preset {
    const char *name;
    int vocab_size, n_positions, n_embd, n_layer, n_head;
    enum activation activation;
    float dropout;
} gpt2_presets[] = {
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
#define N_GPT2_PRESETS ((int)(sizeof gpt2_presets / sizeof *gpt2_presets))

/* Their own config.json, but for the first one, a tiny one. */
static const struct llama_preset {
    const char *name, *model_type;
    int vocab_size, n_positions, n_embd, n_inner, n_layer, n_head, n_kv_heads;
    bool tied;
    float norm_epsilon;
    struct rope rope;
} llama_presets[] = {
    {"llama", "llama", 8000, 512, 96, 256, 2, 6, 2, false, 1e-5f, {.theta = 1e4}},
    {"smollm2-135m", "llama", 49152, 8192, 576, 1536, 30, 9, 3, true, 1e-5f, {.theta = 1e5}},
    {"llama-2-7b", "llama", 32000, 4096, 4096, 11008, 32, 32, 32, false, 1e-5f, {.theta = 1e4}},
    {"llama-2-13b", "llama", 32000, 4096, 5120, 13824, 40, 40, 40, false, 1e-5f, {.theta = 1e4}},
    {"llama-2-70b", "llama", 32000, 4096, 8192, 28672, 80, 64, 8, false, 1e-5f, {.theta = 1e4}},
    {"llama-3.1-8b",
     "llama",
     128256,
     131072,
     4096,
     14336,
     32,
     32,
     8,
     false,
     1e-5f,
     {.type = ROPE_LLAMA3,
      .theta = 5e5,
      .factor = 8,
      .low_freq_factor = 1,
      .high_freq_factor = 4,
      .original_positions = 8192}},
    {"llama-3.2-1b",
     "llama",
     128256,
     131072,
     2048,
     8192,
     16,
     32,
     8,
     true,
     1e-5f,
     {.type = ROPE_LLAMA3,
      .theta = 5e5,
      .factor = 32,
      .low_freq_factor = 1,
      .high_freq_factor = 4,
      .original_positions = 8192}},
    {"qwen2.5-0.5b", "qwen2", 151936, 32768, 896, 4864, 24, 14, 2, true, 1e-6f, {.theta = 1e6}},
    {"qwen2.5-1.5b", "qwen2", 151936, 131072, 1536, 8960, 28, 12, 2, true, 1e-6f, {.theta = 1e6}},
};
#define N_LLAMA_PRESETS ((int)(sizeof llama_presets / sizeof *llama_presets))

const char *gpt_preset_name(int i)
{
    if (i < 0 || i >= N_GPT2_PRESETS + N_LLAMA_PRESETS)
        return NULL;
    return i < N_GPT2_PRESETS ? gpt2_presets[i].name : llama_presets[i - N_GPT2_PRESETS].name;
}

static struct gpt_config gpt2_preset(const struct gpt2_preset *p)
{
    struct gpt_config c = defaults_of(gpt_arch_find("gpt2"));
    c.vocab_size = p->vocab_size;
    c.n_positions = p->n_positions;
    c.n_embd = p->n_embd;
    c.n_layer = p->n_layer;
    c.n_head = p->n_head;
    c.n_inner = 4 * p->n_embd;
    c.activation_function = p->activation;
    c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = p->dropout;
    if (p->vocab_size <= c.eos_token_id)
        c.bos_token_id = c.eos_token_id = -1;
    return c;
}

static struct gpt_config llama_preset(const struct llama_preset *p)
{
    struct gpt_config c = defaults_of(gpt_arch_find(p->model_type));
    c.vocab_size = p->vocab_size;
    c.n_positions = p->n_positions;
    c.n_embd = p->n_embd;
    c.n_inner = p->n_inner;
    c.n_layer = p->n_layer;
    c.n_head = p->n_head;
    c.n_kv_heads = p->n_kv_heads;
    c.head_dim = p->n_embd / p->n_head;
    c.tie_word_embeddings = p->tied;
    c.layer_norm_epsilon = p->norm_epsilon;
    c.rope = p->rope;
    c.window = c.first_windowed = 0;
    return c;
}

bool gpt_config_preset(struct gpt_config *config, const char *name, struct zf_error *err)
{
    char names[512] = "";
    for (int i = 0; gpt_preset_name(i); i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", gpt_preset_name(i));
        if (strcmp(gpt_preset_name(i), name) != 0)
            continue;
        *config = i < N_GPT2_PRESETS ? gpt2_preset(&gpt2_presets[i])
                                     : llama_preset(&llama_presets[i - N_GPT2_PRESETS]);
        return true;
    }
    return zf_fail(err, "\"%.200s\" is not a preset model: choose one of %s", name, names);
}

/* Reading. */

static bool read_whole(const struct json_file *f, const char *key, int *value, int least,
                       int greatest, struct zf_error *err)
{
    char expected[64];
    if (!json_get_int(f, key, value, err))
        return false;
    snprintf(expected, sizeof expected, "a whole number from %d to %d", least, greatest);
    return (*value >= least && *value <= greatest) || json_fail(f, key, expected, err);
}

static bool read_size(const struct json_file *f, const char *key, int *value, int greatest,
                      struct zf_error *err)
{
    return read_whole(f, key, value, 1, greatest, err);
}

/* The same of a key that may be absent, whose value is then the default, or null, then 0. */
static bool read_optional_size(const struct json_file *f, const char *key, int *value, int greatest,
                               struct zf_error *err)
{
    const json_t *found = json_find(f, key);
    if (json_is_null(found))
        *value = 0;
    return !found || json_is_null(found) || read_size(f, key, value, greatest, err);
}

static bool read_inner(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    if (c->arch->gpt2_keys)
        c->n_inner = 4 * c->n_embd;
    return read_size(f, c->arch->keys->n_inner, &c->n_inner, MAX_INNER, err);
}

static bool divides(const struct json_file *f, const char *key, int value, const char *by,
                    int divisor, struct zf_error *err)
{
    return value % divisor == 0 ||
           zf_fail(err, "%s:%d: %s is %d, but it is a multiple of %s, which is %d", f->path,
                   json_line(f, key), key, value, by, divisor);
}

static bool read_sizes(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    const struct gpt_keys *keys = c->arch->keys;
    return read_size(f, "vocab_size", &c->vocab_size, MAX_VOCAB, err) &&
           read_size(f, keys->n_positions, &c->n_positions, MAX_POSITIONS, err) &&
           read_size(f, keys->n_embd, &c->n_embd, MAX_WIDTH, err) &&
           read_size(f, keys->n_layer, &c->n_layer, MAX_LAYERS, err) &&
           read_size(f, keys->n_head, &c->n_head, MAX_HEADS, err) && read_inner(c, f, err);
}

/* Sizes of heads that config.json may leave out are filled in, but for GPT-2, which has no such
 * keys. */
static bool read_heads(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    const struct gpt_keys *keys = c->arch->keys;
    if (!c->arch->gpt2_keys &&
        !(read_optional_size(f, "num_key_value_heads", &c->n_kv_heads, MAX_HEADS, err) &&
          read_optional_size(f, "head_dim", &c->head_dim, MAX_HEAD_DIM, err)))
        return false;
    if (c->head_dim == 0 && !divides(f, keys->n_embd, c->n_embd, keys->n_head, c->n_head, err))
        return false;
    if (c->arch->gpt2_keys)
        return true;
    const struct heads heads = gpt_heads(c);
    c->n_kv_heads = heads.n_kv_head;
    c->head_dim = heads.head_dim;
    if (heads.head_dim % 2 || heads.head_dim > MAX_HEAD_DIM)
        return zf_fail(err,
                       "%s: its heads are %d wide (head_dim, or %s / %s), but rotary positions "
                       "take an even number up to %d",
                       f->path, heads.head_dim, keys->n_embd, keys->n_head, MAX_HEAD_DIM);
    return divides(f, keys->n_head, c->n_head, "num_key_value_heads", c->n_kv_heads, err);
}

static bool read_probability(const struct json_file *f, const char *key, float *value,
                             struct zf_error *err)
{
    return json_get_float(f, key, value, err) &&
           ((*value >= 0 && *value < 1) || json_fail(f, key, "a number from 0 to below 1", err));
}

static bool read_numbers(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    const struct gpt_keys *keys = c->arch->keys;
    if (!read_probability(f, keys->attn_pdrop, &c->attn_pdrop, err) ||
        !json_get_float(f, keys->norm_epsilon, &c->layer_norm_epsilon, err) ||
        !json_get_float(f, "initializer_range", &c->initializer_range, err) ||
        !json_get_bool(f, "tie_word_embeddings", &c->tie_word_embeddings, err))
        return false;
    if (!(c->layer_norm_epsilon > 0 && c->layer_norm_epsilon <= 1))
        return json_fail(f, keys->norm_epsilon, "a number above 0 and at most 1", err);
    if (!(c->initializer_range >= 0 && c->initializer_range <= 1))
        return json_fail(f, "initializer_range", "a number from 0 to 1", err);
    return true;
}

static bool read_activation(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    char expected[256] = "supported as one of";
    const char *name = NULL, *key = c->arch->keys->activation;
    if (!json_get_string(f, key, &name, err))
        return false;
    if (!name)
        return true;
    if (c->parts.swiglu)
        return strcmp(name, "silu") == 0 ||
               json_fail(f, key, "\"silu\", the activation of SwiGLU", err);
    for (int i = 0; i < N_ACTIVATIONS; i++) {
        size_t n = strlen(expected);
        snprintf(expected + n, sizeof expected - n, "%s %s", i ? "," : "", activations[i].name);
        if (strcmp(activations[i].name, name) == 0) {
            c->activation_function = activations[i].activation;
            return true;
        }
    }
    return json_fail(f, key, expected, err);
}

/* A token id or null. One outside the vocabulary, such as the default in a small model, is none. */
static bool take_token_id(const struct gpt_config *c, const json_t *value, int *id)
{
    const json_int_t n = json_is_null(value) ? -1 : json_integer_value(value);
    *id = n < c->vocab_size ? (int)n : -1;
    return json_is_null(value) || (json_is_integer(value) && n >= -1);
}

static bool read_token_id(const struct gpt_config *c, const struct json_file *f, const char *key,
                          int *id, struct zf_error *err)
{
    const json_t *value = json_find(f, key);
    if (!value && *id >= c->vocab_size)
        *id = -1;
    return !value || take_token_id(c, value, id) || json_fail(f, key, "a token id or null", err);
}

static bool read_eos(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    static const char key[] = "eos_token_id";
    char expected[64];
    const json_t *list = json_find(f, key);
    if (!json_is_array(list))
        return read_token_id(c, f, key, &c->eos_token_id, err);
    snprintf(expected, sizeof expected, "a token id, null or a list of up to %d ids", GPT_MAX_EOS);
    c->eos_token_id = -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        int id;
        if (i >= GPT_MAX_EOS || !take_token_id(c, json_array_get(list, i), &id))
            return json_fail(f, key, expected, err);
        if (c->eos_token_id < 0)
            c->eos_token_id = id;
        else if (id >= 0)
            c->also_eos.ids[c->also_eos.n++] = id;
    }
    return true;
}

static bool read_token_ids(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    return read_token_id(c, f, "bos_token_id", &c->bos_token_id, err) && read_eos(c, f, err) &&
           read_token_id(c, f, "pad_token_id", &c->pad_token_id, err);
}

/* What only GPT-2 has. */
static bool read_gpt2(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    bool cross_attention = false;
    if (!read_probability(f, "embd_pdrop", &c->embd_pdrop, err) ||
        !read_probability(f, "resid_pdrop", &c->resid_pdrop, err) ||
        !json_get_bool(f, "scale_attn_weights", &c->scale_attn_weights, err) ||
        !json_get_bool(f, "scale_attn_by_inverse_layer_idx", &c->scale_attn_by_inverse_layer_idx,
                       err) ||
        !json_get_bool(f, "add_cross_attention", &cross_attention, err))
        return false;
    return !cross_attention ||
           json_fail(f, "add_cross_attention", "false: there is no encoder to attend to", err);
}

/* Rotary positions. */

static const char *const rope_types[] = {[ROPE_DEFAULT] = "default",
                                         [ROPE_LINEAR] = "linear",
                                         [ROPE_LLAMA3] = "llama3",
                                         [ROPE_YARN] = "yarn"};
#define N_ROPE_TYPES (sizeof rope_types / sizeof *rope_types)

/* A number of the object that rotary positions stand in, from `least` on. An absent one stays as it
 * is, if that is a value, and else is missed. */
static bool read_rope_number(const struct json_file *f, const char *object, const char *key,
                             double *value, double least, struct zf_error *err)
{
    char path[96], expected[64];
    snprintf(path, sizeof path, "%s.%s", object, key);
    json_t *found = json_find(f, path);
    if (json_is_number(found))
        *value = json_number_value(found);
    snprintf(expected, sizeof expected, "a number from %g on", least);
    return ((!found || json_is_null(found) || json_is_number(found)) && *value >= least &&
            *value <= 1e12) ||
           json_fail(f, path, expected, err);
}

static bool read_rope_type(struct rope *rope, const struct json_file *f, const char *object,
                           struct zf_error *err)
{
    char path[64];
    const char *name = NULL;
    snprintf(path, sizeof path, "%s.rope_type", object);
    if (!json_find(f, path)) /* its name in older files */
        snprintf(path, sizeof path, "%s.type", object);
    if (!json_get_string(f, path, &name, err))
        return false;
    rope->type = ROPE_DEFAULT;
    for (size_t i = 0; name && i < N_ROPE_TYPES; i++) {
        if (strcmp(rope_types[i], name) == 0) {
            rope->type = (enum rope_type)i;
            return true;
        }
    }
    return !name || json_fail(f, path,
                              "\"default\", \"linear\", \"llama3\" or \"yarn\": others, which "
                              "change with the sequence's length, are not supported",
                              err);
}

static bool read_yarn(struct rope *rope, const struct json_file *f, const char *object,
                      struct zf_error *err)
{
    char path[64];
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->truncate = true;
    snprintf(path, sizeof path, "%s.mscale", object);
    if (json_is_number(json_find(f, path)))
        return json_fail(f, path, "absent: attention_factor alone is supported", err);
    snprintf(path, sizeof path, "%s.truncate", object);
    return json_get_bool(f, path, &rope->truncate, err) &&
           read_rope_number(f, object, "beta_fast", &rope->beta_fast, 0.001, err) &&
           read_rope_number(f, object, "beta_slow", &rope->beta_slow, 0.001, err) &&
           read_rope_number(f, object, "attention_factor", &rope->attention_factor, 0, err);
}

static bool read_rope_scaling(struct gpt_config *c, const struct json_file *f, const char *object,
                              struct zf_error *err)
{
    struct rope *rope = &c->rope;
    if (!read_rope_type(rope, f, object, err))
        return false;
    if (rope->type == ROPE_DEFAULT)
        return true;
    if (!read_rope_number(f, object, "factor", &rope->factor, 1, err))
        return false;
    if (rope->type == ROPE_LINEAR)
        return true;
    rope->original_positions = rope->type == ROPE_YARN ? c->n_positions : 0;
    if (!read_rope_number(f, object, "original_max_position_embeddings", &rope->original_positions,
                          1, err))
        return false;
    if (rope->type == ROPE_YARN)
        return read_yarn(rope, f, object, err);
    return read_rope_number(f, object, "low_freq_factor", &rope->low_freq_factor, 0.001, err) &&
           read_rope_number(f, object, "high_freq_factor", &rope->high_freq_factor,
                            1.001 * rope->low_freq_factor, err);
}

static bool turns_whole_heads(const struct json_file *f, const char *key, struct zf_error *err)
{
    float share = 1;
    return json_get_float(f, key, &share, err) &&
           (share == 1 || json_fail(f, key, "1: all of a head turns", err));
}

/* Transformers 5 writes one object, rope_parameters; those before it rope_theta, and rope_scaling
 * where there is such. */
static bool read_rope(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    float theta = (float)c->rope.theta;
    c->rope_parameters =
        json_find(f, "rope_parameters") && !json_is_null(json_find(f, "rope_parameters"));
    const char *object = c->rope_parameters ? "rope_parameters" : "rope_scaling";
    if (!json_get_float(f, "rope_theta", &theta, err) ||
        !turns_whole_heads(f, "partial_rotary_factor", err) ||
        !turns_whole_heads(f, "rope_parameters.partial_rotary_factor", err))
        return false;
    c->rope.theta = (double)theta;
    if (!(theta > 1))
        return json_fail(f, "rope_theta", "a number above 1", err);
    if (c->rope_parameters &&
        !read_rope_number(f, object, "rope_theta", &c->rope.theta, 1.001, err))
        return false;
    if (!json_find(f, object) || json_is_null(json_find(f, object)))
        return true;
    return json_is_object(json_find(f, object)) ? read_rope_scaling(c, f, object, err)
                                                : json_fail(f, object, "an object or null", err);
}

/* layer_types, where it is there, is each block's kind of attention. Those that see all come first,
 * as max_window_layers has it. */
static bool read_layer_types(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    const json_t *list = json_find(f, "layer_types");
    const int n = (int)json_array_size(list);
    bool in_order = n == c->n_layer;
    if (!list || json_is_null(list))
        return true;
    c->first_windowed = n;
    for (int i = 0; i < n && in_order; i++) {
        const char *type = json_string_value(json_array_get(list, (size_t)i));
        const bool windowed = type && strcmp(type, "sliding_attention") == 0;
        in_order =
            windowed || (type && strcmp(type, "full_attention") == 0 && c->first_windowed == n);
        if (windowed && c->first_windowed == n)
            c->first_windowed = i;
    }
    return in_order || json_fail(f, "layer_types",
                                 "\"full_attention\" of the first layers and "
                                 "\"sliding_attention\" of the others, one word for each layer",
                                 err);
}

static bool read_window(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    const enum gpt_windows windows = c->arch->windows;
    bool used = windows == GPT_WINDOW_EVERYWHERE;
    if (windows == GPT_NO_WINDOW)
        return true;
    if (!read_size(f, "sliding_window", &c->window, MAX_POSITIONS, err))
        return false;
    if (windows == GPT_WINDOW_FROM_LAYER &&
        (!json_get_bool(f, "use_sliding_window", &used, err) ||
         !read_whole(f, "max_window_layers", &c->first_windowed, 0, MAX_LAYERS, err) ||
         !read_layer_types(c, f, err)))
        return false;
    if (!used || json_is_null(json_find(f, "sliding_window")))
        c->window = c->first_windowed = 0;
    return true;
}

/* no_rope_layers has a 0 for each block whose q and k do not turn; where it is absent,
 * no_rope_layer_interval says which they are. */
static bool read_no_rope(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    const json_t *list = json_find(f, "no_rope_layers");
    bool window = false, regular = (int)json_array_size(list) >= c->n_layer;
    if (!c->arch->no_rope_layers)
        return true;
    if (!json_get_bool(f, "use_sliding_window", &window, err) ||
        !read_whole(f, "no_rope_layer_interval", &c->no_rope_interval, 1, MAX_LAYERS, err))
        return false;
    if (window)
        return json_fail(f, "use_sliding_window", "false: such windows are not supported", err);
    if (!list || json_is_null(list))
        return true;
    c->no_rope_interval = 0;
    for (int i = 0; i < c->n_layer && regular; i++) {
        const bool turns = json_integer_value(json_array_get(list, (size_t)i)) != 0;
        if (!turns && c->no_rope_interval == 0)
            c->no_rope_interval = i + 1;
        regular = turns == (c->no_rope_interval == 0 || (i + 1) % c->no_rope_interval != 0);
    }
    return regular ||
           json_fail(f, "no_rope_layers",
                     "a number for each layer, 0 of every n-th and 1 of the others", err);
}

/* What Llama and those after it have. */
static bool read_llama(struct gpt_config *c, const struct json_file *f, struct zf_error *err)
{
    int slices = 1;
    bool bias = c->parts.projection_bias;
    if (!read_rope(c, f, err) || !read_window(c, f, err) || !read_no_rope(c, f, err) ||
        !json_get_int(f, "pretraining_tp", &slices, err))
        return false;
    if (slices != 1)
        return json_fail(f, "pretraining_tp", "1: matrices are whole", err);
    if (c->arch->attention_bias) {
        if (!json_get_bool(f, "attention_bias", &bias, err))
            return false;
        c->parts.qkv_bias = c->parts.projection_bias = bias;
    }
    return !c->arch->mlp_bias || json_get_bool(f, "mlp_bias", &c->parts.mlp_bias, err);
}

/* model_type, or where there is none the architectures. class: the first of these, or "" */
static bool read_architecture(struct gpt_config *c, const struct json_file *f, const char **class,
                              struct zf_error *err)
{
    const char *model_type = NULL;
    json_t *first = json_array_get(json_find(f, "architectures"), 0);
    *class = json_is_string(first) ? json_string_value(first) : "";
    if (!json_get_string(f, "model_type", &model_type, err))
        return false;
    if (!model_type && strncmp(*class, "GPT2", 4) == 0)
        model_type = "gpt2";
    if (!model_type)
        return zf_fail(err, "%s: neither model_type nor architectures says what model this is",
                       f->path);
    const struct gpt_arch *arch = gpt_arch_find(model_type);
    if (arch) {
        *c = defaults_of(arch);
        return true;
    }
    char expected[256] = "one of";
    for (int i = 0; gpt_arch_at(i); i++) {
        size_t n = strlen(expected);
        snprintf(expected + n, sizeof expected - n, "%s %s (%s)", i ? "," : "",
                 gpt_arch_at(i)->model_type, gpt_arch_at(i)->title);
    }
    return json_fail(f, "model_type", expected, err);
}

static bool read_head(struct gpt_config *c, const struct json_file *f, const char *class,
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
    if (strcmp(class, c->arch->classifier) != 0)
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

/* Of sizes that files have and this one lacks, or of rotary positions, what is taken. GPT-2's files
 * may lack n_inner. */
static void warn_of_defaults(const struct gpt_config *c, const struct json_file *f)
{
    const struct gpt_keys *keys = c->arch->keys;
    const bool turns = c->parts.rotary;
    const struct {
        const char *key;
        double value;
    } sizes[] = {{"vocab_size", c->vocab_size},
                 {keys->n_positions, c->n_positions},
                 {keys->n_embd, c->n_embd},
                 {keys->n_layer, c->n_layer},
                 {keys->n_head, c->n_head},
                 {c->arch->gpt2_keys ? NULL : keys->n_inner, c->n_inner},
                 {keys->norm_epsilon, (double)c->layer_norm_epsilon},
                 {turns && !json_find(f, "rope_parameters.rope_theta") ? "rope_theta" : NULL,
                  c->rope.theta}};
    char text[512] = "";
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t n = strlen(text);
        if (sizes[i].key && !json_find(f, sizes[i].key))
            snprintf(text + n, sizeof text - n, "%s%s %g", n ? ", " : "", sizes[i].key,
                     sizes[i].value);
    }
    if (*text)
        log_warn("%s does not say all; Transformers' defaults of a %s are taken: %s", f->path,
                 c->arch->title, text);
}

bool gpt_config_load(struct gpt_config *config, const char *directory, struct zf_error *err)
{
    struct json_file f;
    struct gpt_config c;
    const char *class;
    char *path = zf_format("%s/config.json", directory);
    bool ok = json_load(&f, path, err);
    if (ok) {
        ok = read_architecture(&c, &f, &class, err) && read_sizes(&c, &f, err) &&
             read_heads(&c, &f, err) && read_numbers(&c, &f, err) && read_activation(&c, &f, err) &&
             (c.arch->gpt2_keys ? read_gpt2(&c, &f, err) : read_llama(&c, &f, err)) &&
             read_token_ids(&c, &f, err) && read_head(&c, &f, class, err);
        if (ok)
            warn_of_defaults(&c, &f);
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

/* One id, or a list where there are several. */
static json_t *json_from_eos(const struct gpt_config *c)
{
    json_t *first = json_from_token_id(c->eos_token_id);
    if (c->also_eos.n == 0)
        return first;
    json_t *list = json_array();
    json_array_append_new(list, first);
    for (int i = 0; i < c->also_eos.n; i++)
        json_array_append_new(list, json_integer(c->also_eos.ids[i]));
    return list;
}

static const char *activation_name(enum activation activation)
{
    for (int i = 0; i < N_ACTIVATIONS; i++)
        if (activations[i].activation == activation)
            return activations[i].name;
    return "linear";
}

/* A float's value, exactly. */
#define CONFIG_DIGITS 9

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

static void set_int(json_t *root, const char *key, int value)
{
    json_object_set_new(root, key, json_integer(value));
}

static void set_float(json_t *root, const char *key, float value)
{
    json_object_set_new(root, key, json_from_float(value));
}

static void set_bool(json_t *root, const char *key, bool value)
{
    json_object_set_new(root, key, json_boolean(value));
}

static void set_sizes(json_t *root, const struct gpt_config *c)
{
    const struct gpt_keys *keys = c->arch->keys;
    const bool whole = c->arch->gpt2_keys && c->n_inner == 4 * c->n_embd;
    set_int(root, "vocab_size", c->vocab_size);
    set_int(root, keys->n_positions, c->n_positions);
    set_int(root, keys->n_embd, c->n_embd);
    set_int(root, keys->n_layer, c->n_layer);
    set_int(root, keys->n_head, c->n_head);
    json_object_set_new(root, keys->n_inner, whole ? json_null() : json_integer(c->n_inner));
}

static void set_numbers(json_t *root, const struct gpt_config *c)
{
    const struct gpt_keys *keys = c->arch->keys;
    json_object_set_new(
        root, keys->activation,
        json_string(c->parts.swiglu ? "silu" : activation_name(c->activation_function)));
    set_float(root, keys->norm_epsilon, c->layer_norm_epsilon);
    set_float(root, "initializer_range", c->initializer_range);
    set_float(root, keys->attn_pdrop, c->attn_pdrop);
    set_bool(root, "tie_word_embeddings", c->tie_word_embeddings);
}

static void set_gpt2(json_t *root, const struct gpt_config *c)
{
    set_float(root, "embd_pdrop", c->embd_pdrop);
    set_float(root, "resid_pdrop", c->resid_pdrop);
    set_bool(root, "scale_attn_weights", c->scale_attn_weights);
    set_bool(root, "scale_attn_by_inverse_layer_idx", c->scale_attn_by_inverse_layer_idx);
}

static json_t *rope_scaling(const struct rope *r)
{
    json_t *object = json_object();
    json_object_set_new(object, "rope_type", json_string(rope_types[r->type]));
    if (r->type != ROPE_DEFAULT)
        json_object_set_new(object, "factor", json_real(r->factor));
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN)
        set_int(object, "original_max_position_embeddings", (int)r->original_positions);
    if (r->type == ROPE_LLAMA3) {
        json_object_set_new(object, "low_freq_factor", json_real(r->low_freq_factor));
        json_object_set_new(object, "high_freq_factor", json_real(r->high_freq_factor));
    }
    if (r->type == ROPE_YARN) {
        json_object_set_new(object, "beta_fast", json_real(r->beta_fast));
        json_object_set_new(object, "beta_slow", json_real(r->beta_slow));
        set_bool(object, "truncate", r->truncate);
        if (r->attention_factor > 0)
            json_object_set_new(object, "attention_factor", json_real(r->attention_factor));
    }
    return object;
}

static void set_rope(json_t *root, const struct gpt_config *c)
{
    json_t *object = rope_scaling(&c->rope);
    json_object_set_new(c->rope_parameters ? object : root, "rope_theta", json_real(c->rope.theta));
    if (c->rope_parameters || c->rope.type != ROPE_DEFAULT)
        json_object_set(root, c->rope_parameters ? "rope_parameters" : "rope_scaling", object);
    json_decref(object);
}

static void set_window(json_t *root, const struct gpt_config *c)
{
    if (c->arch->windows == GPT_NO_WINDOW)
        return;
    json_object_set_new(root, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if (c->arch->windows == GPT_WINDOW_EVERYWHERE)
        return;
    set_bool(root, "use_sliding_window", c->window > 0);
    set_int(root, "max_window_layers", c->window ? c->first_windowed : c->n_layer);
}

static void set_no_rope(json_t *root, const struct gpt_config *c)
{
    const int interval = c->no_rope_interval;
    json_t *list = json_array();
    for (int i = 0; i < c->n_layer; i++)
        json_array_append_new(list, json_integer(interval == 0 || (i + 1) % interval != 0));
    json_object_set_new(root, "no_rope_layers", list);
}

static void set_llama(json_t *root, const struct gpt_config *c)
{
    const struct heads heads = gpt_heads(c);
    set_int(root, "num_key_value_heads", heads.n_kv_head);
    set_int(root, "head_dim", heads.head_dim);
    set_rope(root, c);
    set_window(root, c);
    if (c->arch->no_rope_layers)
        set_no_rope(root, c);
    if (c->arch->attention_bias)
        set_bool(root, "attention_bias", c->parts.projection_bias);
    if (c->arch->mlp_bias)
        set_bool(root, "mlp_bias", c->parts.mlp_bias);
}

/* All of config.json but the labels. */
static json_t *config_json(const struct gpt_config *config)
{
    json_t *root = json_object();
    const struct gpt_arch *arch = config->arch;
    bool lm = config->head == GPT_HEAD_LM;
    int pad = config->pad_token_id >= 0 ? config->pad_token_id : config->eos_token_id;
    json_object_set_new(root, "architectures", json_pack("[s]", lm ? arch->lm : arch->classifier));
    json_object_set_new(root, "model_type", json_string(arch->model_type));
    set_sizes(root, config);
    set_numbers(root, config);
    if (arch->gpt2_keys)
        set_gpt2(root, config);
    else
        set_llama(root, config);
    json_object_set_new(root, "bos_token_id", json_from_token_id(config->bos_token_id));
    json_object_set_new(root, "eos_token_id", json_from_eos(config));
    json_object_set_new(root, "pad_token_id", json_from_token_id(pad));
    return root;
}

json_t *gpt_config_json(const struct gpt_config *config, const char *const *labels)
{
    json_t *root = config_json(config);
    if (config->head != GPT_HEAD_LM)
        set_labels(root, config, labels);
    return root;
}

bool gpt_config_save(const struct gpt_config *config, const char *directory,
                     const char *const *labels, struct zf_error *err)
{
    json_t *root = gpt_config_json(config, labels);
    char *path = zf_format("%s/config.json", directory);
    bool ok = json_write(path, root, CONFIG_DIGITS, err);
    free(path);
    json_decref(root);
    return ok;
}

/* As they are written. */
static bool same_value(const json_t *a, const json_t *b)
{
    const size_t flags = JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_REAL_PRECISION(CONFIG_DIGITS);
    char *x = json_dumps(a, flags), *y = json_dumps(b, flags);
    bool same = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}

char *gpt_config_difference(const struct gpt_config *config, const struct json_file *f)
{
    const char *dropout[] = {"embd_pdrop", "resid_pdrop", config->arch->keys->attn_pdrop};
    json_t *ours = config_json(config), *value;
    const char *key;
    char *found = NULL;
    for (size_t i = 0; i < sizeof dropout / sizeof *dropout; i++)
        json_object_del(ours, dropout[i]);
    json_object_foreach(ours, key, value)
    {
        if (!found && !same_value(value, json_find(f, key)))
            found = zf_strdup(key);
    }
    json_decref(ours);
    return found;
}
