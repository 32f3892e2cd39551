/* A model's configuration, read from config.json. */
#include "model/gpt_arch.h"

#include "data/alloc.h"
#include "data/json.h"
#include "data/log.h"

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
    for (int i = 0; gpt_activations[i].name; i++) {
        size_t n = strlen(expected);
        snprintf(expected + n, sizeof expected - n, "%s %s", i ? "," : "", gpt_activations[i].name);
        if (strcmp(gpt_activations[i].name, name) == 0) {
            c->activation_function = gpt_activations[i].activation;
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
    if (!name)
        return true;
    for (size_t i = 0; gpt_rope_types[i]; i++) {
        if (strcmp(gpt_rope_types[i], name) == 0) {
            rope->type = (enum rope_type)i;
            return true;
        }
    }
    return json_fail(f, path,
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
        *c = gpt_arch_defaults(arch);
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

const char *gpt_positions_key(const struct gpt_config *config)
{
    return config->arch->keys->n_positions;
}

const char *gpt_model_type(const struct gpt_config *config)
{
    return config->arch->model_type;
}

bool gpt_fits_device(const struct gpt_config *c, const struct device *d, struct zf_error *err)
{
    const struct gpt_keys *keys = c->arch->keys;
    const int head_dim = gpt_heads(c).head_dim;
    if (d->most.head_dim && head_dim > d->most.head_dim)
        return zf_fail(err,
                       "the model's heads are %d wide (%s%s / %s), but the %s device takes at most "
                       "%d",
                       head_dim, c->arch->gpt2_keys ? "" : "head_dim, or ", keys->n_embd,
                       keys->n_head, d->name, d->most.head_dim);
    const int widest = c->n_embd % 8 == 0 ? d->most.n_embd : d->most.odd_n_embd;
    return !widest || c->n_embd <= widest ||
           zf_fail(err,
                   "the model's %s is %d, but the %s device takes at most %d, or %d where it is no "
                   "multiple of 8",
                   keys->n_embd, c->n_embd, d->name, d->most.n_embd, d->most.odd_n_embd);
}
