/* A model's configuration as config.json: written, and compared with a file. */
#include "model/gpt_arch.h"

#include "data/alloc.h"
#include "data/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    for (const struct gpt_activation *a = gpt_activations; a->name; a++)
        if (a->activation == activation)
            return a->name;
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
    json_object_set_new(object, "rope_type", json_string(gpt_rope_types[r->type]));
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
