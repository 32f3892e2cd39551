/* The small JSON files that may lie beside a tokenizer's tables: what they say of its class and of
 * tokens with a role. */
#ifndef ZF_DATA_PIPELINE_SETTINGS_H
#define ZF_DATA_PIPELINE_SETTINGS_H

#include "data/json.h"

/* root is NULL where a file is absent. */
struct settings {
    char *paths[4];
    struct json_file config;  /* tokenizer_config.json */
    struct json_file special; /* special_tokens_map.json */
    struct json_file added;   /* added_tokens.json */
    struct json_file model;   /* config.json */
    const char *model_type;   /* NULL: not known */
};

/* model_type: of the model in whose folder the tokenizer is to be; NULL: as config.json there has
 * it. Fails where a file is no JSON, or asks for what is not done here. */
bool settings_load(struct settings *s, const char *directory, const char *model_type,
                   struct zf_error *err);
void settings_free(struct settings *s);

/* NULL where the file or the key is absent. */
json_t *settings_get(const struct json_file *f, const char *key);
/* Of tokenizer_config.json; an absent key leaves *value as it is. */
bool settings_get_flag(const struct settings *s, const char *key, bool *value,
                       struct zf_error *err);

/* The tokenizer's class, as a file names it; NULL where none does. */
const char *settings_class(const struct settings *s);
/* Whether the tokenizer is of this class, which has two names: one ends with "Fast". */
bool settings_class_is(const struct settings *s, const char *name);

/* The text of a special token: a string, or an object with its content; else NULL. */
const char *settings_content(const json_t *value);
/* The text of the token with this role, such as "bos_token", or else `usual`; NULL: there is
 * none. */
const char *settings_role(const struct settings *s, const char *role, const char *usual);

#endif
